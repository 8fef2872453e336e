"""Faults planted in a vector environment that keeps the strict contract otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from joblib_envs.conformance import InfoRule

from .careful import CarefulVectorEnv
from .mutants import MUTANTS, mutant

__all__ = ["MUTANTS"]


@mutant(r"the caller's argument\['options'\]", strict=True)
class MaskIsTakenFromTheCallersOptions(CarefulVectorEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        results = super().reset(seed=seed, options=options)
        if options:
            options.pop("reset_mask", None)
        return results


class UncopiedVectorEnv(CarefulVectorEnv):
    """Hand out the environment's own objects."""

    def __init__(self, env_fns: Any, **kwargs: Any) -> None:
        super().__init__(env_fns, **kwargs)
        self.envs = [type(env)(env.env.env) for env in self.envs]


@mutant(r"^infos", strict=True)
class InfosAreTheEnvironmentsOwn(UncopiedVectorEnv):
    pass


@mutant(r"^infos", strict=True)
class MixedInfosLoseValues(CarefulVectorEnv):
    def __init__(self, env_fns: Any, **kwargs: Any) -> None:
        super().__init__(env_fns, **kwargs)
        self._rule = InfoRule.GYMNASIUM


@mutant(r"step after close", strict=True)
class ClosedOneGoesOn(CarefulVectorEnv):
    def refuse_if_closed(self) -> None:
        pass


@mutant(r"attribute count", strict=True)
class SomeMoveBeforeTheWrongCountIsSeen(CarefulVectorEnv):
    def refuse_wrong_count(self, actions: Any) -> None:
        pass


@mutant(r"reset\[1\]", strict=True)
class NumpySeedsAreIgnored(CarefulVectorEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=None if isinstance(seed, np.integer) else seed, options=options)


@mutant(r"step before a reset of the failed", strict=True)
class FailedOnesAreSteppedAgain(CarefulVectorEnv):
    def refuse_if_failed(self) -> None:
        pass


@mutant(r"error\.partial", strict=True)
class FailureLosesTheOthersRows(CarefulVectorEnv):
    def whole_or_error(self, results: tuple[Any, ...], *, one: bool = False) -> Any:
        try:
            return super().whole_or_error(results, one=one)
        except Exception as error:
            for array in error.partial[:-2]:  # type: ignore[attr-defined]
                array[:] = 0
            raise


@mutant(r"^error", strict=True)
class FailureStopsTheOnesAfterIt(CarefulVectorEnv):
    def for_each(self, function: Any) -> tuple[Any, ...]:
        return tuple(function(env) for env in self.envs)


@mutant(r"error\.failures", strict=True)
class OnlyTheFirstFailureIsNamed(CarefulVectorEnv):
    def whole_or_error(self, results: tuple[Any, ...], *, one: bool = False) -> Any:
        try:
            return super().whole_or_error(results, one=one)
        except Exception as error:
            error.failures = {error.env_index: None}  # type: ignore[attr-defined]
            raise


@mutant(r"observations|attribute count", strict=True)
class FailureForgetsTheOthersAutoreset(CarefulVectorEnv):
    def whole_or_error(self, results: tuple[Any, ...], *, one: bool = False) -> Any:
        try:
            return super().whole_or_error(results, one=one)
        except Exception:
            self._autoreset_envs[:] = False
            raise
