"""Rollouts with the policy at the caller are those with the policy in the workers; halves step side by side."""

import time

import numpy as np
import pytest
from batches import make_batch
from odd_policies import FailingAt, Holding, alternate
from test_rollouts import CASES, FEW, MODES, REFERENCE, check_equal, in_lockstep

from joblib_envs import ArgumentError, PolicyError, ResetNeededError, SubEnvError
from joblib_envs.caller_rollout import halves_of
from joblib_envs.envs import CountingEnv, FailingEnv
from joblib_envs.equality import first_difference


@pytest.mark.parametrize("backend", FEW, ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pipelined", [True, False], ids=["pipelined", "together"])
def test_it_is_what_lockstep_gives(backend, case, mode, pipelined):
    if not pipelined and mode == "SameStep":
        pytest.skip("the other mode is tried")
    env, new_policy = CASES[case]
    num_envs = None if isinstance(env, list) else 5
    with make_batch(REFERENCE, env, num_envs, autoreset_mode=mode) as envs:
        observations, _ = envs.reset(seed=3)
        steps, last, state = in_lockstep(envs, new_policy(envs), 30, observations, mode=mode)
        more, end, _ = in_lockstep(envs, lambda x: steps[0][1], 3, last)

    with make_batch(backend, env, num_envs, autoreset_mode=mode) as envs:
        envs.reset(seed=3)
        policy = new_policy(envs)
        first = envs.rollout(policy, 13, policy_at="caller", pipelined=pipelined)
        rest = envs.rollout(policy, 17, policy_at="caller", pipelined=pipelined, policy_state=first.policy_state)
        after, other_end, _ = in_lockstep(envs, lambda x: steps[0][1], 3, rest.last_observations)

    check_equal(first, steps[:13], first.last_observations, 5)
    check_equal(rest, steps[13:], last, 5)
    assert first.equals_lockstep
    assert first_difference(state, rest.policy_state) is None
    assert first_difference(more, after) is None
    assert first_difference(end, other_end) is None


def test_halves_have_a_half_of_every_shard():
    assert halves_of([range(0, 3), range(3, 8)]) == [[range(0, 1), range(3, 6)], [range(1, 3), range(6, 8)]]
    assert halves_of([range(0, 1)]) == [[range(0, 1)]]


class Depending:
    """Answers by how many rows it is given."""

    def __init__(self):
        self.seen = []

    def __call__(self, observations):
        self.seen.append(len(observations))
        return np.full(len(observations), len(observations) % 2)


@pytest.mark.parametrize("backend", FEW, ids=str)
def test_a_policy_that_depends_on_the_batch_is_asked_for_all(backend):
    policy = Depending()
    with make_batch(backend, CountingEnv, 5) as envs:
        envs.reset(seed=0)
        rollout = envs.rollout(policy, 4, policy_at="caller")

    assert policy.seen == [5] * 4
    assert rollout.equals_lockstep
    assert rollout.actions.tolist() == [[1] * 5] * 4


def test_a_policy_that_cannot_be_pickled_is_taken():
    with make_batch(FEW[2], CountingEnv, 4) as envs:
        envs.reset(seed=0)
        assert envs.rollout(Holding(), 3, policy_at="caller").observations[:, 0].tolist() == [0, 1, 2]


class SleepingEnv(CountingEnv):
    """Takes five milliseconds for a step."""

    def step(self, action):
        time.sleep(0.005)
        return super().step(action)


def thinking(observations):
    """Take five milliseconds for each sub-environment."""
    time.sleep(0.005 * len(observations))
    return alternate(observations)


@pytest.mark.parametrize("backend", FEW[1:3], ids=str)
def test_one_half_steps_while_the_policy_thinks_for_the_other(backend):
    with make_batch(backend, SleepingEnv, 2, n_jobs=1, caller_steps=False) as envs:
        envs.reset(seed=0)
        times = {}
        for pipelined in (False, True):
            began = time.perf_counter()
            envs.rollout(thinking, 20, policy_at="caller", pipelined=pipelined)
            times[pipelined] = time.perf_counter() - began

    assert times[True] < 0.8 * times[False]  # at best one half; sleeping takes no processor


@pytest.mark.parametrize("backend", FEW, ids=str)
def test_a_failing_sub_environment_ends_it(backend):
    with make_batch(backend, [CountingEnv, lambda: FailingEnv(3), CountingEnv, CountingEnv]) as envs:
        envs.reset(seed=0)
        with pytest.raises(SubEnvError, match="sub-environment 1") as caught:
            envs.rollout(alternate, 10, policy_at="caller")
        rollout, failed = caught.value.partial

        assert failed.tolist() == [False, True, False, False]
        assert rollout.steps_made[1] == 2
        assert all(2 <= made <= 4 for made in rollout.steps_made)
        for index in (0, 2, 3):
            made = rollout.steps_made[index]
            assert rollout.observations[:made, index].tolist() == list(range(made))
        with pytest.raises(ResetNeededError, match="1"):
            envs.step([0, 0, 0, 0])
        envs.reset(seed=0)
        assert envs.rollout(alternate, 2, policy_at="caller").rewards.shape == (2, 4)


@pytest.mark.parametrize("backend", FEW, ids=str)
def test_a_failing_policy_ends_it_and_nobody_needs_a_reset(backend):
    with make_batch(backend, CountingEnv, 4) as envs:
        envs.reset(seed=0)
        with pytest.raises(PolicyError, match="no more") as caught:
            envs.rollout(FailingAt(2), 10, policy_at="caller")

        made = caught.value.partial.steps_made.tolist()
        assert min(made) == 2
        assert envs.get_attr("count") == tuple(made)
        envs.step([0] * 4)


def test_an_interrupt_in_the_policy_is_passed_on_and_asks_for_a_reset():
    def interrupted(observations):
        if observations[0] == 2:
            raise KeyboardInterrupt
        return alternate(observations)

    with make_batch(FEW[2], CountingEnv, 4) as envs:
        envs.reset(seed=0)
        with pytest.raises(KeyboardInterrupt):
            envs.rollout(interrupted, 10, policy_at="caller")
        with pytest.raises(ResetNeededError):
            envs.step([0] * 4)
        envs.reset(seed=0)
        envs.step([0] * 4)


def test_another_place_is_refused():
    with make_batch(REFERENCE, CountingEnv, 2) as envs:
        envs.reset(seed=0)
        with pytest.raises(ArgumentError, match="policy_at='gpu' must be 'workers' or 'caller'"):
            envs.rollout(alternate, 3, policy_at="gpu")
