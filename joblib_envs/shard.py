"""The shard: the sub-environments that one worker runs, and all that is done with them.

Whatever touches an environment is written here, once, for every backend: building,
reset, step with the autoreset rule, calls, attributes, close. A backend only decides
where a shard is and how requests reach it.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import gymnasium
from gymnasium.vector import AutoresetMode

from joblib_envs.copies import own
from joblib_envs.drawing import DRAWING, draws_with_pygame
from joblib_envs.errors import ArgumentError, ArgumentTypeError, EnvInsideFactoryError
from joblib_envs.failures import Failure
from joblib_envs.info_columns import InfoColumns
from joblib_envs.infos import own_info
from joblib_envs.rows import Array, Rows
from joblib_envs.shard_rollout import RolloutOrder, ShardRecord, roll_out
from joblib_envs.state.env_state import EnvState, Situation, checked_state, layers_of, spec_json_of
from joblib_envs.state.journal import JournaledEnv, keeping_its_journal
from joblib_envs.state.pickling import CaptureOptions
from joblib_envs.state.snapshot import captured_state, restored_env

__all__ = ["NOTHING_SAID", "EnvFactory", "Reply", "Request", "Shard", "ShardDescription", "check_distinct"]

EnvFactory: TypeAlias = Callable[[], gymnasium.Env[Any, Any]]

_STEER = (KeyboardInterrupt, GeneratorExit)
"""What isn't a sub-environment's failure. All else is: sys.exit(), a panic of native code, ..."""


@dataclass(frozen=True)
class ShardDescription:
    """What the batch needs to know of a shard's sub-environments.

    Attributes:
        observation_spaces: One for each sub-environment; None where it equals the first's.
        action_spaces: The same for actions.
        metadata: The first sub-environment's.
        render_mode: The first sub-environment's.
        identities: Process and address of each environment object, where it stays.
    """

    observation_spaces: tuple[gymnasium.Space[Any] | None, ...]
    action_spaces: tuple[gymnasium.Space[Any] | None, ...]
    metadata: dict[str, Any]
    render_mode: str | None
    identities: tuple[tuple[int, int], ...] = ()


_FILLS_ROWS = frozenset(("step", "reset", "adopt", "rollout"))


class Request(NamedTuple):
    """A call of one of :class:`Shard`'s methods, as it reaches a worker.

    Attributes:
        method: The method's name.
        arguments: The method's arguments, without the rows that ``step``, ``reset``, ``rollout`` and
            ``adopt`` fill.
    """

    method: str
    arguments: tuple[Any, ...] = ()

    @property
    def fills_rows(self) -> bool:
        """Whether it fills rows; the other calls leave them as they are."""
        return self.method in _FILLS_ROWS

    @property
    def row_mask(self) -> Sequence[bool] | None:
        """Which rows it fills; None: all."""
        if self.method == "reset":
            mask: Sequence[bool] | None = self.arguments[2]
            return mask
        return self.arguments[0] if self.method == "adopt" else None


@dataclass
class Reply:
    """What a shard answers, beside the rows that it has filled.

    Attributes:
        infos: What the sub-environments told, in parts that follow one another; empty if they told nothing.
        results: What ``call`` returned, by sub-environment.
        failures: The sub-environments that raised, by their index in the batch.
        output: Warnings and log records of a worker process, for the caller to show.
        records: What the shards recorded in a rollout.
    """

    infos: tuple[InfoColumns, ...] = ()
    results: list[Any] | None = None
    failures: dict[int, Failure] = field(default_factory=dict)
    output: list[Any] = field(default_factory=list)
    records: list[ShardRecord] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether the rows already say everything."""
        nothing_told = not self.infos and self.results is None and not self.records
        return nothing_told and not self.failures and not self.output

    def with_output(self, output: list[Any]) -> Reply:
        """Return the same with a worker's output, and with containers of its own."""
        return Reply(self.infos, self.results, dict(self.failures), output, list(self.records))


NOTHING_SAID = Reply((), None, MappingProxyType({}), (), ())  # type: ignore[arg-type]
"""What most steps answer; one for all, which nobody can change."""


class Shard:
    """Some sub-environments of a batch, which reset and step together.

    Args:
        envs: The sub-environments, in index order.
        first_index: The batch's index of the first.
        autoreset_mode: When an ended episode is followed by a reset.
    """

    def __init__(
        self, envs: Sequence[gymnasium.Env[Any, Any]], first_index: int, autoreset_mode: AutoresetMode
    ) -> None:
        self.envs = list(envs)
        self.first_index = first_index
        self.autoreset_mode = autoreset_mode
        self._reset_pending = [False] * len(self.envs)
        self._draws = any(draws_with_pygame(env) for env in self.envs)
        self._staged: dict[int, tuple[gymnasium.Env[Any, Any], EnvState]] = {}

    @classmethod
    def build(cls, factories: Iterable[EnvFactory], first_index: int, autoreset_mode: AutoresetMode) -> Shard | Failure:
        """Make the sub-environments, each once and in index order.

        Returns:
            The shard; or, if a factory raised, its failure, with all that was made closed.
        """
        envs: list[gymnasium.Env[Any, Any]] = []
        for factory in factories:
            try:
                env = factory()
                _check_env(env, envs, first_index)
            except _STEER:
                raise
            except BaseException as error:
                failure = Failure.of(first_index + len(envs), error)
                Shard(envs, first_index, autoreset_mode).close()
                return failure
            envs.append(env)
        return cls(envs, first_index, autoreset_mode)

    def __len__(self) -> int:
        return len(self.envs)

    def describe(self) -> ShardDescription:
        """Tell spaces, metadata and render mode; the spaces are copies with their own generators."""
        first = self.envs[0]
        return ShardDescription(
            _once([env.observation_space for env in self.envs]),
            _once([env.action_space for env in self.envs]),
            dict(first.metadata),
            first.render_mode,
            tuple((os.getpid(), id(env.unwrapped)) for env in self.envs),
        )

    def handle(self, request: Request, rows: Rows) -> Reply:
        """Carry out a request; ``step`` and ``reset`` fill the rows."""
        name = request.method
        method: Callable[..., Reply] = getattr(self, name)
        arguments = (rows, *request.arguments) if name in _FILLS_ROWS else request.arguments
        if self._draws or (name == "call" and request.arguments[0] == "render"):
            with DRAWING:
                return method(*arguments)
        return method(*arguments)

    def step(self, rows: Rows, actions: Array | Sequence[Any], first: int = 0) -> Reply:
        """Step every sub-environment once, or reset it where its episode ended in the step before.

        With fewer actions than sub-environments, those from row ``first`` on.

        This is where the autoreset rule stands (Gymnasium's three modes, see
        https://farama.org/Vector-Autoreset-Mode). With SAME_STEP the info of an ended episode
        is ``final_info``, its last observation ``final_obs``; both are snapshots, since an
        environment may reuse its buffers in the reset that follows.
        """
        pending = self._reset_pending
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        next_step = self.autoreset_mode is AutoresetMode.NEXT_STEP
        rewards, terminations, truncations, infos = rows.rewards, rows.terminations, rows.truncations, rows.infos
        write_observation = rows.write_observation
        failures: dict[int, Failure] = {}
        envs = self.envs
        if len(actions) < len(envs):
            stop = first + len(actions)
            envs, infos = envs[first:stop], infos.part(first, stop)
            terminations[first:stop] = truncations[first:stop] = False
        else:
            terminations.fill(False)
            truncations.fill(False)
        infos.clear()
        for row, (env, action) in enumerate(zip(envs, actions, strict=True), first):
            try:
                if pending[row]:
                    pending[row] = False
                    observation, info = env.reset()
                    rewards[row] = 0.0
                else:
                    observation, reward, terminated, truncated, info = env.step(action)
                    rewards[row] = reward
                    if terminated is not False or truncated is not False:
                        terminations[row] = terminated
                        truncations[row] = truncated
                        if terminations[row] or truncations[row]:
                            if same_step:
                                final = {"final_obs": copy.deepcopy(observation), "final_info": own_info(info)}
                                observation, info = env.reset()
                                info = {**final, **info}
                            pending[row] = next_step
                write_observation(row, observation)
                if info:
                    infos.write(row - first, info)
            except _STEER:
                raise
            except BaseException as error:
                failures[self.first_index + row] = Failure.of(self.first_index + row, error)
                rows.clear(row)
                pending[row] = False
        return Reply((infos,) if infos.has_any else (), None, failures) if failures or infos.has_any else NOTHING_SAID

    def rollout(self, rows: Rows, order: RolloutOrder) -> Reply:
        """Step many times with a policy's actions, and record what happens."""
        record, failures = roll_out(self, rows, order, self._reset_pending)
        return Reply(failures=failures, records=[record])

    def reset(
        self,
        rows: Rows,
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
        mask: Sequence[bool] | None,
    ) -> Reply:
        """Reset the sub-environments that the mask names, or all; the others keep state and row."""
        infos = rows.infos
        infos.clear()
        failures: dict[int, Failure] = {}
        for row, (env, seed) in enumerate(zip(self.envs, seeds, strict=True)):
            if mask is not None and not mask[row]:
                continue
            self._reset_pending[row] = False
            rows.rewards[row] = 0.0
            rows.terminations[row] = rows.truncations[row] = False
            try:
                observation, info = env.reset(seed=seed, options=own(options))
                rows.write_observation(row, observation)
                if info:
                    infos.write(row, info)
            except _STEER:
                raise
            except BaseException as error:
                failures[self.first_index + row] = Failure.of(self.first_index + row, error)
                rows.clear(row)
        return Reply((infos,) if infos.has_any else (), None, failures)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reply:
        """Call a method of every sub-environment, or get an attribute, through its wrappers."""

        def get(env: gymnasium.Env[Any, Any], _row: int) -> Any:
            try:
                attribute = env.get_wrapper_attr(name)
            except AttributeError as error:
                raise _Untouched from error
            return attribute(*own(args), **own(kwargs)) if callable(attribute) else attribute

        return self._each(get)

    def set_attr(self, name: str, values: Sequence[Any]) -> Reply:
        """Set an attribute where it is defined among each sub-environment's wrappers."""
        return self._each(lambda env, row: env.set_wrapper_attr(name, own(values[row])))

    def pending_resets(self) -> Reply:
        """Tell which sub-environments the next step resets, in NEXT_STEP mode."""
        return self._each(lambda _env, row: self._reset_pending[row])

    def get_state(self, options: CaptureOptions, is_proven: bool) -> Reply:
        """Capture each sub-environment; what can't be captured is as it was."""

        def get(env: gymnasium.Env[Any, Any], row: int) -> EnvState:
            try:
                return captured_state(env, options, is_proven=is_proven, reset_pending=self._reset_pending[row])
            except Exception as error:
                raise _Untouched from error

        return self._each(get)

    def stage(self, states: Sequence[EnvState | None]) -> Reply:
        """Make environments from states, for ``adopt`` to put in the place of those that are here."""
        self.unstage()  # of a call that was interrupted

        def make(env: gymnasium.Env[Any, Any], row: int) -> None:
            state = states[row]
            if state is not None:
                try:
                    self._staged[row] = (_in_place_of(env, state), state)
                except Exception as error:
                    raise _Untouched from error

        return self._each(make)

    def unstage(self) -> Reply:
        """Close what ``stage`` has made."""
        for env, _ in self._staged.values():
            _close_quietly(env)
        self._staged.clear()
        return Reply()

    def adopt(self, rows: Rows, mask: Sequence[bool]) -> Reply:  # noqa: ARG002 -- says which rows are filled
        """Put the staged environments in place, close those that were there, and fill in their last observations."""
        for row, (env, state) in self._staged.items():
            _close_quietly(self.envs[row])
            self.envs[row] = env
            # In the other modes a reset is the user's to make; the batch says so.
            self._reset_pending[row] = state.reset_pending and self.autoreset_mode is AutoresetMode.NEXT_STEP
            rows.clear(row)
            situation = Situation.of(state)
            if situation.observation is not None:
                rows.put(row, situation.observation)
        self._staged.clear()
        self._draws = any(draws_with_pygame(env) for env in self.envs)
        return Reply()

    def close(self) -> Reply:
        """Close every sub-environment, whatever the others do."""
        return self._each(lambda env, _row: env.close())

    def _each(self, action: Callable[[gymnasium.Env[Any, Any], int], Any]) -> Reply:
        results: list[Any] = []
        failures: dict[int, Failure] = {}
        for row, env in enumerate(self.envs):
            try:
                results.append(action(env, row))
            except _Untouched as untouched:
                results.append(None)
                index, error = self.first_index + row, untouched.__cause__
                assert error is not None  # always raised from what happened
                failures[index] = Failure.of(index, error, needs_reset=False)
            except _STEER:
                raise
            except BaseException as error:
                results.append(None)
                failures[self.first_index + row] = Failure.of(self.first_index + row, error)
        return Reply((), results, failures)


class _Untouched(Exception):  # noqa: N818 -- never leaves this module
    """A call failed before it reached the environment's own code."""


def _in_place_of(env: gymnasium.Env[Any, Any], state: EnvState) -> gymnasium.Env[Any, Any]:
    """Make an environment from a state, if it can stand where another one does.

    Raises:
        ArgumentError: It was made otherwise: by another spec, with other wrappers, with other spaces.
        StateFormatError: It can't be unpickled here.
    """
    own_spec = spec_json_of(env)
    if None not in (own_spec, checked_state(state).spec_json) and own_spec != state.spec_json:
        raise _made_otherwise("its spec", *_differing_parts(str(state.spec_json), str(own_spec)))
    restored = restored_env(state)
    for what, of in (
        ("its layers", _layers),
        ("its observation_space", lambda each: each.observation_space),
        ("its action_space", lambda each: each.action_space),
    ):
        wanted, got = of(env), of(restored)
        if wanted != got:
            _close_quietly(restored)
            raise _made_otherwise(what, got, wanted)
    return keeping_its_journal(restored, state, like=env)


def _differing_parts(given: str, wanted: str) -> tuple[str, str]:
    """Return of two specs, as JSON, the ids, or, where those agree, what differs."""
    one, other = json.loads(given), json.loads(wanted)
    names = ["id"] if one["id"] != other["id"] else [name for name in one if one[name] != other.get(name)]
    said = (", ".join(f"{name}={each.get(name)!r:.200}" for name in names) for each in (one, other))
    return next(said), next(said)


def _layers(env: gymnasium.Env[Any, Any]) -> tuple[str, ...]:
    return layers_of(env.env if isinstance(env, JournaledEnv) else env)


def _made_otherwise(what: str, got: Any, wanted: Any) -> ArgumentError:
    return ArgumentError(
        f"the state is of another environment: {what} is {got}, and the batch's is {wanted}. Give states of "
        f"environments that were made in the same way"
    )


def _close_quietly(env: gymnasium.Env[Any, Any]) -> None:
    with contextlib.suppress(Exception):  # it was replaced: what it does when closed is nobody's concern
        env.close()


def _check_env(env: Any, earlier: Sequence[gymnasium.Env[Any, Any]], first_index: int) -> None:
    if not isinstance(env, gymnasium.Env):
        raise ArgumentTypeError(
            f"a factory returned {type(env).__name__}, but a sub-environment must be a gymnasium.Env: "
            f"return the environment from the factory"
        )
    for row, other in enumerate(earlier):
        if env.unwrapped is other.unwrapped:
            raise _one_object(first_index + row, first_index + len(earlier))


def _one_object(index: int, other: int) -> EnvInsideFactoryError:
    return EnvInsideFactoryError(
        f"the factories of sub-environments {index} and {other} returned one and the same environment object: each "
        f"call of a factory must make a new environment, as in `lambda: gymnasium.make('CartPole-v1')`"
    )


def check_distinct(descriptions: Sequence[ShardDescription]) -> None:
    """Refuse a batch in which sub-environments of two shards are one object.

    Raises:
        EnvInsideFactoryError: They are.
    """
    seen: dict[tuple[int, int], int] = {}
    for index, identity in enumerate(identity for description in descriptions for identity in description.identities):
        if identity in seen:
            raise _one_object(seen[identity], index)
        seen[identity] = index


def _once(spaces: list[gymnasium.Space[Any]]) -> tuple[gymnasium.Space[Any] | None, ...]:
    """Return copies of the spaces, with None for those that equal the first."""
    first = spaces[0]
    return (
        copy.deepcopy(first),
        *(None if space is first or space == first else copy.deepcopy(space) for space in spaces[1:]),
    )
