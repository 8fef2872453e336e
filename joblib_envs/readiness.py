"""Knows which sub-environments may step, and refuses before anyone moves where one may not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from gymnasium.vector import AutoresetMode

from joblib_envs.errors import ArgumentError, EpisodeOverError, ResetNeededError
from joblib_envs.failures import Failure
from joblib_envs.rows import Array, Rows
from joblib_envs.state.env_state import EnvState, Situation

__all__ = ["Readiness"]

_FAILED = "raised an exception"
_INTERRUPTED = "was in a call that was interrupted"
_ENDED = "has ended its episode, and autoreset is disabled"
_PENDING = "has ended its episode in a batch whose next step would have reset it"


class Readiness:
    """Which sub-environments need a reset, and why.

    Args:
        num_envs: Number of sub-environments.
        autoreset_mode: The batch's; with DISABLED, an ended episode needs a reset.
    """

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode) -> None:
        self._user_resets = autoreset_mode is AutoresetMode.DISABLED
        self._resets_next = autoreset_mode is AutoresetMode.NEXT_STEP
        self._needs: dict[int, str] = {}
        # Whether these may step is for the environments to say, as in Gymnasium: a factory may
        # have reset its environment, and OrderEnforcing raises where none did.
        self._unobserved = set(range(num_envs))
        self._num_envs = num_envs

    def require(self, chosen: Iterable[int] | None = None) -> None:
        """Raise unless every sub-environment, or every chosen one, may step.

        Raises:
            ResetNeededError: Some need a reset.
            EpisodeOverError: What they need it for is the end of an episode alone.
        """
        if not self._needs:
            return
        indices = sorted(self._needs if chosen is None else self._needs.keys() & set(chosen))
        if not indices:
            return
        reasons = sorted({self._needs[index] for index in indices})
        said = "; ".join(
            f"{[index for index in indices if self._needs[index] == reason]} {reason}" for reason in reasons
        )
        kind = EpisodeOverError if reasons == [_ENDED] else ResetNeededError
        raise kind(
            f"no sub-environment was stepped, since some need a reset first: {said}. Call reset(), or reset(options="
            f"{{'reset_mask': mask}}) with a bool array that is True for those",
            indices,
        )

    def require_observed(self) -> None:
        """Raise unless there is an observation of every sub-environment, from which a policy can choose.

        Raises:
            ResetNeededError: There is none of some.
        """
        if self._unobserved:
            unobserved = sorted(self._unobserved)
            raise ResetNeededError(
                f"no sub-environment was stepped, since there is no observation of {unobserved} for the policy to "
                f"choose from: call reset() first",
                unobserved,
            )

    def check_mask(self, mask: Array | None) -> None:
        """Refuse a mask that leaves out sub-environments of which there is no observation yet.

        Raises:
            ArgumentError: It does.
        """
        left_out = sorted(self._unobserved - set(self._chosen(mask)))
        if left_out and mask is not None:
            raise ArgumentError(
                f"options['reset_mask'] leaves out the sub-environments {left_out}, which have never been reset, so "
                f"there is no observation of them: call reset() without a mask first"
            )

    def after_reset(self, mask: Array | None, failures: Mapping[int, Failure]) -> None:
        """Note a reset of all, or of those in the mask."""
        for index in self._chosen(mask):
            self._needs.pop(index, None)
        self._unobserved.difference_update(self._chosen(mask))
        self._note(failures)

    def after_step(self, rows: Rows, failures: Mapping[int, Failure]) -> None:
        """Note a step."""
        if self._unobserved:
            self._unobserved.clear()
        if failures:
            self._note(failures)
        if self._user_resets:
            ended = np.flatnonzero(rows.terminations | rows.truncations).tolist()
            self._needs.update(dict.fromkeys(ended, _ENDED))

    def after_some(self, indices: Array, ended: Array, failures: Mapping[int, Failure]) -> None:
        """Note a step of some sub-environments, and which of their episodes have ended."""
        self._unobserved.difference_update(indices.tolist())
        self._note(failures)
        if self._user_resets:
            self._needs.update(dict.fromkeys(indices[ended].tolist(), _ENDED))

    def after_call(self, failures: Mapping[int, Failure]) -> None:
        """Note a call, an attribute that was set, or a frame."""
        self._note(failures)

    def reason(self, index: int) -> str | None:
        """Return why a sub-environment needs a reset, or None."""
        return self._needs.get(index)

    def is_observed(self, index: int) -> bool:
        """Tell whether there is an observation of a sub-environment."""
        return index not in self._unobserved

    def after_set_state(self, states: Mapping[int, EnvState]) -> None:
        """Note that sub-environments are where others were."""
        for index, state in states.items():
            situation = Situation.of(state)
            self._needs.pop(index, None)
            if situation.needs_reset is not None:
                self._needs[index] = situation.needs_reset
            elif state.reset_pending and not self._resets_next:
                self._needs[index] = _PENDING
            if situation.observation is None:
                self._unobserved.add(index)
            else:
                self._unobserved.discard(index)

    def interrupted(self) -> None:
        """Note a call whose outcome nobody has seen."""
        self._needs = dict.fromkeys(range(self._num_envs), _INTERRUPTED)

    def _chosen(self, mask: Array | None) -> Sequence[int]:
        chosen: Sequence[int] = range(self._num_envs) if mask is None else np.flatnonzero(mask).tolist()
        return chosen

    def _note(self, failures: Mapping[int, Failure]) -> None:
        failed: Iterable[int] = (index for index, failure in failures.items() if failure.needs_reset)
        self._needs.update(dict.fromkeys(failed, _FAILED))
