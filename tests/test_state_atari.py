from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

ale_py = pytest.importorskip("ale_py")

from ale_py.env import AtariEnv  # noqa: E402
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation  # noqa: E402

from joblib_envs.equality import bit_equal  # noqa: E402
from joblib_envs.state.pickling import CaptureOptions, captured, restored  # noqa: E402


def atari(game="pong", **kwargs):
    return AtariEnv(game, **{"repeat_action_probability": 0.0, "render_mode": "rgb_array", **kwargs})


def travelled(env):
    data, departure = captured(env, CaptureOptions())
    return restored(data, departure.shared)


def everything_of(env):
    """All that can be asked of an environment without a step."""
    ale = env.unwrapped.ale
    return (
        (env.render(), ale.getScreen(), ale.getScreenRGB(), ale.getScreenGrayscale(), ale.getRAM()),
        (ale.lives(), ale.game_over(), ale.game_truncated(), ale.getFrameNumber(), ale.getEpisodeFrameNumber()),
        (ale.getInt("random_seed"), ale.cloneState(include_rng=True).serialize()),
    )


def assert_goes_on_alike(stays, moves, num_steps=6, seed=5):
    """Step, reset without a seed, and with one; one of the two is captured and restored before each."""
    stays.action_space.seed(seed)
    actions = [stays.action_space.sample() for _ in range(num_steps)]
    calls = [("step", (action,), {}) for action in actions]
    calls += [("reset", (), {}), *calls[:3], ("reset", (), {"seed": seed}), *calls[:3], ("reset", (), {})]
    for number, (name, args, kwargs) in enumerate(calls):
        moves = travelled(moves)
        assert bit_equal(everything_of(stays), everything_of(moves)), f"before call {number}, a {name}"
        wanted, got = (getattr(env, name)(*args, **kwargs) for env in (stays, moves))
        assert bit_equal(wanted, got), f"call {number}, a {name}"


@pytest.mark.parametrize(
    ("game", "kwargs"),
    [
        ("pong", {}),
        ("breakout", {"obs_type": "ram", "full_action_space": True}),  # paddles
        ("qbert", {"obs_type": "grayscale"}),  # shows a part of a frame after a reset
        ("tetris", {"frameskip": 1}),  # the same
        ("ms_pacman", {"frameskip": (2, 5), "max_num_frames_per_episode": 30}),
        ("freeway", {"mode": 1, "difficulty": 1}),
        ("breakout", {"continuous": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_game_goes_on_alike_when_it_travels_before_every_call(game, kwargs):
    stays, moves = (atari(game, **kwargs) for _ in range(2))
    for env in (stays, moves):
        env.reset(seed=3)

    assert_goes_on_alike(stays, moves)


def test_missiles_that_a_game_places_in_every_other_frame_are_where_they_were():
    stays, moves = (atari("yars_revenge", frameskip=1, mode=64, difficulty=1) for _ in range(2))
    for env in (stays, moves):
        env.reset(seed=3)
        env.action_space.seed(1)
        for _ in range(15):
            env.step(env.action_space.sample())

    assert_goes_on_alike(stays, moves)


def test_an_environment_that_was_never_reset_travels():
    stays, moves = (atari("freeway", mode=3) for _ in range(2))
    for env in (stays, moves):
        env.seed_game(4)
        env.load_game()

    assert_goes_on_alike(stays, moves, num_steps=2)


def test_the_end_of_an_episode_travels_with_its_frame():
    stays, moves = (atari("pong", max_num_frames_per_episode=8) for _ in range(2))
    for env in (stays, moves):
        env.reset(seed=0)
        for _ in range(2):
            *_, truncated, _ = env.step(2)

    assert truncated
    assert_goes_on_alike(stays, moves, num_steps=2)  # ALE draws nothing after the end


def test_wrappers_of_atari_travel():
    def wrapped():
        env = atari("pong", frameskip=1)
        try:
            return FrameStackObservation(AtariPreprocessing(env, noop_max=5), 4)
        except Exception as error:
            pytest.skip(f"AtariPreprocessing needs OpenCV: {error}")

    stays, moves = wrapped(), wrapped()
    for env in (stays, moves):
        env.reset(seed=3)

    assert_goes_on_alike(stays, moves)


class Counting(AtariEnv):
    def __init__(self, game):
        super().__init__(game, repeat_action_probability=0.0)
        self.num_steps = 0

    def step(self, action):
        self.num_steps += 1
        return super().step(action)


def test_a_subclass_keeps_its_own_attributes():
    env = Counting("pong")
    env.step(0)

    arrived = travelled(env)

    assert type(arrived) is Counting
    assert arrived.num_steps == 1


def test_two_restored_environments_of_one_game_dont_disturb_one_another():
    env = atari()
    env.reset(seed=1)
    data, departure = captured(env, CaptureOptions())

    one, other = (restored(data, departure.shared) for _ in range(2))
    ahead = [one.step(2)[0] for _ in range(5)]

    assert one.ale is not other.ale
    assert bit_equal(ahead, [other.step(2)[0] for _ in range(5)])


def test_an_emulator_is_used_again_once_nobody_has_it():
    env = atari(max_num_frames_per_episode=12_345)  # so that no other test has lent one like it
    data, departure = captured(env, CaptureOptions())
    emulator = id(restored(data, departure.shared).ale)

    held = restored(data, departure.shared).ale

    assert id(held) == emulator
    assert restored(data, departure.shared).ale is not held


def test_an_emulator_that_was_set_up_otherwise_isnt_used_again():
    env = atari("freeway")
    env.reset(seed=2)
    arrived = travelled(env)
    arrived.ale.setBool("truncate_on_loss_of_life", True)
    changed = id(arrived.ale)
    arrived.ale.loadROM(ale_py.roms.get_rom_path("freeway"))
    keep_its_place = [arrived.ale]
    del arrived

    again = travelled(env)

    assert id(again.ale) != changed
    assert len(keep_its_place) == 1
    assert not again.ale.getBool("truncate_on_loss_of_life")


def test_sticky_actions_that_were_set_and_unset_dont_travel_unseen():
    env = travelled(atari())
    env.ale.setFloat("repeat_action_probability", 0.5)
    env.reset(seed=1)  # loads the game
    env.ale.setFloat("repeat_action_probability", 0.0)

    with pytest.raises(pickle.PicklingError, match=r"settings were changed.*repeat_action_probability=0\.0"):
        captured(env, CaptureOptions())


def test_a_restored_emulator_fills_the_arrays_that_it_is_given():
    env = atari()
    env.reset(seed=1)
    env.step(3)

    ale = travelled(env).ale
    indices, colours, grays = (
        np.zeros((210, 160), np.uint8),
        np.zeros((210, 160, 3), np.uint8),
        np.zeros((210, 160), np.uint8),
    )
    returned = ale.getScreen(indices), ale.getScreenRGB(colours), ale.getScreenGrayscale(grays)

    assert returned == (None, None, None)
    assert isinstance(ale, ale_py.ALEInterface)
    expected = env.ale.getScreen(), env.ale.getScreenRGB(), env.ale.getScreenGrayscale()
    assert bit_equal(expected, (indices, colours, grays))
    with pytest.raises(RuntimeError, match="shape"):
        ale.getScreen(np.zeros((3, 3), np.uint8))


def test_another_process_goes_on_alike(tmp_path):
    env = atari("seaquest")
    env.reset(seed=6)
    env.step(1)
    (tmp_path / "state").write_bytes(captured(env, CaptureOptions())[0])
    program = (
        "import pathlib, pickle, sys; from joblib_envs.state.pickling import restored\n"
        "env = restored(pathlib.Path(sys.argv[1], 'state').read_bytes(), {})\n"
        "seen = env.render(), env.step(1), env.reset(), env.step(2), env.reset(seed=4)\n"
        "pathlib.Path(sys.argv[1], 'seen').write_bytes(pickle.dumps(seen))"
    )

    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)

    seen = pickle.loads((tmp_path / "seen").read_bytes())
    assert bit_equal(seen, (env.render(), env.step(1), env.reset(), env.step(2), env.reset(seed=4)))


@pytest.mark.parametrize(
    ("game", "kwargs", "reason"),
    [
        ("pong", {"repeat_action_probability": 0.25}, "sticky actions.*last action.*NoFrameskip-v4.*replay.*actors"),
        ("pong", {"sound_obs": True}, "sound_obs=True.*sound of the last frame.*replay"),
        ("miniature_golf", {}, "restores miniature_golf otherwise than it has saved it"),
        ("tic_tac_toe_3d", {}, "several turns"),
    ],
)
def test_what_cant_be_kept_is_refused_with_a_way_out(game, kwargs, reason):
    env = atari(game, **kwargs)

    with pytest.raises(pickle.PicklingError, match=reason):
        captured(env, CaptureOptions())


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("max_num_frames_per_episode", 100, "was set since.*in effect"),
        ("truncate_on_loss_of_life", True, "truncate_on_loss_of_life=True.*in effect"),
        ("color_averaging", True, "color_averaging=True.*frame before"),
    ],
)
def test_settings_that_may_not_be_in_effect_are_refused(name, value, reason):
    env = atari()
    (env.ale.setBool if isinstance(value, bool) else env.ale.setInt)(name, value)

    with pytest.raises(pickle.PicklingError, match=reason):
        captured(env, CaptureOptions())


def test_a_capture_leaves_its_environment_as_it_was():
    env, twin = atari("qbert"), atari("qbert")
    for each in (env, twin):
        each.reset(seed=9)
    captured(env, CaptureOptions())

    assert type(env.ale) is ale_py.ALEInterface
    assert bit_equal(everything_of(env), everything_of(twin))
    assert bit_equal(env.step(1), twin.step(1))
