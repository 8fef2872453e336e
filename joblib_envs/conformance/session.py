"""The interpreter: one program, two vector environments, compared after each operation."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate

from joblib_envs.conformance.faults import Fault
from joblib_envs.conformance.ownership import Ownership
from joblib_envs.conformance.programs import MaskedReset, Operation, Reset, Step
from joblib_envs.conformance.reference import Reference
from joblib_envs.conformance.wanted_infos import InfoRule
from joblib_envs.conformance.workloads import EnvFn, Workload
from joblib_envs.equality import Difference, first_difference

__all__ = ["FaultFoundError", "MakeVectorEnv", "Session"]


class MakeVectorEnv(Protocol):
    """Builds the vector environment to judge."""

    def __call__(self, env_fns: Sequence[EnvFn], *, autoreset_mode: AutoresetMode) -> Any:
        """Return a new vector environment of these sub-environments.

        Args:
            env_fns: One factory for each sub-environment; functions that pickle with cloudpickle.
            autoreset_mode: The autoreset mode it must have.
        """


class FaultFoundError(Exception):
    """Ends a check at its first fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Session:
    """A vector environment to judge and the reference, side by side.

    Args:
        make: Builds the one to judge.
        workload: What is in the batch.
        autoreset_mode: The batch's autoreset mode.
        strict: Also ask that infos are the caller's own, and that ``reset_mask`` stays in
            the caller's options.
        infos: How the infos are to be put together.
        inner_max_num_threads: BLAS and OpenMP threads of the reference's environments; None:
            as they are.
        check: The name of the check in a report.

    Raises:
        FaultFoundError: It can't be built.
    """

    def __init__(
        self,
        make: MakeVectorEnv,
        workload: Workload,
        autoreset_mode: AutoresetMode,
        *,
        strict: bool = False,
        infos: InfoRule = InfoRule.GYMNASIUM,
        inner_max_num_threads: int | None = None,
        check: str = "program",
    ) -> None:
        self.workload = workload
        self.autoreset_mode = autoreset_mode
        self.strict = strict
        self._check = check
        self._history: list[str] = []
        self._ownership = Ownership(infos_too=strict)
        self._seeded = False
        self.reference = Reference(list(workload.env_fns), autoreset_mode, infos, inner_max_num_threads)
        try:
            self.judged = make(list(workload.env_fns), autoreset_mode=autoreset_mode)
        except Exception as error:
            self.reference.close()
            self.fail("construction", "no exception", repr(error), error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.reference.close()
        # A broken one may fail to close as well; the first fault is what is reported.
        try:
            self.judged.close()
        except Exception as close_error:
            if error is None:
                self.fail("close()", "no exception", repr(close_error), close_error)

    def run(self, program: Iterable[Operation]) -> None:
        """Run a program on both.

        Where autoreset is disabled, sub-environments that have ended are reset by a mask
        before the next step.

        Raises:
            FaultFoundError: The two differ; the operations of earlier programs are listed too.
            ValueError: The first reset of the first program doesn't seed all.
        """
        for operation in program:
            ended = self.reference.ended
            disabled = self.autoreset_mode is AutoresetMode.DISABLED
            if disabled and isinstance(operation, Step) and ended.any():
                self._run_one(MaskedReset(tuple(ended.tolist())))
            self._run_one(operation)
        difference = self._ownership.first_change()
        if difference is not None:
            self.fail(difference.path, difference.wanted, difference.got)

    def compare(self, field: str, wanted: Any, got: Any) -> None:
        """Compare one result bit for bit.

        Raises:
            FaultFoundError: They differ.
        """
        difference = first_difference(wanted, got, field)
        if difference is not None:
            env_index = self._env_index(field, wanted, got, difference)
            self.fail(difference.path, difference.wanted, difference.got, env_index=env_index)

    def fail(
        self,
        field: str,
        wanted: str,
        got: str,
        cause: BaseException | None = None,
        *,
        env_index: int | None = None,
    ) -> NoReturn:
        """Report a fault.

        Raises:
            FaultFoundError: Always.
        """
        operations = tuple(self._history)
        raise FaultFoundError(
            Fault(
                self._check,
                self.workload.name,
                self.autoreset_mode,
                operations,
                env_index,
                field,
                wanted,
                got,
            )
        ) from cause

    def forget(self) -> None:
        """Leave the operations so far out of later faults, where programs are independent."""
        self._history.clear()

    def note(self, text: str) -> None:
        """Add a line to the operations that a fault lists."""
        self._history.append(text)

    def _run_one(self, operation: Operation) -> None:
        self._require_seeds(operation)
        self.note(repr(operation))
        wanted = operation.perform(self.reference, operation.arguments())
        arguments = operation.arguments()
        try:
            got = operation.perform(self.judged, arguments)
        except Exception as error:
            self.fail("exception", "none", repr(error), error)
        self._compare_arguments(operation.arguments(), arguments)
        for field in wanted:
            self.compare(field, wanted[field], got[field])
        number = len(self._history)
        if isinstance(operation, Reset | MaskedReset | Step):
            difference = self._ownership.take(number, got)
            if difference is not None:
                self.fail(difference.path, difference.wanted, difference.got)
            # The caller may use its arrays again: what is left in them reaches nobody.
            self._ownership.scribble(arguments, number)

    def _require_seeds(self, operation: Operation) -> None:
        if isinstance(operation, Reset) and operation.fully_seeded:
            self._seeded = True
        if not self._seeded and isinstance(operation, Reset | MaskedReset | Step):
            raise ValueError(
                f"the program begins with {operation!r}, which doesn't seed every sub-environment, "
                "so that no two runs are equal: begin with Reset(seed=0)"
            )

    def _compare_arguments(self, given: dict[str, Any], after: dict[str, Any]) -> None:
        if not self.strict and given.get("options"):
            # Gymnasium's own vector environments take the mask out of the caller's dict.
            given["options"].pop("reset_mask", None)
            after["options"].pop("reset_mask", None)
        difference = first_difference(given, after, "argument")
        if difference is not None:
            self.fail(f"the caller's {difference.path}", difference.wanted, difference.got)

    def _env_index(self, field: str, wanted: Any, got: Any, difference: Difference) -> int | None:
        """Find whose row differs first; None where the whole batch does (its dtype, say)."""
        if field == "observations":
            space = self.reference.observation_space
            rows = zip(_rows(space, wanted), _rows(space, got), strict=False)
            differing = (index for index, (a, b) in enumerate(rows) if first_difference(a, b) is not None)
            return next(differing, None)
        subscript = re.search(r"\[(\d+)", difference.path)
        return int(subscript[1]) if subscript and isinstance(wanted, np.ndarray | tuple | Mapping) else None


def _rows(space: Any, batch: Any) -> list[Any]:
    try:
        return copy.deepcopy(list(iterate(space, batch)))
    except Exception:
        return []
