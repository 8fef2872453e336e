"""Shows how far a run is: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["BarProgress", "LineProgress", "progress_on"]


class LineProgress:
    """Prints one line when something else begins."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ""

    def __enter__(self) -> LineProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def start(self, total: int) -> None:
        """Begin."""

    def begin(self, text: str) -> None:
        """Print what is being done now."""
        if text != self._last:
            self._print(text)
        self._last = text

    def advance(self, units: int = 1) -> None:
        """Take note of units of work."""

    def note(self, text: str) -> None:
        """Print a line."""
        self._print(f"  {text}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class BarProgress:
    """Draws a bar with the time left. Redraws twice a second, to leave the timing alone."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"),
            console=console, refresh_per_second=2, transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> BarProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def start(self, total: int) -> None:
        """Begin."""
        self._bar.update(self._task, total=total)

    def begin(self, text: str) -> None:
        """Show what is being done now."""
        self._bar.update(self._task, description=escape(text))

    def advance(self, units: int = 1) -> None:
        """Move the bar."""
        self._bar.advance(self._task, units)

    def note(self, text: str) -> None:
        """Leave out what the table will say."""


def progress_on(console: Console) -> BarProgress | LineProgress:
    """Return the kind that fits the console."""
    return BarProgress(console) if console.is_terminal else LineProgress(console)
