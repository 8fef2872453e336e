"""Check any Gymnasium vector environment against ``SyncVectorEnv``, bit for bit."""

from __future__ import annotations

import contextlib
import warnings
import zlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from gymnasium.vector import AutoresetMode
from threadpoolctl import threadpool_limits

from joblib_envs.conformance.contract import (
    check_arguments,
    check_attributes,
    check_closing,
    check_contract,
    check_numpy_seeds,
)
from joblib_envs.conformance.failure_rule import failure_checks
from joblib_envs.conformance.faults import ConformanceError, Fault
from joblib_envs.conformance.programs import random_program
from joblib_envs.conformance.session import FaultFoundError, MakeVectorEnv, Session
from joblib_envs.conformance.wanted_infos import InfoRule
from joblib_envs.conformance.workloads import Workload, standard_workloads

__all__ = ["check_vector_env", "find_faults"]

_ALL_MODES = tuple(AutoresetMode)


def check_vector_env(
    make: MakeVectorEnv,
    *,
    programs: int = 2,
    seed: int = 0,
    autoreset_modes: Iterable[AutoresetMode] = _ALL_MODES,
    environments: Collection[str | Workload] | None = None,
    num_envs: int = 3,
    strict: bool = False,
    infos: str | None = None,
    inner_max_num_threads: int | None = 1,
) -> None:
    """Check that a vector environment does what Gymnasium's ``SyncVectorEnv`` does, to the last bit.

    Random programs of resets, masked resets, steps, attribute accesses, calls and
    renderings run on it and on the reference; after each operation all results are
    compared in value, type, dtype and shape. Attributes, wrong arguments, closing and the
    ownership of returned arrays are checked too.

    Args:
        make: Called as ``make(env_fns, autoreset_mode=mode)`` with a list of factories; it
            returns the vector environment to judge, a new one each time.
        programs: Random programs for each environment and autoreset mode.
        seed: The seed of the programs; equal seeds check the same.
        autoreset_modes: The modes that are checked.
        environments: The environments to check with: names from :func:`standard_workloads`,
            or own :class:`Workload` objects; None: all standard ones.
        num_envs: Sub-environments in each batch, at least 3.
        strict: Also ask for what Gymnasium's own classes don't do: the caller's options
            keep ``reset_mask``; infos belong to the caller, ``final_obs`` is not overwritten
            by the reset; NumPy integers are seeds; a wrong number of actions moves nobody;
            a closed batch raises ``ClosedEnvironmentError``; and joblib-envs' rule for a
            sub-environment that raises (:func:`~joblib_envs.conformance.failure_rule.failure_checks`).
        infos: ``"gymnasium"``: only infos that ``SyncVectorEnv`` keeps. ``"lossless"``: also
            those that it loses, which must be object arrays of unchanged values. None:
            lossless where strict.
        inner_max_num_threads: BLAS and OpenMP threads in this process during the check, since
            linear algebra changes its last bits with it. One that sets another number in
            workers of its own needs that one here. None: as they are.

    Raises:
        ConformanceError: The first fault, with the operations that lead to it.
        ValueError: An argument is not allowed.

    Example:
        >>> from gymnasium.vector import SyncVectorEnv
        >>> check_vector_env(SyncVectorEnv, environments=["counting", "space[dict]"])
    """
    modes = tuple(autoreset_modes)
    plan = _Plan(make, programs, seed, modes, environments, num_envs, strict, infos, inner_max_num_threads)
    with contextlib.closing(plan.faults()) as faults:
        for fault in faults:
            raise ConformanceError(fault)


def find_faults(
    make: MakeVectorEnv,
    *,
    programs: int = 2,
    seed: int = 0,
    autoreset_modes: Iterable[AutoresetMode] = _ALL_MODES,
    environments: Collection[str | Workload] | None = None,
    num_envs: int = 3,
    strict: bool = False,
    infos: str | None = None,
    inner_max_num_threads: int | None = 1,
) -> list[Fault]:
    """Return everything that :func:`check_vector_env` finds, at most one fault for each check.

    The arguments are those of :func:`check_vector_env`.

    Raises:
        ValueError: An argument is not allowed.
    """
    modes = tuple(autoreset_modes)
    plan = _Plan(make, programs, seed, modes, environments, num_envs, strict, infos, inner_max_num_threads)
    return list(plan.faults())


@dataclass(frozen=True)
class _Plan:
    make: MakeVectorEnv
    programs: int
    seed: int
    autoreset_modes: tuple[AutoresetMode, ...]
    environments: Collection[str | Workload] | None
    num_envs: int
    strict: bool
    infos: str | None
    inner_max_num_threads: int | None

    def __post_init__(self) -> None:
        if self.num_envs < 3:
            raise ValueError(f"num_envs {self.num_envs} is not allowed: give 3 or more, so that a wrong order shows")

    def faults(self) -> Generator[Fault, None, None]:
        workloads = _chosen(self.environments, self.num_envs)
        with threadpool_limits(self.inner_max_num_threads), warnings.catch_warnings():
            # A workload has infos of that kind on purpose.
            warnings.filterwarnings("ignore", message="the environments' infos have both")
            for autoreset_mode in map(AutoresetMode, self.autoreset_modes):
                for check in self._checks(autoreset_mode, workloads):
                    try:
                        check()
                    except FaultFoundError as found:
                        yield found.fault

    def _checks(self, mode: AutoresetMode, workloads: list[Workload]) -> Iterator[Callable[[], None]]:
        for workload in workloads:
            if self._asks_for(workload, mode):
                yield partial(self._run_programs, workload, mode)
        contract = [check_contract, *([check_numpy_seeds] if self.strict else []), check_closing]
        yield partial(self._run_on_counting, "contract", mode, contract)
        yield partial(self._run_on_counting, "arguments", mode, [check_arguments])
        if self.strict:
            yield from failure_checks(self.make, mode, self.num_envs)

    @property
    def _rule(self) -> InfoRule:
        return InfoRule(self.infos or (InfoRule.LOSSLESS if self.strict else InfoRule.GYMNASIUM))

    def _asks_for(self, workload: Workload, mode: AutoresetMode) -> bool:
        if workload.lossy_infos and self._rule is InfoRule.GYMNASIUM:
            return False
        return self.strict or mode in workload.plain_modes

    def _begin(self, workload: Workload, mode: AutoresetMode, check: str) -> Session:
        return Session(
            self.make,
            workload,
            mode,
            strict=self.strict,
            infos=self._rule,
            inner_max_num_threads=self.inner_max_num_threads,
            check=check,
        )

    def _run_programs(self, workload: Workload, mode: AutoresetMode) -> None:
        rng = np.random.default_rng([self.seed, zlib.crc32(f"{workload.name} {mode}".encode())])
        with self._begin(workload, mode, "program") as session:
            check_attributes(session)
            for _ in range(self.programs):
                session.run(random_program(rng, workload, session.reference.single_action_space))

    def _run_on_counting(self, name: str, mode: AutoresetMode, checks: Sequence[Callable[[Session], None]]) -> None:
        with self._begin(standard_workloads(self.num_envs)[0], mode, name) as session:
            for check in checks:
                check(session)


def _chosen(environments: Collection[str | Workload] | None, num_envs: int) -> list[Workload]:
    standard = {workload.name: workload for workload in standard_workloads(num_envs)}
    if environments is None:
        return list(standard.values())
    unknown = [name for name in environments if isinstance(name, str) and name not in standard]
    if unknown:
        raise ValueError(f"environments {unknown} are unknown: choose from {sorted(standard)}")
    return [standard[chosen] if isinstance(chosen, str) else chosen for chosen in environments]
