"""Replay: environments kept as the calls that were made, and made again."""

import os
from functools import partial

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from voyages import difference_on_the_way, travelled

from joblib_envs import StateCannotTravelError
from joblib_envs.envs import CountingEnv, GlobalRandomEnv, HandleEnv, UnpicklableEnv
from joblib_envs.equality import first_difference
from joblib_envs.state import capture, journal, restore
from joblib_envs.state.journal import JournaledEnv, journaled, keeping_its_journal
from joblib_envs.state.pickling import CaptureOptions
from joblib_envs.state.snapshot import captured_state


def made(factory):
    """Make an environment that keeps a journal."""
    return journaled(cloudpickle.dumps(factory))


def state_of(env):
    return captured_state(env, CaptureOptions(), is_proven=False)


class StickyHandleEnv(HandleEnv):
    """Can't be captured, repeats its last action at random, and remembers it beyond an episode's end."""

    def __init__(self):
        super().__init__(20)
        self.action_space = spaces.Discrete(5)
        self.last = 0

    def step(self, action):
        if self.np_random.random() >= 0.5:
            self.last = action
        observation, reward, *rest = super().step(action)
        return observation, reward + 100 * self.last, *rest


class TunableEnv(UnpicklableEnv):
    """Has a gain to set, and methods to call."""

    gain = 1.0

    def __init__(self):
        super().__init__(50)
        self.frames = 0
        self.settings = {"bias": 0.0}

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, self.gain * reward + self.settings["bias"] + 1000 * self.frames, *rest

    def add_bias(self, amount, *, times=1):
        self.settings["bias"] += amount * times
        return self.settings["bias"]

    def render(self):
        self.frames += 1
        return self.frames


class RaisingEnv(UnpicklableEnv):
    """Raises in each third step, after it has counted it."""

    def __init__(self):
        super().__init__(50)
        self.calls = 0

    def step(self, action):
        self.calls += 1
        if self.calls % 3 == 0:
            raise RuntimeError(f"call {self.calls}")
        observation, _, *rest = super().step(action)
        return observation, float(self.calls), *rest


class ProcessEnv(UnpicklableEnv):
    """Does what the process's number says, which no seed decides."""

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(os.getpid()), *rest


# Going on


@pytest.mark.parametrize("make", [StickyHandleEnv, TunableEnv, partial(CountingEnv, 5), partial(UnpicklableEnv, 5)])
def test_a_replayed_environment_goes_on_to_the_last_bit(make):
    assert difference_on_the_way(lambda: made(make), 25, own_actions=False) is None


@pytest.mark.parametrize("env_id", ["LunarLander-v3", "BipedalWalker-v3"])
def test_box2d_goes_on_to_the_last_bit(env_id):
    pytest.importorskip("Box2D")
    factory = partial(gymnasium.make, env_id)
    stays, travels = made(factory), made(factory)
    for env in (stays, travels):
        env.action_space.seed(0)
        env.reset(seed=0)
        for _ in range(100):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()
    actions = [stays.action_space.sample() for _ in range(20)]

    travels = travelled(travels)

    assert _course(stays, actions) == _course(travels, actions)


def _course(env, actions):
    steps = [env.step(action)[:4] for action in actions]
    reset = env.reset()[0]
    return [(each[0].tobytes(), *each[1:]) for each in (*steps, (reset,), env.step(actions[0])[:4])]


def test_wrappers_inside_the_factory_are_replayed_too():
    def make():
        return wrappers.NormalizeReward(wrappers.TimeLimit(UnpicklableEnv(50), 7))

    assert difference_on_the_way(lambda: made(make), 20, own_actions=False) is None


def test_the_journal_goes_on_after_a_replay():
    env = made(TunableEnv)
    env.reset(seed=0)
    for _ in range(3):
        env = travelled(env)
        env.step(0)

    env = travelled(env)

    assert env.step(0)[0] == 4
    assert len(env._journal.entries) == 5


def test_two_replays_of_one_state_do_not_share_a_journal():
    env = made(TunableEnv)
    env.reset(seed=0)
    state = state_of(env)

    one, other = restore(state), restore(state)
    one.step(0)
    one.step(0)

    assert other.step(0)[0] == 1
    assert restore(state_of(one)).step(0)[0] == 3
    assert restore(state_of(other)).step(0)[0] == 2


def test_the_state_says_that_it_is_replayed():
    env = made(TunableEnv)

    assert state_of(env).method == "replay"


# What enters


def test_what_is_set_called_and_drawn_enters_the_journal():
    env = made(TunableEnv)
    env.reset(seed=0)
    env.set_wrapper_attr("gain", 10.0)
    assert env.get_wrapper_attr("add_bias")(0.5, times=3) == 1.5
    assert env.render() == 1

    env = travelled(env)

    assert env.step(0)[1] == 10.0 + 1.5 + 1000
    assert [name for name, *_ in env._journal.entries] == ["reset", "set", "call", "render", "step"]


def test_what_is_only_read_does_not_enter_the_journal():
    env = made(TunableEnv)

    assert env.get_wrapper_attr("gain") == 1.0
    assert env.spec is None
    assert env._journal.entries == []


def test_a_step_or_reset_that_is_asked_for_by_name_enters_the_journal():
    env = made(TunableEnv)
    env.get_wrapper_attr("reset")(seed=3)
    env.get_wrapper_attr("step")(0)

    assert [name for name, *_ in env._journal.entries] == ["reset", "step"]
    assert travelled(env).step(0)[0] == 2


def test_arguments_are_kept_as_they_were_when_they_were_given():
    class KeepingEnv(UnpicklableEnv):
        def step(self, action):
            observation, _, *rest = super().step(0)
            total = float(action.sum())
            action[:] = 0
            return observation, total, *rest

    env = made(KeepingEnv)
    env.reset(seed=0, options={"levels": [1]})
    action = np.ones(3)
    env.step(action)
    action[:] = 99

    travelled(env)  # raises where the replay answers differently

    assert env._journal.entries[1][1][0].tolist() == [1, 1, 1]


def test_the_first_reset_without_a_seed_is_given_one_that_is_recorded():
    class DrawingEnv(UnpicklableEnv):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, float(self.np_random.random()), *rest

    env, other = made(DrawingEnv), made(DrawingEnv)
    for each in (env, other):
        each.reset()
    first = env.step(0)[1]
    seeds = [each._journal.entries[0][2]["seed"] for each in (env, other)]

    copy = travelled(env)
    env.reset()
    copy.reset()

    assert all(isinstance(seed, int) and 0 <= seed < 2**31 for seed in seeds)
    assert seeds[0] != seeds[1]
    assert env._journal.entries[2][2]["seed"] is None  # a later one goes on with the stream
    assert copy.step(0)[1] == env.step(0)[1] != first


def test_seed_zero_is_a_seed():
    env = made(TunableEnv)
    env.reset(seed=0)

    assert env._journal.entries[0][2]["seed"] == 0


def test_exceptions_are_replayed():
    env, twin = made(RaisingEnv), made(RaisingEnv)
    for each in (env, twin):
        each.reset(seed=0)
        each.step(0)
        each.step(0)
        with pytest.raises(RuntimeError, match="call 3"):
            each.step(0)
        assert each.step(0)[1] == 4.0

    env = travelled(env)

    assert first_difference(twin.step(0), env.step(0)) is None
    with pytest.raises(RuntimeError, match="call 6"):
        env.step(0)


def test_a_reset_with_a_seed_does_not_cut_the_journal():
    """That the history before it makes no odds can't be seen in a short run: BipedalWalker's world shows it late."""
    pytest.importorskip("Box2D")
    env, twin = (made(partial(gymnasium.make, "BipedalWalker-v3")) for _ in range(2))
    actions = np.random.default_rng(0).uniform(-1, 1, (160, 4)).astype(np.float32)
    for each in (env, twin):
        for seed in (1, 2, 3):
            each.reset(seed=seed)
            for action in actions[:50]:
                each.step(action)

    env = travelled(env)

    for action in actions[50:]:
        assert first_difference(twin.step(action), env.step(action)) is None


# Refusals


@pytest.mark.parametrize("make", [GlobalRandomEnv])
def test_an_environment_that_is_not_reproducible_is_refused_where_it_is_restored(make):
    env = made(make)
    env.reset(seed=0)
    for _ in range(3):
        env.step(0)
    state = state_of(env)
    np.random.random()  # another program draws too

    with pytest.raises(StateCannotTravelError, match="its 4 calls again, the environment answered differently"):
        restore(state)


def test_an_environment_that_raised_but_does_not_again_is_refused():
    class OnceEnv(UnpicklableEnv):
        def step(self, action):
            if not os.environ.get("RAISED_ONCE"):
                os.environ["RAISED_ONCE"] = "yes"
                raise RuntimeError("once")
            return super().step(action)

    env = made(OnceEnv)
    env.reset(seed=0)
    try:
        with pytest.raises(RuntimeError, match="once"):
            env.step(0)
        state = state_of(env)

        with pytest.raises(StateCannotTravelError, match="answered differently"):
            restore(state)
    finally:
        os.environ.pop("RAISED_ONCE", None)


def test_a_journal_that_grew_too_long_is_ended_and_says_so(monkeypatch):
    monkeypatch.setattr(journal, "MOST_BYTES", 2000)
    env = made(TunableEnv)
    env.reset(seed=0)
    for _ in range(10):
        env.step(0)
    assert len(travelled(env)._journal.entries) == 11

    for _ in range(20):
        env.step(0)

    assert env._journal.full
    assert env._journal.entries == []
    with pytest.raises(StateCannotTravelError, match="its journal grew beyond"):
        capture(env, prove=False)


def test_large_actions_count_by_their_bytes(monkeypatch):
    monkeypatch.setattr(journal, "MOST_BYTES", 50_000)

    class BigActionEnv(UnpicklableEnv):
        def step(self, action):
            return super().step(0)

    env = made(BigActionEnv)
    env.reset(seed=0)
    for _ in range(5):
        env.step({"big": [np.zeros(1000)]})
    assert not env._journal.full
    env.step(np.zeros(2000))

    assert env._journal.full


# Beside captured states


def test_an_environment_that_was_captured_keeps_a_journal_again_where_it_should():
    env = CountingEnv(50)
    env.reset(seed=0)
    env.step(0)
    state = state_of(env)

    kept = keeping_its_journal(restore(state), state, like=made(partial(CountingEnv, 50)))
    kept.step(0)
    there = travelled(kept)

    assert isinstance(there, JournaledEnv)
    assert there.step(0)[0] == 3


def test_an_environment_beside_one_without_a_journal_keeps_none():
    env = CountingEnv(50)

    assert keeping_its_journal(env, state_of(env), like=CountingEnv(50)) is env
