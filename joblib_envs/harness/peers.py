"""Other projects' ways to step environments in processes: Stable-Baselines3's, and actors of Ray.

Their packages are loaded when one is built; where one is missing the verdict is ``unavailable``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from joblib_envs.errors import BackendUnavailableError
from joblib_envs.execution.protocol import split_evenly
from joblib_envs.harness.contenders import VectorLike
from joblib_envs.harness.environments import EnvironmentSource
from joblib_envs.harness.loops import PlainLoop

__all__ = ["RayActorsContender", "Sb3Contender"]

PATIENCE_S = 120.0
"""They start slowly and tell nothing of it: each of SB3's processes imports PyTorch, which takes a CPU 1.5 s."""


@dataclass(frozen=True)
class Sb3Contender:
    """``SubprocVecEnv``: a process for each environment, reset in the step in which its episode ends.

    It is judged against Gymnasium's Sync in the same autoreset mode.
    """

    name: str = "sb3_subproc"
    title: str = "SB3 SubprocVecEnv"
    ours: bool = False
    parallel: bool = True
    in_comparisons: bool = False
    patience_s: float = PATIENCE_S
    autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP

    def build(self, make_env: EnvironmentSource, num_envs: int, n_jobs: int) -> VectorLike:  # noqa: ARG002
        """Build it; it has no ``n_jobs``."""
        try:
            from stable_baselines3.common.vec_env import SubprocVecEnv
        except ImportError as error:
            raise _missing(self.name, "stable-baselines3", "sb3") from error
        return _Sb3(SubprocVecEnv([make_env] * num_envs))

    def code(self, source: EnvironmentSource, num_envs: int, n_jobs: int) -> str:  # noqa: ARG002
        """Return the lines that build it."""
        imports = ("import gymnasium", *source.imports, "from stable_baselines3.common.vec_env import SubprocVecEnv")
        guard = 'if __name__ == "__main__":  # its processes import this file'
        return "\n".join((*imports, guard, f"    envs = SubprocVecEnv([lambda: {source.make_code}] * {num_envs})"))


@dataclass(frozen=True)
class RayActorsContender:
    """Actors of Ray that own a share of the environments each; one ``ray.get`` for each step."""

    name: str = "ray_actors"
    title: str = "Ray actors"
    ours: bool = False
    parallel: bool = True
    in_comparisons: bool = False
    patience_s: float = PATIENCE_S

    def build(self, make_env: EnvironmentSource, num_envs: int, n_jobs: int) -> VectorLike:
        """Start Ray on this machine, unless it runs in this process, and the actors."""
        try:
            import ray  # noqa: F401 - missing is told here
        except ImportError as error:
            raise _missing(self.name, "ray", "ray") from error
        return _RayActors(make_env, num_envs, n_jobs)

    def code(self, source: EnvironmentSource, num_envs: int, n_jobs: int) -> str:  # noqa: ARG002
        """Return nothing: it takes more than some lines."""
        return ""


def _missing(name: str, package: str, extra: str) -> BackendUnavailableError:
    return BackendUnavailableError(
        f"contender {name!r} needs the package {package!r}, which is not installed: "
        f"run `pip install 'joblib-envs[{extra}]'`"
    )


class _Sb3:
    """Gives SB3's data in Gymnasium's form. What SB3 keeps of them is told apart again, nothing is made up."""

    def __init__(self, envs: Any) -> None:
        self._envs = envs
        self._observations: list[Any] = []
        self.close = envs.close

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, list[dict[str, Any]]]:
        """Reset all, or those of a mask, which SB3 can't: then each environment is called by itself."""
        count = self._envs.num_envs
        mask = (options or {}).get("reset_mask")
        if mask is None and (seed is None or isinstance(seed, int)):
            if seed is not None:
                self._envs.seed(seed)
            observations = self._envs.reset()
            self._observations = list(observations) if isinstance(observations, np.ndarray) else []
            return observations, list(self._envs.reset_infos)
        seeds = [None] * count if seed is None else list(seed)
        chosen = range(count) if mask is None else np.flatnonzero(mask).tolist()
        infos: list[dict[str, Any]] = [{} for _ in range(count)]
        if not self._observations:
            raise NotImplementedError("SubprocVecEnv resets all or nothing, and these observations are no array")
        for index in chosen:
            ((self._observations[index], infos[index]),) = self._envs.env_method(
                "reset", seed=seeds[index], indices=[index]
            )
        return np.stack(self._observations), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, list[dict[str, Any]]]:
        """Step all; SB3 calls a step ``done``, and its info says whether only time was over."""
        observations, rewards, dones, told = self._envs.step(actions)
        infos: list[dict[str, Any]] = list(told)
        if isinstance(observations, np.ndarray):
            self._observations = list(observations)
        truncations = np.array([info.pop("TimeLimit.truncated") for info in infos], dtype=np.bool_)
        for index in np.flatnonzero(dones):
            final_obs = infos[index].pop("terminal_observation")
            final = {"final_obs": final_obs, "final_info": infos[index]}
            infos[index] = final | self._envs.reset_infos[index]
        # NumPy's floats of 32 bits keep their values; Gymnasium's rewards have 64.
        return observations, rewards.astype(np.float64), dones & ~truncations, truncations, infos

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment."""
        for index, value in enumerate(values):
            self._envs.set_attr(name, value, indices=[index])

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment."""
        return tuple(self._envs.get_attr(name))


class _Shard(PlainLoop):
    """What an actor is: the plain loop over its share."""

    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Return a single environment's spaces."""
        return self.single_observation_space, self.envs[0].action_space


class _RayActors:
    """The actors, seen as one vector environment."""

    def __init__(self, make_env: EnvironmentSource, num_envs: int, n_jobs: int) -> None:
        import ray

        self._shards = split_evenly(num_envs, min(n_jobs, num_envs))
        self._ray, self._is_mine = ray, not ray.is_initialized()
        if self._is_mine:
            # "local": never a cluster of somebody else that happens to run here.
            ray.init("local", num_cpus=len(self._shards), include_dashboard=False, log_to_driver=False)
        make_actor = ray.remote(num_cpus=1)(_Shard)
        self._actors = [make_actor.remote(make_env, len(shard), 1) for shard in self._shards]
        self._num_envs = num_envs
        self._observation_space, self._action_space = ray.get(self._actors[0].spaces.remote())

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, list[dict[str, Any]]]:
        """Reset all, or those of a mask."""
        count = self._num_envs
        seeds = [seed + index for index in range(count)] if isinstance(seed, int) else list(seed or [None] * count)
        mask = (options or {}).get("reset_mask", np.ones(count, dtype=np.bool_))
        parts = self._ray.get(
            [
                actor.reset.remote(seed=seeds[each.start : each.stop], options={"reset_mask": mask[each]})
                for actor, each in zip(self._actors, self._shards, strict=True)
            ]
        )
        observations, infos = zip(*parts, strict=True)
        return _joined(self._observation_space, observations), list(itertools.chain(*infos))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, list[dict[str, Any]]]:
        """Step all, with one exchange."""
        parts = self._ray.get(
            [
                actor.step.remote(_part(self._action_space, actions, each))
                for actor, each in zip(self._actors, self._shards, strict=True)
            ]
        )
        observations, *numbers, infos = zip(*parts, strict=True)
        rewards, terminations, truncations = map(np.concatenate, numbers)
        joined = _joined(self._observation_space, observations)
        return joined, rewards, terminations, truncations, list(itertools.chain(*infos))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment."""
        self._ray.get(
            [
                actor.set_attr.remote(name, values[each.start : each.stop])
                for actor, each in zip(self._actors, self._shards, strict=True)
            ]
        )

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment."""
        return tuple(itertools.chain(*self._ray.get([actor.get_attr.remote(name) for actor in self._actors])))

    def close(self) -> None:
        """Close the environments, and end the actors, and Ray if it was started here."""
        self._ray.get([actor.close.remote() for actor in self._actors])
        for actor in self._actors:
            self._ray.kill(actor)
        if self._is_mine:
            self._ray.shutdown()


def _joined(space: gymnasium.Space[Any], parts: Sequence[Any]) -> Any:
    """Return batches of some sub-environments as one of all."""
    if isinstance(space, spaces.Dict):
        return {key: _joined(inner, [part[key] for part in parts]) for key, inner in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_joined(inner, [part[number] for part in parts]) for number, inner in enumerate(space))
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return tuple(itertools.chain(*parts))


def _part(space: gymnasium.Space[Any], batch: Any, rows: range) -> Any:
    """Return some rows of a batch of what is in a space."""
    if isinstance(space, spaces.Dict):
        return {key: _part(inner, batch[key], rows) for key, inner in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_part(inner, value, rows) for inner, value in zip(space, batch, strict=True))
    return batch[rows.start : rows.stop]
