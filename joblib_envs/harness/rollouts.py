"""Rollouts as a contender: the policy runs where the environments are, and nothing is exchanged in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from joblib_envs.harness.contenders import BatchEnvContender, VectorLike
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.records import Cell, Metric, Sample
from joblib_envs.harness.timing import cpu_s, settle

__all__ = ["RolloutContender"]

_FIRST_STEPS = 32
_MOST_STEPS = 2048
_ROLLOUTS = 3
"""A sample has about so many: fixed costs count as they do for a user, who makes rollouts of some hundred steps."""


@dataclass(frozen=True)
class RolloutContender:
    """``BatchEnv.rollout`` on one backend, with random actions.

    It is judged by rollouts of one step with given actions, and timed by long ones.
    """

    backend: str
    ours: bool = True
    in_comparisons: bool = False

    @property
    def name(self) -> str:
        """The name in studies and files."""
        return f"rollout/{self.backend}"

    @property
    def title(self) -> str:
        """The name in tables and charts."""
        return f"BatchEnv {self.backend} rollout"

    @property
    def parallel(self) -> bool:
        """Whether the backend has workers beside the caller."""
        return BatchEnvContender(self.backend, "actors").parallel

    def build(self, make_env: EnvironmentSource, num_envs: int, n_jobs: int) -> VectorLike:
        """Build a batch whose steps are rollouts."""
        return _SteppedByRollouts(self._batch(make_env, num_envs, n_jobs))

    def open(self, cell: Cell) -> RolloutRun:
        """Build a batch that makes long rollouts."""
        return RolloutRun(self.name, self._batch(cell.environment, cell.num_envs, cell.n_jobs), cell.seed)

    def code(self, source: EnvironmentSource, num_envs: int, n_jobs: int) -> str:
        """Return the line that builds the batch, and those that make a rollout."""
        built = BatchEnvContender(self.backend, "actors").code(source, num_envs, n_jobs)
        policy = "policy = RandomPolicy(envs.single_action_space, seed=0)"
        built = built.replace("import BatchEnv\n", "import BatchEnv, RandomPolicy\n", 1)
        return "\n".join((built, policy, "envs.reset(seed=0)", "rollout = envs.rollout(policy, num_steps=128)"))

    def _batch(self, make_env: EnvironmentSource, num_envs: int, n_jobs: int) -> Any:
        from joblib_envs import BatchEnv

        return BatchEnv(make_env, num_envs, backend=self.backend, execution="actors", n_jobs=n_jobs)


class _Given:
    """A policy that gives the actions that it was given."""

    def __init__(self, actions: list[Any]) -> None:
        self._actions = actions

    def for_envs(self, indices: range) -> _Given:
        return _Given(self._actions[indices.start : indices.stop])

    def __call__(self, observations: Any) -> list[Any]:  # noqa: ARG002
        return self._actions


class _SteppedByRollouts:
    """Makes each step as a rollout of one, so that a judge sees what rollouts give."""

    def __init__(self, envs: Any) -> None:
        self._envs = envs
        self.reset, self.close = envs.reset, envs.close
        self.set_attr, self.get_attr = envs.set_attr, envs.get_attr

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Step all sub-environments."""
        each = self._envs._check_actions(actions)
        rollout = self._envs.rollout(_Given(list(each)), 1)
        flags = rollout.terminations[0], rollout.truncations[0]
        return rollout.last_observations, rollout.rewards[0], *flags, _first(rollout.infos)


def _first(infos: dict[Any, Any]) -> dict[Any, Any]:
    """Return the infos of the first step."""
    return {key: _first(value) if isinstance(value, dict) else value[0] for key, value in infos.items()}


class RolloutRun:
    """A batch in the middle of its episodes."""

    def __init__(self, name: str, envs: Any, seed: int) -> None:
        from joblib_envs import RandomPolicy

        self._name, self._envs = name, envs
        self._policy = RandomPolicy(envs.single_action_space, seed)
        envs.reset(seed=seed)
        self._state: Any = None
        self._steps = _FIRST_STEPS
        self._ended = np.zeros(envs.num_envs, np.bool_)  # sub-environments whose next step only resets

    def warm_up(self, chunk_s: float) -> None:
        """Make rollouts until the rate has settled, and find the length that suits."""
        settle(lambda: self.measure(chunk_s, 0, 0).value)

    def measure(self, min_time_s: float, number: int, position: int) -> Sample:
        """Make rollouts for a while and return the sample."""
        clock: Callable[[], float] = time.perf_counter
        rollouts = []
        cpu_before, started = cpu_s(), clock()
        while True:
            rollouts.append(self._envs.rollout(self._policy, self._steps, policy_state=self._state))
            self._state = rollouts[-1].policy_state
            wall_s = clock() - started
            if wall_s >= min_time_s:
                break
        spent_s = cpu_s() - cpu_before
        calls, resets = len(rollouts) * self._steps, 0
        for rollout in rollouts:
            ended = rollout.terminations | rollout.truncations
            resets += int(self._ended.sum() + ended[:-1].sum())
            self._ended = ended[-1]
        env_steps = calls * self._envs.num_envs - resets
        self._steps = int(min(max(calls * min_time_s / wall_s / _ROLLOUTS, 1), _MOST_STEPS))
        return Sample(
            self._name,
            Metric.THROUGHPUT,
            env_steps / wall_s,
            round=number,
            position=position,
            env_steps=env_steps,
            reset_steps=resets,
            calls=calls,
            wall_s=wall_s,
            cpu_s=spent_s,
        )

    def close(self) -> None:
        """Close the batch."""
        self._envs.close()
