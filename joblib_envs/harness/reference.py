"""What Gymnasium's SyncVectorEnv answers to a program: that which is wanted of a contender."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from joblib_envs.conformance.reference import Reference
from joblib_envs.conformance.wanted_infos import InfoRule
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.program import Operation
from joblib_envs.harness.records import Send

__all__ = ["CONSTRUCTOR", "Answer", "EnvironmentFault", "make_reference", "record_answers"]

CONSTRUCTOR = "its constructor"
"""Where an environment raised that couldn't even be made."""


class EnvironmentFault(Exception):  # noqa: N818 - a finding about the environment, not an error of ours
    """The environment itself raised in the reference; ``__cause__`` is what."""

    def __init__(self, at: str) -> None:
        super().__init__(at)
        self.at = at


@dataclass(frozen=True)
class Answer:
    """What the reference gave to one operation.

    Attributes:
        operation: The call.
        fields: What it returned, without the infos.
        records: Each sub-environment's index and info; None where the call has no infos.
        num_envs: Number of sub-environments.
    """

    operation: Operation
    fields: dict[str, Any]
    records: list[tuple[int, dict[str, Any]]] | None
    num_envs: int

    def wanted(self, got: dict[str, Any], *, lossless: bool) -> dict[str, Any]:
        """Return what a contender should have given.

        Args:
            got: What it gave; infos that are a list are compared with a list.
            lossless: Want values of infos that Gymnasium changes, in an object array.
                Otherwise Gymnasium's own batch is right too, wherever it can make one.
        """
        if self.records is None:
            return self.fields
        if isinstance(got["infos"], list):
            each: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
            for index, info in self.records:
                each[index] = each[index] | info  # an end in the same step gives two
            return self.fields | {"infos": each}
        if not lossless:
            try:
                return self.fields | {"infos": InfoRule.GYMNASIUM.batch(self.records, self.num_envs)}
            except Exception:  # Gymnasium can't batch them, so only the other rule is left
                pass
        return self.fields | {"infos": InfoRule.LOSSLESS.batch(self.records, self.num_envs)}


def make_reference(
    source: EnvironmentSource, num_envs: int, autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP
) -> Reference:
    """Make the reference.

    Raises:
        EnvironmentFault: The environment's constructor raised.
    """
    try:
        return Reference([source] * num_envs, autoreset_mode, InfoRule.LOSSLESS)
    except Exception as error:
        raise EnvironmentFault(CONSTRUCTOR) from error


def record_answers(
    reference: Reference, program: Iterable[Operation], limit_s: float, limit_bytes: int, send: Send
) -> list[Answer]:
    """Run a program on the reference, as far as time and memory allow.

    Raises:
        EnvironmentFault: The environment raised.
    """
    answers: list[Answer] = []
    started, held = time.monotonic(), 0
    for operation in program:
        send("at", f"the reference's {operation.label}")
        try:
            fields = operation.apply(reference)
        except Exception as error:
            raise EnvironmentFault(operation.label) from error
        records = list(reference.records) if fields.pop("infos", None) is not None else None
        answers.append(Answer(operation, fields, records, reference.num_envs))
        held += _nbytes(fields.get("observations"))
        if time.monotonic() - started > limit_s or held > limit_bytes:
            break
    return answers


def _nbytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_nbytes, value.values()))
    return sum(map(_nbytes, value)) if isinstance(value, tuple | list) else 64
