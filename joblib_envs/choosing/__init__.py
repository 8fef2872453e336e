"""``backend="auto"``: what is measured, what it predicts, and what is taken.

``decision.py`` is the rule, without a clock: ``BatchEnv(backend="auto")``, ``inspect`` and ``compare``
all decide by it. ``trial.py`` measures an environment, ``machine.py`` what a batch costs on this
machine, and ``auto.py`` puts them together for a batch.
"""

from __future__ import annotations

__all__ = ["AUTO"]

AUTO = "auto"
"""The name that stands for a choice; no backend is called so."""
