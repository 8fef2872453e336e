"""A vector environment that keeps the strict contract: what the strict mutants are made from."""

from __future__ import annotations

import copy
import operator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import iterate

from joblib_envs.conformance import InfoRule
from joblib_envs.conformance.reference import Reference
from joblib_envs.errors import ArgumentError, ClosedBatchError, ResetNeededError, SubEnvError


class Guarded(gymnasium.Wrapper):
    """Turn an exception of the environment into a row of zeros, and keep it."""

    error: Exception | None = None

    def reset(self, **kwargs: Any) -> Any:
        try:
            return super().reset(**kwargs)
        except Exception as error:
            self.error = error
            return self._zeros(), {}

    def step(self, action: Any) -> Any:
        try:
            return super().step(action)
        except Exception as error:
            self.error = error
            return self._zeros(), 0.0, False, False, {}

    def _zeros(self) -> Any:
        return np.zeros(self.observation_space.shape, self.observation_space.dtype)


class CarefulVectorEnv(Reference):
    def __init__(self, env_fns: Any, *, autoreset_mode: Any) -> None:
        super().__init__(env_fns, autoreset_mode, InfoRule.LOSSLESS)
        self.envs = [Guarded(env) for env in self.envs]
        self.failed = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.refuse_if_closed()
        if isinstance(seed, np.integer):
            seed = int(seed)
        elif seed is not None and not isinstance(seed, int):
            seed = [None if one is None else operator.index(one) for one in seed]
        mask = (options or {}).get("reset_mask", True)
        results = super().reset(seed=seed, options=copy.deepcopy(options))
        self.failed[mask] = False
        return self.whole_or_error(results)

    def step(self, actions: Any) -> Any:
        self.refuse_if_closed()
        self.refuse_wrong_count(actions)
        self.refuse_if_failed()
        return self.whole_or_error(super().step(actions))

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self.for_each(lambda env: self.call_one(env, name, args, kwargs))

    def render(self) -> Any:
        return self.for_each(lambda env: env.render())

    def set_attr(self, name: str, values: Any) -> None:
        values = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ArgumentError(f"{len(values)} values for {self.num_envs} sub-environments")
        left = list(values)
        self.for_each(lambda env: env.set_wrapper_attr(name, left.pop(0)))

    def refuse_if_closed(self) -> None:
        if self.closed:
            raise ClosedBatchError("the batch is closed")

    def refuse_wrong_count(self, actions: Any) -> None:
        if len(list(iterate(self.action_space, actions))) != self.num_envs:
            raise ArgumentError("the wrong number of actions")

    def refuse_if_failed(self) -> None:
        if self.failed.any():
            raise ResetNeededError("some have failed", np.flatnonzero(self.failed).tolist())

    def call_one(self, env: Any, name: str, args: Any, kwargs: Any) -> Any:
        attribute = env.get_wrapper_attr(name)
        return attribute(*args, **kwargs) if callable(attribute) else attribute

    def for_each(self, function: Any) -> tuple[Any, ...]:
        results = []
        for env in self.envs:
            try:
                results.append(function(env))
            except Exception as error:
                env.error = error
                results.append(None)
        return self.whole_or_error((tuple(results),), one=True)

    def whole_or_error(self, results: tuple[Any, ...], *, one: bool = False) -> Any:
        failures = {index: env.error for index, env in enumerate(self.envs) if env.error is not None}
        if not failures:
            return results[0] if one else results
        failed = np.isin(np.arange(self.num_envs), list(failures))
        if not one:
            self.failed |= failed
            *arrays, _ = results
            for array in arrays:
                array[failed] = 0
            self._autoreset_envs[failed] = False
            records = [record for record in self.records if not failed[record[0]]]
            results = (*arrays, InfoRule.LOSSLESS.batch(records, self.num_envs))
        for env in self.envs:
            env.error = None
        first = failures[min(failures)]
        raise SubEnvError.of(repr(first), failures, (*results, failed), first) from first
