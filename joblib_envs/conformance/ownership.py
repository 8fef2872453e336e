"""Whether results belong to the caller: they can be written to, and stay as the caller left them."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from typing import Any

import numpy as np

from joblib_envs.equality import Difference, first_difference

__all__ = ["Ownership"]


class Ownership:
    """Keep every result, written over, and see later whether somebody wrote to it again.

    Args:
        infos_too: Also the infos, with the objects inside them.
    """

    def __init__(self, *, infos_too: bool) -> None:
        self._infos_too = infos_too
        self._taken: list[tuple[str, Any, Any]] = []

    def take(self, number: int, results: dict[str, Any]) -> Difference | None:
        """Write over the results of an operation, and keep them.

        Args:
            number: The operation's number, for the report.
            results: What it returned, by field.

        Returns:
            The first array that can't be written to, or None.
        """
        for field, value in results.items():
            if field == "infos" and not self._infos_too:
                continue
            read_only = _first_read_only(value, field)
            if read_only is not None:
                return Difference(read_only, "an array that the caller may write to", "a read-only array")
            self.scribble(value, number)
            self._taken.append((f"{field} returned by operation {number}", value, copy.deepcopy(value)))
        return None

    def first_change(self) -> Difference | None:
        """Return the first result that is not as it was left, or None; then forget them all."""
        for name, value, left in self._taken:
            difference = first_difference(left, value, name)
            if difference is not None:
                wanted = f"{difference.wanted}, as the caller left it"
                return Difference(difference.path, wanted, f"{difference.got}, after later operations")
        self._taken.clear()
        return None

    def scribble(self, value: Any, number: int) -> None:
        """Write over every array and list in a value.

        Args:
            value: What is written over.
            number: The operation's number. Each leaves another mark, so that two results in
                one piece of memory are seen.
        """
        if isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                for element in value.ravel():
                    self.scribble(element, number)
            elif value.flags.writeable:
                value.fill(number % 2 if value.dtype == np.bool_ else 20 + number % 100)
        elif isinstance(value, MutableMapping):
            for element in value.values():
                self.scribble(element, number)
        elif isinstance(value, list | tuple):
            for element in value:
                self.scribble(element, number)
            if isinstance(value, list):
                value.append(f"written by the caller after operation {number}")


def _first_read_only(value: Any, path: str) -> str | None:
    if isinstance(value, np.ndarray):
        return None if value.flags.writeable else path
    if isinstance(value, MutableMapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = dict(enumerate(value)).items()
    else:
        return None
    found = (_first_read_only(element, f"{path}[{key!r}]") for key, element in items)
    return next((name for name in found if name is not None), None)
