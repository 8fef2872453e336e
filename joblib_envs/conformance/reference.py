"""The reference: Gymnasium's own ``SyncVectorEnv``, kept from two of its faults."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from threadpoolctl import ThreadpoolController

from joblib_envs.conformance.wanted_infos import InfoRule
from joblib_envs.conformance.workloads import EnvFn

__all__ = ["Reference"]


class Reference(SyncVectorEnv[Any, Any]):
    """Step the environments as ``SyncVectorEnv`` does and put infos together by a rule.

    What an environment returns is copied at once, so that one that reuses its buffers
    can't change it later. All else, order of calls, seeds and autoreset, is Gymnasium's code.

    Args:
        env_fns: One factory for each sub-environment.
        autoreset_mode: As for ``SyncVectorEnv``.
        infos: How the infos are put together.
        max_num_threads: BLAS and OpenMP threads while environments run; None: as they are.

    Attributes:
        records: Sub-environment and info, of the last reset or step, in order.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        autoreset_mode: AutoresetMode,
        infos: InfoRule,
        max_num_threads: int | None = None,
    ) -> None:
        super().__init__(env_fns, autoreset_mode=autoreset_mode)
        self.envs = [_Snapshots(env) for env in self.envs]
        self._rule = infos
        self._max_num_threads = max_num_threads
        self._threads = ThreadpoolController()
        self.records: list[tuple[int, dict[str, Any]]] = []

    @property
    def ended(self) -> npt.NDArray[np.bool_]:
        """Which sub-environments have ended and were not reset since."""
        return self._autoreset_envs

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset as ``SyncVectorEnv`` does."""
        self.records.clear()
        with self._threads.limit(limits=self._max_num_threads):
            observations, _ = super().reset(**kwargs)
        return observations, self._rule.batch(self.records, self.num_envs)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step as ``SyncVectorEnv`` does."""
        self.records.clear()
        with self._threads.limit(limits=self._max_num_threads):
            *transition, _ = super().step(actions)
        observations, rewards, terminations, truncations = transition
        infos = self._rule.batch(self.records, self.num_envs)
        return observations, rewards, terminations, truncations, infos

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        self.records.append((env_num, env_info))
        return vector_infos


class _Snapshots(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Copy whatever the environment returns."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return copy.deepcopy(super().reset(**kwargs))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return copy.deepcopy(super().step(action))
