"""What an environment is like to run in parallel: ``inspect_env``, and the command ``joblib-envs inspect``.

``findings.py`` says what is found out, ``inspector.py`` sends out for it. Each finding is made in
a fresh process (``errands.py``) by a module of its own: ``first_look.py`` (is it sound), with
``costs.py`` and ``reproducibility.py``, ``travelling.py`` (our captured states), ``copying.py`` with
``fields.py`` (what other copies lose), ``threads.py``, ``exchange.py`` (what a batch costs here).
``advice.py`` concludes, ``report.py`` has the words. ``driving.py`` steps environments for all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joblib_envs.inspection.findings import Inspection
    from joblib_envs.inspection.inspector import inspect_env

__all__ = ["Inspection", "inspect_env"]

_PUBLIC = {"Inspection": "findings", "inspect_env": "inspector"}


def __getattr__(name: str) -> Any:
    # Late: whoever only imports joblib_envs needs none of it.
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
