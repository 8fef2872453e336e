"""Vector environments with one planted fault each; the checker must find them all."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv


@dataclass(frozen=True)
class Mutant:
    """A planted fault: the class that has it, and a pattern of the field that must be reported."""

    cls: type[gymnasium.vector.VectorEnv]
    field: str
    strict: bool = False

    def __str__(self) -> str:
        return self.cls.__name__


MUTANTS: list[Mutant] = []


def mutant(field: str, *, strict: bool = False) -> Any:
    def add(cls: type[gymnasium.vector.VectorEnv]) -> type[gymnasium.vector.VectorEnv]:
        MUTANTS.append(Mutant(cls, field, strict))
        return cls

    return add


class WrappingVectorEnv(SyncVectorEnv):
    """Put a faulty wrapper around every sub-environment."""

    wrapper: Any

    def __init__(self, env_fns: Any, **kwargs: Any) -> None:
        super().__init__(env_fns, **kwargs)
        self.envs = [self.wrapper(env, env_fn) for env, env_fn in zip(self.envs, env_fns, strict=True)]


class FaultyWrapper(gymnasium.Wrapper):
    """Knows its factory, the last seed, and whether the episode has ended."""

    def __init__(self, env: Any, env_fn: Any) -> None:
        super().__init__(env)
        self.env_fn = env_fn
        self.ended = False
        self.last_seed: int | None = None

    def step(self, action: Any) -> Any:
        transition = super().step(action)
        self.ended = bool(transition[2] or transition[3])
        return transition

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.ended and seed is None:
            seed = self.at_boundary()
        self.ended = False
        self.last_seed = self.last_seed if seed is None else seed
        return self.env.reset(seed=seed, options=options)

    def at_boundary(self) -> int | None:
        return None


@mutant(r"infos\['(drawn|length)'\]|attribute|call")
class StateIsLostAtAnEpisodeBoundary(WrappingVectorEnv):
    class wrapper(FaultyWrapper):  # noqa: N801
        def at_boundary(self) -> None:
            self.env = self.env_fn()


@mutant(r"infos\['(drawn|length)'\]|attribute np_random")
class RandomStreamStartsAgainAtAutoreset(WrappingVectorEnv):
    class wrapper(FaultyWrapper):  # noqa: N801
        def at_boundary(self) -> int | None:
            return self.last_seed


@mutant(r"observations|rewards|infos|attribute|call|frames")
class FirstStepsTwice(WrappingVectorEnv):
    def step(self, actions: Any) -> Any:
        if not self._autoreset_envs[0] and self.autoreset_mode is not AutoresetMode.SAME_STEP:
            self.envs[0].step(0)
        return super().step(actions)

    class wrapper(FaultyWrapper):  # noqa: N801
        pass


@mutant(r"observations returned by operation \d+")
class ObservationsAreTheSameBuffer(SyncVectorEnv):
    def __init__(self, env_fns: Any, **kwargs: Any) -> None:
        super().__init__(env_fns, copy=False, **kwargs)


@mutant(r"rewards returned by operation \d+")
class RewardsAreTheSameBuffer(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        observations, _, *rest = super().step(actions)
        return observations, self._rewards, *rest


@mutant(r"observations")
class ObservationsAreReadOnly(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        observations, *rest = super().step(actions)
        if isinstance(observations, np.ndarray):
            observations.flags.writeable = False
        return observations, *rest


class ChangedTransition(SyncVectorEnv):
    """Step rightly, then spoil the result."""

    def step(self, actions: Any) -> Any:
        return self.spoil(*super().step(actions))

    def spoil(self, observations: Any, rewards: Any, terminations: Any, truncations: Any, infos: Any) -> Any:
        raise NotImplementedError


@mutant(r"^rewards\[")
class RewardsAreRounded(ChangedTransition):
    def spoil(self, observations: Any, rewards: Any, *rest: Any) -> Any:
        return observations, rewards.astype(np.float32).astype(np.float64), *rest


@mutant(r"^rewards$")
class RewardsAreFloat32(ChangedTransition):
    def spoil(self, observations: Any, rewards: Any, *rest: Any) -> Any:
        return observations, rewards.astype(np.float32), *rest


@mutant(r"^observations$")
class ObservationsChangeTheirDtype(ChangedTransition):
    def spoil(self, observations: Any, *rest: Any) -> Any:
        return observations.astype(np.float64) if isinstance(observations, np.ndarray) else observations, *rest


@mutant(r"^observations")
class RowsAreSwapped(ChangedTransition):
    def spoil(self, observations: Any, *rest: Any) -> Any:
        return observations[[1, 0, 2]] if isinstance(observations, np.ndarray) else observations, *rest


@mutant(r"^(terminations|truncations)\[")
class TerminatedAndTruncatedAreSwapped(ChangedTransition):
    def spoil(self, observations: Any, rewards: Any, terminations: Any, truncations: Any, infos: Any) -> Any:
        return observations, rewards, truncations, terminations, infos


@mutant(r"^terminations\[")
class FlagsAreOfAnotherEnvironment(ChangedTransition):
    def spoil(self, observations: Any, rewards: Any, terminations: Any, *rest: Any) -> Any:
        return observations, rewards, np.roll(terminations, 1), *rest


@mutant(r"^terminations$")
class FlagsAreIntegers(ChangedTransition):
    def spoil(self, observations: Any, rewards: Any, terminations: Any, *rest: Any) -> Any:
        return observations, rewards, terminations.astype(np.int8), *rest


@mutant(r"^infos\['final_obs'\]")
class FinalObservationIsTheResetOne(ChangedTransition):
    def spoil(self, observations: Any, rewards: Any, terminations: Any, truncations: Any, infos: Any) -> Any:
        for env_index in np.flatnonzero(infos.get("_final_obs", ())):
            infos["final_obs"][env_index] = copy.deepcopy(self._env_obs[env_index])
        return observations, rewards, terminations, truncations, infos


class ChangedInfos(ChangedTransition):
    """Spoil the infos only."""

    def spoil(self, *transition: Any) -> Any:
        *rest, infos = transition
        return *rest, self.spoil_infos(infos)

    def spoil_infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError


@mutant(r"^infos$")
class FinalInfoIsMissing(ChangedInfos):
    def spoil_infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in infos.items() if "final_info" not in key}


@mutant(r"^infos$")
class InfoMasksAreMissing(ChangedInfos):
    def spoil_infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in infos.items() if not key.startswith("_")}


@mutant(r"^infos\['_\w+'\]\[")
class InfoMasksAreAllTrue(ChangedInfos):
    def spoil_infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        return {key: np.ones_like(value) if key.startswith("_") else value for key, value in infos.items()}


@mutant(r"^infos\['")
class InfosAreRounded(ChangedInfos):
    def spoil_infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        return {key: self.rounded(value) for key, value in infos.items()}

    @staticmethod
    def rounded(value: Any) -> Any:
        is_wide = isinstance(value, np.ndarray) and value.dtype == np.float64
        return value.astype(np.float32).astype(np.float64) if is_wide else value


@mutant(r"^infos")
class EmptyInfosShiftLaterOnes(SyncVectorEnv):
    num_given: int | None = None

    def step(self, actions: Any) -> Any:
        self.num_given = 0
        try:
            return super().step(actions)
        finally:
            self.num_given = None

    def _add_info(self, infos: dict[str, Any], info: dict[str, Any], env_num: int) -> dict[str, Any]:
        if self.num_given is None:
            return super()._add_info(infos, info, env_num)
        if not info:
            return infos
        env_num, self.num_given = self.num_given, self.num_given + 1
        return super()._add_info(infos, info, min(env_num, self.num_envs - 1))


@mutant(r"observations|rewards|terminations|truncations|infos")
class StepsArriveOneLate(SyncVectorEnv):
    waiting: Any = None

    def step(self, actions: Any) -> Any:
        late, self.waiting = self.waiting, super().step(actions)
        return self.waiting if late is None else late


@mutant(r"observations|rewards|infos|terminations")
class AutoresetComesOneStepLate(SyncVectorEnv):
    pending: Any = None

    def step(self, actions: Any) -> Any:
        if self.autoreset_mode is not AutoresetMode.NEXT_STEP:
            return super().step(actions)
        ended = self._autoreset_envs
        self._autoreset_envs = np.zeros_like(ended) if self.pending is None else self.pending
        self.pending = ended & ~self._autoreset_envs
        return super().step(actions)


@mutant(r"^rewards\[")
class AutoresetKeepsTheLastReward(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        ended, last = self._autoreset_envs, self._rewards.copy()
        observations, rewards, *rest = super().step(actions)
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            rewards[ended] = last[ended]
        return observations, rewards, *rest


class ChangedReset(SyncVectorEnv):
    """Spoil the arguments of a reset."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        seeds = [seed + index for index in range(self.num_envs)] if isinstance(seed, int) else seed
        return super().reset(**self.spoil(seeds, options))

    def spoil(self, seeds: Any, options: Any) -> dict[str, Any]:
        raise NotImplementedError


@mutant(r"infos\['(seed|drawn)'\]")
class SeedsAreOffByOne(ChangedReset):
    def spoil(self, seeds: Any, options: Any) -> dict[str, Any]:
        return {"seed": seeds and [None if seed is None else seed + 1 for seed in seeds], "options": options}


@mutant(r"infos\['(seed|drawn)'\]")
class SeedsAreAllTheSame(ChangedReset):
    def spoil(self, seeds: Any, options: Any) -> dict[str, Any]:
        return {"seed": seeds and [seeds[0]] * self.num_envs, "options": options}


@mutant(r"infos\['(seed|drawn)'\]")
class SeedZeroIsTakenForNone(ChangedReset):
    def spoil(self, seeds: Any, options: Any) -> dict[str, Any]:
        return {"seed": seeds and [seed or None for seed in seeds], "options": options}


@mutant(r"infos\['(seed|drawn|length)'\]|attribute np_random")
class MaskedResetCountsSeedsByPosition(ChangedReset):
    def spoil(self, seeds: Any, options: Any) -> dict[str, Any]:
        if seeds and options and "reset_mask" in options:
            chosen = iter(seeds)
            seeds = [next(chosen) if reset else None for reset in options["reset_mask"]]
        return {"seed": seeds, "options": options}


@mutant(r"observations|infos")
class MaskedOutOnesAreResetToo(ChangedReset):
    def spoil(self, seeds: Any, options: Any) -> dict[str, Any]:
        kept = {key: value for key, value in (options or {}).items() if key != "reset_mask"}
        return {"seed": seeds, "options": options and kept}


@mutant(r"infos\['options'\]")
class OptionsDontReachTheEnvironment(ChangedReset):
    def spoil(self, seeds: Any, options: Any) -> dict[str, Any]:
        mask = {key: value for key, value in (options or {}).items() if key == "reset_mask"}
        return {"seed": seeds, "options": mask or None}


@mutant(r"reset\(seed=\[0\]\)")
class WrongNumberOfSeedsIsTaken(ChangedReset):
    def spoil(self, seeds: Any, options: Any) -> dict[str, Any]:
        return {"seed": seeds and seeds[: self.num_envs], "options": options}


@mutant(r"observations|rewards|infos|terminations")
class ExplicitResetKeepsThePendingOne(SyncVectorEnv):
    def reset(self, **kwargs: Any) -> Any:
        pending = self._autoreset_envs
        results = super().reset(**kwargs)
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            self._autoreset_envs = pending
        return results


@mutant(r"rewards")
class SetAttrStopsAtTheOuterWrapper(SyncVectorEnv):
    def set_attr(self, name: str, values: Any) -> None:
        values = values if isinstance(values, list | tuple) else [values] * self.num_envs
        for env, value in zip(self.envs, values, strict=True):
            setattr(env, name, value)


@mutant(r"attribute bonus")
class SetAttrReachesOnlyTheFirst(SyncVectorEnv):
    def set_attr(self, name: str, values: Any) -> None:
        self.envs[0].set_wrapper_attr(name, values[0] if isinstance(values, list | tuple) else values)


@mutant(r"attribute")
class GetAttrReturnsAList(SyncVectorEnv):
    def get_attr(self, name: str) -> Any:
        return list(super().get_attr(name))


@mutant(r"call count_after")
class CallDropsKeywords(SyncVectorEnv):
    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return super().call(name, *args)


@mutant(r"frames\[0\]")
class FramesAreInReverseOrder(SyncVectorEnv):
    def render(self) -> Any:
        return super().render()[::-1]


@mutant(r"infos\['(type|action)'\]|rewards|observations")
class ActionsAreCastToFloat32(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        is_wide = isinstance(actions, np.ndarray) and actions.dtype == np.float64
        return super().step(actions.astype(np.float32) if is_wide else actions)


@mutant(r"infos\['type'\]")
class ListsOfActionsBecomeArrays(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        return super().step(np.asarray(actions) if isinstance(actions, list) else actions)


@mutant(r"the caller's argument\['actions'\]")
class ActionsOfTheCallerAreChanged(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        results = super().step(actions)
        if isinstance(actions, np.ndarray):
            actions.fill(0)
        return results


@mutant(r"^metadata")
class AutoresetModeIsAString(SyncVectorEnv):
    def __init__(self, env_fns: Any, **kwargs: Any) -> None:
        super().__init__(env_fns, **kwargs)
        self.metadata["autoreset_mode"] = self.autoreset_mode.value


@mutant(r"close\(\) a second time")
class SecondCloseRaises(SyncVectorEnv):
    def close(self, **kwargs: Any) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        super().close(**kwargs)
