"""Lets contenders take turns: all open, each in its own process, in shuffled rounds.

The machine's mood changes over seconds; within a round it is nearly the same for all, so
ratios are formed within rounds. Each has its own process because joblib's loops share one
executor per process, and replace its workers whenever their settings differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np

from joblib_envs.equality import Verdict
from joblib_envs.harness.contenders import Contender, patience_with
from joblib_envs.harness.isolation import Isolated
from joblib_envs.harness.records import Cell, Judgement, Sample
from joblib_envs.harness.timing import Timing, time_contender

__all__ = ["Rounds"]


class Rounds:
    """The timing of one cell.

    Args:
        contenders: The correct ones.
        cell: The work.
        timing: How many rounds, and how long a sample takes.
        silence_s: The time after which a contender that says nothing counts as hanging.
        add_sample: Takes each sample.
        drop: Takes a contender that raised, crashed or hung, and why.
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        cell: Cell,
        timing: Timing,
        silence_s: float,
        *,
        add_sample: Callable[[Sample], None],
        drop: Callable[[Contender, Judgement], None],
    ) -> None:
        self._contenders, self._cell, self._timing = contenders, cell, timing
        self._silence_s = silence_s
        self._add_sample, self._drop = add_sample, drop
        self._reason = ""

    def run(self, begin: Callable[[str], None]) -> None:
        """Open all, run all rounds, close all; ``begin`` is told what is being done."""
        shuffle = np.random.default_rng(self._cell.seed)
        with ExitStack() as stack:
            open_: list[tuple[Contender, Isolated]] = []
            for contender in self._contenders:
                arguments = (contender, self._cell, self._timing)
                process = stack.enter_context(Isolated(time_contender, *arguments, takes_requests=True))
                open_.append((contender, process))
            begin("timing: warm-up")
            open_ = [(each, process) for each, process in open_ if self._take_turn(each, process, (0, 0), "ready")]
            for number in range(self._timing.rounds):
                begin(f"timing, round {number + 1} of {self._timing.rounds}")
                order = shuffle.permutation(len(open_))
                for position, at in enumerate(order):
                    contender, process = open_[at]
                    self._take_turn(contender, process, (number, position), "sample")
                open_ = [turn for turn in open_ if turn[1].is_open]
            for _, process in open_:
                process.tell(None)

    def _take_turn(self, contender: Contender, process: Isolated, request: tuple[int, int], until: str) -> bool:
        """Let one contender do one thing; drop it if it doesn't."""
        self._reason = ""
        process.tell(*request)
        silence_s = patience_with(contender, self._silence_s)
        if process.listen(self._receive, silence_s, until):
            return True
        ending = process.end(patience_s=1)
        verdict = Verdict.HANGS if ending.hung else Verdict.RAISES
        reason = self._reason or f"while timing: {ending.describe(silence_s)}"
        self._drop(contender, Judgement(verdict, reason, at="timing"))
        return False

    def _receive(self, kind: str, *values: object) -> None:
        if kind == "failed":
            self._reason = str(values[0])
        elif values and isinstance(values[0], Sample):
            self._add_sample(values[0])
