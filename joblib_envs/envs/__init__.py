"""Small environments whose right answers can be written down.

The tests and the conformance checker use them; they are registered under
``joblib_envs/`` (``joblib_envs/Counting-v0``) for everyone else.
"""

from joblib_envs.envs.awkward_infos import InfoEnv, InfoKind
from joblib_envs.envs.counting import BufferReusingEnv, CountingEnv, VariableLengthEnv
from joblib_envs.envs.echoing import EchoEnv, SpaceEnv
from joblib_envs.envs.failing import (
    FailingEnv,
    FailureKind,
    FailurePlace,
    TwoArgumentError,
    UnpicklableFailureError,
)
from joblib_envs.envs.registration import register
from joblib_envs.envs.space_kinds import EvenSpace, SpaceKind, make_space
from joblib_envs.envs.synthetic import SyntheticEnv, Work
from joblib_envs.envs.travelling import EzPickledCountingEnv, HandleEnv, UnpicklableEnv
from joblib_envs.envs.working import BusyEnv, GlobalRandomEnv, LinearAlgebraEnv, SleepingEnv

__all__ = [
    "BufferReusingEnv",
    "BusyEnv",
    "CountingEnv",
    "EchoEnv",
    "EvenSpace",
    "EzPickledCountingEnv",
    "FailingEnv",
    "FailureKind",
    "FailurePlace",
    "GlobalRandomEnv",
    "HandleEnv",
    "InfoEnv",
    "InfoKind",
    "LinearAlgebraEnv",
    "SleepingEnv",
    "SpaceEnv",
    "SpaceKind",
    "SyntheticEnv",
    "TwoArgumentError",
    "UnpicklableEnv",
    "UnpicklableFailureError",
    "VariableLengthEnv",
    "Work",
    "make_space",
    "register",
]
