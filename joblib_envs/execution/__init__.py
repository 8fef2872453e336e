"""Where shards live: the protocol, the registry of backends, and one module for each execution."""

from joblib_envs.execution.protocol import BatchPlan, ConstructionFailed, Execution
from joblib_envs.execution.registry import (
    ChosenBackend,
    Workers,
    actor_backends,
    available_backends,
    choose_backend,
    executions_of,
    install_hints,
)

__all__ = [
    "BatchPlan",
    "ChosenBackend",
    "ConstructionFailed",
    "Execution",
    "Workers",
    "actor_backends",
    "available_backends",
    "choose_backend",
    "executions_of",
    "install_hints",
]
