"""What the checker reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gymnasium.vector import AutoresetMode

__all__ = ["ConformanceError", "Fault"]

_LONGEST_OPERATION = 200


@dataclass(frozen=True)
class Fault:
    """One way in which a vector environment differs from what is asked of it.

    Attributes:
        check: What was checked: ``"program"``, ``"contract"``, ``"arguments"`` or ``"failures"``.
        environment: The name of the environment in the batch.
        autoreset_mode: The batch's autoreset mode.
        operations: The operations so far, the faulty one last, each as the code that makes it.
        env_index: The first sub-environment that differs; None where it is not one's own.
        field: What differs, such as ``"rewards"`` or ``"infos['count']"``.
        wanted: What the reference gave there, or what is asked.
        got: What the judged one gave.
    """

    check: str
    environment: str
    autoreset_mode: AutoresetMode
    operations: Sequence[str]
    env_index: int | None
    field: str
    wanted: str
    got: str

    def __str__(self) -> str:
        where = "" if self.env_index is None else f" of sub-environment {self.env_index}"
        lines = [
            f"{self.check} on {self.environment!r}, {self.autoreset_mode}: "
            f"{self.field}{where} differ{'' if self.field.endswith('s') else 's'}",
            f"  wanted: {self.wanted}",
            f"  got:    {self.got}",
        ]
        if self.operations:
            lines.append(f"  operations so far (number {len(self.operations)} shows it):")
            lines += [f"    {number}. {_short(text)}" for number, text in enumerate(self.operations, 1)]
        return "\n".join(lines)


class ConformanceError(AssertionError):
    """A vector environment doesn't keep Gymnasium's contract.

    Attributes:
        fault: What was found first.
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault

    def __reduce__(self) -> tuple[type[ConformanceError], tuple[Fault]]:
        return type(self), (self.fault,)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_OPERATION else line[: _LONGEST_OPERATION - 3] + "..."
