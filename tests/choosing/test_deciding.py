"""The rule of ``backend="auto"``, without a clock."""

from dataclasses import replace

import pytest

from joblib_envs.choosing.decision import EnvCosts, HandOver, Place, choose, predicted_us, preferred
from joblib_envs.execution import Workers

CALLER = Place("sequential", Workers.CALLER, caller_steps=True, most_workers=1)
THREADS = Place("threading", Workers.THREADS, caller_steps=False, most_workers=1024)
PROCESSES = Place("loky", Workers.PROCESSES, caller_steps=True, most_workers=1024)
PLACES = [CALLER, THREADS, PROCESSES]
MACHINE = HandOver(call_us=25.0, per_env_us=1.5, per_byte_us=5e-5, worker_us={"threading": 20.0, "loky": 40.0})

CARTPOLE = EnvCosts(step_us=4.0, observation_bytes=16)
HALF_CHEETAH = EnvCosts(step_us=40.0, observation_bytes=136, info_us=5.0, info_pack_us=3.0, info_unpack_us=3.0)
PONG = EnvCosts(step_us=600.0, observation_bytes=100_800)
PYTHON_1_MS = EnvCosts(step_us=1000.0, observation_bytes=8)
SLEEPS_1_MS = EnvCosts(step_us=1100.0, cpu_share=0.03, waits=True, safe_in_threads=True)
SLEEPS_APART = replace(SLEEPS_1_MS, safe_in_threads=False)
FRAMES = EnvCosts(step_us=1.0, observation_bytes=100_800)


def chosen(costs, num_envs, num_cpus=2, places=PLACES, **options):
    choice = choose(costs, MACHINE, places, num_envs, num_cpus=num_cpus, **options)
    return choice.backend, choice.n_jobs


@pytest.mark.parametrize(
    ("costs", "by_num_envs"),
    [
        (
            CARTPOLE,
            {1: ("sequential", 1), 4: ("sequential", 1), 16: ("sequential", 1), 64: ("loky", 2), 256: ("loky", 2)},
        ),
        (HALF_CHEETAH, {1: ("sequential", 1), 4: ("loky", 2), 16: ("loky", 2), 64: ("loky", 2), 256: ("loky", 2)}),
        (PONG, {1: ("sequential", 1), 4: ("loky", 2), 8: ("loky", 2), 64: ("loky", 2), 256: ("loky", 2)}),
        (PYTHON_1_MS, {1: ("sequential", 1), 4: ("loky", 2), 16: ("loky", 2), 64: ("loky", 2), 256: ("loky", 2)}),
        (SLEEPS_1_MS, {1: ("sequential", 1), 4: ("threading", 4), 16: ("threading", 16)}),
        (SLEEPS_APART, {1: ("sequential", 1), 4: ("loky", 4), 16: ("loky", 8), 64: ("loky", 16)}),
        (FRAMES, {1: ("sequential", 1), 4: ("sequential", 1)}),
    ],
    ids=["cartpole", "half_cheetah", "pong", "python_1_ms", "sleeps_1_ms", "sleeps_apart", "frames"],
)
def test_each_workload_gets_what_is_fastest_for_it(costs, by_num_envs):
    assert {num_envs: chosen(costs, num_envs) for num_envs in by_num_envs} == by_num_envs


@pytest.mark.parametrize("num_envs", [1, 4, 16, 64, 256])
@pytest.mark.parametrize("costs", [CARTPOLE, HALF_CHEETAH, PONG, PYTHON_1_MS, SLEEPS_1_MS, SLEEPS_APART, FRAMES])
def test_what_is_chosen_is_within_the_margin_of_the_best_that_is_predicted(costs, num_envs):
    choice = choose(costs, MACHINE, PLACES, num_envs, num_cpus=2)

    taken_us = predicted_us(
        costs,
        MACHINE,
        next(place for place in PLACES if place.backend == choice.backend),
        num_envs,
        choice.n_jobs,
        num_cpus=2,
    )
    assert taken_us <= 1.08 * choice.predictions[0].call_us


def test_many_that_wait_share_threads():
    backend, n_jobs = chosen(SLEEPS_1_MS, 256)

    assert backend == "threading"
    assert 16 < n_jobs <= 256


def test_steps_that_compute_get_no_more_workers_than_cpus():
    assert chosen(PYTHON_1_MS, 64, num_cpus=8) == ("loky", 8)
    assert chosen(PYTHON_1_MS, 3, num_cpus=8) == ("loky", 3)


def test_on_one_cpu_steps_that_compute_stay_with_the_caller_and_steps_that_wait_do_not():
    assert chosen(PYTHON_1_MS, 16, num_cpus=1) == ("sequential", 1)
    assert chosen(SLEEPS_1_MS, 16, num_cpus=1) == ("threading", 16)


def test_a_bound_holds():
    bounded = [CALLER, replace(THREADS, most_workers=4), replace(PROCESSES, most_workers=4)]

    assert chosen(SLEEPS_1_MS, 16, places=bounded) == ("threading", 4)
    assert chosen(PYTHON_1_MS, 16, num_cpus=8, places=bounded) == ("loky", 4)


def test_threads_are_never_taken_where_they_are_not_known_to_be_safe():
    for num_envs in (2, 16, 256):
        assert chosen(SLEEPS_APART, num_envs)[0] != "threading"
        assert chosen(replace(PYTHON_1_MS, held_share=0.0), num_envs, has_gil=False)[0] != "threading"


def test_without_a_gil_threads_are_preferred_where_instances_do_not_hold_one_another_up():
    free = replace(PYTHON_1_MS, safe_in_threads=True, held_share=0.05)

    assert chosen(free, 16, has_gil=False) == ("threading", 2)
    assert chosen(replace(free, held_share=0.9), 16, has_gil=False) == ("loky", 2)
    assert chosen(replace(free, held_share=1.0), 16) == ("loky", 2)  # with a GIL


def test_steps_that_vary_gain_less_from_workers():
    steady = choose(PYTHON_1_MS, MACHINE, [PROCESSES], 4, num_cpus=2).predictions[0]
    varying = choose(replace(PYTHON_1_MS, step_std_us=1000.0), MACHINE, [PROCESSES], 4, num_cpus=2).predictions[0]

    assert varying.env_steps_per_s < 0.8 * steady.env_steps_per_s


def test_the_reason_has_the_numbers():
    choice = choose(PYTHON_1_MS, MACHINE, PLACES, 16, num_cpus=2)

    assert choice.reason == (
        "A step takes 1 ms: 16 environments should take 8.1 ms a call with 2 workers of loky, "
        "16 ms one after the other."
    )
    assert repr(choice).splitlines()[1].startswith("  loky actors, n_jobs=2: 1,9")
    assert "Threads were left out" in choose(SLEEPS_APART, MACHINE, PLACES, 16, num_cpus=2).reason


def test_the_simplest_is_preferred_unless_another_is_surely_faster():
    assert preferred([3.0, 2.9, 2.0, 1.95], lambda one, other: one * 1.05 < other) == 2.0
