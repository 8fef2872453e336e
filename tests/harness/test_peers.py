"""Other projects' ways to step environments, judged as ours are."""

import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from harness_fakes import counting_cell

from joblib_envs.equality import Verdict, first_difference
from joblib_envs.harness.contenders import all_contenders, autoreset_mode_of, patience_with
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.isolation import run_isolated
from joblib_envs.harness.judge import Limits, Survey, judge
from joblib_envs.harness.peers import _joined, _part
from joblib_envs.harness.records import Cell, Judgement, Metric, Sample
from joblib_envs.harness.timing import Timing, time_contender

SPACES = {
    "box": spaces.Box(-1, 1, (2, 3), np.float32),
    "discrete": spaces.Discrete(5),
    "dict": spaces.Dict(a=spaces.Discrete(3), b=spaces.Tuple((spaces.MultiBinary(2), spaces.Text(4)))),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Dict(c=spaces.Box(0, 1, (2,))))),
    "text": spaces.Text(4),
}


@dataclass(frozen=True)
class SameStep:
    """Gymnasium's Sync, reset in the step in which an episode ends."""

    name: str = "same_step"
    title: str = "same step"
    ours: bool = False
    parallel: bool = False
    autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP
    built_in: AutoresetMode = AutoresetMode.SAME_STEP

    def build(self, make_env, num_envs, n_jobs):
        return SyncVectorEnv([make_env] * num_envs, autoreset_mode=self.built_in)

    def code(self, source, num_envs, n_jobs):
        return ""


def judged(contender, cell):
    """Return the judgement and the metrics that were measured, from a process of its own."""
    said = []
    limits = Limits(optional_s=0.5, overhead_s=0.0)
    ending = run_isolated(
        judge, contender, cell, Survey(), limits, receive=lambda _, value: said.append(value), silence_s=120
    )
    assert ending.finished, ending
    judgements = [value for value in said if isinstance(value, Judgement)]
    return judgements[0], [value.metric for value in said if isinstance(value, Sample)]


def judged_here(contender, cell):
    said = []
    judge(lambda *message: said.append(message), contender, cell, Survey(), Limits(overhead_s=0.0))
    return next(value for kind, value, *_ in said if kind == "judgement")


def test_a_contender_is_judged_in_its_own_autoreset_mode():
    right = judged_here(SameStep(), counting_cell(episode_length=3))
    wrong = judged_here(SameStep(built_in=AutoresetMode.NEXT_STEP), counting_cell(episode_length=3))

    assert (right.verdict, right.reason) == (Verdict.CORRECT, "")
    assert right.episode_ends > 2
    assert (wrong.verdict, wrong.at) == (Verdict.WRONG, "step 3")


def test_where_the_ending_step_resets_every_step_counts():
    said = []
    asked = iter([(0, 0), *((number, 0) for number in range(6))])

    cell = counting_cell(num_envs=2, episode_length=3)
    time_contender(lambda *message: said.append(message), asked, SameStep(), cell, Timing(1, 1e-9))

    samples = [message[1] for message in said if message[0] == "sample"]
    assert sum(sample.calls for sample in samples) >= 6
    assert [(sample.env_steps, sample.reset_steps) for sample in samples] == [(2 * each.calls, 0) for each in samples]


def test_what_starts_slowly_does_not_count_as_hanging():
    known = all_contenders()

    assert [patience_with(known[name], 15.0) for name in ("plain_loop", "sb3_subproc", "ray_actors")] == [15, 120, 120]
    assert patience_with(known["sb3_subproc"], 600.0) == 600


@pytest.mark.parametrize("name", SPACES)
def test_batches_are_cut_and_joined_whatever_the_space(name):
    space = SPACES[name]
    space.seed(0)
    items = [space.sample() for _ in range(5)]
    batch = concatenate(space, items, create_empty_array(space, 5))

    parts = [_part(space, batch, rows) for rows in (range(2), range(2, 5))]

    assert first_difference(batch, _joined(space, parts)) is None
    for part, rows in zip(parts, (range(2), range(2, 5)), strict=True):
        each = list(iterate(batch_space(space, len(rows)), part))
        assert first_difference([items[row] for row in rows], each) is None


@pytest.mark.parametrize(("name", "package"), [("sb3_subproc", "stable-baselines3"), ("ray_actors", "ray")])
def test_a_peer_that_is_not_installed_is_unavailable_and_says_what_to_install(name, package, monkeypatch):
    for module in ("ray", "stable_baselines3", "stable_baselines3.common.vec_env"):
        monkeypatch.setitem(sys.modules, module, None)

    judgement = judged_here(all_contenders()[name], counting_cell())

    assert judgement.verdict is Verdict.UNAVAILABLE
    assert f"'{package}', which is not installed" in judgement.reason
    assert "pip install 'joblib-envs[" in judgement.reason


def test_peers_are_left_to_studies():
    known = all_contenders()

    assert not any(known[name].in_comparisons or known[name].ours for name in ("sb3_subproc", "ray_actors"))
    assert autoreset_mode_of(known["sb3_subproc"]) is AutoresetMode.SAME_STEP
    assert autoreset_mode_of(known["ray_actors"]) is AutoresetMode.NEXT_STEP


def test_the_code_of_sb3_can_be_pasted():
    code = all_contenders()["sb3_subproc"].code(EnvironmentSource("CartPole-v1"), 2, 1)

    compile(code, "pasted", "exec")
    assert 'SubprocVecEnv([lambda: gymnasium.make("CartPole-v1")] * 2)' in code


def cell_of(env_id, num_envs=2):
    return Cell(EnvironmentSource(env_id), num_envs, n_jobs=1, seed=0)


@pytest.mark.slow
@pytest.mark.xdist_group("clusters")
@pytest.mark.parametrize("num_envs", [1, 3])
def test_actors_of_ray_are_correct(num_envs):
    pytest.importorskip("ray")
    cell = replace(counting_cell(num_envs, episode_length=3), n_jobs=2)

    judgement, metrics = judged(all_contenders()["ray_actors"], cell)

    assert (judgement.verdict, judgement.reason) == (Verdict.CORRECT, "")
    assert judgement.episode_ends > 2
    assert metrics == [Metric.START_UP, Metric.CALL]


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["CartPole-v1", "joblib_envs/Counting-v0", "FrozenLake-v1"])
def test_sb3_is_correct_where_it_keeps_what_environments_give(env_id):
    pytest.importorskip("stable_baselines3")

    judgement, metrics = judged(all_contenders()["sb3_subproc"], cell_of(env_id))

    assert (judgement.verdict, judgement.reason) == (Verdict.CORRECT, "")
    assert metrics == [Metric.START_UP, Metric.CALL]


@pytest.mark.slow
def test_sb3_loses_the_last_observation_of_an_environment_that_reuses_its_buffer():
    pytest.importorskip("stable_baselines3")

    judgement, _ = judged(all_contenders()["sb3_subproc"], cell_of("joblib_envs/BufferReusing-v0"))

    assert judgement.verdict is Verdict.WRONG
    assert "final_obs" in judgement.field
