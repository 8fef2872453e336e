import numpy as np
import pytest
from harness_fakes import Fake, counting_cell

from joblib_envs.equality import Difference, Verdict
from joblib_envs.harness.contenders import select_contenders
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.judge import Limits, Survey, env_index_of, judge, survey
from joblib_envs.harness.records import Cell, Judgement, Metric, Sample

LIMITS = Limits(overhead_s=0.0)


def judged(contender, cell=None, surveyed=None, limits=LIMITS):
    """Return the judgement and the samples."""
    said = []
    judge(
        lambda *message: said.append(message),
        contender,
        cell or counting_cell(),
        surveyed or Survey(),
        limits,
    )
    judgement = next(value for kind, value, *_ in said if isinstance(value, Judgement))
    return judgement, [value for _, value, *_ in said if isinstance(value, Sample)]


def surveyed(cell, limits=LIMITS):
    said = []
    survey(lambda *message: said.append(message), cell, limits)
    return said[-1][1]


def test_a_plain_loop_is_correct_over_several_episode_ends():
    judgement, samples = judged(Fake("none"), counting_cell(episode_length=1000))

    assert judgement.verdict is Verdict.CORRECT
    assert judgement.episode_ends >= 2
    assert [sample.metric for sample in samples] == [Metric.START_UP, Metric.CALL]


@pytest.mark.parametrize(
    ("fault", "env_index", "field"),
    [("observations", 1, "observations[1]"), ("rewards", 0, "rewards[0]"), ("infos", 1, "infos[1]")],
)
def test_the_first_difference_is_named(fault, env_index, field):
    judgement, samples = judged(Fake(fault))

    assert judgement.verdict is Verdict.WRONG
    assert (judgement.step, judgement.env_index, judgement.field) == (3, env_index, field)
    assert judgement.reason.startswith(f"step 3, sub-environment {env_index}: {field} should be")
    assert samples == []


def test_wanted_and_got_are_told():
    judgement, _ = judged(Fake("observations"), counting_cell(start=10))

    assert (judgement.wanted, judgement.got) == ("np.int64(13)", "np.int64(14)")


def test_a_dtype_is_part_of_the_data():
    judgement, _ = judged(Fake("float32"))

    assert judgement.verdict is Verdict.WRONG
    assert (judgement.wanted, judgement.got) == ("dtype float64", "dtype float32")


def test_lost_attributes_and_ignored_masks_are_wrong():
    lost, _ = judged(Fake("forgets"))
    unmasked, _ = judged(Fake("unmasked"), counting_cell(episode_length=1000))

    assert (lost.verdict, lost.at) == (Verdict.WRONG, "get_attr")
    assert (unmasked.verdict, unmasked.at) == (Verdict.WRONG, "masked reset without seed")


def test_an_exception_is_raises_with_its_step():
    judgement, _ = judged(Fake("raises"))

    assert judgement.verdict is Verdict.RAISES
    assert (judgement.step, judgement.reason) == (3, "RuntimeError: step 3 is one too many (in step 3)")


def test_a_refusal_and_a_missing_package_have_their_own_verdicts():
    refused, _ = judged(Fake("refuses"))
    unavailable, _ = judged(Fake("unavailable"))

    assert (refused.verdict, refused.reason) == (Verdict.REFUSED, "the state stays at home: use actors")
    assert unavailable.verdict is Verdict.UNAVAILABLE
    assert "pip install nothing" in unavailable.reason


def test_without_time_the_verdict_is_incomplete_and_says_what_is_missing():
    judgement, _ = judged(Fake("none"), limits=Limits(required_s=0.0, overhead_s=0.0))

    assert judgement.verdict is Verdict.INCOMPLETE
    assert "not covered: " in judgement.reason
    assert "set_attr" in judgement.reason
    assert "reset without seed" in judgement.reason


def test_an_environment_that_differs_from_itself_is_not_reproducible():
    cell = Cell(EnvironmentSource("harness_fakes:joblib_envs/GlobalRandom-v0"), 2, 1, 0)

    found = surveyed(cell)
    judgement, samples = judged(Fake("none"), cell, found)

    assert "differs from itself" in found.irreproducible
    assert judgement.verdict is Verdict.NOT_REPRODUCIBLE
    assert samples == []


@pytest.mark.parametrize(
    ("where", "place"), [("init", "its constructor"), ("reset", "reset(seed)"), ("step", "step 1")]
)
def test_a_fault_of_the_environment_itself_is_told_apart(where, place):
    cell = Cell(EnvironmentSource("harness_fakes:joblib_envs/Failing-v0", {"where": where}), 2, 1, 0)

    assert place in surveyed(cell).fault


def test_slow_environments_get_a_short_program():
    found = surveyed(counting_cell(), Limits(required_s=1e-9))

    assert found.short


@pytest.mark.parametrize("name", ["plain_loop", "gymnasium_sync", "gymnasium_async", "repaired_joblib"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Taxi-v4", "Blackjack-v1"])
def test_other_peoples_right_ways_are_called_correct(name, env):
    (contender,) = select_contenders([name])
    cell = Cell(EnvironmentSource(env), 3, 1, 0)

    judgement, _ = judged(contender, cell, limits=Limits(optional_s=0.0, overhead_s=0.0))

    assert judgement.verdict is Verdict.CORRECT


def test_the_loop_of_the_report_raises_and_its_half_form_is_wrong():
    cell = Cell(EnvironmentSource("CartPole-v1"), 2, 2, 0)
    naive, half = select_contenders(["naive_joblib", "half_joblib"])

    naive_judgement, _ = judged(naive, cell)
    half_judgement, _ = judged(half, cell)

    assert (naive_judgement.verdict, naive_judgement.step) == (Verdict.RAISES, 1)
    assert naive_judgement.reason.startswith("ResetNeeded")
    assert (half_judgement.verdict, half_judgement.step) == (Verdict.WRONG, 2)


def test_a_single_worker_is_not_an_excuse_for_the_report_s_loops():
    cell = Cell(EnvironmentSource("CartPole-v1"), 1, 1, 0)
    (half,) = select_contenders(["half_joblib"])

    judgement, _ = judged(half, cell)

    assert judgement.verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        (np.zeros((3, 2)), np.array([[0, 0], [0, 0], [1, 0]], dtype=float)),
        ({"a": np.zeros(3), "b": np.zeros((3, 1))}, {"a": np.array([0, 0, 1.0]), "b": np.zeros((3, 1))}),
        ((np.zeros(3), {"b": np.zeros(3)}), (np.zeros(3), {"b": np.array([0, 0, 1.0])})),
        (("a", "b", "c"), ("a", "b", "d")),
    ],
    ids=["box", "dict", "tuple", "text"],
)
def test_the_sub_environment_is_named_in_every_kind_of_batch(wanted, got):
    difference = Difference("observations[2]", "", "")

    assert env_index_of("observations", wanted, got, difference) == 2
