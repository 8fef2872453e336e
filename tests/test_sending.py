"""Some sub-environments at a time: each goes through what it would in step, whoever is done first comes first."""

import threading
import time
from functools import partial

import gymnasium
import numpy as np
import pytest
from batches import BACKENDS, TRAVELLING, make_batch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics

from joblib_envs import BatchEnv
from joblib_envs.envs import CountingEnv, FailingEnv
from joblib_envs.equality import first_difference
from joblib_envs.errors import (
    ArgumentError,
    CallTimeoutError,
    NoPendingCallError,
    PendingCallError,
    ResetNeededError,
    SubEnvError,
    WorkerDiedError,
)

ACTORS = [backend for backend in BACKENDS if backend.execution == "actors"]
NUM_ENVS = 5


class WordsEnv(gymnasium.Env):
    """Says words: observations, actions and infos that are no arrays."""

    observation_space = gymnasium.spaces.Dict(
        {"text": gymnasium.spaces.Text(20), "count": gymnasium.spaces.Box(0, 99, (2,))}
    )
    action_space = gymnasium.spaces.Dict({"word": gymnasium.spaces.Text(3), "n": gymnasium.spaces.Discrete(4)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.seen("-"), {"said": ["nothing"]}

    def step(self, action):
        self.count += 1
        info = {"said": [action["word"]] * self.count, "n": action["n"]} if self.count % 2 else {}
        return self.seen(action["word"]), 0.5, self.count == 4, False, info

    def seen(self, word):
        return {"text": word + str(self.count), "count": np.full(2, self.count, np.float32)}


class SlowEnv(CountingEnv):
    """Takes as many hundredths of a second as its action says."""

    action_space = gymnasium.spaces.Discrete(100)

    def step(self, action):
        time.sleep(int(action) / 100)
        return super().step(0)


def cart_poles():
    return [lambda: RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))] * NUM_ENVS


def one_by_one(batch):
    """Return the transitions of a batch of some sub-environments, by index."""
    observations, rewards, terminations, truncations, infos, indices = batch
    return {
        int(index): (
            _row(observations, row),
            rewards[row],
            terminations[row],
            truncations[row],
            {
                key: _row(value, row)
                for key, value in infos.items()
                if not key.startswith("_") and infos[f"_{key}"][row]
            },
        )
        for row, index in enumerate(indices)
    }


def _row(value, row):
    if isinstance(value, dict):  # "t" is the time that an episode took
        return {key: _row(part, row) for key, part in value.items() if key != "t"}
    return value[row]


@pytest.mark.parametrize("backend", ACTORS, ids=str)
@pytest.mark.parametrize("make", [cart_poles, lambda: [WordsEnv] * NUM_ENVS], ids=["arrays", "words"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("caller_steps", [True, False])
def test_each_sub_environment_goes_through_what_it_would_in_step(backend, make, mode, caller_steps):
    if backend.name == "sequential" and not caller_steps:
        pytest.skip("there the caller is the only worker")
    rng = np.random.default_rng(1)
    with (
        make_batch(backend, make(), autoreset_mode=mode, caller_steps=caller_steps) as envs,
        make_batch(ACTORS[0], make(), autoreset_mode=mode) as lockstep,
    ):
        envs.action_space.seed(0)
        actions = [envs.action_space.sample() for _ in range(40)]
        envs.reset(seed=3)
        lockstep.reset(seed=3)
        wanted = [one_by_one((*lockstep.step(action), np.arange(NUM_ENVS))) for action in actions]
        made = [0] * NUM_ENVS
        idle = set(range(NUM_ENVS))
        while idle or envs._guard.pending:
            chosen = [int(i) for i in rng.permutation(sorted(idle)) if made[i] < len(actions) and rng.random() < 0.7]
            if chosen:
                envs.send(_some(actions, made, chosen), chosen)
                idle.difference_update(chosen)
            if envs._guard.pending and rng.random() < 0.7:
                for index, got in one_by_one(envs.recv()).items():
                    assert first_difference(wanted[made[index]][index], got, f"{index}, step {made[index]}") is None
                    made[index] += 1
                    idle.add(index)
            idle -= {index for index in idle if made[index] == len(actions)}

        assert made == [len(actions)] * NUM_ENVS
        last, _, _, _, _ = envs.step(actions[0])
        again, _, _, _, _ = lockstep.step(actions[0])
        assert first_difference(again, last, "the step after it") is None


def _some(actions, made, chosen):
    """Return, as a batch, the next action of each of some sub-environments."""
    each = [
        {key: part[index] for key, part in actions[made[index]].items()}
        if isinstance(actions[0], dict)
        else actions[made[index]][index]
        for index in chosen
    ]
    return each if isinstance(actions[0], dict) else np.array(each)


@pytest.mark.parametrize("backend", ACTORS[1:], ids=str)
def test_who_is_done_first_comes_first(backend):
    with make_batch(backend, SlowEnv, 4, n_jobs=4, caller_steps=False) as envs:
        envs.reset(seed=0)
        envs.send(np.array([30, 1]), [0, 1])
        assert envs.recv()[-1].tolist() == [1]
        envs.send(np.array([1]), [1])
        envs.send(np.array([1, 1]), [2, 3])
        others = []
        while len(others) < 4:
            others.extend(envs.recv()[-1].tolist())
        assert others[-1] == 0


@pytest.mark.parametrize("backend", ACTORS, ids=str)
def test_as_many_as_asked_for_are_waited_for(backend):
    with make_batch(backend, CountingEnv, 5) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(5, dtype=int))
        first = envs.recv(3)[-1].tolist()
        rest = envs.recv(5 - len(first))[-1].tolist() if len(first) < 5 else []

        assert len(first) >= 3
        assert sorted(first + rest) == list(range(5))
        with pytest.raises(NoPendingCallError):
            envs.recv()


@pytest.mark.parametrize("backend", ACTORS, ids=str)
def test_what_cannot_be_sent_or_received_is_refused_and_nobody_moves(backend):
    with make_batch(backend, CountingEnv, 3) as envs:
        envs.reset(seed=0)
        envs.send([0], [1])
        for given, message in (
            (([0], [1]), "sent already"),
            (([0], [7]), "sub-environments 0 to 2"),
            (([0, 0], [2]), "1"),
            (([0, 0], [2, 2]), "twice"),
            (([[0, 1]], [2]), "shape"),
        ):
            with pytest.raises(ArgumentError, match=message):
                envs.send(*given)
        for min_envs in (0, 2, 1.5, True):
            with pytest.raises(ArgumentError, match="min_envs"):
                envs.recv(min_envs)
        for timeout in ("a", -1, float("nan"), True):
            with pytest.raises(ArgumentError, match="timeout="):
                envs.recv(timeout=timeout)
        for call in (lambda: envs.step([0, 0, 0]), envs.reset, lambda: envs.call("count"), lambda: envs.step_wait()):
            with pytest.raises((PendingCallError, NoPendingCallError)):
                call()
        envs.recv()
        envs.send([0, 0], np.array([True, False, True]))
        assert sorted(envs.recv(2)[-1].tolist()) == [0, 2]
        assert envs.get_attr("count") == (1, 1, 1)


class LoudEnv(WordsEnv):
    """Takes and says a lot: more than a pipe holds."""

    observation_space = gymnasium.spaces.Dict({"text": gymnasium.spaces.Text(10**6)})
    action_space = gymnasium.spaces.Dict({"word": gymnasium.spaces.Text(10**6)})

    def step(self, action):
        return {"text": action["word"]}, 0.0, False, False, {}

    def reset(self, *, seed=None, options=None):
        return {"text": "-"}, {}


@pytest.mark.parametrize("backend", ACTORS, ids=str)
@pytest.mark.timeout(60)
def test_nobody_waits_for_ever_for_room_in_a_pipe(backend):
    words = [str(index) * 400_000 for index in range(8)]
    with make_batch(backend, LoudEnv, 8) as envs:
        envs.reset(seed=0)
        for _ in range(3):
            envs.send([{"word": word} for word in words])
            observations, *_, indices = envs.recv(8)
            assert list(observations["text"]) == [words[index] for index in indices]


@pytest.mark.parametrize("backend", ACTORS, ids=str)
def test_views_that_were_handed_out_before_live_on(backend):
    with make_batch(backend, CountingEnv, 3, copy=False) as envs:
        envs.reset(seed=0)
        view, *_ = envs.step([0, 0, 0])
        envs.send([0, 0], [0, 2])
        received = envs.recv(2)
        assert view.tolist() == [1, 1, 1]
        assert received[0].tolist() == [2, 2]
        assert envs.step([0, 0, 0])[0].tolist() == [3, 2, 3]


@pytest.mark.parametrize("backend", TRAVELLING[:1], ids=str)
def test_tasks_refuse_it(backend):
    with make_batch(backend, CountingEnv, 2) as envs:
        envs.reset(seed=0)
        with pytest.raises(ArgumentError, match="execution='actors'"):
            envs.send([0, 0])
        envs.step([0, 0])


@pytest.mark.parametrize("backend", ACTORS, ids=str)
def test_a_failure_is_that_sub_environments_alone(backend):
    factories = [CountingEnv, FailingEnv, CountingEnv]
    with make_batch(backend, factories) as envs:
        envs.reset(seed=0)
        envs.send([0, 0, 0])
        seen = []

        def receive_all():
            while len(seen) < 3:
                seen.extend(envs.recv()[-1].tolist())

        with pytest.raises(SubEnvError) as caught:
            receive_all()
        partial_batch = caught.value.partial
        seen.extend(partial_batch[-2].tolist())
        failed = partial_batch[-2][partial_batch[-1]]
        if len(seen) < 3:
            seen.extend(envs.recv(3 - len(seen))[-1].tolist())

        assert failed.tolist() == [1]
        assert sorted(seen) == [0, 1, 2]
        with pytest.raises(ResetNeededError):
            envs.send([0], [1])
        envs.send([0, 0], [0, 2])
        assert sorted(envs.recv(2)[-1].tolist()) == [0, 2]


@pytest.mark.parametrize("backend", ACTORS[1:], ids=str)
def test_a_timeout_loses_nothing(backend):
    with make_batch(backend, SlowEnv, 2, caller_steps=False) as envs:
        envs.reset(seed=0)
        envs.send(np.array([1, 30]))
        with pytest.raises(CallTimeoutError, match="receive again"):
            envs.recv(2, timeout=0.1)
        assert sorted(envs.recv(2)[-1].tolist()) == [0, 1]
        assert envs.get_attr("count") == (1, 1)


@pytest.mark.parametrize("backend", ACTORS, ids=str)
def test_a_batch_with_steps_under_way_can_be_closed(backend):
    envs = make_batch(backend, SlowEnv, 4)
    envs.reset(seed=0)
    envs.send(np.array([20, 1, 20, 1]))
    began = time.monotonic()
    envs.close()

    assert time.monotonic() - began < 10
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("joblib-envs") and not thread.daemon
    ]


def test_the_death_of_a_worker_is_told():
    envs = BatchEnv(
        [partial(FailingEnv, 1, "step", "os_exit"), CountingEnv], backend="loky", n_jobs=2, caller_steps=False
    )
    envs.reset(seed=0)
    envs.send([0, 0])
    with pytest.raises(WorkerDiedError, match="sub-environment 0"):
        envs.recv(2)
    envs.close()
