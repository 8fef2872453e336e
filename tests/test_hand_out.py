"""Large observations are handed out without another copy, and are the caller's own all the same."""

import gc
import threading

import gymnasium
import numpy as np
import pytest
from batches import BACKENDS, make_batch

from joblib_envs.equality import first_difference
from joblib_envs.errors import SubEnvError
from joblib_envs.hand_out import NUM_ARRAYS, HandOuts, is_worth_handing_out
from joblib_envs.rows import leaves_of

ACTORS = [backend for backend in BACKENDS if backend.execution == "actors"]
NUM_ENVS = 6


class LargeEnv(gymnasium.Env):
    """Observes its count, its seed and its last action in a large array that it uses again; ends after four steps."""

    observation_space = gymnasium.spaces.Box(0, 1e6, (128, 128), np.float32)
    action_space = gymnasium.spaces.Discrete(9)

    def __init__(self):
        self.seen = np.zeros((128, 128), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.seen[:] = self.np_random.random((128, 128), np.float32)
        return self.seen, {}

    def step(self, action):
        if action == 8:
            raise ValueError("eight")
        self.count += 1
        self.seen += self.count + action
        return self.seen, 0.0, self.count == 4, False, {}


def batch(backend, **options):
    return make_batch(backend, LargeEnv, NUM_ENVS, **options)


def test_these_are_large_enough():
    assert is_worth_handing_out(leaves_of(LargeEnv.observation_space), NUM_ENVS)
    assert not is_worth_handing_out(leaves_of(LargeEnv.observation_space), 3)
    assert not is_worth_handing_out(leaves_of(gymnasium.spaces.Dict({"a": LargeEnv.observation_space})), NUM_ENVS)


@pytest.mark.parametrize("backend", ACTORS, ids=str)
def test_what_is_kept_is_never_written_again(backend):
    with batch(backend) as envs, batch(ACTORS[0]) as reference:
        wanted = [reference.reset(seed=1)[0].copy()]
        kept = [envs.reset(seed=1)[0]]
        for step in range(3 * NUM_ARRAYS):
            actions = np.full(NUM_ENVS, step % 7)
            wanted.append(reference.step(actions)[0].copy())
            kept.append(envs.step(actions)[0])

        assert first_difference(wanted, kept) is None
    assert first_difference(wanted, kept, "after the end") is None


@pytest.mark.parametrize("backend", ACTORS, ids=str)
@pytest.mark.parametrize(
    "part", [lambda a: a[1:3], lambda a: a.reshape(-1), lambda a: memoryview(a), lambda a: a[2], np.transpose]
)
def test_a_view_keeps_it_too(backend, part):
    with batch(backend) as envs:
        envs.reset(seed=1)
        view = part(envs.step(np.zeros(NUM_ENVS, int))[0])
        before = np.array(view)
        for _ in range(2 * NUM_ARRAYS):
            envs.step(np.ones(NUM_ENVS, int))

        assert first_difference(before, np.array(view)) is None


@pytest.mark.parametrize("backend", ACTORS, ids=str)
def test_what_the_caller_does_to_it_changes_nothing(backend):
    with batch(backend) as envs, batch(ACTORS[0]) as reference:
        observations, _ = envs.reset(seed=1)
        wanted, _ = reference.reset(seed=1)
        observations[:] = -1
        mask = np.array([True, False] * (NUM_ENVS // 2))
        again, _ = envs.reset(seed=2, options={"reset_mask": mask})
        wanted_again, _ = reference.reset(seed=2, options={"reset_mask": mask})
        assert first_difference(wanted_again, again) is None
        again[:] = -2
        assert first_difference(wanted_again[1], wanted[1]) is None
        assert first_difference(reference.step([0] * NUM_ENVS), envs.step([0] * NUM_ENVS)) is None


@pytest.mark.parametrize("backend", ACTORS, ids=str)
def test_closing_leaves_what_the_caller_made_of_it_alone(backend):
    envs = batch(backend)
    envs.reset(seed=1)
    observations, *_ = envs.step([0] * NUM_ENVS)
    observations[:] = -1
    envs.close()

    assert (observations == -1).all()


@pytest.mark.parametrize("backend", ACTORS, ids=str)
def test_other_calls_in_between_see_the_true_rows(backend):
    with batch(backend) as envs, batch(ACTORS[0]) as reference:
        for each in (envs, reference):
            each.reset(seed=1)
        envs.step([1] * NUM_ENVS)[0][:] = 0
        reference.step([1] * NUM_ENVS)
        assert envs.get_attr("count") == (1,) * NUM_ENVS
        for each in (envs, reference):
            each.send([2, 2], [0, 5])
        assert first_difference(reference.recv(2)[0].sum(), envs.recv(2)[0].sum()) is None
        rollouts = [each.rollout(lambda x: np.zeros(len(x), int), 2) for each in (reference, envs)]
        assert first_difference(rollouts[0].observations, rollouts[1].observations) is None
        assert first_difference(rollouts[0].last_observations, rollouts[1].last_observations) is None
        with pytest.raises(SubEnvError) as caught:
            envs.step([0, 8] * (NUM_ENVS // 2))
        with pytest.raises(SubEnvError) as other:
            reference.step([0, 8] * (NUM_ENVS // 2))
        assert first_difference(other.value.partial[0], caught.value.partial[0]) is None


class LockedEnv(LargeEnv):
    """Tells something that no other process can be told, for action 7."""

    def step(self, action):
        *transition, info = super().step(action)
        return *transition, {**info, "lock": threading.Lock()} if action == 7 else info


def test_what_cannot_cross_is_out_of_them():
    with make_batch(ACTORS[-1], LockedEnv, NUM_ENVS) as envs:
        envs.reset(seed=1)
        with pytest.raises(SubEnvError, match="info of sub-environment 1 can't be pickled") as caught:
            envs.step([0, 7] + [0] * (NUM_ENVS - 2))

    observations = caught.value.partial[0]
    assert not observations[1].any()
    assert all(observations[index].any() for index in range(NUM_ENVS) if index != 1)


def test_arrays_are_used_again_when_nobody_has_them():
    arrays = [np.zeros(3) for _ in range(2)]
    hand_outs = HandOuts(arrays)
    first = hand_outs.array(hand_outs.choose())
    second = hand_outs.array(hand_outs.choose())[1:]
    assert hand_outs.choose() == -1
    first[0] = 5
    assert arrays[0][0] == 5
    del first
    gc.collect()
    assert hand_outs.choose() == 0
    del second
    gc.collect()
    assert hand_outs.choose() == 1
