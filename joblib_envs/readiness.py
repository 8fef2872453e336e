"""Knows which sub-environments may step, and refuses before anyone moves where one may not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from gymnasium.vector import AutoresetMode

from joblib_envs.errors import EpisodeOverError, ResetNeededError
from joblib_envs.failures import Failure
from joblib_envs.rows import Array, Rows

__all__ = ["Readiness"]

_NEVER_RESET = "has not been reset yet"
_FAILED = "raised an exception"
_INTERRUPTED = "was in a call that was interrupted"
_ENDED = "has ended its episode, and autoreset is disabled"


class Readiness:
    """Which sub-environments need a reset, and why.

    Args:
        num_envs: Number of sub-environments.
        autoreset_mode: The batch's; with DISABLED, an ended episode needs a reset.
    """

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode) -> None:
        self._user_resets = autoreset_mode is AutoresetMode.DISABLED
        self._needs = dict.fromkeys(range(num_envs), _NEVER_RESET)
        self._num_envs = num_envs

    def require(self) -> None:
        """Raise unless every sub-environment may step.

        Raises:
            ResetNeededError: Some need a reset.
            EpisodeOverError: What they need it for is the end of an episode alone.
        """
        if not self._needs:
            return
        indices = sorted(self._needs)
        reasons = sorted(set(self._needs.values()))
        said = "; ".join(
            f"{[index for index in indices if self._needs[index] == reason]} {reason}" for reason in reasons
        )
        kind = EpisodeOverError if reasons == [_ENDED] else ResetNeededError
        raise kind(
            f"no sub-environment was stepped, since some need a reset first: {said}. Call reset(), or reset(options="
            f"{{'reset_mask': mask}}) with a bool array that is True for those",
            indices,
        )

    def after_reset(self, mask: Array | None, failures: Mapping[int, Failure]) -> None:
        """Note a reset of all, or of those in the mask."""
        for index in range(self._num_envs) if mask is None else np.flatnonzero(mask).tolist():
            self._needs.pop(index, None)
        self._note(failures)

    def after_step(self, rows: Rows, failures: Mapping[int, Failure]) -> None:
        """Note a step."""
        if failures:
            self._note(failures)
        if self._user_resets:
            ended = np.flatnonzero(rows.terminations | rows.truncations).tolist()
            self._needs.update(dict.fromkeys(ended, _ENDED))

    def after_call(self, failures: Mapping[int, Failure]) -> None:
        """Note a call, an attribute that was set, or a frame."""
        self._note(failures)

    def interrupted(self) -> None:
        """Note a call whose outcome nobody has seen."""
        self._needs = dict.fromkeys(range(self._num_envs), _INTERRUPTED)

    def _note(self, failures: Mapping[int, Failure]) -> None:
        failed: Iterable[int] = (index for index, failure in failures.items() if failure.needs_reset)
        self._needs.update(dict.fromkeys(failed, _FAILED))
