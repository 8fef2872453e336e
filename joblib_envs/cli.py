"""The command ``joblib-envs``."""

from __future__ import annotations

import json
import math
import shutil
import signal
import sys
import textwrap
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joblib_envs import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joblib_envs.harness.results import ResultsFolder
    from joblib_envs.harness.study import Study

__all__ = ["main"]

QUICK_HELP = "Three short rounds, for a first look. Judging, which is shortened too, then takes most of the time."


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends the command in the same way as Ctrl-C."""


def _exit_code(interrupt: KeyboardInterrupt) -> int:
    """Return what a shell expects after the signal: 143 for SIGTERM, 130 for Ctrl-C."""
    return 128 + (signal.SIGTERM if isinstance(interrupt, _Terminated) else signal.SIGINT)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def main() -> None:
    """Compare ways to step Gymnasium environments in parallel: right first, then fast.

    \b
    Example:
      joblib-envs compare CartPole-v1 --num-envs 64
    """  # noqa: D301 - click reads the backspace as "keep these lines"


def _finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    """Refuse what is no number: it is neither below nor above a bound."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number of seconds: give one from 0.001 to 3600")
    return value


@main.command()
@click.argument("env_id")
@click.option("--env-kwargs", default="{}", metavar="JSON", help="Arguments of the environment's constructor.")
@click.option("--num-envs", default=8, show_default=True, type=click.IntRange(1), help="Sub-environments.")
@click.option("--n-jobs", default=-1, show_default=True, help="Workers; -1 is one per usable CPU.")
@click.option("--backend", "backends", multiple=True, help="Only these backends of BatchEnv, or auto; repeatable.")
@click.option("--execution", "executions", multiple=True, help="Only actors or tasks; repeatable.")
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(1), help="Timing rounds.")
@click.option(
    "--min-time",
    default=0.2,
    show_default=True,
    type=click.FloatRange(0.001, 3600),
    help="Seconds a sample.",
    callback=_finite,
)
@click.option("--quick", is_flag=True, help=QUICK_HELP)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of environments and actions.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the results; it must not hold anything.")
@click.option("--json", "json_to", type=click.Path(allow_dash=True), help="Write the result as JSON; - is stdout.")
def compare(
    env_id: str, env_kwargs: str, backends: tuple[str, ...], executions: tuple[str, ...], **options: Any
) -> None:
    """Judge, then time, every way to step an environment.

    ENV_ID is an id (CartPole-v1), module:Id-v0, or something in a file of yours:
    path/to/file.py:MyEnv (a class or a factory) or path/to/file.py:MyEnv-v0.

    \b
    Examples:
      joblib-envs compare CartPole-v1 --num-envs 64 --n-jobs 2
      joblib-envs compare my_envs.py:MyEnv --env-kwargs '{"size": 5}' --quick

    \b
    Verdicts, all against Gymnasium's SyncVectorEnv:
      correct           all that it returned is equal to the last bit
      wrong             something differs; the first difference is told
      raises, hangs     it raised or crashed; it gave no answer
      refused           it would lose this environment's state, and says so
      not_reproducible  the environment differs from itself when rebuilt
      unavailable       a package is missing
      incomplete        time or memory was over, or nothing was run

    \b
    Columns, of those that are correct:
      steps/s      transitions of sub-environments, not steps that only reset
      speed-up     steps/s divided by the plain loop's of the same round, a median
                   over the rounds, so not quite the ratio of the medians
                   beside it; the interval of 95 % is of this ratio
      start ms     build and first reset, in a fresh process
      call ms      one step() of environments that do nothing: the way's own cost

    BatchEnv auto measures for a moment and takes one of the others by itself
    (backend="auto"); the recommendation follows the same rule, from what was
    measured here.

    \b
    Exit codes:
      0 done; 1 BatchEnv was wrong; 2 a fault in what you gave, or the
      environment fails itself; 130 Ctrl-C; 143 SIGTERM
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    with _errors_as_messages():
        from joblib_envs.harness.comparison import comparison_name, comparison_study
        from joblib_envs.harness.results import ResultsFolder

        out, json_to = options.pop("out"), options.pop("json_to")
        study = comparison_study(env_id, env_kwargs, backends, executions, **options)
        folder = ResultsFolder(out) if out else ResultsFolder.unused(Path("results") / comparison_name(study))
        _run(study, folder, json_to, f"joblib-envs run {folder.path / 'study.toml'}")


@main.command()
@click.argument("env_id")
@click.option("--env-kwargs", default="{}", metavar="JSON", help="Arguments of the environment's constructor.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of resets and actions.")
@click.option("--quick", is_flag=True, help="Measure times for a third as long.")
@click.option(
    "--timeout",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0.001, 3600),
    help="Seconds without an answer after which a process is given up.",
    callback=_finite,
)
@click.option("--json", "json_to", type=click.Path(allow_dash=True), help="Write the findings as JSON; - is stdout.")
def inspect(env_id: str, env_kwargs: str, seed: int, timeout: float, json_to: str | None, *, quick: bool) -> None:
    """Find out what an environment is like to run in parallel.

    ENV_ID is what `joblib-envs compare` takes: an id (CartPole-v1), module:Id-v0,
    path/to/file.py:MyEnv (a class or a factory) or path/to/file.py:MyEnv-v0.

    All is tried with throw-away instances in processes of their own, in about ten
    seconds.

    \b
    Examples:
      joblib-envs inspect CartPole-v1
      joblib-envs inspect my_envs.py:MyEnv --env-kwargs '{"size": 5}' --json -

    \b
    Lines:
      costs          medians, in a process that has no other work
      reproducible   do equal seeds and actions give equal data?
      global random  do its calls change the generators of numpy.random or random?
      state travels  is a state that joblib_envs.capture takes right elsewhere?
      replay         is making it anew and all its calls again exact?
      plain pickle, cloudpickle, deepcopy
                     what do these copies lose? (wrong: without an error)
      two threads    does stepping two instances at once change their data?
      GIL            held: nothing else runs during a step; released: threads can

    \b
    Exit codes:
      0 done; 2 a fault in what you gave, or the environment fails itself;
      130 Ctrl-C; 143 SIGTERM
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    with _errors_as_messages():
        from joblib_envs.harness.comparison import parsed_kwargs
        from joblib_envs.harness.environments import EnvironmentSource
        from joblib_envs.harness.report import console_on
        from joblib_envs.inspection import inspect_env
        from joblib_envs.inspection.report import as_text

        source = EnvironmentSource(env_id, parsed_kwargs(env_kwargs))
        source.check()
        errors = console_on(stderr=True)
        with errors.status("") as status:
            found = inspect_env(source, seed=seed, quick=quick, timeout_s=timeout, progress=status.update)
        if found.fault:
            hint = "; --env-kwargs gives its arguments" if found.fault.endswith("its constructor") else ""
            click.echo(f"Error: {env_id} itself fails, so nothing else was tried: {found.fault}{hint}", err=True)
        else:
            width = min(100, shutil.get_terminal_size().columns)
            click.echo(as_text(found, width, _coloured), err=json_to == "-")
        if json_to:
            _write_json(found.to_dict(), json_to)
        sys.exit(2 if found.fault else 0)


@main.command()
@click.argument("study_file", metavar="STUDY.toml", type=click.Path(path_type=Path))
@click.option("--quick", is_flag=True, help=QUICK_HELP)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the results; default results/NAME.")
@click.option("--json", "json_to", type=click.Path(allow_dash=True), help="Write the result as JSON; - is stdout.")
def run(study_file: Path, out: Path | None, json_to: str | None, *, quick: bool) -> None:
    """Run a study from its file.

    The results go to results/NAME, or to NAME-2, NAME-3 ... where that is taken.

    \b
    Example:
      joblib-envs run experiments/reset_does_not_register.toml --quick

    \b
    Exit codes:
      0 done; 1 BatchEnv was wrong; 2 a fault in what you gave, or an
      environment fails itself; 130 Ctrl-C; 143 SIGTERM
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    with _errors_as_messages():
        from joblib_envs.harness.contenders import select_contenders
        from joblib_envs.harness.results import ResultsFolder
        from joblib_envs.harness.study import load_study

        study = load_study(study_file)
        study = study.made_quick() if quick else study
        for source in study.environments:
            source.check()
        study.import_modules()
        select_contenders(study.contenders)
        folder = ResultsFolder(out) if out else ResultsFolder.unused(Path("results") / study.name)
        _run(study, folder, json_to, f"joblib-envs run {study_file}{' --quick' if quick else ''}")


@main.command()
@click.argument("results", type=click.Path(path_type=Path))
def plot(results: Path) -> None:
    """Draw the charts of a results folder again.

    They are drawn from the recorded data alone, into RESULTS/charts, in the place
    of those that are there.

    \b
    Example:
      joblib-envs plot results/reset_does_not_register
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    with _errors_as_messages():
        from joblib_envs.errors import ArgumentError
        from joblib_envs.harness.charts import draw_charts
        from joblib_envs.harness.results import load_results

        recorded = load_results(results)
        if recorded.verdicts.empty:
            raise ArgumentError(f"{str(results)!r} holds no verdicts, so there is nothing to draw: run its study again")
        for path in draw_charts(recorded, results / "charts"):
            click.echo(str(path))


@main.command(name="list")
def list_() -> None:
    """List Python and its GIL, backends, contenders, studies and results.

    \b
    Example:
      joblib-envs list
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    with _errors_as_messages():
        from joblib_envs.harness.listing import list_everything

        for title, rows in list_everything(Path("experiments"), Path("results")):
            click.secho(title, bold=True)
            width = max((len(name) for name, _ in rows), default=0)
            for name, words in rows or [("none", "")]:
                margin = " " * (width + 4)
                first = f"  {name:<{width}}  "
                columns = shutil.get_terminal_size().columns
                lines = textwrap.wrap(words, columns, initial_indent=first, subsequent_indent=margin)
                click.echo("\n".join(lines or [first.rstrip()]))


def _run(study: Study, folder: ResultsFolder, json_to: str | None, again: str) -> None:
    """Run a study, show what came out, and exit with its code."""
    from joblib_envs.harness.charts import draw_charts
    from joblib_envs.harness.progress import progress_on
    from joblib_envs.harness.report import console_on, print_results, results_as_json
    from joblib_envs.harness.results import load_results
    from joblib_envs.harness.runner import run_study

    errors = console_on(stderr=True)
    try:
        with progress_on(errors) as progress:
            faults = run_study(study, folder, progress)
        recorded = load_results(folder.path)
        draw_charts(recorded, folder.path / "charts")
    except KeyboardInterrupt as interrupt:
        click.echo(f"Interrupted; what was measured so far is in {folder.path}", err=True)
        sys.exit(_exit_code(interrupt))
    print_results(recorded, console_on(stderr=json_to == "-"))
    click.echo(f"\nresults: {folder.path}\nreproduce: {again}", err=json_to == "-")
    if json_to:
        _write_json(results_as_json(recorded), json_to)
    for fault in faults:
        click.echo(f"Error: {fault}", err=True)
    wrong = (recorded.verdicts["ours"].astype(bool) & (recorded.verdicts["verdict"] == "wrong")).any()
    sys.exit(2 if faults else int(wrong))


def _coloured(words: str, is_good: bool | None) -> str:
    return click.style(words, fg={True: "green", False: "red", None: "yellow"}[is_good])


def _write_json(value: dict[str, Any], path: str) -> None:
    with click.open_file(path, "w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


@contextmanager
def _errors_as_messages() -> Iterator[None]:
    """Turn a user's mistake into a message on stderr and exit code 2, Ctrl-C into 130, SIGTERM into 143."""
    from joblib_envs.errors import ArgumentError

    try:
        with _sigterm_interrupts():
            yield
    except ArgumentError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    except (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        click.echo(f"Error: {error.strerror}: {error.filename!r}", err=True)
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        click.echo("Interrupted.", err=True)
        sys.exit(_exit_code(interrupt))


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM raise as Ctrl-C does, once: whatever is under way ends what it has started."""

    def interrupt(signum: int, frame: object) -> None:  # noqa: ARG001
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` sends it twice
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    main()
