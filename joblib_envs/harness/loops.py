"""The loops people write themselves, wrapped so that a judge can drive them.

Each keeps a list of environments and does what the report this project grew from did
with it. ``NaiveLoop`` and ``HalfLoop`` are wrong on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from joblib import Parallel, delayed

__all__ = ["HalfLoop", "NaiveLoop", "PlainLoop", "RepairedLoop"]

Env = gymnasium.Env[Any, Any]
Transition = tuple[Any, float, bool, bool, dict[str, Any]]


class PlainLoop:
    """A ``for`` loop over a list of environments: the baseline of all timing.

    It batches observations, rewards and flags as any training loop does, resets an
    ended environment at the next step, and leaves the infos as a list.

    Args:
        make_env: Makes one environment.
        num_envs: Number of environments.
        n_jobs: Workers of the loops that have any; they have two at least.
    """

    def __init__(self, make_env: Callable[[], Env], num_envs: int, n_jobs: int) -> None:
        self.envs: list[Env] = [make_env() for _ in range(num_envs)]
        # joblib runs a single worker in the caller's process, where these loops have no fault.
        self.n_jobs = max(2, n_jobs)
        self.single_observation_space = self.envs[0].observation_space
        self.action_space = batch_space(self.envs[0].action_space, num_envs)
        self._observations: list[Any] = [None] * num_envs
        self._ended = [False] * num_envs

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, list[dict[str, Any]]]:
        """Reset all environments, or those in ``options["reset_mask"]``."""
        count = len(self.envs)
        seeds = [seed + i for i in range(count)] if isinstance(seed, int) else list(seed or [None] * count)
        mask = (options or {}).get("reset_mask", np.ones(count, dtype=bool))
        chosen = [index for index in range(count) if mask[index]]
        infos: list[dict[str, Any]] = [{} for _ in range(count)]
        results = self._reset_each(chosen, [seeds[index] for index in chosen])
        for index, (observation, info) in zip(chosen, results, strict=True):
            self._observations[index], infos[index] = observation, info
            self._ended[index] = False
        return self._batch(), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, list[dict[str, Any]]]:
        """Step the running environments and reset the ended ones."""
        count = len(self.envs)
        ended = [index for index in range(count) if self._ended[index]]
        running = [index for index in range(count) if not self._ended[index]]
        all_actions = list(iterate(self.action_space, actions))
        rewards = np.zeros(count)
        infos: list[dict[str, Any]] = [{} for _ in range(count)]
        terminations, truncations = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        results = self._step_each(running, [all_actions[index] for index in running])
        for index, result in zip(running, results, strict=True):
            (
                self._observations[index],
                rewards[index],
                terminations[index],
                truncations[index],
                infos[index],
            ) = result
            self._ended[index] = bool(terminations[index] or truncations[index])
        for index, reset in zip(ended, self._reset_each(ended, [None] * len(ended)), strict=True):
            self._observations[index], infos[index] = reset
            self._ended[index] = False
        return self._batch(), rewards, terminations, truncations, infos

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of each environment."""
        for env, value in zip(self.envs, values, strict=True):
            env.set_wrapper_attr(name, value)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment."""
        return tuple(env.get_wrapper_attr(name) for env in self.envs)

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def _reset_each(self, indices: list[int], seeds: list[int | None]) -> list[tuple[Any, dict[str, Any]]]:
        return [self.envs[index].reset(seed=seed) for index, seed in zip(indices, seeds, strict=True)]

    def _step_each(self, indices: list[int], actions: list[Any]) -> list[Transition]:
        return [self.envs[index].step(action) for index, action in zip(indices, actions, strict=True)]  # type: ignore[misc]

    def _batch(self) -> Any:
        space = self.single_observation_space
        empty: Any = create_empty_array(space, len(self.envs), fn=np.zeros)
        return concatenate(space, self._observations, empty)


class HalfLoop(PlainLoop):
    """Resets in plain Python, steps through joblib's processes, keeps nothing of what they did.

    It raises nothing. Each step starts from the same reset state, so the observation
    never moves on.
    """

    def _step_each(self, indices: list[int], actions: list[Any]) -> list[Transition]:
        parallel = Parallel(n_jobs=self.n_jobs, backend="loky")
        calls = (delayed(self.envs[index].step)(action) for index, action in zip(indices, actions, strict=True))
        results: list[Transition] = list(parallel(calls))
        return results


class NaiveLoop(HalfLoop):
    """The loop of the original report: reset and step through joblib's processes."""

    def _reset_each(self, indices: list[int], seeds: list[int | None]) -> list[tuple[Any, dict[str, Any]]]:
        parallel = Parallel(n_jobs=self.n_jobs, backend="loky")
        calls = (delayed(self.envs[index].reset)(seed=seed) for index, seed in zip(indices, seeds, strict=True))
        results: list[tuple[Any, dict[str, Any]]] = list(parallel(calls))
        return results


class RepairedLoop(PlainLoop):
    """The obvious repair: the environment travels back with the result."""

    def _reset_each(self, indices: list[int], seeds: list[int | None]) -> list[tuple[Any, dict[str, Any]]]:
        results: list[tuple[Any, dict[str, Any]]] = self._travel(_reset_and_return, indices, seeds)
        return results

    def _step_each(self, indices: list[int], actions: list[Any]) -> list[Transition]:
        results: list[Transition] = self._travel(_step_and_return, indices, actions)
        return results

    def _travel(self, function: Callable[[Env, Any], tuple[Env, Any]], indices: list[int], values: list[Any]) -> Any:
        parallel = Parallel(n_jobs=self.n_jobs, backend="loky")
        pairs = parallel(
            delayed(function)(self.envs[index], value) for index, value in zip(indices, values, strict=True)
        )
        for index, (env, _) in zip(indices, pairs, strict=True):
            self.envs[index] = env
        return [result for _, result in pairs]


def _reset_and_return(env: Env, seed: int | None) -> tuple[Env, Any]:
    return env, env.reset(seed=seed)


def _step_and_return(env: Env, action: Any) -> tuple[Env, Any]:
    return env, env.step(action)
