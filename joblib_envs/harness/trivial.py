"""Environments that do nothing, shaped like another: what is left of a step is the contender."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium
from gymnasium.vector.utils import batch_space

from joblib_envs.harness.environments import EnvironmentSource

__all__ = ["TrivialEnv", "TrivialSource"]


class TrivialEnv(gymnasium.Env[Any, Any]):
    """Returns one constant observation and never ends.

    Args:
        observation: The constant.
        observation_space: Its space.
        action_space: The space of the actions, which are ignored.
    """

    def __init__(
        self, observation: Any, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self._observation = observation

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Return the constant."""
        super().reset(seed=seed, options=options)
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """Return the constant."""
        return self._observation, 0.0, False, False, {}


class TrivialSource(EnvironmentSource):
    """Makes trivial environments."""

    model: tuple[Any, gymnasium.Space[Any], gymnasium.Space[Any]]

    @classmethod
    def like(cls, source: EnvironmentSource) -> TrivialSource:
        """Return the source of trivial environments with another's spaces and first observation."""
        env = source()
        trivial = cls("trivial")
        observation, _ = env.reset(seed=0)
        object.__setattr__(trivial, "model", (deepcopy(observation), env.observation_space, env.action_space))
        env.close()
        return trivial

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make one environment."""
        return TrivialEnv(*self.model)

    def actions(self, num_envs: int) -> Any:
        """Return one batch of actions."""
        space = batch_space(self.model[2], num_envs)
        space.seed(0)
        return space.sample()
