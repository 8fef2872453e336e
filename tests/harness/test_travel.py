import io
import json
import sys
import time

import pytest
from rich.console import Console

from joblib_envs.equality import Verdict
from joblib_envs.errors import ArgumentError
from joblib_envs.harness.charts import draw_charts
from joblib_envs.harness.heat_map import CELL_ID, travel_figures
from joblib_envs.harness.records import Cell, Judgement, Metric, Sample
from joblib_envs.harness.report import print_results, results_as_json
from joblib_envs.harness.results import ResultsFolder, load_results
from joblib_envs.harness.runner import run_study
from joblib_envs.harness.study import Study, load_study
from joblib_envs.harness.travel import Finding, judge_findings
from joblib_envs.harness.travel_course import Irreproducible, plan_course, require_equal, visit
from joblib_envs.harness.travel_methods import METHODS
from joblib_envs.harness.travel_source import TravelSource

STUDY = """
measure = "travel"
question = "Which?"
methods = ["pickle", "capture"]
[[environments]]
id = "CartPole-v1"
family = "Classic control"
[[environments]]
id = "CartPole-v1"
family = "Classic control"
wrappers = ["NormalizeReward", "TransformReward"]
[[environments]]
id = "no_such_package:Such-v0"
family = "Others"
install = "pip install no-such-package"
kwargs = { size = 3 }
[timing]
rounds = 4
"""

DISTURBED = """
import os, threading
from joblib_envs.envs import CountingEnv

class Crashing(CountingEnv):
    def __deepcopy__(self, memo):
        os._exit(3)

class Hanging(CountingEnv):
    def __deepcopy__(self, memo):
        threading.Event().wait()
"""


class Silence:
    def start(self, total): ...
    def begin(self, text): ...
    def advance(self, units=1): ...
    def note(self, text): ...


def loaded(tmp_path, text=STUDY):
    path = tmp_path / "asked.toml"
    path.write_text(text)
    return load_study(path)


def ours(name, family="ours", **kwargs):
    return TravelSource(f"joblib_envs/{name}-v0", kwargs, family=family)


def run(path, *sources, **changes):
    """Return the faults and the results of a study."""
    values = {"measure": "travel", "rounds": 0, "hang_s": 30.0} | changes
    faults = run_study(Study("asked", sources, **values), ResultsFolder(path), Silence())
    return faults, load_results(path)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Results of environments of which it is known what a pickle does with them."""
    missing = TravelSource("no_such_package:Such-v0", family="others", install="pip install no-such-package")
    sources = (*map(ours, ("Counting", "EzPickledCounting", "Handle", "Unpicklable", "GlobalRandom")), missing)
    faults, results = run(tmp_path_factory.mktemp("travel") / "out", *sources, rounds=3)
    assert faults == []
    return results


def verdicts_of(recorded, environment):
    table = recorded.verdicts[recorded.verdicts["environment"] == environment]
    return dict(zip(table["contender"], table["verdict"], strict=True))


def reasons_of(recorded, environment):
    table = recorded.verdicts[recorded.verdicts["environment"] == environment]
    return dict(zip(table["contender"], table["reason"], strict=True))


@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        ("Counting", ["correct"] * 5),
        ("EzPickledCounting", ["wrong", "wrong", "wrong", "correct", "correct"]),
        ("Handle", ["wrong", "wrong", "wrong", "refused", "correct"]),
        ("Unpicklable", ["raises", "raises", "raises", "refused", "correct"]),
        ("GlobalRandom", ["not_reproducible"] * 5),
    ],
)
def test_each_way_gets_the_verdict_it_deserves(recorded, name, verdicts):
    found = verdicts_of(recorded, f"joblib_envs/{name}-v0")

    assert found == dict(zip(METHODS, verdicts, strict=True))


def test_what_is_missing_is_unavailable_and_says_what_to_install(recorded):
    assert set(verdicts_of(recorded, "Such-v0").values()) == {"unavailable"}
    assert "`pip install no-such-package`" in reasons_of(recorded, "Such-v0")["capture"]


def test_what_is_wrong_says_when_and_where_it_differs_first(recorded):
    table = recorded.verdicts.set_index(["environment", "contender"])
    row = table.loc[("joblib_envs/EzPickledCounting-v0", "cloudpickle")]

    assert row["at"] == "reset, mid, end"  # an instance that was only made has nothing to lose
    # The generator of the environment shows at the next reset, before which nothing was counted.
    assert row["reason"].startswith("a copy made at 'reset': reset after step 5: info['drawn'] should be ")


def test_only_what_is_right_is_timed_in_rounds_by_turns(recorded):
    times = recorded.measurements[recorded.measurements["metric"] == Metric.RESTORE]
    handles = times[times["environment"] == "joblib_envs/Handle-v0"]
    counts = times[times["environment"] == "joblib_envs/Counting-v0"].groupby("contender")

    assert set(handles["contender"]) == {"replay"}
    assert {name: sorted(group["round"]) for name, group in counts} == {name: [0, 1, 2] for name in METHODS}
    assert all((group["value"] > 0).all() for _, group in counts)


def test_sizes_are_told_of_what_is_made_of_bytes(recorded):
    sizes = recorded.measurements[recorded.measurements["metric"] == Metric.PAYLOAD]

    counting = sizes[sizes["environment"] == "joblib_envs/Counting-v0"].set_index("contender")["value"]
    assert set(counting.index) == set(METHODS) - {"deepcopy"}
    assert (counting > 100).all()


def test_the_chart_has_a_cell_for_each_verdict(recorded):
    ((stem, figure),) = travel_figures(recorded)

    words = [text.get_text() for axes in figure.axes for text in axes.texts if text.get_gid() == CELL_ID]
    assert stem == "travel"
    assert len(words) == len(recorded.verdicts) == 6 * 5
    assert [word.partition(":")[0] for word in words].count("wrong") == 6
    assert words.count("wrong: reset, mid, end") == 3
    assert words.count("not reproducible") == words.count("unavailable") == 5


def test_charts_are_drawn_again_from_the_files_alone(recorded, tmp_path):
    first = draw_charts(recorded, tmp_path / "first")
    again = draw_charts(recorded, tmp_path / "again")

    assert [path.name for path in first] == ["travel.png", "travel.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_environments_in_wrappers_have_a_chart_of_their_own(tmp_path):
    bare, wrapped = ours("Counting"), TravelSource("CartPole-v1", wrappers=("ClipReward",), family="Classic control")
    folder = ResultsFolder(tmp_path / "out")
    folder.write_study(Study("asked", (bare, wrapped), measure="travel", methods=("pickle",)))
    folder.write_machine({})
    for source in (bare, wrapped):
        cell = Cell(source, 1, 1, 0)
        folder.set_verdict(cell, "pickle", "pickle", Judgement(Verdict.CORRECT), ours=False)
        folder.add_samples(cell, [Sample("pickle", Metric.COPY, 1e-4), Sample("pickle", Metric.RESTORE, 2e-4)])

    figures = dict(travel_figures(load_results(folder.path)))

    assert list(figures) == ["travel", "travel-wrapped"]
    assert any(text.get_text() == "300 µs" for text in figures["travel"].axes[0].texts)


def test_the_table_fits_80_columns_and_says_what_is_found(recorded):
    console = Console(width=80, record=True, file=io.StringIO())
    print_results(recorded, console)
    text = console.export_text()

    assert max(map(len, text.splitlines())) <= 80
    whole = " ".join(text.split())
    assert "pickle: correct for 1, silently wrong for 2, raises for 1, not reproducible for 1." in whole
    assert "ours: capture: correct for 2, refused for 2, not reproducible for 1; never wrong." in whole
    assert "ours: capture: refused: it can't be pickled" in whole


def test_json_has_every_row(recorded):
    found = json.loads(json.dumps(results_as_json(recorded)))

    assert len(found["environments"]) == 6
    assert [each["method"] for each in found["environments"][0]["copyings"]] == list(METHODS)
    assert found["environments"][0]["copyings"][0]["copy_s"] > 0


@pytest.mark.parametrize(
    ("kind", "verdict", "words"), [("Crashing", "raises", "exit code 3"), ("Hanging", "hangs", "no answer")]
)
def test_a_method_that_ends_or_stops_its_process_is_judged_and_the_others_go_on(
    tmp_path, monkeypatch, kind, verdict, words
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"travel_{kind.lower()}_env"
    (tmp_path / f"{name}.py").write_text(DISTURBED)
    source = TravelSource(f"{tmp_path / name}.py:{kind}", family="mine")

    faults, recorded = run(tmp_path / "out", source, methods=("cloudpickle", "deepcopy", "pickle"), hang_s=3.0)

    assert faults == []
    assert verdicts_of(recorded, source.label) == {"cloudpickle": "correct", "deepcopy": verdict, "pickle": "correct"}
    assert words in reasons_of(recorded, source.label)["deepcopy"]


def test_a_course_tells_apart_what_differs_from_itself():
    course = plan_course(ours("Counting"), 0)

    require_equal(course, visit(ours("Counting"), course))
    with pytest.raises(Irreproducible, match="observation should be"):
        require_equal(course, visit(ours("Counting", start=1), course))


def test_times_of_the_clock_in_infos_are_no_difference():
    source = TravelSource("joblib_envs/Counting-v0", wrappers=("RecordEpisodeStatistics",))

    course = plan_course(source, 0)

    time.sleep(0)  # the clock goes on by itself
    require_equal(course, visit(source, course))
    assert course.varying == {("episode", "t")}


def test_the_worst_that_was_found_is_the_verdict():
    findings = [
        Finding("make", Verdict.CORRECT),
        Finding("mid", Verdict.RAISES, "it raised"),
        Finding("end", Verdict.WRONG, "it differed"),
    ]

    judgement = judge_findings(findings)

    assert (judgement.verdict, judgement.at) == (Verdict.WRONG, "end")
    assert judgement.reason == "it differed; raises at 'mid': it raised"
    assert judge_findings(findings[:2]).verdict is Verdict.RAISES
    assert judge_findings(findings[:1]) == Judgement(Verdict.CORRECT)


def test_a_study_of_travel_is_read_and_written_back_equal(tmp_path):
    study = loaded(tmp_path)

    assert (study.measure, study.methods, study.rounds) == ("travel", ("pickle", "capture"), 4)
    assert study.environments[1].label == "CartPole-v1 + norm. reward, lambda"
    assert study.environments[2].install == "pip install no-such-package"
    assert loaded(tmp_path, study.to_toml(tmp_path)) == study


def test_quick_takes_the_first_of_each_family_that_is_not_slow(tmp_path):
    first = 'family = "Classic control"\n'
    study = loaded(tmp_path, STUDY.replace(first, f"{first}quick = false\n", 1))

    assert [source.label for source in loaded(tmp_path).made_quick().environments] == ["CartPole-v1", "Such-v0"]
    assert [source.label for source in study.made_quick().environments] == [study.environments[1].label, "Such-v0"]
    assert study.made_quick().rounds == 3
    assert loaded(tmp_path, study.to_toml(tmp_path)) == study


def test_a_missing_package_is_no_fault_of_the_study_and_an_unknown_id_is(tmp_path):
    study = loaded(tmp_path)

    for source in study.environments:
        source.check()
    with pytest.raises(ArgumentError, match="NoSuch"):
        TravelSource("NoSuch-v0", install="pip install such").check()
    with pytest.raises(ArgumentError, match="no_such_package"):
        TravelSource("no_such_package:Such-v0").check()


@pytest.mark.parametrize(
    ("right", "broken", "words"),
    [
        ('measure = "travel"', 'measure = "time"', ["measure = 'time'", "'speed' or 'travel'"]),
        ('measure = "travel"', "measure = []", ["measure = []", "'speed' or 'travel'"]),
        ('methods = ["pickle", "capture"]', 'methods = ["pickel"]', ["methods = ['pickel']", "pickle, cloudpickle"]),
        ('methods = ["pickle", "capture"]', 'contenders = ["x"]', ["contenders is not a key", "methods"]),
        ('family = "Others"', "", ["environments[2].family is missing"]),
        ('wrappers = ["NormalizeReward", ', 'wrappers = ["Normalise", ', ["environments[1].wrappers", "ClipReward"]),
        ('wrappers = ["NormalizeReward", "TransformReward"]', "", ["environments[1] is called 'CartPole-v1'"]),
        ("rounds = 4", "min_time_s = 4", ["timing.min_time_s is not a key"]),
    ],
)
def test_faults_name_the_key_what_was_given_and_what_is_allowed(tmp_path, right, broken, words):
    with pytest.raises(ArgumentError) as caught:
        loaded(tmp_path, STUDY.replace(right, broken))

    assert "asked.toml" in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)
