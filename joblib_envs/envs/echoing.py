"""Environments that give back what they are given, or a sample of any space."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space

from joblib_envs.envs.space_kinds import SpaceKind, make_space

__all__ = ["EchoEnv", "SpaceEnv", "describe_type"]


class EchoEnv(gymnasium.Env[Any, Any]):
    """Give the action back, in the observation and in the info.

    Spaces:
        action and observation: the space of the chosen kind (:class:`SpaceKind`).
    Observation: a fixed sample of the space after a reset, then the action.
    Reward: the steps since the reset, a float.
    Episode end: truncated when ``episode_length`` steps were made.
    Info after a step: ``action`` (a copy of it) and ``type`` (its Python type, dtype and
    shape, in words). Info after a reset: ``seed`` and ``options``, each as its ``repr``.

    Args:
        kind: The kind of the action space.
        episode_length: Steps in an episode, at least 1.

    Attributes:
        last_action: A copy of the last action, None before it.

    Example:
        >>> env = EchoEnv("discrete")
        >>> observation, info = env.reset(seed=3, options={"level": 1})
        >>> info
        {'seed': '3', 'options': "{'level': 1}"}
        >>> env.step(np.int64(4))[4]["type"]
        'int64'
    """

    def __init__(self, kind: str = SpaceKind.DISCRETE, episode_length: int = 4) -> None:
        self.kind = SpaceKind(kind)
        self.action_space = make_space(kind)
        self.observation_space = make_space(kind)
        self.episode_length = episode_length
        self.last_action: Any = None
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode and show the arguments."""
        super().reset(seed=seed, options=options)
        self._steps = 0
        self.last_action = None
        source = make_space(self.kind)
        source.seed(0)
        return source.sample(), {"seed": repr(seed), "options": repr(options)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the action."""
        self._steps += 1
        self.last_action = copy.deepcopy(action)
        info = {"action": copy.deepcopy(action), "type": describe_type(action)}
        over = self._steps >= self.episode_length
        return copy.deepcopy(action), float(self._steps), False, over, info


class SpaceEnv(gymnasium.Env[Any, int]):
    """Observe samples of a space of any kind.

    Spaces:
        observation: the space of the chosen kind (:class:`SpaceKind`).
        action: ``Discrete(3)``.
    Observation: a sample from a generator that is seeded from the environment's own at each reset.
    Reward: a float in [0, 1) from the environment's generator, plus the action.
    Episode end: terminated when ``episode_length`` steps were made.
    Info: ``steps`` (int).

    Args:
        kind: The kind of the observation space.
        episode_length: Steps in an episode, at least 1.
    """

    def __init__(self, kind: str = SpaceKind.BOX_FLOAT32, episode_length: int = 4) -> None:
        self.observation_space = make_space(kind)
        self.action_space = gymnasium.spaces.Discrete(3)  # type: ignore[assignment]
        self.episode_length = episode_length
        self._source: Space[Any] = make_space(kind)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Seed the source of observations anew."""
        super().reset(seed=seed, options=options)
        self._source.seed(int(self.np_random.integers(2**31)))
        self._steps = 0
        return self._source.sample(), {"steps": 0}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Draw the next observation."""
        self._steps += 1
        reward = float(self.np_random.random()) + float(action)
        over = self._steps >= self.episode_length
        return self._source.sample(), reward, over, False, {"steps": self._steps}


def describe_type(value: Any) -> str:
    """Describe a value's Python type, with the dtype and shape of every array inside it.

    Example:
        >>> describe_type({"speed": np.zeros(2, dtype=np.float32), "gear": 1})
        'dict(speed: ndarray float32 (2,), gear: int)'
    """
    name = type(value).__name__
    if isinstance(value, np.ndarray):
        return f"{name} {value.dtype} {value.shape}"
    if isinstance(value, dict):
        return f"{name}({', '.join(f'{key}: {describe_type(item)}' for key, item in value.items())})"
    if isinstance(value, tuple | list):
        return f"{name}({', '.join(map(describe_type, value))})"
    return name
