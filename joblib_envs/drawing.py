"""Keeps environments that draw with pygame apart when threads step them.

``pygame.gfxdraw`` is not thread-safe (pygame 2.6: polygons that two threads fill at once
come out wrong), so CarRacing's observations would depend on the backend. Such
environments hold the GIL while they draw, so one lock for all costs no speed.
"""

from __future__ import annotations

import sys
import threading
import types

import gymnasium

__all__ = ["DRAWING", "draws_with_pygame"]

DRAWING = threading.RLock()
"""Held while a shard steps environments that draw with pygame, or renders any."""


def draws_with_pygame(env: gymnasium.Env[object, object]) -> bool:
    """Tell whether the code of an environment, or of a wrapper, refers to pygame."""
    layer: object = env
    while isinstance(layer, gymnasium.Wrapper):
        if _refers_to_pygame(type(layer)):
            return True
        layer = layer.env
    return _refers_to_pygame(type(layer))


def _refers_to_pygame(kind: type) -> bool:
    modules = {ancestor.__module__ for ancestor in kind.__mro__}
    return any(
        isinstance(value, types.ModuleType) and value.__name__.split(".")[0] == "pygame"
        for name in modules
        if name in sys.modules
        for value in vars(sys.modules[name]).values()
    )
