"""A public checker for any Gymnasium vector environment.

The reference is Gymnasium's own ``SyncVectorEnv``, stepped beside the one to judge:

    >>> from gymnasium.vector import SyncVectorEnv
    >>> check_vector_env(SyncVectorEnv, programs=1, environments=["counting"])
"""

from joblib_envs.conformance.checker import check_vector_env, find_faults
from joblib_envs.conformance.faults import ConformanceError, Fault
from joblib_envs.conformance.programs import (
    Call,
    GetAttr,
    MaskedReset,
    Operation,
    Render,
    Reset,
    SetAttr,
    Step,
    batch_actions,
    random_program,
)
from joblib_envs.conformance.session import FaultFoundError, MakeVectorEnv, Session
from joblib_envs.conformance.wanted_infos import InfoRule, gymnasium_infos, lossless_infos
from joblib_envs.conformance.workloads import Workload, standard_workloads

__all__ = [
    "Call",
    "ConformanceError",
    "Fault",
    "FaultFoundError",
    "GetAttr",
    "InfoRule",
    "MakeVectorEnv",
    "MaskedReset",
    "Operation",
    "Render",
    "Reset",
    "Session",
    "SetAttr",
    "Step",
    "Workload",
    "batch_actions",
    "check_vector_env",
    "find_faults",
    "gymnasium_infos",
    "lossless_infos",
    "random_program",
    "standard_workloads",
]
