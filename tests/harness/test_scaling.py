import io
import itertools
import re
from pathlib import Path

import matplotlib
import pytest
from harness_fakes import counting_cell
from rich.console import Console

from joblib_envs.equality import Verdict
from joblib_envs.errors import ArgumentError
from joblib_envs.harness import style
from joblib_envs.harness.charts import draw_charts
from joblib_envs.harness.contenders import select_contenders
from joblib_envs.harness.records import Cell, Judgement, Metric, Sample
from joblib_envs.harness.report import print_results
from joblib_envs.harness.results import ResultsFolder, load_results
from joblib_envs.harness.runner import cells_of, run_study
from joblib_envs.harness.scaling import breakdown, cross_over, curves, points_of, sweep_of
from joblib_envs.harness.scaling_charts import scaling_figures
from joblib_envs.harness.study import Study, load_study
from joblib_envs.harness.summary import Estimate
from joblib_envs.harness.sweep import Point, Sweep, bytes_words, time_words

GOOD = """
measure = "scaling"
contenders = ["plain_loop", "batch_env/loky/*"]
[base]
num_envs = 8
n_jobs = 2
step_us = 100
observation_bytes = 8
episode_length = 1000
[sweep]
step_us = [1, 100, 1000.5]
n_jobs = [2, 4, 1]
[only_along]
"batch_env/*/tasks" = ["step_us"]
[timing]
rounds = 10
min_time_s = 0.1
cell_s = 3.0
"""
BASE = Point(8, 2)


class Silence:
    def start(self, total): ...
    def begin(self, text): ...
    def advance(self, units=1): ...
    def note(self, text): ...


def loaded(tmp_path, text):
    path = tmp_path / "asked.toml"
    path.write_text(text)
    return load_study(path)


def near(value):
    return Estimate(value, value * 0.99, value * 1.01)


def test_a_sweep_is_read_as_one_cell_for_each_point(tmp_path):
    study = loaded(tmp_path, GOOD)

    cells = list(cells_of(study))

    assert [(cell.environment.kwargs["step_us"], cell.num_envs, cell.n_jobs) for cell in cells] == [
        (100, 8, 2),
        (1, 8, 2),
        (1000.5, 8, 2),
        (100, 8, 1),
        (100, 8, 4),
    ]
    assert len({(cell.environment.label, cell.num_envs, cell.n_jobs) for cell in cells}) == 5
    assert {source.label for source in study.environments} == {cell.environment.label for cell in cells}


def test_a_written_sweep_is_read_back_equal(tmp_path):
    study = loaded(tmp_path, GOOD)

    assert loaded(tmp_path, study.to_toml()) == study
    assert loaded(tmp_path, study.made_quick().to_toml()) == study.made_quick()


@pytest.mark.parametrize(
    ("right", "broken", "words"),
    [
        ("num_envs = 8", "num_envs = 0", ["base.num_envs = 0", "a whole number, 1 or more"]),
        ("num_envs = 8", "", ["base.num_envs is missing"]),
        ("step_us = 100\n", "step_us = true\n", ["base.step_us = True", "microseconds, more than 0"]),
        ("step_us = 100\n", "step_us = 100\nwork = 'play'\n", ["base.work = 'play'", "'compute' or 'sleep'"]),
        ("observation_bytes = 8", "observation_bytes = 7", ["base.observation_bytes = 7", "8 or more"]),
        ("n_jobs = [2, 4, 1]", "n_jobs = 2", ["sweep.n_jobs = 2", "a list of different whole numbers, 1 or more"]),
        ("n_jobs = [2, 4, 1]", "n_jobs = [2, 2]", ["sweep.n_jobs = [2, 2]", "different"]),
        ("n_jobs = [2, 4, 1]", "jobs = [2]", ["sweep.jobs is not a key", "num_envs, n_jobs, step_us"]),
        ('tasks" = ["step_us"]', 'tasks" = ["steps"]', ["only_along", "'steps'", "step_us"]),
        ("cell_s = 3.0", "cell_s = 0", ["timing.cell_s = 0", "more than 0"]),
        ("[base]", "[grid]", ["grid is not a key", "base is missing"]),
        ('measure = "scaling"', "", ["base is not a key", "environments is missing"]),
    ],
)
def test_faults_in_a_sweep_name_the_key_what_was_given_and_what_is_allowed(tmp_path, right, broken, words):
    with pytest.raises(ArgumentError) as caught:
        loaded(tmp_path, GOOD.replace(right, broken))

    assert all(word in str(caught.value) for word in words)


def test_a_quick_sweep_has_the_base_and_the_first_other_value_of_each_factor(tmp_path):
    study = loaded(tmp_path, GOOD.replace("n_jobs = [2, 4, 1]", "n_jobs = [4, 1]\nnum_envs = [8]"))

    points = list(study.made_quick().sweep.points())

    assert [(point.step_us, point.num_envs, point.n_jobs) for point in points] == [(100, 8, 2), (1, 8, 2), (100, 8, 4)]


def test_slow_points_have_fewer_rounds_and_chosen_contenders_run_along_chosen_factors(tmp_path):
    study = loaded(tmp_path, GOOD.replace("1000.5", "100_000"))

    runs = {(cell.environment.kwargs["step_us"], cell.n_jobs): study.of_cell(cell) for cell in cells_of(study)}

    assert runs[1, 2].rounds == 10
    assert runs[100_000, 2].rounds == 3  # a batch takes 0.8 s, three contenders take a turn
    assert runs[100_000, 2].contenders == ("plain_loop", "batch_env/loky/actors", "batch_env/loky/tasks")
    assert runs[100, 4].contenders == ("plain_loop", "batch_env/loky/actors")


def test_a_study_without_a_sweep_runs_each_cell_as_it_is():
    study = Study("s", (counting_cell().environment,), ("plain_loop",))

    assert study.of_cell(counting_cell()) is study


def test_the_study_of_scaling_is_readable_and_its_quick_form_small():
    study = load_study(Path(__file__).parents[2] / "experiments" / "scaling.toml")

    assert study.measure == "scaling"
    assert len(list(study.made_quick().sweep.points())) == 6
    assert study.sweep.base in study.sweep.along("num_envs")


def test_words_for_sizes_and_times():
    assert [bytes_words(size) for size in (8, 999, 1000, 1500, 1_000_000)] == ["8 B", "999 B", "1 kB", "1.5 kB", "1 MB"]
    assert [time_words(time) for time in (0.5, 1, 999.9, 1000, 1e5, 2e6)] == [
        "0.5 µs", "1 µs", "1 ms", "1 ms", "100 ms", "2 s",
    ]  # fmt: skip


def test_the_cross_over_is_where_the_line_passes_one_on_logarithmic_axes():
    assert cross_over([1, 100], [near(0.5), near(2.0)]) == pytest.approx(10.0)
    assert cross_over([1, 10, 1000], [near(0.1), near(0.5), near(2.0)]) == pytest.approx(100.0)


def test_points_whose_interval_holds_one_belong_to_neither_side():
    unsure_below, unsure_above = Estimate(0.99, 0.9, 1.1), Estimate(1.01, 0.9, 1.1)

    assert cross_over([1, 10, 100], [near(0.5), unsure_below, unsure_above]) is None
    assert 10 < cross_over([1, 10, 100], [near(0.5), unsure_below, near(2.0)]) < 100
    assert 1 < cross_over([1, 10, 100], [near(0.5), unsure_above, near(2.0)]) < 10


def test_there_is_no_cross_over_above_one_throughout_nor_on_the_way_down():
    assert cross_over([1, 100], [near(1.5), near(2.0)]) is None
    assert cross_over([1, 100], [near(1.5), near(0.5)]) is None
    assert cross_over([], []) is None


COSTS = {"plain_loop": (4e-6, 1), "batch_env/threading/actors": (50e-6, 1), "batch_env/loky/actors": (40e-6, 2)}
"""What a call costs by itself, and by how much steps go faster."""


def recorded_as(tmp_path, sweep, costs=COSTS, wrong=()):
    """Record what contenders with these costs would have, without noise."""
    folder = ResultsFolder(tmp_path / "scaled")
    study = Study.of_sweep("scaled", sweep, tuple(costs))
    folder.write_study(study)
    folder.write_machine({"usable_threads": 2})
    contenders = {each.name: each for each in select_contenders(costs)}
    for point in sweep.points():
        cell = Cell(point.source, point.num_envs, point.n_jobs, 0)
        for name, (call_s, faster) in costs.items():
            verdict = Verdict.WRONG if name in wrong else Verdict.CORRECT
            judgement = Judgement(verdict, "because" if name in wrong else "")
            folder.set_verdict(cell, name, contenders[name].title, judgement, ours=contenders[name].ours)
            total_s = call_s + point.batch_s / faster
            samples = [Sample(name, Metric.CALL, call_s)] + [
                Sample(name, Metric.THROUGHPUT, point.num_envs / total_s, round=number, calls=10, wall_s=10 * total_s)
                for number in range(3)
            ]
            folder.add_samples(cell, samples)
    return load_results(folder.path)


def test_curves_follow_a_factor_through_the_base(tmp_path):
    recorded = recorded_as(tmp_path, Sweep(BASE, {"step_us": (1000, 1), "n_jobs": (1,)}))

    plain, *_, loky = curves(points_of(recorded), sweep_of(recorded), "step_us")

    assert (plain.contender, plain.values) == ("plain_loop", (1.0, 100.0, 1000.0))
    assert [line.speed_up.median for line in loky.lines] == pytest.approx([12 / 44, 804 / 440, 8004 / 4040])


def test_the_parts_of_a_call_add_up_and_are_what_was_measured(tmp_path):
    recorded = recorded_as(tmp_path, Sweep(BASE, {"n_jobs": (1,)}))

    plain, threads, loky = breakdown(recorded, BASE, points_of(recorded)[BASE])

    for parts in (plain, threads, loky):
        whole = parts.environment_s + parts.batching_s + parts.handover_s + parts.rest_s
        assert whole == pytest.approx(parts.total.median)
    assert (plain.environment_s, plain.batching_s) == (pytest.approx(800e-6), pytest.approx(4e-6))
    assert (plain.handover_s, plain.rest_s) == (pytest.approx(0, abs=1e-12), pytest.approx(0, abs=1e-12))
    assert (threads.environment_s, threads.rest_s) == (pytest.approx(400e-6), pytest.approx(400e-6))
    assert (loky.environment_s, loky.batching_s) == (pytest.approx(400e-6), pytest.approx(2e-6))
    assert (loky.handover_s, loky.rest_s) == (pytest.approx(38e-6), pytest.approx(0, abs=1e-12))


def test_no_part_is_negative_where_measurements_disagree(tmp_path):
    # Its empty call is said to take longer than its call, and it is faster than two workers can be.
    costs = {"plain_loop": (4e-6, 1), "batch_env/loky/actors": (900e-6, 1e9)}
    recorded = recorded_as(tmp_path, Sweep(BASE, {"n_jobs": (1,)}), costs)
    table = recorded.measurements
    chosen = (table["contender"] == "batch_env/loky/actors") & (table["metric"] == Metric.THROUGHPUT)
    recorded.measurements.loc[chosen, "wall_s"] = 10 * 100e-6

    for parts in breakdown(recorded, BASE, points_of(recorded)[BASE]):
        shares = [parts.environment_s, parts.batching_s, parts.handover_s, parts.rest_s]
        assert min(shares) >= 0
        assert sum(shares) == pytest.approx(parts.total.median)


def test_charts_are_drawn_from_the_recorded_data(tmp_path):
    sweep = Sweep(BASE, {"step_us": (1, 10, 1000), "num_envs": (1, 1024), "observation_bytes": (1000, 1_000_000)})
    recorded = recorded_as(tmp_path, sweep, wrong=["batch_env/threading/actors"])

    written = draw_charts(recorded, tmp_path / "charts")
    again = draw_charts(recorded, tmp_path / "again")

    assert [path.name for path in written] == [
        "step-cost.png", "step-cost.svg", "scaling.png", "scaling.svg", "breakdown.png", "breakdown.svg",
    ]  # fmt: skip
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]
    texts = re.findall(r">([^<>]+)</text>", written[1].read_text(encoding="utf-8"))
    place = cross_over([1, 10, 100, 1000], [near(12 / 44), near(84 / 80), near(2), near(2)])
    assert time_words(float(f"{place:.2g}")) in texts
    assert "BatchEnv threading actors: wrong" in texts


def test_nothing_of_a_chart_lies_outside_its_page_and_labels_do_not_overlap(tmp_path):
    costs = COSTS | {"gymnasium_async": (42e-6, 2), "batch_env/loky/tasks": (44e-6, 2)}  # nearly the same place
    sweep = Sweep(BASE, {"step_us": (1, 10, 1000), "num_envs": (1, 1024), "episode_length": (1, 10)})
    recorded = recorded_as(tmp_path, sweep, costs)

    with matplotlib.rc_context(style.RC):
        for stem, figure in scaling_figures(recorded):
            renderer = figure.canvas.get_renderer()
            figure.draw(renderer)
            width, height = figure.bbox.size
            boxes = {
                f"{text.get_text()} #{index}": text.get_window_extent() for index, text in enumerate(_texts(figure))
            }
            outside = [
                text for text, box in boxes.items() if box.x0 < 0 or box.x1 > width or box.y0 < 0 or box.y1 > height
            ]
            overlapping = [pair for pair in itertools.combinations(boxes, 2) if _overlap(*map(boxes.get, pair))]
            assert (stem, outside, overlapping) == (stem, [], [])


def _texts(figure):
    """Yield the texts that show; of a title that keeps a line free for another one nothing but that is looked at."""
    yield from (text for text in figure.texts if text is not figure._suptitle)
    for legend in figure.legends:
        yield from legend.get_texts()
    for axes in figure.axes:
        yield from (text for text in axes.texts if text.get_text())
        yield from (
            text for text in (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label) if text.get_text()
        )
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            shown = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            yield from (tick.label1 for tick in shown if tick.label1.get_visible() and tick.label1.get_text())


def _overlap(one, other):
    across = min(one.x1, other.x1) - max(one.x0, other.x0)
    return across > 1 and min(one.y1, other.y1) - max(one.y0, other.y0) > 1


def test_the_terminal_shows_a_table_for_each_factor_and_the_cross_overs(tmp_path):
    sweep = Sweep(BASE, {"step_us": (1, 1000), "num_envs": (1,)})
    recorded = recorded_as(tmp_path, sweep, wrong=["batch_env/threading/actors"])
    console = Console(width=100, record=True, file=io.StringIO())

    print_results(recorded, console)

    lines = console.export_text().splitlines()
    assert any(line.split() == ["contender", "1", "µs", "100", "µs", "1", "ms"] for line in lines)
    assert any(line.split() == ["BatchEnv", "loky", "actors", "0.27x", "1.83x", "1.98x"] for line in lines)
    assert any(line.startswith("BatchEnv loky actors: faster than the plain loop from ") for line in lines)
    assert sum("because" in line for line in lines) == 1


def test_a_sweep_runs(tmp_path):
    sweep = Sweep(Point(2, 1, step_us=1, episode_length=3), {"num_envs": (1,)})
    study = Study.of_sweep(
        "ran", sweep, ("plain_loop", "batch_env/sequential/actors"), rounds=2, min_time_s=0.001
    ).made_quick()
    folder = ResultsFolder(tmp_path / "ran")

    faults = run_study(study, folder, Silence())
    recorded = load_results(folder.path)

    assert faults == []
    assert recorded.verdicts["verdict"].tolist() == ["correct"] * 4
    assert recorded.study.sweep == study.sweep
    assert list(points_of(recorded)) == list(study.sweep.points())


def test_the_empty_call_is_that_of_all_points_with_such_batches(tmp_path):
    recorded = recorded_as(tmp_path, Sweep(BASE, {"step_us": (1, 10), "num_envs": (1,)}))
    table = recorded.measurements
    loky = (table["contender"] == "batch_env/loky/actors") & (table["metric"] == Metric.CALL)
    disturbed = loky & (table["environment"] == BASE.source.label) & (table["num_envs"] == BASE.num_envs)
    recorded.measurements.loc[disturbed, "value"] = 1.0

    *_, parts = breakdown(recorded, BASE, points_of(recorded)[BASE])

    assert parts.handover_s == pytest.approx(38e-6)


def test_a_limit_is_a_line_of_its_own_without_a_cross_over_or_parts(tmp_path, fakes):
    fakes("limit")
    costs = {"plain_loop": (4e-6, 1), "limit": (9e-6, 2)}  # it passes 1 at about a microsecond and a quarter
    recorded = recorded_as(tmp_path, Sweep(BASE, {"step_us": (1, 1000)}), costs)

    parts = breakdown(recorded, BASE, points_of(recorded)[BASE])
    charts = draw_charts(recorded, tmp_path / "charts")

    assert [each.contender for each in parts] == ["plain_loop"]
    texts = re.findall(r">([^<>]+)</text>", charts[1].read_text(encoding="utf-8"))
    assert "fake limit" in texts
    assert {text for text in texts if text.endswith((" µs", " ms"))} == {"1 µs", "10 µs", "100 µs", "1 ms"}  # the axis
