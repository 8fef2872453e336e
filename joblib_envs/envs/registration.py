"""Gymnasium ids of the project's environments; it imports none of them."""

from __future__ import annotations

import gymnasium

__all__ = ["register"]

_NAMESPACE = "joblib_envs"

# Entry points are strings, so that an environment's module is loaded when it is made.
_ENTRY_POINTS = {
    "Counting-v0": "counting:CountingEnv",
    "BufferReusing-v0": "counting:BufferReusingEnv",
    "VariableLength-v0": "counting:VariableLengthEnv",
    "Echo-v0": "echoing:EchoEnv",
    "Space-v0": "echoing:SpaceEnv",
    "Info-v0": "awkward_infos:InfoEnv",
    "Failing-v0": "failing:FailingEnv",
    "EzPickledCounting-v0": "travelling:EzPickledCountingEnv",
    "Unpicklable-v0": "travelling:UnpicklableEnv",
    "Handle-v0": "travelling:HandleEnv",
    "LinearAlgebra-v0": "working:LinearAlgebraEnv",
    "GlobalRandom-v0": "working:GlobalRandomEnv",
    "Sleeping-v0": "working:SleepingEnv",
    "Busy-v0": "working:BusyEnv",
    "Synthetic-v0": "synthetic:SyntheticEnv",
}
_NOT_DETERMINISTIC = frozenset({"GlobalRandom-v0"})


def register() -> None:
    """Register ``joblib_envs/Counting-v0`` and the others with Gymnasium.

    A second call does nothing, and an id that is taken is left as it is.
    """
    for name, entry_point in _ENTRY_POINTS.items():
        env_id = f"{_NAMESPACE}/{name}"
        if env_id not in gymnasium.registry:
            gymnasium.register(
                env_id,
                entry_point=f"joblib_envs.envs.{entry_point}",
                nondeterministic=name in _NOT_DETERMINISTIC,
            )
