import getpass
import io
import json
import socket
from dataclasses import replace

import pandas as pd
import pytest
from harness_fakes import COUNTING, Fake, counting_cell
from rich.console import Console

from joblib_envs.equality import Verdict
from joblib_envs.errors import ArgumentError
from joblib_envs.harness.charts import draw_charts
from joblib_envs.harness.contenders import select_contenders
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.machine import describe_machine
from joblib_envs.harness.recommendation import recommend
from joblib_envs.harness.records import NOT_JUDGED, Judgement, Metric, Sample
from joblib_envs.harness.report import print_results
from joblib_envs.harness.results import ResultsFolder, load_results
from joblib_envs.harness.rounds import Rounds
from joblib_envs.harness.runner import cells_of, run_study
from joblib_envs.harness.study import Study
from joblib_envs.harness.summary import estimate_median, summarise
from joblib_envs.harness.timing import Timing, time_contender


class Silence:
    def start(self, total): ...
    def begin(self, text): ...
    def advance(self, units=1): ...
    def note(self, text): ...


def counting_study(*contenders, **changes):
    values = {"num_envs": (2,), "n_jobs": (1,), "rounds": 2, "min_time_s": 0.001, "quick": True} | changes
    return Study("counted", (EnvironmentSource(COUNTING, {"episode_length": 3}),), contenders, **values)


def timed(contender, requests, **kwargs):
    """Return what a contender says when it is asked for one sample a request."""
    said = []
    cell = counting_cell(**kwargs)
    asked = iter([(0, 0), *requests])
    time_contender(lambda *message: said.append(message), asked, contender, cell, Timing(1, 1e-9))
    return said


def test_steps_that_only_reset_are_not_counted():
    said = timed(Fake("none"), [(number, 0) for number in range(12)], num_envs=2, episode_length=3)

    # One call a sample: of four calls, three step both sub-environments and one resets both.
    samples = [message[1] for message in said if message[0] == "sample"]
    assert sum(sample.calls for sample in samples) == 12
    assert sum(sample.env_steps for sample in samples) == 18
    assert sum(sample.reset_steps for sample in samples) == 6


def test_a_contender_that_raises_while_timing_says_why():
    said = timed(Fake("raises"), [(0, 0)] * 3)

    assert said[-1] == ("failed", "while timing: RuntimeError: step 3 is one too many")


def rounds_of(*contenders, count=3):
    """Return the samples of all rounds, and the verdicts of those that were dropped."""
    samples, dropped = [], {}
    rounds = Rounds(
        contenders,
        counting_cell(),
        Timing(count, 1e-9),
        silence_s=5.0,
        add_sample=samples.append,
        drop=lambda contender, judgement: dropped.update({contender.name: judgement}),
    )
    rounds.run(lambda text: None)
    assert all(each.value > 1e6 for each in samples if each.metric == Metric.MEMORY)
    return [each for each in samples if each.metric == Metric.THROUGHPUT], dropped


def test_each_round_lets_each_contender_take_one_turn():
    samples, dropped = rounds_of(Fake("one"), Fake("two"), Fake("three"))

    turns = [(sample.round, sample.position) for sample in samples]
    assert turns == [(number, position) for number in range(3) for position in range(3)]
    assert len({(sample.contender, sample.round) for sample in samples}) == 9
    assert dropped == {}


def test_a_contender_that_crashes_while_timing_is_dropped_and_the_others_go_on():
    samples, dropped = rounds_of(Fake("one"), Fake("crashes"))

    assert [sample.round for sample in samples if sample.contender == "one"] == [0, 1, 2]
    assert dropped.keys() == {"crashes"}
    assert dropped["crashes"].verdict is Verdict.RAISES
    assert "exit code 3" in dropped["crashes"].reason


def test_a_run_survives_crashes_and_hangs_and_writes_every_file(tmp_path, fakes):
    fakes("none", "observations", "crashes", "hangs", "refuses")
    study = counting_study("plain_loop", "none", "observations", "crashes", "hangs", "refuses", hang_s=5.0)
    folder = ResultsFolder(tmp_path / "out")

    faults = run_study(study, folder, Silence())
    recorded = load_results(folder.path)
    charts = draw_charts(recorded, folder.path / "charts")

    assert faults == []
    verdicts = recorded.verdicts.set_index("contender")
    assert verdicts["verdict"].to_dict() == {
        "plain_loop": "correct",
        "none": "correct",
        "observations": "wrong",
        "crashes": "raises",
        "hangs": "hangs",
        "refuses": "refused",
    }
    assert "exit code 3 in step 3" in verdicts["reason"]["crashes"]
    assert verdicts["reason"]["hangs"] == "no answer within 5 s in step 3"
    throughput = recorded.measurements[recorded.measurements["metric"] == Metric.THROUGHPUT]
    assert throughput.groupby("contender").size().to_dict() == {"plain_loop": 2, "none": 2}
    assert recorded.study.environments == study.environments
    assert [path.name for path in charts] == ["throughput.png", "throughput.svg"]
    assert all(path.stat().st_size for path in charts)


def test_an_environment_that_fails_itself_is_named_once(tmp_path, fakes):
    fakes("none")
    study = Study("s", (EnvironmentSource("harness_fakes:joblib_envs/Failing-v0"),), ("none",), (1,), (1,))

    faults = run_study(study, ResultsFolder(tmp_path / "out"), Silence())

    assert len(faults) == 1
    assert "itself fails" in faults[0]
    recorded = load_results(tmp_path / "out")
    assert recorded.verdicts["verdict"].tolist() == ["incomplete"]
    assert "".join(printed(recorded)) == ""


def test_results_are_never_overwritten(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()

    with pytest.raises(ArgumentError, match="not empty"):
        ResultsFolder(tmp_path / "taken")
    assert ResultsFolder.unused(tmp_path / "taken").path.name == "taken-2"
    assert ResultsFolder.unused(tmp_path / "taken").path.name == "taken-3"


def test_files_are_whole_after_each_measurement(tmp_path):
    folder = ResultsFolder(tmp_path)
    cell = counting_cell()
    for number in range(3):
        folder.add_sample(cell, Sample("one", Metric.THROUGHPUT, 1.5, round=number))

        table = pd.read_csv(tmp_path / "measurements.csv")
        assert table["round"].tolist() == list(range(number + 1))
    assert [path.name for path in tmp_path.iterdir()] == ["measurements.csv"]


def test_a_foreign_or_cut_file_is_told(tmp_path):
    folder = ResultsFolder(tmp_path / "out")
    folder.write_study(counting_study("plain_loop"))
    folder.write_machine({})
    (folder.path / "verdicts.csv").write_text("a,b\n1,2\n")

    with pytest.raises(ArgumentError, match=r"verdicts\.csv.*lacks the columns"):
        load_results(folder.path)
    with pytest.raises(ArgumentError, match="not a results folder"):
        load_results(tmp_path / "nowhere")


def test_the_machine_is_described_without_names_or_paths():
    machine = describe_machine()

    text = json.dumps(machine)
    assert socket.gethostname() not in text
    assert f'"{getpass.getuser()}"' not in text
    assert "filepath" not in text
    assert machine["packages"].keys() >= {"gymnasium", "joblib", "numpy", "joblib-envs"}


def recorded_with(tmp_path, *rows):
    """Record contenders given as name, ours, verdict, throughputs."""
    folder = ResultsFolder(tmp_path / "rows")
    cell = counting_cell()
    folder.write_study(Study("s", (cell.environment,), ("plain_loop",), (2,), (1,)))
    folder.write_machine({})
    for name, ours, verdict, values in rows:
        folder.set_verdict(cell, name, name, Judgement(verdict, "because"), ours=ours)
        for number, value in enumerate(values):
            folder.add_sample(cell, Sample(name, Metric.THROUGHPUT, value, round=number))
    return load_results(folder.path), cell.environment


def test_ratios_are_formed_within_rounds(tmp_path):
    recorded, _ = recorded_with(
        tmp_path, ("plain_loop", False, Verdict.CORRECT, [10, 20]), ("x", True, Verdict.CORRECT, [30, 60])
    )

    (cell,) = summarise(recorded)

    assert cell.lines[1].speed_up.median == 3.0
    assert cell.lines[1].speed_up.low == cell.lines[1].speed_up.high == 3.0


def test_what_is_wrong_has_no_throughput(tmp_path):
    recorded, _ = recorded_with(tmp_path, ("x", True, Verdict.WRONG, [30, 60]))

    (cell,) = summarise(recorded)

    assert cell.lines[0].env_steps_per_s is None


def test_the_interval_holds_the_median():
    estimate = estimate_median(pd.Series([1.0, 2.0, 3.0, 50.0, 2.5]).to_numpy())

    assert 1.0 <= estimate.low <= estimate.median == 2.5 <= estimate.high <= 50.0


def test_the_recommendation_says_when_nothing_parallel_pays(tmp_path):
    recorded, source = recorded_with(
        tmp_path,
        ("plain_loop", False, Verdict.CORRECT, [100, 101]),
        ("gymnasium_sync", False, Verdict.CORRECT, [90, 91]),
        ("batch_env/loky/actors", True, Verdict.CORRECT, [50, 51]),
    )

    sentence, code = recommend(summarise(recorded)[0], source)

    assert sentence.startswith("Nothing parallel pays here: stay in one process, with plain_loop")
    assert "batch_env/loky/actors: 0.50 times the plain loop" in sentence
    assert "gymnasium_sync: 0.90 times the plain loop" in sentence
    assert "for _ in range(2)" in code
    assert "SyncVectorEnv" not in code


def test_the_recommendation_pastes_the_fastest_of_ours(tmp_path):
    recorded, source = recorded_with(
        tmp_path,
        ("plain_loop", False, Verdict.CORRECT, [100, 101]),
        ("batch_env/loky/actors", True, Verdict.CORRECT, [150, 151]),
    )

    sentence, code = recommend(summarise(recorded)[0], source)

    assert sentence.startswith("Use batch_env/loky/actors: 1.50 times the plain loop")
    assert 'envs = BatchEnv("harness_fakes:joblib_envs/Counting-v0", 2, backend="loky"' in code


def test_the_recommendation_names_what_auto_would_take_and_says_how_near_that_is(tmp_path):
    recorded, source = recorded_with(
        tmp_path,
        ("plain_loop", False, Verdict.CORRECT, [100, 101]),
        ("batch_env/loky/actors", True, Verdict.CORRECT, [150, 151]),
        ("batch_env/auto", True, Verdict.CORRECT, [160, 161]),
    )

    sentence, code = recommend(summarise(recorded)[0], source)

    assert sentence.startswith("Use batch_env/loky/actors: 1.50 times the plain loop")
    assert sentence.endswith('backend="auto": 1.07 times batch_env/loky/actors (1.07..1.07).')
    assert 'backend="loky"' in code


def test_the_recommendation_compares_the_same_rounds_as_the_table(tmp_path):
    # The median throughput is higher than the plain loop's, the median of the rounds' ratios is lower.
    recorded, source = recorded_with(
        tmp_path,
        ("plain_loop", False, Verdict.CORRECT, [100, 300, 310]),
        ("batch_env/loky/actors", True, Verdict.CORRECT, [320, 255, 312]),
        ("batch_env/loky/tasks", True, Verdict.CORRECT, [80, 310, 264]),
    )

    (cell,) = summarise(recorded)
    sentence, code = recommend(cell, source)

    assert sentence.startswith("Nothing parallel surely pays here (the intervals overlap): stay in one process")
    assert f"{cell.lines[1].speed_up.median:.2f} times the plain loop" in sentence
    assert "BatchEnv" not in code


def test_the_recommendation_says_who_is_as_fast(tmp_path):
    recorded, source = recorded_with(
        tmp_path,
        ("plain_loop", False, Verdict.CORRECT, [100, 100, 100]),
        ("batch_env/loky/actors", True, Verdict.CORRECT, [200, 210, 220]),
        ("gymnasium_async", False, Verdict.CORRECT, [205, 208, 205]),
    )

    sentence, _ = recommend(summarise(recorded)[0], source)

    assert sentence.startswith("Use batch_env/loky/actors: 2.10 times the plain loop")
    assert "It is 1.01 times gymnasium_async (0.98..1.07), the fastest of the others." in sentence
    assert sentence.endswith("the intervals overlap: gymnasium_async.")


def printed(recorded):
    """Return the lines on a terminal of 80 columns."""
    console = Console(width=80, record=True, file=io.StringIO())
    print_results(recorded, console)
    return console.export_text().splitlines()


def test_the_table_fits_80_columns_with_a_line_for_each_contender(tmp_path):
    folder = ResultsFolder(tmp_path / "rows")
    cell = counting_cell()
    contenders = select_contenders(["plain_loop", "*_joblib", "batch_env/*"])
    folder.write_study(Study("s", (cell.environment,), ("plain_loop",), (2,), (1,)))
    folder.write_machine({})
    for contender in contenders:
        verdict = Verdict.UNAVAILABLE if contender.name == "naive_joblib" else Verdict.CORRECT
        folder.set_verdict(cell, contender.name, contender.title, Judgement(verdict, "because"), ours=contender.ours)
        folder.add_sample(cell, Sample(contender.name, Metric.START_UP, 1.2345))
        folder.add_sample(cell, Sample(contender.name, Metric.CALL, 0.00001234))
        for number, value in enumerate([10_123.4, 123_456.7]):
            folder.add_sample(cell, Sample(contender.name, Metric.THROUGHPUT, value * (1 + number), round=number))

    lines = printed(load_results(folder.path))

    titles = [contender.title for contender in contenders]
    assert [title for title in titles if not any(line.lstrip().startswith(f"{title} ") for line in lines)] == []
    assert any(line.split()[-4:] == ["1.00x", "1.00..1.00", "1,234", "12.3"] for line in lines)
    assert max(len(line) for line in lines if not line.startswith("    ")) <= 80  # code is never folded


def test_each_reason_is_said_once_and_columns_without_numbers_are_left_out(tmp_path):
    recorded, _ = recorded_with(
        tmp_path,
        ("batch_env/multiprocessing/tasks", True, Verdict.NOT_REPRODUCIBLE, []),
        ("batch_env/loky/tasks", True, Verdict.NOT_REPRODUCIBLE, []),
    )

    text = "\n".join(printed(recorded))

    assert text.count("because") == 1
    assert "steps/s" not in text


def test_the_limit_is_timed_without_a_verdict_and_never_recommended(tmp_path):
    study = Study("s", (EnvironmentSource("CartPole-v1"),), ("plain_loop", "limit", "gymnasium_sync"), (4,), (2,))
    folder = ResultsFolder(tmp_path / "out")

    run_study(replace(study, rounds=3, min_time_s=0.02), folder, Silence())
    cell = summarise(load_results(folder.path))[0]
    lines = {line.contender: line for line in cell.lines}
    words, _ = recommend(cell, study.environments[0])

    limit = lines["limit"]
    assert limit.verdict is Verdict.INCOMPLETE
    assert limit.reason == NOT_JUDGED
    assert limit.speed_up.median > 0
    assert limit.of_limit.median == 1
    assert lines["plain_loop"].of_limit.median > 0
    assert lines["gymnasium_sync"].of_sync.median == 1
    assert all(line.memory_bytes > 1e6 for line in lines.values())
    assert "limit" not in words
    table = printed(load_results(folder.path))
    assert any("not judged" in line for line in table)


def test_an_environment_may_have_numbers_of_its_own():
    one, other = EnvironmentSource("CartPole-v1", num_envs=(1, 2)), EnvironmentSource("Pendulum-v1", n_jobs=(3,))
    study = Study("s", (one, other), ("plain_loop",), (8,), (2,))

    assert [(cell.num_envs, cell.n_jobs) for cell in cells_of(study)] == [(1, 2), (2, 2), (8, 3)]


def test_rollouts_are_judged_by_their_data_and_timed_by_their_steps(tmp_path):
    study = Study("s", (EnvironmentSource("CartPole-v1"),), ("plain_loop", "rollout/sequential"), (3,), (1,))
    folder = ResultsFolder(tmp_path / "out")

    run_study(replace(study, rounds=2, min_time_s=0.02), folder, Silence())
    recorded = load_results(folder.path)

    verdicts = recorded.verdicts.set_index("contender")
    assert verdicts["verdict"]["rollout/sequential"] == "correct"
    assert verdicts["episode_ends"]["rollout/sequential"] >= 1
    samples = recorded.measurements
    chosen = samples[(samples["contender"] == "rollout/sequential") & (samples["metric"] == Metric.THROUGHPUT)]
    assert len(chosen) == 2
    assert (chosen["reset_steps"] > 0).all()
    assert (chosen["env_steps"] + chosen["reset_steps"] == 3 * chosen["calls"]).all()


def test_a_comparison_leaves_out_what_only_studies_need():
    from joblib_envs.harness.comparison import comparison_study

    options = {"num_envs": 2, "n_jobs": 2, "rounds": 1, "min_time": 0.1, "quick": True, "seed": 0}
    study = comparison_study("CartPole-v1", "{}", (), (), **options)

    assert "plain_loop" in study.contenders
    assert not {"limit", "rollout/loky"} & set(study.contenders)
