"""Policies: what chooses actions. Any callable on a batch of observations, recurrent ones, random ones.

A policy knows nothing of batches of environments and their workers. It is asked for the
sub-environments of one worker, or for all, so it must take any number of rows. What it
remembers from one step to the next is its *state*, which it is given and gives back:
whatever it kept in itself would stay in a worker.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AutoresetMode

from joblib_envs.arguments import ActionCheck
from joblib_envs.errors import ArgumentError, ArgumentTypeError, PolicyError
from joblib_envs.policy_states import checked_policy_state, own_state, rows_of_state, with_rows_of

__all__ = ["Memory", "Policy", "PolicyDriver", "RandomPolicy", "RecurrentPolicy", "policy_for", "starting_memory"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@runtime_checkable
class Policy(Protocol):
    """Chooses actions for a batch of observations: any callable, such as a function.

    It is called with observations as ``BatchEnv`` returns them, of all or some consecutive
    sub-environments, and returns as many actions, in a form that ``BatchEnv.step`` takes. The
    observations are its own: it may keep and change them. Two calls with equal observations
    must give equal actions; what changes from call to call belongs into the state of a
    :class:`RecurrentPolicy`.

    A policy that isn't the same for all sub-environments has a method ``for_envs(indices: range)``,
    which returns the policy for those. (A policy that can't tell where its rows stand would give the
    first ones' actions in every worker.)

    Example:
        >>> def lean(observations):
        ...     return (observations[:, 2] > 0).astype(np.int64)
        >>> isinstance(lean, Policy)
        True
    """

    def __call__(self, observations: Any, /) -> Any:
        """Return a batch of actions."""


@runtime_checkable
class RecurrentPolicy(Protocol):
    """Chooses actions by observations and a state of its own.

    The state is a NumPy array with a row for each sub-environment, or a dictionary, tuple or
    list of such arrays. Rows of ``initial_state`` are put back where an episode begins, by who calls the
    policy. A policy whose state goes on over episodes says so with an attribute
    ``state_spans_episodes = True``.

    Example:
        >>> class EveryOther:
        ...     def initial_state(self, num_envs):
        ...         return np.zeros(num_envs, dtype=np.int64)
        ...
        ...     def __call__(self, observations, state):
        ...         return state % 2, state + 1
        >>> isinstance(EveryOther(), RecurrentPolicy)
        True
    """

    def initial_state(self, num_envs: int) -> Any:
        """Return the state before the first step of an episode: arrays ``(num_envs, ...)``."""

    def __call__(self, observations: Any, state: Any, /) -> tuple[Any, Any]:
        """Return a batch of actions and the next state."""


class RandomPolicy:
    """Draws actions from the action space, with a random stream of its own for each sub-environment.

    The actions of sub-environment i depend on the seed, on i and on how many it has drawn, and on
    nothing else: not on the number of sub-environments or workers, nor on the backend. The streams
    go on over episodes. They are the policy's state, so it is a :class:`RecurrentPolicy`.

    Args:
        single_action_space: One sub-environment's action space. Discrete, MultiDiscrete, MultiBinary and
            bounded Box of floats are drawn uniformly, many at once; others by the space's own ``sample``.
        seed: A whole number from 0 on.

    Raises:
        ArgumentTypeError: The space is no space, or the seed no whole number.
        ArgumentError: The seed is negative.

    Example:
        >>> policy = RandomPolicy(spaces.Discrete(5), seed=1)
        >>> state = policy.initial_state(3)
        >>> first, state = policy(None, state)
        >>> second, state = policy(None, state)
        >>> first.tolist(), second.tolist()
        ([0, 0, 2], [3, 4, 4])
    """

    state_spans_episodes = True

    def __init__(self, single_action_space: Space[Any], seed: int) -> None:
        if not isinstance(single_action_space, Space):
            raise ArgumentTypeError(
                f"single_action_space={single_action_space!r:.100} must be a space, as in envs.single_action_space"
            )
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise ArgumentTypeError(f"seed={seed!r} must be a whole number from 0 on")
        if seed < 0:
            raise ArgumentError(f"seed={seed} is negative: give a whole number from 0 on")
        self.single_action_space = copy.deepcopy(single_action_space)
        self.seed = int(seed)
        # (state that comes next, actions from some state on, which of them is next): swapped as a whole,
        # and believed only if it is of the very state that is given, which nobody can write to.
        self._ahead: tuple[Any, Any, int] = (None, (), 0)

    def __repr__(self) -> str:
        return f"RandomPolicy({self.single_action_space!r}, seed={self.seed})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_ahead": (None, (), 0)}

    def initial_state(self, num_envs: int) -> Array:
        """Return the streams' beginnings: uint64 ``(num_envs, 3)``, a stream's key and the number of draws."""
        state = np.zeros((num_envs, 3), dtype=np.uint64)
        for index in range(num_envs):
            state[index, :2] = np.random.SeedSequence(self.seed, spawn_key=(index,)).generate_state(2, np.uint64)
        return state

    def __call__(self, observations: Any, state: Array, /) -> tuple[Any, Array]:  # noqa: ARG002
        """Return an action for each row of the state, and the next state."""
        following = state + _ONE_DRAW
        following.setflags(write=False)
        known, actions, number = self._ahead
        if known is not state or number == len(actions):
            drawn = _drawn(self.single_action_space, state)
            if drawn is None:
                return self._sampled(state), following
            actions, number = drawn, 0
        self._ahead = (following, actions, number + 1)
        return actions[number].copy(), following

    def _sampled(self, state: Array) -> list[Any]:
        space = copy.deepcopy(self.single_action_space)
        actions = []
        for row in state.tolist():
            space.seed(int(np.random.SeedSequence(row).generate_state(1)[0]))
            actions.append(space.sample())
        return actions


_ONE_DRAW = np.array([0, 0, 1], dtype=np.uint64)
_AHEAD = 64
"""Actions that are drawn at once, so that a step costs no more than taking one."""


def _drawn(space: Space[Any], state: Array) -> Array | None:
    """Return the next actions of each stream, ``(_AHEAD, n, *shape)``, where they can be drawn at once; else None."""
    kind = type(space)
    if kind is spaces.Discrete or kind is spaces.MultiDiscrete:
        sizes = np.asarray(space.n if kind is spaces.Discrete else space.nvec).astype(np.uint64)  # type: ignore[attr-defined]
        actions: Array = (_words(state, space.shape) % sizes).astype(space.dtype) + space.start  # type: ignore[attr-defined]
        return actions.astype(space.dtype, copy=False)
    if kind is spaces.MultiBinary:
        return (_words(state, space.shape) >> np.uint64(63)).astype(space.dtype)
    if kind is spaces.Box and space.dtype in (np.float32, np.float64):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)  # type: ignore[attr-defined]
        with np.errstate(over="ignore"):
            width = high - low
        if np.isfinite(width).all():
            fractions = (_words(state, space.shape) >> np.uint64(11)) * 2.0**-53
            drawn: Array = np.minimum(low + fractions * width, high)
            return drawn.astype(space.dtype)
    return None


def _words(state: Array, shape: Any) -> Array:
    """Return random words ``(_AHEAD, n, *shape)``: SplitMix64 twice, of a word's number and each half of the key."""
    size = int(np.prod(shape))
    draws = state[None, :, 2, None] + np.arange(_AHEAD, dtype=np.uint64)[:, None, None]
    numbers = draws * np.uint64(size) + np.arange(size, dtype=np.uint64)
    words = _mixed(state[:, 0, None] + numbers * np.uint64(0x9E3779B97F4A7C15))
    return _mixed(words ^ state[:, 1, None]).reshape(_AHEAD, len(state), *shape)


def _mixed(words: Array) -> Array:
    """Return SplitMix64's words for these (Steele, Lea and Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = words ^ (words >> np.uint64(31))
    return mixed


@dataclass(frozen=True)
class Memory:
    """What a recurrent policy starts from.

    Attributes:
        state: Its state now.
        initial: The state that an episode begins with; None where the state spans episodes.
    """

    state: Any
    initial: Any

    def rows(self, rows: range) -> Memory:
        """Return copies of some rows."""
        return Memory(
            rows_of_state(self.state, rows), None if self.initial is None else rows_of_state(self.initial, rows)
        )


def starting_memory(policy: Any, num_envs: int, policy_state: Any = None) -> Memory | None:
    """Return what a policy starts from; None if it isn't recurrent.

    Args:
        policy: The policy.
        num_envs: Number of sub-environments.
        policy_state: The state to start from; None: its ``initial_state``.

    Raises:
        ArgumentError: The state isn't one of the policy, or the policy has none.
        PolicyError: ``initial_state`` gave something else than a state.
    """
    if not callable(policy):
        raise ArgumentTypeError(
            f"policy={policy!r:.100} can't be called: give a function of observations, or a RecurrentPolicy"
        )
    if not _is_recurrent(policy):
        if policy_state is not None:
            raise ArgumentError(
                "policy_state was given, but the policy has no method initial_state, so it has no state: leave it out"
            )
        return None
    initial = policy.initial_state(num_envs)
    try:
        checked_policy_state(initial, num_envs, f"initial_state({num_envs})")
    except ArgumentError as error:
        raise PolicyError(str(error)) from error
    initial = own_state(initial)
    state = initial if policy_state is None else checked_policy_state(policy_state, num_envs, "policy_state")
    with_rows_of(initial, state, np.zeros(num_envs, dtype=np.bool_))  # raises where their forms differ
    return Memory(own_state(state), None if getattr(policy, "state_spans_episodes", False) else initial)


def policy_for(policy: Any, indices: range) -> Any:
    """Return the policy for some sub-environments."""
    part = getattr(policy, "for_envs", None)
    return policy if part is None else part(indices)


def _is_recurrent(policy: Any) -> bool:
    return callable(getattr(policy, "initial_state", None))


class PolicyDriver:
    """Asks a policy for actions, step by step, and keeps its state. Rollouts and recordings do it so.

    Args:
        policy: The policy, for the sub-environments that it is asked for.
        check_actions: Checks their actions.
        memory: What a recurrent policy starts from; it belongs to the driver.
        autoreset_mode: When an ended episode is followed by a reset.
        pending: With NEXT_STEP, which of them the next step resets; None: nobody.

    Attributes:
        state: The policy's state for the next observations; None if it has none.
        forgets: Whether it must be told of each step by ``after_step``, since episodes begin with a state anew.
    """

    def __init__(
        self,
        policy: Any,
        check_actions: ActionCheck,
        memory: Memory | None,
        autoreset_mode: AutoresetMode,
        pending: Any = None,
    ) -> None:
        self._policy = policy
        self._check = check_actions
        self._memory = memory
        self.state = None if memory is None else memory.state
        self._next_step = autoreset_mode is AutoresetMode.NEXT_STEP
        self._pending = np.zeros(check_actions.num_envs, np.bool_) if pending is None else np.array(pending, np.bool_)
        self._form_is_known = False
        shape = check_actions.batch_shape
        self._plain_shape = shape if shape is not None and len(shape) <= 2 else None
        self.forgets = memory is not None and memory.initial is not None

    def __call__(self, observations: Any) -> Array | list[Any]:
        """Return checked actions: an array ``(n, ...)``, or a list of one for each sub-environment.

        They are a copy: the policy may use its array again.

        Raises:
            PolicyError: What the policy gave is no batch of actions, or no state.
        """
        if self._memory is None:
            actions = self._policy(observations)
        else:
            answer = self._policy(observations, self.state)
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise PolicyError(
                    f"a policy with initial_state must return (actions, state), but gave {answer!r:.200}: return both"
                )
            actions, self.state = answer
            self._check_state()
        # What the check would find, without its calls: this is done in every step.
        if type(actions) is np.ndarray and actions.shape == self._plain_shape and not actions.dtype.hasobject:
            return actions.copy()
        try:
            return copy.deepcopy(self._check(actions))
        except ArgumentError as error:
            raise _unusable(error) from error

    def after_step(self, terminations: Array, truncations: Array) -> None:
        """Note what a step gave: where the observations are the first of an episode, the state starts anew."""
        if self._memory is None or self._memory.initial is None:
            return
        ended = terminations | truncations
        begins = self._pending if self._next_step else ended
        self._pending = ended
        if begins.any():
            self.state = with_rows_of(self.state, self._memory.initial, begins)

    def _check_state(self) -> None:
        assert self._memory is not None  # else there is no state
        try:
            checked_policy_state(self.state, self._check.num_envs, "the state that the policy returned")
            if not self._form_is_known and self._memory.initial is not None:
                with_rows_of(self.state, self._memory.initial, np.zeros(self._check.num_envs, np.bool_))
                self._form_is_known = True
        except ArgumentError as error:
            raise _unusable(error) from error


def _unusable(error: ArgumentError) -> PolicyError:
    return PolicyError(f"the policy's answer can't be used: {error}")
