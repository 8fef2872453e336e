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
        observation_space: The space of the constant.
        action_space: The space of the actions, which are ignored.
    """

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        space = deepcopy(observation_space)
        space.seed(0)
        self._observation = space.sample()

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

    spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]

    @classmethod
    def like(cls, source: EnvironmentSource) -> TrivialSource:
        """Return the source of trivial environments with another's spaces."""
        env = source()
        trivial = cls("trivial")
        object.__setattr__(trivial, "spaces", (env.observation_space, env.action_space))
        env.close()
        return trivial

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make one environment."""
        return TrivialEnv(*self.spaces)

    def actions(self, num_envs: int) -> Any:
        """Return one batch of actions."""
        space = batch_space(self.spaces[1], num_envs)
        space.seed(0)
        return space.sample()
