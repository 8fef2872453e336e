"""Step many Gymnasium environments in parallel through joblib's backends.

The backend changes the speed, never the data.
"""

from joblib_envs.batch_env import BatchEnv
from joblib_envs.conformance import ConformanceError, check_vector_env
from joblib_envs.envs.registration import register as _register_envs
from joblib_envs.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendUnavailableError,
    CallTimeoutError,
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
    StateFormatError,
    StateVersionError,
    SubEnvError,
    UnpicklableError,
    WorkerDiedError,
)
from joblib_envs.failures import Failure
from joblib_envs.state import EnvState, UnprovenStateWarning, capture, register_state_adapter, restore

_register_envs()  # ids such as "joblib_envs/Counting-v0"

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BackendUnavailableError",
    "BatchEnv",
    "CallTimeoutError",
    "ClosedBatchError",
    "ConcurrentUseError",
    "ConformanceError",
    "EnvInsideFactoryError",
    "EnvState",
    "EpisodeOverError",
    "Failure",
    "ForkedBatchError",
    "JoblibEnvsError",
    "NoPendingCallError",
    "PendingCallError",
    "ResetNeededError",
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
    "register_state_adapter",
    "restore",
]
