"""Step many Gymnasium environments in parallel through joblib's backends.

The backend changes the speed, never the data.
"""

from joblib_envs.batch_env import BatchEnv
from joblib_envs.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendUnavailableError,
    ClosedBatchError,
    ConcurrentUseError,
    EnvInsideFactoryError,
    EpisodeOverError,
    ForkedBatchError,
    JoblibEnvsError,
    NoPendingCallError,
    PendingCallError,
    ResetNeededError,
    SpacesDifferError,
    StateCannotTravelError,
    SubEnvError,
    UnpicklableError,
    WorkerDiedError,
)
from joblib_envs.failures import Failure

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BackendUnavailableError",
    "BatchEnv",
    "ClosedBatchError",
    "ConcurrentUseError",
    "EnvInsideFactoryError",
    "EpisodeOverError",
    "Failure",
    "ForkedBatchError",
    "JoblibEnvsError",
    "NoPendingCallError",
    "PendingCallError",
    "ResetNeededError",
    "SpacesDifferError",
    "StateCannotTravelError",
    "SubEnvError",
    "UnpicklableError",
    "WorkerDiedError",
]
