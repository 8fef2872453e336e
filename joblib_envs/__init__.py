"""Step many Gymnasium environments in parallel through joblib's backends.

The backend changes the speed, never the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joblib_envs.batch_env import BatchEnv
from joblib_envs.conformance import ConformanceError, check_vector_env
from joblib_envs.envs.registration import register as _register_envs
from joblib_envs.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendUnavailableError,
    BatchSizeDependentWarning,
    CallTimeoutError,
    ClosedBatchError,
    ConcurrentUseError,
    EnvInsideFactoryError,
    EpisodeOverError,
    ForkedBatchError,
    JoblibEnvsError,
    NoPendingCallError,
    PendingCallError,
    PolicyError,
    ResetNeededError,
    SpacesDifferError,
    StateCannotTravelError,
    StateFormatError,
    StateVersionError,
    SubEnvError,
    UnpicklableError,
    WorkerDiedError,
)
from joblib_envs.failures import Failure
from joblib_envs.policies import Policy, RandomPolicy, RecurrentPolicy
from joblib_envs.rollouts import Rollout
from joblib_envs.state import EnvState, UnprovenStateWarning, capture, register_state_adapter, restore

if TYPE_CHECKING:
    from joblib_envs.choosing.decision import Choice
    from joblib_envs.inspection import Inspection, inspect_env

_register_envs()  # ids such as "joblib_envs/Counting-v0"

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BackendUnavailableError",
    "BatchEnv",
    "BatchSizeDependentWarning",
    "CallTimeoutError",
    "Choice",
    "ClosedBatchError",
    "ConcurrentUseError",
    "ConformanceError",
    "EnvInsideFactoryError",
    "EnvState",
    "EpisodeOverError",
    "Failure",
    "ForkedBatchError",
    "Inspection",
    "JoblibEnvsError",
    "NoPendingCallError",
    "PendingCallError",
    "Policy",
    "PolicyError",
    "RandomPolicy",
    "RecurrentPolicy",
    "ResetNeededError",
    "Rollout",
    "SpacesDifferError",
    "StateCannotTravelError",
    "StateFormatError",
    "StateVersionError",
    "SubEnvError",
    "UnpicklableError",
    "UnprovenStateWarning",
    "WorkerDiedError",
    "capture",
    "check_vector_env",
    "inspect_env",
    "register_state_adapter",
    "restore",
]


def __getattr__(name: str) -> Any:
    # Late: worker processes, which import this module too, never inspect nor choose.
    if name == "Choice":
        from joblib_envs.choosing.decision import Choice

        return Choice
    if name in ("Inspection", "inspect_env"):
        from joblib_envs import inspection

        return getattr(inspection, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
