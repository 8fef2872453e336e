"""An environment of a study of states that travel: of a family, in wrappers, perhaps not installed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium

from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.wrapping import WRAPPERS

__all__ = ["TravelSource"]


@dataclass(frozen=True)
class TravelSource(EnvironmentSource):
    """A factory of wrapped environments that any process can call.

    Args:
        family: What it is one of, such as ``"MuJoCo v5"``.
        install: How to install what it needs, where it needs anything.
        wrappers: Names of :data:`~joblib_envs.harness.wrapping.WRAPPERS`, the innermost first.
        quick: Whether it is fast enough for a first look.

    Example:
        >>> TravelSource("CartPole-v1", wrappers=("ClipReward", "TransformReward")).label
        'CartPole-v1 + clipped reward, lambda'
    """

    family: str = ""
    install: str = ""
    wrappers: tuple[str, ...] = ()
    quick: bool = True

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make one environment."""
        env = super().__call__()
        for name in self.wrappers:
            env = WRAPPERS[name].wrap(env)
        return env

    @property
    def label(self) -> str:
        """The name for tables and charts: without a file's folder or the module that registers the id."""
        name = super().label if self._is_file else self.target.rpartition(":")[2]
        words = ", ".join(WRAPPERS[each].words for each in self.wrappers)
        return f"{name} + {words}" if words else name

    def check(self) -> None:
        """Raise :class:`ArgumentError` unless the name leads to an environment, or to something to install."""
        if not (self.install and self._is_missing()):
            super().check()

    def to_table(self, folder: Path | None) -> dict[str, Any]:
        """Return the table of a study's file that stands for it."""
        own = {"family": self.family, "install": self.install, "wrappers": list(self.wrappers)}
        slow = {} if self.quick else {"quick": False}
        return super().to_table(folder) | {key: value for key, value in own.items() if value} | slow

    def _is_missing(self) -> bool:
        """Whether the module that registers the id can't be imported, which the run will say."""
        if self._is_file or ":" not in self.target:
            return False
        try:
            import_module(self.target.partition(":")[0])
        except Exception:
            return True
        return False
