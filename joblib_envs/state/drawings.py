"""What environments draw with: dropped where it is made again, kept by its content where it isn't."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from joblib_envs.state.cargo import Departure

if TYPE_CHECKING:
    import pygame

__all__ = ["is_drawing", "reduce_clock", "reduce_mujoco_renderer", "reduce_surface"]

_MADE_AGAIN = {
    "pygame.surface.Surface",
    "pygame.time.Clock",
    "pygame.font.Font",
    "highway_env.envs.common.graphics.EnvViewer",
    "mujoco.renderer.Renderer",
}
"""An environment makes these at its first frame, where its attribute is None."""


@functools.cache
def is_drawing(kind: Any) -> bool:
    """Tell whether environments make objects of this type again where their attribute is None."""
    return any(f"{base.__module__}.{base.__qualname__}" in _MADE_AGAIN for base in inspect.getmro(kind))


def reduce_surface(surface: pygame.Surface, departure: Departure) -> tuple[Any, ...]:  # noqa: ARG001
    """Keep a pygame surface's pixels."""
    import pygame

    if pygame.display.get_init() and surface is pygame.display.get_surface():
        raise TypeError("a window on a screen can't leave its process")
    whole = surface.get_parent()
    if whole is not None:  # it shares the pixels
        own = (surface.get_colorkey(), surface.get_alpha(), surface.get_clip())
        return _restored_part, (whole, surface.get_offset(), surface.get_size(), own)
    masks, depth = surface.get_masks(), surface.get_bitsize()
    flags = surface.get_flags() & (pygame.SRCALPHA | pygame.SRCCOLORKEY)
    content = surface.get_buffer().raw
    settings = (surface.get_colorkey(), surface.get_alpha(), surface.get_clip())
    palette = surface.get_palette() if depth <= 8 else None
    arguments = (type(surface), surface.get_size(), flags, depth, masks, palette, content, settings)
    return _restored_surface, arguments, getattr(surface, "__dict__", None) or None


def _restored_surface(
    kind: type[pygame.Surface],
    size: tuple[int, int],
    flags: int,
    depth: int,
    masks: Any,
    palette: Any,
    content: bytes,
    settings: tuple[Any, Any, Any],
) -> pygame.Surface:
    import pygame

    surface = kind.__new__(kind)
    pygame.Surface.__init__(surface, size, flags & pygame.SRCALPHA, depth, masks)
    if palette is not None:
        surface.set_palette(palette)
    surface.get_buffer().write(content)
    return _with_settings(surface, settings)


def _restored_part(
    whole: pygame.Surface, offset: tuple[int, int], size: tuple[int, int], settings: tuple[Any, Any, Any]
) -> pygame.Surface:
    return _with_settings(whole.subsurface((offset, size)), settings)


def _with_settings(surface: pygame.Surface, settings: tuple[Any, Any, Any]) -> pygame.Surface:
    colorkey, alpha, clip = settings
    surface.set_colorkey(colorkey)
    surface.set_alpha(alpha)
    surface.set_clip(clip)
    return surface


def reduce_clock(clock: pygame.time.Clock, departure: Departure) -> tuple[Any, ...]:  # noqa: ARG001
    """Make a new clock: what it has measured are times of another process."""
    return type(clock), ()


def reduce_mujoco_renderer(renderer: Any, departure: Departure) -> tuple[Any, ...]:  # noqa: ARG001
    """Drop Gymnasium's viewers of a MuJoCo simulation, which it makes again at the next frame."""
    from joblib_envs.state.pickling import blank, set_attributes

    attributes = {**vars(renderer), "viewer": None, "_viewers": {}}
    return blank, (type(renderer),), (attributes, None), None, None, set_attributes
