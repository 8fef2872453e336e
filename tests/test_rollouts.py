"""Rollouts in the workers: what lockstep gives, bit for bit, whatever the backend."""

import copy
import logging
import threading
import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
from batches import BACKENDS, PROCESSES, Backend, counting_batch, make_batch
from gymnasium.wrappers import RecordEpisodeStatistics
from odd_envs import KilledEnv, TalkingEnv, UnpicklableInfoEnv
from odd_policies import (
    ChangingDtype,
    CountingCalls,
    FailingAt,
    Holding,
    InPlace,
    PerEnv,
    Previous,
    Remembering,
    SameArray,
    Unloadable,
    WrongAt,
    alternate,
    alternate_first,
    lean,
)

from joblib_envs import (
    ArgumentError,
    BatchSizeDependentWarning,
    ConcurrentUseError,
    EpisodeOverError,
    PendingCallError,
    PolicyError,
    RandomPolicy,
    ResetNeededError,
    SubEnvError,
    UnpicklableError,
    WorkerDiedError,
)
from joblib_envs.envs import CountingEnv, EchoEnv, FailingEnv, InfoEnv, InfoKind, SpaceEnv, VariableLengthEnv
from joblib_envs.equality import first_difference
from joblib_envs.info_columns import InfoColumns
from joblib_envs.info_history import InfoHistory, time_major_infos
from joblib_envs.infos import batch_infos

REFERENCE = BACKENDS[0]
FEW = [REFERENCE, Backend("threading", "actors"), Backend("loky", "actors"), Backend("loky", "tasks")]
MODES = ["NextStep", "SameStep"]


def by_backend(backends):
    return pytest.mark.parametrize("backend", backends, ids=str)


def in_lockstep(envs, policy, num_steps, observations, state=None, mode="NextStep"):
    """Step so often with the policy's actions, by ``step``; return what a rollout should, and the infos."""
    is_recurrent = hasattr(policy, "initial_state")
    initial = policy.initial_state(envs.num_envs) if is_recurrent else None
    state = copy.deepcopy(initial) if state is None else state
    spans = getattr(policy, "state_spans_episodes", False)
    pending = np.zeros(envs.num_envs, bool)
    steps = []
    for _ in range(num_steps):
        before = copy.deepcopy(observations)
        if is_recurrent:
            actions, state = policy(copy.deepcopy(observations), state)
        else:
            actions = policy(copy.deepcopy(observations))
        actions = copy.deepcopy(actions)
        observations, rewards, terminations, truncations, infos = envs.step(actions)
        ended = terminations | truncations
        if is_recurrent and not spans:
            state = with_rows(state, initial, pending if mode == "NextStep" else ended)
        pending = ended
        steps.append((before, actions, rewards, terminations, truncations, infos))
    return steps, observations, state


def with_rows(state, initial, mask):
    if isinstance(state, dict):
        return {key: with_rows(state[key], initial[key], mask) for key in state}
    if isinstance(state, list | tuple):
        return type(state)(with_rows(*pair, mask) for pair in zip(state, initial, strict=True))
    mixed = state.copy()
    mixed[mask] = initial[mask]
    return mixed


def at(batch, *place):
    """Return one time's, or one sub-environment's, part of a batch that may be a tree."""
    if isinstance(batch, dict):
        return {key: at(value, *place) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(at(value, *place) for value in batch)
    return batch[place] if isinstance(batch, np.ndarray) else batch


def like(batch, wanted):
    """Return the rollout's batch of one time in the form of a step's: tuples where those are."""
    if isinstance(wanted, dict):
        return {key: like(batch[key], value) for key, value in wanted.items()}
    if isinstance(wanted, tuple) and not hasattr(wanted, "_fields"):
        each = batch if isinstance(batch, tuple) else tuple(batch)
        return tuple(like(part, value) for part, value in zip(each, wanted, strict=True))
    return batch


def told(infos, *place):
    """Return what a sub-environment told, without types: batches of different sizes choose different dtypes."""
    found = {}
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None or not mask[place]:
            continue
        one = told(value, *place) if isinstance(value, dict) else value[place]
        found[key] = one.tolist() if isinstance(one, np.ndarray | np.generic) else one
    return found


def check_equal(rollout, steps, last, num_envs):
    """Compare a rollout with lockstep."""
    assert len(rollout) == len(steps)
    for step, (before, actions, rewards, terminations, truncations, infos) in enumerate(steps):
        path = f"[{step}]"
        assert first_difference(before, like(at(rollout.observations, step), before), path) is None
        if isinstance(actions, np.ndarray):
            assert first_difference(actions, rollout.actions[step], path) is None
        assert first_difference(rewards, rollout.rewards[step], path) is None
        assert first_difference(terminations, rollout.terminations[step], path) is None
        assert first_difference(truncations, rollout.truncations[step], path) is None
        for index in range(num_envs):
            wanted = told(infos, index)
            assert first_difference(wanted, told(rollout.infos, step, index), f"infos{path}[{index}]") is None
    assert first_difference(last, rollout.last_observations) is None
    assert rollout.steps_made.tolist() == [len(steps)] * num_envs


class Timeless(RecordEpisodeStatistics):
    """Without the clock."""

    def step(self, action):
        *transition, info = super().step(action)
        info.get("episode", {}).pop("t", None)
        return *transition, info


def statistics():
    return Timeless(gymnasium.make("CartPole-v1"))


CASES = {
    "CartPole": (statistics, lambda _: lean),
    "variable lengths, random": (partial(VariableLengthEnv, 5), lambda envs: RandomPolicy(envs.single_action_space, 5)),
    "variable lengths, recurrent": (partial(VariableLengthEnv, 5), lambda _: Remembering()),
    "variable lengths, in place": (partial(VariableLengthEnv, 5), lambda _: InPlace()),
    "count, for each": (partial(CountingEnv, 7), lambda _: PerEnv([0, 1, 1, 0, 1])),
    "echo dict": (partial(EchoEnv, "dict"), lambda envs: RandomPolicy(envs.single_action_space, 5)),
    "echo tuple": (partial(EchoEnv, "tuple"), lambda envs: RandomPolicy(envs.single_action_space, 5)),
    "echo text": (partial(EchoEnv, "text"), lambda envs: RandomPolicy(envs.single_action_space, 5)),
    "echo graph": (partial(EchoEnv, "graph"), lambda envs: RandomPolicy(envs.single_action_space, 5)),
    "echo box": (partial(EchoEnv, "box_float64"), lambda envs: RandomPolicy(envs.single_action_space, 5)),
    "space one_of": (partial(SpaceEnv, "one_of"), lambda envs: RandomPolicy(envs.single_action_space, 5)),
    "space custom": (partial(SpaceEnv, "custom"), lambda envs: RandomPolicy(envs.single_action_space, 5)),
    "infos": ([partial(InfoEnv, "nested", v) for v in range(5)], lambda _: lambda x: x % 2),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_a_rollout_is_what_lockstep_gives(backend, case, mode):
    if case.startswith("variable lengths, in place") and backend not in FEW:
        pytest.skip("the others are tried")
    env, new_policy = CASES[case]
    num_envs = 5
    with make_batch(REFERENCE, env, None if isinstance(env, list) else num_envs, autoreset_mode=mode) as envs:
        observations, _ = envs.reset(seed=3)
        policy = new_policy(envs)
        steps, last, state = in_lockstep(envs, policy, 30, observations, mode=mode)
        more, end, _ = in_lockstep(envs, lambda x: steps[0][1], 3, last)

    with make_batch(backend, env, None if isinstance(env, list) else num_envs, autoreset_mode=mode) as envs:
        envs.reset(seed=3)
        rollout = envs.rollout(new_policy(envs), 30)
        after, other_end, _ = in_lockstep(envs, lambda x: steps[0][1], 3, rollout.last_observations)

    check_equal(rollout, steps, last, num_envs)
    assert rollout.equals_lockstep
    assert first_difference(state, rollout.policy_state) is None
    assert first_difference(more, after) is None
    assert first_difference(end, other_end) is None


@pytest.mark.parametrize("mode", MODES)
def test_rollouts_follow_one_another_as_one(backend, mode):
    options = {"env": partial(VariableLengthEnv, 4), "num_envs": 5, "autoreset_mode": mode}
    with make_batch(REFERENCE, **options) as envs:
        envs.reset(seed=1)
        whole = envs.rollout(Remembering(), 23)

    with make_batch(backend, **options) as envs:
        envs.reset(seed=1)
        parts = [envs.rollout(Remembering(), 1)]
        for num_steps in (2, 7, 13):
            parts.append(envs.rollout(Remembering(), num_steps, policy_state=parts[-1].policy_state))

    for name in ("observations", "actions", "rewards", "terminations", "truncations"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert first_difference(getattr(whole, name), joined, name) is None
    assert first_difference(whole.policy_state, parts[-1].policy_state) is None
    assert first_difference(whole.last_observations, parts[-1].last_observations) is None


@by_backend(FEW)
def test_steps_before_a_rollout_count(backend):
    with counting_batch(backend, 3, episode_length=3) as envs:
        envs.reset(seed=0)
        for _ in range(3):
            envs.step([0, 0, 0])

        rollout = envs.rollout(alternate, 4)

    assert rollout.observations.T.tolist() == [[3, 0, 1, 2]] * 3
    assert rollout.actions.T.tolist() == [[1, 0, 1, 0]] * 3
    assert rollout.rewards.T.tolist() == [[0.0, 1.0, 2.0, 3.0]] * 3
    assert rollout.terminations.T.tolist() == [[False, False, False, True]] * 3
    assert rollout.last_observations.tolist() == [3, 3, 3]


@by_backend([backend for backend in FEW if backend.execution == "actors"])
@pytest.mark.parametrize("copied", [True, False])
def test_a_rollout_goes_on_where_sub_environments_were_sent(backend, copied):
    with counting_batch(backend, 4, copy=copied) as envs:
        envs.reset(seed=0)
        for indices in ([1, 3], [3]):
            envs.send([0] * len(indices), indices)
            while indices:
                received = envs.recv()[-1].tolist()
                indices = [index for index in indices if index not in received]

        rollout = envs.rollout(alternate, 2)
        last = rollout.last_observations.tolist()
        envs.send([0], [2])
        with pytest.raises(PendingCallError):
            envs.rollout(alternate, 1)
        envs.recv()
        again = envs.rollout(alternate, 1)

    assert rollout.observations.tolist() == [[0, 1, 0, 2], [1, 2, 1, 3]]
    assert last == [2, 3, 2, 4]
    assert again.observations.tolist() == [[2, 3, 3, 4]]


@by_backend(FEW)
def test_views_of_the_observations_before_live_on(backend):
    with counting_batch(backend, 3, copy=False) as envs:
        before, _ = envs.reset(seed=0)

        envs.rollout(alternate, 5)

        assert before.tolist() == [0, 0, 0]


@by_backend(FEW)
def test_states_after_a_rollout_go_on_like_it(backend):
    with make_batch(backend, partial(VariableLengthEnv, 4), 3) as envs:
        envs.reset(seed=2)
        envs.rollout(Remembering(), 9)
        states = envs.get_state()
        first = envs.rollout(alternate_first, 9)

        envs.set_state(states)
        second = envs.rollout(alternate_first, 9)

    assert first_difference(first.observations, second.observations) is None
    assert first_difference(first.rewards, second.rewards) is None


@by_backend(FEW)
def test_a_policy_may_keep_its_observations(backend):
    with counting_batch(backend, 3) as envs:
        envs.reset(seed=0)
        rollout = envs.rollout(Previous(), 5)

    assert rollout.actions.T.tolist() == [[0, 0, 1, 0, 1]] * 3
    assert rollout.policy_state.tolist() == [4, 4, 4]


class Shapeless(gymnasium.Env):
    """Has observations and actions without any number in them."""

    observation_space = action_space = gymnasium.spaces.Box(0, 9, (0,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(0, np.float32), {}

    def step(self, action):
        return action, 1.0, False, False, {}


@by_backend(FEW)
def test_spaces_may_be_empty(backend):
    with make_batch(backend, Shapeless, 3) as envs:
        envs.reset(seed=0)
        rollout = envs.rollout(lambda x: x, 4)

    assert rollout.observations.shape == rollout.actions.shape == (4, 3, 0)
    assert rollout.rewards.tolist() == [[1.0] * 3] * 4


class ActionChanging(gymnasium.Env):
    """Adds one to its action, in place, and observes it."""

    observation_space = action_space = gymnasium.spaces.Box(0, 9, (3,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        action += 1
        return action, 0.0, False, False, {}


@by_backend(FEW)
def test_an_environment_that_changes_its_action_changes_nobodys_else(backend):
    with make_batch(backend, ActionChanging, 3) as envs:
        envs.reset(seed=0)
        rollout = envs.rollout(SameArray(), 4)

    assert np.unique(rollout.actions).tolist() == [0.0]
    assert np.unique(rollout.observations[1:]).tolist() == [1.0]
    assert rollout.equals_lockstep


@by_backend(FEW)
def test_the_arrays_are_the_callers_own(backend):
    with counting_batch(backend, 3, copy=False) as envs:
        envs.reset(seed=0)
        first = envs.rollout(alternate, 3)
        kept = copy.deepcopy(first)
        for array in (first.observations, first.actions, first.rewards, first.terminations, first.infos["count"]):
            array[...] = 0

        second = envs.rollout(alternate, 3)

    assert kept.observations.T.tolist() == [[0, 1, 2]] * 3
    assert second.observations.T.tolist() == [[3, 4, 5]] * 3
    assert second.last_observations.tolist() == [6, 6, 6]


@by_backend(FEW)
def test_a_random_policy_goes_on_where_it_was(backend):
    with counting_batch(backend, 4) as envs:
        envs.reset(seed=0)
        policy = RandomPolicy(envs.single_action_space, 9)
        whole = envs.rollout(policy, 140).actions
        first = envs.rollout(policy, 70)
        second = envs.rollout(policy, 70, policy_state=first.policy_state)

    assert first_difference(whole, np.concatenate([first.actions, second.actions])) is None


@by_backend(FEW)
def test_actions_given_as_lists_reach_the_environments_as_they_are(backend):
    with make_batch(backend, partial(EchoEnv, "discrete"), 2) as envs:
        envs.reset(seed=0)
        rollout = envs.rollout(lambda x: [int(value) % 2 for value in x], 3)

    assert rollout.infos["type"][0].tolist() == ["int", "int"]
    assert rollout.actions.dtype == np.int64
    assert rollout.actions.shape == (3, 2)


@by_backend(FEW)
def test_actions_of_several_dtypes_are_kept_as_they_are(backend):
    with make_batch(backend, [partial(CountingEnv, 100)] * 2) as envs:
        envs.reset(seed=0)
        rollout = envs.rollout(ChangingDtype(), 2)

    assert rollout.actions.dtype == object
    assert [type(action) for action in rollout.actions[:, 1]] == [np.int64, np.int8]


@by_backend(FEW)
@pytest.mark.parametrize("kind", list(InfoKind))
def test_infos_are_batched_as_all_steps_together_would_be(backend, kind):
    if kind is not InfoKind.NESTED and backend.execution == "tasks":
        pytest.skip("one kind is enough there")
    with make_batch(backend, [partial(InfoEnv, kind, v) for v in range(3)]) as envs, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of keys that collide
        envs.reset(seed=0)
        rollout = envs.rollout(lambda x: x % 2, 6)
    single = [InfoEnv(kind, v) for v in range(3)]
    for env in single:
        env.reset(seed=0)
    dicts = [env.step(0)[4] for _ in range(4) for env in single]
    dicts += [env.reset()[1] for env in single] + [env.step(0)[4] for env in single]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = batch_infos(dicts)

    assert first_difference(wanted, flattened(rollout.infos)) is None


def flattened(infos):
    """Undo the split of the first axis."""
    return {
        key: flattened(value) if isinstance(value, dict) else value.reshape((18, *value.shape[2:]))
        for key, value in infos.items()
    }


@pytest.mark.parametrize("by", ["dictionaries", "columns"])
@pytest.mark.parametrize("seed", range(20))
def test_infos_kept_by_key_are_batched_as_dictionaries_are(seed, by):
    random = np.random.default_rng(seed)
    values = [
        lambda: 1,
        lambda: 2**70,
        lambda: 0.5,
        lambda: True,
        lambda: np.float32(0.1),
        lambda: np.float64(-0.0),
        lambda: np.bool_(True),
        lambda: np.timedelta64(3, "s"),
        lambda: np.zeros(2, ">i4"),
        lambda: np.ones(3),
        lambda: np.array(["a", None], dtype=object),
        lambda: "text",
        lambda: {"inner": 1},
        lambda: None,
    ]
    is_plain = seed % 2 == 1  # numbers and arrays, which fill whole columns
    rate = 0.98 if is_plain else 0.7
    keys = ("a", "b", "c") if is_plain else ("a", "b", "final_obs", "c")
    chosen_from = [0, 2, 3, 4, 5, 9] if is_plain else range(len(values))
    of_key = {key: random.choice(chosen_from, size=1 if seed % 4 else 2) for key in keys}
    dicts = [
        {key: values[random.choice(of_key[key])]() for key in of_key if random.random() < rate}
        if random.random() < 0.2 + rate
        else None
        for _ in range(4 * 5)
    ]

    histories = []
    for shard in (range(2), range(2, 5)):
        history, columns = InfoHistory(len(shard)), InfoColumns(len(shard))
        for step in range(4):
            told_now = [dicts[step * 5 + index] for index in shard]
            if by == "columns":
                columns.clear()
                for row, info in enumerate(told_now):
                    if info:
                        columns.write(row, info)
                history.add_columns(step, columns)
            else:
                history.add(step, told_now)
        history.pack()
        histories.append((shard.start, history))
    got = time_major_infos(histories, 4, 5)

    wanted = batch_infos(dicts)
    assert list(wanted) == list(got)
    for key, value in got.items():
        flat = value if isinstance(value, dict) else value.reshape((20, *value.shape[2:]))
        if isinstance(value, dict):
            flat = {name: part.reshape(20) for name, part in value.items()}
        assert first_difference(wanted[key], flat, key) is None


class Averaging:
    """Depends on all rows."""

    def __call__(self, observations):
        return np.full(len(observations), int(observations.sum() > 3))


def test_a_policy_that_depends_on_the_batch_is_told():
    with make_batch(Backend("threading", "actors"), [partial(CountingEnv, 100, start) for start in range(4)]) as envs:
        envs.reset(seed=0)

        with pytest.warns(
            BatchSizeDependentWarning, match=r"sub-environment 0 among 0 to 1 is .*0.* and .*1.* where"
        ) as w:
            rollout = envs.rollout(Averaging(), 2)

    assert not rollout.equals_lockstep
    assert w[0].filename == __file__
    assert rollout.actions[0].tolist() == [0, 0, 1, 1]


@by_backend(FEW)
def test_a_policy_that_changes_from_call_to_call_is_told(backend):
    policy = CountingCalls()
    with counting_batch(backend, 2) as envs:
        envs.reset(seed=0)

        with pytest.warns(BatchSizeDependentWarning, match="change from call to call"):
            rollout = envs.rollout(policy, 3)

    assert rollout.actions.T.tolist() == [[1, 0, 1]] * 2
    assert policy.calls == 0


@by_backend(FEW)
def test_a_pure_policy_warns_of_nothing(backend):
    with counting_batch(backend, 4) as envs, warnings.catch_warnings():
        warnings.simplefilter("error")
        envs.reset(seed=0)
        assert envs.rollout(alternate, 2).equals_lockstep


def test_nobody_has_moved_where_the_warning_is_an_error():
    with counting_batch(REFERENCE, 2) as envs, warnings.catch_warnings():
        warnings.simplefilter("error")
        envs.reset(seed=0)

        with pytest.raises(BatchSizeDependentWarning):
            envs.rollout(CountingCalls(), 2)
        observations = envs.step([0, 0])[0]

    assert observations.tolist() == [1, 1]


@by_backend(FEW)
@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((alternate, 0), ArgumentError, "num_steps=0"),
        ((alternate, 1.5), TypeError, "whole number"),
        ((alternate, True), TypeError, "whole number"),
        (("left", 1), TypeError, "can't be called"),
        ((FailingAt(0), 1), PolicyError, "raised ValueError: no more .*nobody has moved"),
        ((WrongAt(0), 1), PolicyError, "actions have shape"),
    ],
)
def test_what_is_refused_moves_nobody(backend, arguments, error, says):
    with counting_batch(backend, 2) as envs:
        envs.reset(seed=0)

        with pytest.raises(error, match=says):
            envs.rollout(*arguments)
        observations = envs.step([0, 0])[0]

    assert observations.tolist() == [1, 1]


def test_numpy_integers_are_numbers_of_steps():
    with counting_batch(REFERENCE, 2) as envs:
        envs.reset(seed=0)
        assert len(envs.rollout(alternate, np.int64(3))) == 3


@by_backend(FEW)
def test_a_batch_that_was_never_reset_is_refused(backend):
    with counting_batch(backend, 2) as envs, pytest.raises(ResetNeededError, match="no observation of \\[0, 1\\]"):
        envs.rollout(alternate, 1)


def test_disabled_autoreset_is_refused(backend):
    with counting_batch(backend, 2, autoreset_mode="Disabled") as envs:
        envs.reset(seed=0)

        with pytest.raises(ArgumentError, match="autoreset_mode='NextStep' or 'SameStep'"):
            envs.rollout(alternate, 1)
        assert envs.step([0, 0])[0].tolist() == [1, 1]


@by_backend(PROCESSES)
def test_a_policy_that_cannot_be_pickled_is_refused(backend):
    with counting_batch(backend, 2) as envs:
        envs.reset(seed=0)

        with pytest.raises(UnpicklableError, match=r"policy can't be pickled .*backend='threading'"):
            envs.rollout(Holding(), 1)
        assert envs.step([0, 0])[0].tolist() == [1, 1]


@by_backend([REFERENCE, Backend("threading", "actors"), Backend("threading", "tasks")])
def test_in_one_process_a_policy_need_not_be_pickled(backend):
    with counting_batch(backend, 2) as envs:
        envs.reset(seed=0)
        assert envs.rollout(Holding(), 2).last_observations.tolist() == [2, 2]


@by_backend(PROCESSES)
def test_a_policy_that_no_worker_can_load_is_told(backend):
    with counting_batch(backend, 2, caller_steps=False if backend.execution == "actors" else None) as envs:
        envs.reset(seed=0)

        with pytest.raises(PolicyError, match=r"can't be unpickled in a worker .*this worker lacks it") as caught:
            envs.rollout(Unloadable(), 3)
        observations = envs.step([0, 0])[0]

    assert caught.value.partial.steps_made.tolist() == [0, 0]
    assert observations.tolist() == [1, 1]


@pytest.mark.parametrize("kind", ["value_error", "two_arguments", "unpicklable", "sys_exit"])
def test_a_failing_sub_environment_stops_its_worker_after_that_step(backend, kind):
    fails = [None, 3, None, None]
    envs_fns = [partial(FailingEnv, fail_at, "step", kind, 100) for fail_at in fails]
    with make_batch(backend, envs_fns) as envs:
        envs.reset(seed=0)
        shards = envs._execution.shards

        with pytest.raises(SubEnvError) as caught:
            envs.rollout(alternate, 5)
        with pytest.raises(ResetNeededError) as refused:
            envs.rollout(alternate, 1)
        rollout, failed = caught.value.partial
        observations, _ = envs.reset(options={"reset_mask": failed})
        again = envs.rollout(alternate, 2)

    together = [1 in next(shard for shard in shards if index in shard) for index in range(4)]
    made = [2 if index == 1 else 3 if together[index] else 5 for index in range(4)]
    assert refused.value.env_indices == (1,)
    assert list(caught.value.failures) == [1]
    assert failed.tolist() == [False, True, False, False]
    assert rollout.steps_made.tolist() == made
    assert rollout.rewards.T.tolist() == [[*range(1, count + 1), *[0] * (5 - count)] for count in made]
    seen = [[*range(3 if index == 1 else made[index])] for index in range(4)]
    assert rollout.observations.T.tolist() == [[*row, *[0] * (5 - len(row))] for row in seen]
    assert rollout.infos["_count"].T.tolist() == [[step < count for step in range(5)] for count in made]
    assert rollout.last_observations.tolist() == [0 if index == 1 else made[index] for index in range(4)]
    assert observations.tolist() == [0 if index == 1 else made[index] for index in range(4)]
    assert again.observations[0].tolist() == observations.tolist()


@by_backend(PROCESSES)
def test_an_info_that_cannot_be_pickled_fails_its_sub_environment(backend):
    options = {"caller_steps": False} if backend.execution == "actors" else {}
    with make_batch(backend, [partial(CountingEnv, 100), partial(UnpicklableInfoEnv, 100)], **options) as envs:
        envs.reset(seed=0)

        with pytest.raises(SubEnvError, match="can't be pickled") as caught:
            envs.rollout(alternate, 4)
        rollout, failed = caught.value.partial
        envs.reset(options={"reset_mask": failed})
        observations = envs.step([0, 0])[0]

    assert failed.tolist() == [False, True]
    assert rollout.steps_made.tolist() == [4, 1]
    assert rollout.rewards[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert observations.tolist() == [5, 1]


@pytest.mark.parametrize(
    "policy", [FailingAt(3), FailingAt(3, error=SystemExit), WrongAt(3)], ids=["raises", "exits", "wrong"]
)
def test_a_failing_policy_stops_its_worker_before_that_step(backend, policy):
    starts = [0, 0, 50, 50]
    with make_batch(backend, [partial(CountingEnv, 100, start) for start in starts]) as envs:
        envs.reset(seed=0)
        shards = envs._execution.shards

        with pytest.raises(PolicyError, match="after 3 of 5 steps of the sub-environments 0 to") as caught:
            envs.rollout(policy, 5)
        observations = envs.step([0, 0, 0, 0])[0]

    partial_rollout = caught.value.partial
    made = [3, 3, *([3, 3] if len(shards) == 1 else [5, 5])]
    assert partial_rollout.steps_made.tolist() == made
    assert partial_rollout.actions.dtype == np.int64
    assert partial_rollout.infos["_count"].sum(axis=0).tolist() == made
    assert observations.tolist() == [start + count + 1 for start, count in zip(starts, made, strict=True)]
    assert caught.value.__cause__ is not None


@by_backend(PROCESSES)
def test_a_policys_error_comes_with_the_workers_traceback(backend):
    options = {"caller_steps": False} if backend.execution == "actors" else {}
    with counting_batch(backend, 2, **options) as envs:
        envs.reset(seed=0)
        with pytest.raises(PolicyError) as caught:
            envs.rollout(FailingAt(2), 4)

    assert isinstance(caught.value.__cause__, ValueError)
    assert "odd_policies.py" in "".join(caught.value.__cause__.__notes__)


def test_an_interrupt_in_the_callers_policy_is_passed_on_and_asks_for_a_reset():
    with counting_batch(REFERENCE, 2) as envs:
        envs.reset(seed=0)

        with pytest.raises(KeyboardInterrupt):
            envs.rollout(FailingAt(2, error=KeyboardInterrupt), 4)
        with pytest.raises(ResetNeededError, match="interrupted"):
            envs.rollout(alternate, 1)
        envs.reset(seed=0)
        assert envs.rollout(alternate, 2).last_observations.tolist() == [2, 2]


def test_a_thread_whose_policy_interrupts_fails_alone():
    with make_batch(Backend("threading", "actors"), [partial(CountingEnv, 100, start) for start in (0, 50)]) as envs:
        envs.reset(seed=0)

        with pytest.raises(SubEnvError) as caught:
            envs.rollout(FailingAt(2, error=KeyboardInterrupt), 4)

    rollout, failed = caught.value.partial
    assert failed.tolist() == [True, False]
    assert rollout.steps_made.tolist() == [0, 4]
    assert rollout.observations.T.tolist() == [[0, 0, 0, 0], [50, 51, 52, 53]]
    assert rollout.actions.T.tolist() == [[0, 0, 0, 0], [0, 0, 0, 0]]


@by_backend(FEW)
def test_a_policy_that_uses_the_batch_is_told(backend):
    with counting_batch(backend, 2) as envs:
        envs.reset(seed=0)

        with pytest.raises(PolicyError) as caught:
            envs.rollout(lambda x: envs.step([0, 0])[0], 1)
        assert envs.step([0, 0])[0].tolist() == [1, 1]

    assert isinstance(caught.value.__cause__, ConcurrentUseError)


def test_a_worker_that_dies_is_told():
    env_fns = [partial(KilledEnv, "step"), partial(CountingEnv, 100)]
    with make_batch(Backend("loky", "actors"), env_fns, caller_steps=False) as envs:
        envs.reset(seed=0)

        with pytest.raises(WorkerDiedError) as caught:
            envs.rollout(alternate, 5)

    assert caught.value.env_indices == (0,)


def test_a_batch_with_an_episode_over_needs_a_reset_first():
    with counting_batch(REFERENCE, 2, episode_length=1, autoreset_mode="Disabled") as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        with pytest.raises(EpisodeOverError):
            envs.step([0, 0])


class Threads:
    """Tells how many BLAS threads it may use, as its action."""

    def __call__(self, observations):
        from threadpoolctl import threadpool_info

        found = {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
        return np.full(len(observations), int(found <= {1}))


@by_backend(FEW)
def test_the_thread_limit_holds_while_the_policy_runs(backend):
    from threadpoolctl import threadpool_info, threadpool_limits

    with threadpool_limits(2), counting_batch(backend, 2) as envs, warnings.catch_warnings():
        warnings.simplefilter("ignore", BatchSizeDependentWarning)
        before = [library["num_threads"] for library in threadpool_info()]
        envs.reset(seed=0)
        rollout = envs.rollout(Threads(), 2)
        after = [library["num_threads"] for library in threadpool_info()]

    assert rollout.actions.tolist() == [[1, 1], [1, 1]]
    assert after == before


def loud(observations):
    warnings.warn("louder", stacklevel=1)
    logging.getLogger("policy").warning("heard")
    return observations % 2


@by_backend(FEW)
def test_warnings_and_logs_of_policies_and_environments_reach_the_caller(backend, caplog):
    with make_batch(backend, partial(TalkingEnv, "warn"), 2) as envs:
        envs.reset(seed=0)

        with pytest.warns() as shown:
            envs.rollout(loud, 2)

    said = {str(each.message) for each in shown}
    assert said >= {"louder", "count is 0", "count is 1"}
    assert any("heard" in record.getMessage() for record in caplog.records)


def test_threads_each_have_a_policy_of_their_own():
    with counting_batch(Backend("threading", "actors"), 4) as envs:
        envs.reset(seed=0)
        rollout = envs.rollout(Telling(), 3)

    assert len(set(Telling.seen)) == 3  # the check's, and one in each thread
    assert rollout.equals_lockstep


class Telling:
    """Notes which object in which thread was asked."""

    seen: list = []  # noqa: RUF012

    def __call__(self, observations):
        Telling.seen.append((id(self), threading.current_thread().name))
        return observations % 2
