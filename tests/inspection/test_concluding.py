"""What is said of findings: the recommendation and the table."""

from dataclasses import replace

from joblib_envs.choosing.decision import HandOver
from joblib_envs.equality import Verdict
from joblib_envs.inspection.advice import advise, break_even
from joblib_envs.inspection.findings import (
    CopyFinding,
    Costs,
    Exchange,
    Gil,
    GilFinding,
    Inspection,
    LostField,
    ReplayFinding,
    Reproducibility,
    StateFinding,
    ThreadSafety,
)

OK = Verdict.CORRECT

MEASURED = Inspection(
    env="made up",
    costs=Costs(verdict=OK, step_us=10.0, cpu_share=1.0),
    reproducible=Reproducibility(verdict=OK, one_process=True, two_processes=True),
    state=StateFinding(verdict=OK, size_bytes=10, trip_us=200.0),
    replay=ReplayFinding(verdict=OK, num_calls=100, size_bytes=10, trip_us=3000.0),
    threads=ThreadSafety(verdict=OK),
    gil=GilFinding(verdict=OK, gil=Gil.HELD, share=0.0, two_threads_speed=1.0, two_threads_low=0.9),
    exchange=Exchange(
        verdict=OK,
        num_workers=2,
        num_cpus=2,
        exchange_us=100.0,
        per_env_us=10.0,
        hand_over=HandOver(call_us=0.0, per_env_us=10.0, worker_us={"threading": 50.0, "loky": 100.0}),
    ),
)


def said(**changes):
    return " ".join(advise(replace(MEASURED, **changes)))


def test_actors_pay_where_the_shared_steps_take_longer_than_an_exchange():
    # 12 (10 + 10) us one after the other; 100 us and 6 (10 + 10) us with two workers, surely less
    assert break_even(MEASURED) == 12
    assert "sequential below about 12 environments, loky actors above" in said()
    assert "from two environments on" in said(costs=Costs(verdict=OK, step_us=5000.0))
    assert "one usable CPU" in said(exchange=replace(MEASURED.exchange, num_cpus=1))


def test_nothing_is_concluded_from_what_was_not_measured():
    assert advise(Inspection(env="blank")) == ()
    assert "could not be measured" in said(exchange=Exchange(num_cpus=2, reason="no"))


def test_threads_are_named_only_where_two_were_faster_in_every_round():
    fast = GilFinding(
        verdict=OK, gil=Gil.RELEASED, share=1.0, two_threads_speed=1.9, two_threads_low=1.5, two_threads_high=2
    )

    assert "Or backend='threading'" in said(gil=fast)
    assert "Or backend='threading'" not in said(gil=replace(fast, two_threads_low=0.8))
    assert "Or backend='threading'" not in said(gil=fast, threads=ThreadSafety(verdict=Verdict.WRONG))
    assert "never backend='threading'" in said(threads=ThreadSafety(verdict=Verdict.WRONG))


def test_waiting_wants_more_workers_than_cpus():
    assert "n_jobs=num_envs" in said(costs=Costs(verdict=OK, step_us=1000.0, cpu_share=0.1, waits=True))


def test_a_state_that_cannot_be_captured_is_replayed_where_that_is_exact():
    refused = StateFinding(verdict=Verdict.RAISES, reason="a lock")

    assert "tasks take a trip of 200 us for each environment at each call, 20 times its step" in said()
    assert "state_method='replay' is exact, at 3 ms for 100 calls" in said(state=refused)
    assert "Replay isn't exact either" in said(state=refused, replay=ReplayFinding(verdict=Verdict.WRONG))


def test_the_text_fits_80_columns_and_counts_the_fields_it_leaves_out():
    lost = tuple(LostField(f"Env.data.field_{number}", "1", "0") for number in range(10))
    copies = (CopyFinding(way="pickle", verdict=Verdict.WRONG, reason="wrong " * 30, lost=lost, num_lost=57),)

    text = str(replace(MEASURED, copies=copies, recommendation=("do " * 100,)))

    assert max(map(len, text.splitlines())) <= 80
    assert "Env.data.field_0, Env.data.field_1 and 55 more" in " ".join(text.split())
