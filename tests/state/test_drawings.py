"""What environments draw with: dropped and made again, or kept by content, never in the way."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from voyages import difference_on_the_way, travelled

from joblib_envs.envs import CountingEnv
from joblib_envs.equality import Verdict, first_difference
from joblib_envs.factories import packed_factories
from joblib_envs.state.pickling import DEFAULT_OPTIONS, CaptureOptions, captured
from joblib_envs.state.probe import prove

pygame = pytest.importorskip("pygame")

KEEPING = CaptureOptions(keeps_drawings=True)
IDS = ("CartPole-v1", "Pendulum-v1", "MountainCar-v0", "Acrobot-v1", "FrozenLake-v1", "Taxi-v4", "CliffWalking-v1")
DRAWING = {env_id: partial(gymnasium.make, env_id, render_mode="rgb_array") for env_id in IDS}


class ScribblingEnv(CountingEnv):
    """Draws one more dot in each frame, on a surface that it made in its constructor."""

    def __init__(self):
        super().__init__(100, render_mode="rgb_array")
        self.paper = pygame.Surface((12, 4), 0, 32)
        self.paper.fill((10, 20, 30))

    def render(self):
        self.paper.set_at((int(self.np_random.integers(12)), self.count % 4), (255, 0, 0))
        return pygame.surfarray.array3d(self.paper)


class LateScribblingEnv(ScribblingEnv):
    """Makes its surface at its first frame, where it has none: dropping it leaves no trace but an empty page."""

    def __init__(self):
        super().__init__()
        self.paper = None

    def render(self):
        if self.paper is None:
            self.paper = pygame.Surface((12, 4), 0, 32)
        return super().render()


def drawn(env):
    """Reset, step and draw some frames."""
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(3):
        env.step(env.action_space.sample())
        env.render()
    return env


def frames(env, travels, options=DEFAULT_OPTIONS):
    """Go on for some steps and frames, travelling before each of them or not."""
    seen = []
    for _ in range(5):
        env = travelled(env, options) if travels else env
        env.step(env.action_space.sample())
        env = travelled(env, options) if travels else env
        seen.append(np.array(env.render()))
    env.close()
    return seen


@pytest.mark.parametrize("name", DRAWING)
def test_frames_are_equal_though_the_surfaces_are_made_again(name):
    stays, travels = (drawn(DRAWING[name]()) for _ in range(2))

    wanted = frames(stays, travels=False)
    got = frames(travels, travels=True)

    assert wanted[0].any()
    assert first_difference(wanted, got) is None


def test_what_is_dropped_is_noted_and_makes_the_state_small():
    env = drawn(gymnasium.make("CartPole-v1", render_mode="rgb_array"))

    dropped, departure = captured(env, CaptureOptions())
    kept, _ = captured(env, KEEPING)

    assert departure.has_drawings
    assert len(dropped) < 20_000 < len(kept)
    assert travelled(env).unwrapped.screen is None
    assert travelled(env, KEEPING).unwrapped.screen.get_size() == (600, 400)


def test_an_environment_that_has_drawn_nothing_has_no_drawings():
    _, departure = captured(CountingEnv(3), CaptureOptions())

    assert not departure.has_drawings


@pytest.mark.parametrize("make", [ScribblingEnv, LateScribblingEnv])
def test_a_surface_that_frames_add_to_goes_on_where_drawings_are_kept(make):
    stays, travels = drawn(make()), drawn(make())

    wanted = frames(stays, travels=False)

    assert first_difference(wanted, frames(travels, travels=True, options=KEEPING)) is None


def test_dropping_a_surface_that_frames_add_to_is_wrong():
    stays, travels = drawn(LateScribblingEnv()), drawn(LateScribblingEnv())

    assert first_difference(frames(stays, travels=False), frames(travels, travels=True)) is not None


def test_the_probe_keeps_drawings_where_frames_add_to_them_and_drops_them_elsewhere():
    factories = [ScribblingEnv, LateScribblingEnv, DRAWING["CartPole-v1"], DRAWING["FrozenLake-v1"]]

    proofs = prove(packed_factories(factories))

    assert [proof.verdict for proof in proofs] == [Verdict.CORRECT] * 4, proofs
    assert [proof.options.keeps_drawings for proof in proofs] == [True, True, False, False]


# Surfaces by their content


class NamedSurface(pygame.Surface):
    """A surface with attributes."""

    def __init__(self, size, name):
        super().__init__(size, pygame.SRCALPHA)
        self.name = name


def _filled(*arguments):
    surface = pygame.Surface(*arguments)
    for x in range(surface.get_width()):
        for y in range(surface.get_height()):
            surface.set_at((x, y), (x * 40 % 256, y * 70 % 256, (x + y) * 30 % 256, 255 - x * 20))
    return surface


def _palette():
    surface = pygame.Surface((5, 3), 0, 8)
    surface.set_palette([(index, 255 - index, index // 2) for index in range(256)])
    surface.set_at((2, 1), surface.get_palette_at(77))
    return surface


def _keyed():
    surface = _filled((5, 3), 0, 24)
    surface.set_colorkey(surface.get_at((1, 1)))
    return surface


def _faint():
    surface = _filled((5, 3), 0, 32)
    surface.set_alpha(100)
    surface.set_clip((1, 1, 2, 2))
    return surface


SURFACES = {
    "32 bits": lambda: _filled((5, 3), 0, 32),
    "24 bits, rows that end between words": lambda: _filled((5, 3), 0, 24),
    "16 bits": lambda: _filled((5, 3), 0, 16),
    "alpha in each pixel": lambda: _filled((5, 3), pygame.SRCALPHA),
    "8 bits and a palette": _palette,
    "a colour key": _keyed,
    "one alpha, and a clip": _faint,
    "no size": lambda: pygame.Surface((0, 0)),
    "a part of another": lambda: _filled((8, 8), 0, 32).subsurface((2, 2, 5, 3)),
    "red and blue swapped": lambda: pygame.Surface((5, 3), 0, 32, (0xFF, 0xFF00, 0xFF0000, 0)),
}


@pytest.mark.parametrize("name", SURFACES)
def test_a_surface_is_what_it_was(name):
    surface = SURFACES[name]()

    there = travelled(travelled(surface))

    assert _looks(there) == _looks(surface)
    on, on_there = pygame.Surface((8, 8), 0, 32), pygame.Surface((8, 8), 0, 32)
    for page, each in ((on, surface), (on_there, there)):
        page.fill((1, 2, 3))
        page.blit(each, (1, 1))
    assert pygame.image.tobytes(on, "RGBA") == pygame.image.tobytes(on_there, "RGBA")


def _looks(surface):
    pixels = [tuple(surface.get_at((x, y))) for x in range(surface.get_width()) for y in range(surface.get_height())]
    palette = surface.get_palette() if surface.get_bitsize() == 8 else None
    flags = surface.get_flags() & (pygame.SRCALPHA | pygame.SRCCOLORKEY)
    settings = surface.get_colorkey(), surface.get_alpha(), tuple(surface.get_clip())
    return surface.get_size(), surface.get_bitsize(), surface.get_masks(), flags, pixels, palette, settings


def test_a_subclass_with_attributes_travels():
    surface = NamedSurface((2, 2), "page")
    surface.set_at((1, 1), (1, 2, 3, 4))

    there = travelled(surface)

    assert type(there) is NamedSurface
    assert there.name == "page"
    assert tuple(there.get_at((1, 1))) == (1, 2, 3, 4)


def test_a_surface_that_two_places_name_is_one_surface_there():
    surface = pygame.Surface((2, 2))

    one, other = travelled((surface, surface))

    assert one is other


def test_a_clock_travels_as_a_new_one():
    clock = pygame.time.Clock()
    clock.tick()

    there = travelled(clock)

    assert type(there) is type(clock)
    assert there.get_time() == 0


def test_a_clock_does_not_change_what_an_environment_does():
    assert difference_on_the_way(DRAWING["CartPole-v1"], 10) is None
