"""The state of an environment, made and used in a way that was chosen before."""

from __future__ import annotations

from typing import Any

import gymnasium

from joblib_envs.errors import StateCannotTravelError, StateFormatError
from joblib_envs.state.env_state import EnvState, spec_json_of, versions_of
from joblib_envs.state.pickling import CaptureOptions, captured, culprit, restored

__all__ = ["captured_state", "restored_env"]


def captured_state(
    env: gymnasium.Env[Any, Any], options: CaptureOptions, *, is_proven: bool, reset_pending: bool = False
) -> EnvState:
    """Make the state of an environment in a way that was chosen before.

    Raises:
        StateCannotTravelError: Something in it can't be pickled.
    """
    try:
        payload, departure = captured(env, options)
    except Exception as error:
        raise StateCannotTravelError(
            f"the state can't be captured, since something in it can't be pickled ({type(error).__name__}: "
            f"{error}{culprit(env, options)}): register a state adapter for it, or use "
            f"BatchEnv(..., state_method='replay'), which keeps all calls in its place"
        ) from error
    return EnvState(
        "replay" if departure.replays else "capture",
        payload,
        departure.shared,
        reset_pending=reset_pending,
        spec_json=spec_json_of(env),
        versions=versions_of(sorted(departure.packages)),
        is_proven=is_proven,
    )


def restored_env(state: EnvState) -> gymnasium.Env[Any, Any]:
    """Return the environment of a state.

    Raises:
        StateFormatError: It can't be unpickled here.
    """
    try:
        env: gymnasium.Env[Any, Any] = restored(state.payload, state.shared)
    except StateCannotTravelError:
        raise
    except Exception as error:
        raise StateFormatError(
            f"the state can't be unpickled here ({type(error).__name__}: {error}): the packages and modules that its "
            f"environment comes from must be importable, in the versions that made it ({dict(state.versions)})"
        ) from error
    return env
