"""An environment's state as a value: made, proven faithful, and used in any process.

``proven.py`` has the two functions that everybody calls, ``env_state.py`` the value between them.
``snapshot.py`` makes and uses states without a proof; ``pickling.py`` keeps a state generically,
``arrays.py`` NumPy's arrays in it, ``adapters.py`` finds what does so for native objects
(``mujoco_objects.py``, ``atari.py``, ``drawings.py``); ``cargo.py`` has what travels beside a pickle,
``container.py`` the bytes.
``journal.py`` keeps calls in place of a state. ``probe.py`` decides which of this is faithful, by
what ``trial.py`` finds out in fresh processes (``trial_runs.py``: what environments are put through).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joblib_envs.state.adapters import StateAdapter, register_state_adapter
    from joblib_envs.state.env_state import EnvState
    from joblib_envs.state.proven import UnprovenStateWarning, capture, restore

__all__ = ["EnvState", "StateAdapter", "UnprovenStateWarning", "capture", "register_state_adapter", "restore"]

_PUBLIC = {
    "EnvState": "env_state",
    "StateAdapter": "adapters",
    "UnprovenStateWarning": "proven",
    "capture": "proven",
    "register_state_adapter": "adapters",
    "restore": "proven",
}


def __getattr__(name: str) -> Any:
    # Late, since shards, which the public functions need, need other modules of this package.
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
