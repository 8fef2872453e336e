"""Checks what the caller gives to a batch, before anything happens, and never changes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate

from joblib_envs.errors import ArgumentError, ArgumentTypeError
from joblib_envs.rows import Array
from joblib_envs.state.env_state import EnvState, checked_state

__all__ = [
    "ActionCheck",
    "check_observation_mode",
    "checked_autoreset_mode",
    "checked_indices",
    "checked_seeds",
    "checked_state_method",
    "checked_states",
    "checked_timeout",
    "checked_values",
    "split_options",
]

RESET_MASK = "reset_mask"


def checked_autoreset_mode(mode: Any) -> AutoresetMode:
    """Return the mode as an enum, from the enum or its value.

    Raises:
        ArgumentError: It is neither.
    """
    try:
        return AutoresetMode(mode)
    except ValueError:
        allowed = [each.value for each in AutoresetMode]
        raise ArgumentError(
            f"autoreset_mode={mode!r} must be a gymnasium.vector.AutoresetMode or one of {allowed}"
        ) from None


def check_observation_mode(mode: Any) -> None:
    """Check a mode.

    Raises:
        ArgumentTypeError: A tuple of two holds something else than spaces.
        ArgumentError: It is none of the modes.
    """
    if isinstance(mode, str) and mode in ("same", "different"):
        return
    if isinstance(mode, tuple) and len(mode) == 2:
        if all(isinstance(space, Space) for space in mode):
            return
        raise ArgumentTypeError(
            f"observation_mode as a tuple must hold the batched and the single observation space, got {mode!r}"
        )
    raise ArgumentError(
        f"observation_mode={mode!r} must be 'same', 'different', or a tuple of the batched and the single "
        f"observation space"
    )


def checked_state_method(method: Any) -> str:
    """Return how states are kept.

    Raises:
        ArgumentError: It is neither ``"capture"`` nor ``"replay"``.
    """
    if method not in ("capture", "replay"):
        raise ArgumentError(
            f"state_method={method!r} must be 'capture', which keeps an environment's attributes and its simulator's "
            f"state, or 'replay', which keeps all its calls and makes them again"
        )
    return str(method)


def checked_states(states: Any, indices: Any, num_envs: int) -> dict[int, EnvState]:
    """Return for each sub-environment that is to get a state that state.

    Raises:
        ArgumentTypeError: Something is no EnvState, or no index.
        ArgumentError: The numbers of states and indices don't agree, or an index isn't allowed.
    """
    chosen = checked_indices(indices, num_envs)
    if isinstance(states, EnvState):
        return dict.fromkeys(chosen, states)
    if isinstance(states, str | bytes | Mapping) or not isinstance(states, Iterable):
        checked_state(states, "states")
    given = [checked_state(state, f"states[{number}]") for number, state in enumerate(states)]
    if len(given) != len(chosen):
        raise ArgumentError(
            f"{len(given)} states were given for {len(chosen)} sub-environments: give one state for each of indices "
            f"(all {num_envs} unless given), or a single EnvState for all of them"
        )
    return dict(zip(chosen, given, strict=True))


def checked_indices(indices: Any, num_envs: int) -> list[int]:
    """Return sub-environments that were named by whole numbers or a bool mask; all for None.

    Raises:
        ArgumentError: There is none of such a number, or one is named twice.
        ArgumentTypeError: They are something else.
    """
    if indices is None:
        return list(range(num_envs))
    if isinstance(indices, Integral) and not isinstance(indices, bool):
        indices = [indices]
    array = np.asarray(indices)
    if array.dtype == np.bool_ and array.shape == (num_envs,):
        return [int(index) for index in np.flatnonzero(array)]
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise ArgumentTypeError(
            f"indices={indices!r:.200} must be whole numbers from 0 to {num_envs - 1}, or a bool mask of {num_envs}"
        )
    chosen = [int(index) for index in array]
    outside = [index for index in chosen if not 0 <= index < num_envs]
    if outside:
        raise ArgumentError(f"indices holds {outside}, but the batch has sub-environments 0 to {num_envs - 1}")
    if len(set(chosen)) != len(chosen):
        raise ArgumentError(f"indices={chosen} names a sub-environment twice: name each once")
    return chosen


def checked_seeds(seed: Any, num_envs: int) -> list[int | None]:
    """Return one seed or None for each sub-environment.

    Raises:
        ArgumentError: A sequence has another length than ``num_envs``.
        ArgumentTypeError: It holds, or is, something else than integers and None.
    """
    if seed is None:
        return [None] * num_envs
    if _is_integer(seed):
        return [int(seed) + index for index in range(num_envs)]
    if isinstance(seed, str | bytes) or not isinstance(seed, Sequence | np.ndarray) or np.ndim(seed) != 1:
        raise ArgumentTypeError(
            f"seed={seed!r} must be an integer, None, or a sequence with one integer or None for each of the "
            f"{num_envs} sub-environments"
        )
    if len(seed) != num_envs:
        raise ArgumentError(
            f"seed has {len(seed)} entries but there are {num_envs} sub-environments: give one for each"
        )
    for each in seed:
        if each is not None and not _is_integer(each):
            raise ArgumentTypeError(f"seed holds {each!r} ({type(each).__name__}), but may hold integers and None")
    return [None if each is None else int(each) for each in seed]


def split_options(options: Any, num_envs: int) -> tuple[dict[str, Any] | None, Array | None]:
    """Return the options for the environments, and the reset mask.

    Raises:
        ArgumentTypeError: The options are no dictionary, or the mask no bool array.
        ArgumentError: The mask has another shape than ``(num_envs,)``, or no True.
    """
    if options is None:
        return None, None
    if not isinstance(options, Mapping):
        raise ArgumentTypeError(f"options={options!r} must be a dictionary or None")
    env_options = {key: value for key, value in options.items() if key != RESET_MASK}
    if RESET_MASK not in options:
        return env_options, None
    mask = options[RESET_MASK]
    wanted = f"options['{RESET_MASK}'] must be a NumPy array of bool, of shape ({num_envs},), with at least one True"
    if not isinstance(mask, np.ndarray):
        raise ArgumentTypeError(f"{wanted}; got {type(mask).__name__}: use np.array(mask, dtype=bool)")
    if mask.dtype != np.bool_:
        raise ArgumentTypeError(f"{wanted}; got dtype {mask.dtype}: use mask.astype(bool)")
    if mask.shape != (num_envs,):
        raise ArgumentError(f"{wanted}; got shape {mask.shape}")
    if not mask.any():
        raise ArgumentError(f"{wanted}; all are False: leave the call out when there is nothing to reset")
    return env_options, mask.copy()


def checked_timeout(timeout: Any) -> float | None:
    """Return the seconds to wait, or None.

    Raises:
        ArgumentTypeError: It is no number.
        ArgumentError: It is negative or not a number.
    """
    if timeout is None:
        return None
    if not isinstance(timeout, Real) or isinstance(timeout, bool):
        raise ArgumentTypeError(f"timeout={timeout!r} must be a number of seconds to wait, or None to wait for ever")
    if not float(timeout) >= 0:  # not a number isn't, either
        raise ArgumentError(f"timeout={timeout!r} must be 0 seconds or more, or None to wait for ever")
    return float(timeout)


def checked_values(values: Any, num_envs: int) -> list[Any]:
    """Return one attribute value for each sub-environment, from a list, a tuple, or one value for all.

    Raises:
        ArgumentError: A list or tuple has another length than ``num_envs``.
    """
    if not isinstance(values, list | tuple):
        return [values] * num_envs
    if len(values) != num_envs:
        raise ArgumentError(
            f"values has {len(values)} entries but there are {num_envs} sub-environments: give one for each, or one "
            f"value (no list or tuple) for all"
        )
    return list(values)


def fixed_action_shape(single_action_space: Space[Any]) -> tuple[int, ...] | None:
    """Return the shape of one action where a batch of actions is one array, else None."""
    if isinstance(single_action_space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return tuple(single_action_space.shape or ())
    return None


class ActionCheck:
    """Checks a batch of actions before anyone moves, and casts nothing.

    A sub-environment gets what ``gymnasium.vector.SyncVectorEnv`` would give it.

    Args:
        action_space: The batched space.
        single_action_space: One sub-environment's.
        num_envs: Number of sub-environments.

    Attributes:
        num_envs: Number of sub-environments.
        shape: The shape of one action where a batch of actions is one array, else None.
        batch_shape: The shape of that batch, else None.
    """

    def __init__(self, action_space: Space[Any], single_action_space: Space[Any], num_envs: int) -> None:
        self.shape = fixed_action_shape(single_action_space)
        self._action_space = action_space
        self._single_action_space = single_action_space
        self.num_envs = num_envs
        self.batch_shape = None if self.shape is None else (num_envs, *self.shape)

    def __call__(self, actions: Any) -> Array | list[Any]:
        """Return the actions as an array ``(num_envs, ...)``, or as a list of one for each sub-environment.

        Raises:
            ArgumentError: The number or the shape of the actions is wrong.
            ArgumentTypeError: One action was given where a batch is wanted.
        """
        if isinstance(actions, np.ndarray) and actions.shape == self.batch_shape and not actions.dtype.hasobject:
            if actions.flags.c_contiguous or actions.ndim <= 2:
                return np.ascontiguousarray(actions)
            # An environment's arithmetic follows the order in memory, so each action keeps its own.
            return [action.copy(order="K") for action in actions]
        if self.shape is not None:
            if isinstance(actions, np.ndarray) and actions.dtype != object:
                raise _wrong_shape(actions, self.num_envs, self.shape)
            if hasattr(actions, "__array__") and not isinstance(actions, np.ndarray):
                return _converted(actions, self.num_envs, self.shape)
        each = _one_for_each(actions, self._action_space, self._single_action_space, self.num_envs)
        if len(each) != self.num_envs:
            raise ArgumentError(f"got {len(each)} actions for {self.num_envs} sub-environments: give one for each")
        for index, action in enumerate(each):
            _check_shape(action, self._single_action_space, index)
        return each


def _converted(actions: Any, num_envs: int, shape: tuple[int, ...]) -> Array:
    try:
        array = np.asarray(actions)
    except Exception as error:
        raise ArgumentTypeError(f"actions={actions!r:.200} can't be made an array: {error}") from error
    if array.dtype == object:
        raise ArgumentTypeError(
            f"actions={actions!r:.200} ({type(actions).__name__}) must be an array of shape {(num_envs, *shape)} or a "
            f"list of {num_envs} actions"
        )
    if array.shape != (num_envs, *shape):
        raise _wrong_shape(array, num_envs, shape)
    return array


def _wrong_shape(array: Array, num_envs: int, shape: tuple[int, ...]) -> ArgumentError:
    wanted = (num_envs, *shape)
    if array.ndim == 0:
        return ArgumentTypeError(f"got one action, {array!r}, for {num_envs} sub-environments: give shape {wanted}")
    hint = ": use actions.squeeze(-1)" if array.shape == (*wanted, 1) else ""
    return ArgumentError(f"actions have shape {array.shape}, but {num_envs} sub-environments want {wanted}{hint}")


def _one_for_each(actions: Any, action_space: Space[Any], single_action_space: Space[Any], num_envs: int) -> list[Any]:
    if fixed_action_shape(single_action_space) is not None or not _has_leaves(single_action_space):
        is_scalar = isinstance(actions, np.ndarray | np.generic) and actions.ndim == 0
        if is_scalar or isinstance(actions, str | bytes | Mapping) or not isinstance(actions, Iterable):
            raise ArgumentTypeError(
                f"actions={actions!r:.200} ({type(actions).__name__}) must hold {num_envs} actions, one for each "
                f"sub-environment: a batch of them, or a list"
            )
        return list(actions)
    if _is_list_of_actions(actions, single_action_space):
        return list(actions)
    try:
        return list(iterate(action_space, actions))
    except KeyError as error:
        raise ArgumentError(f"actions lack the key {error}: the action space is {action_space}") from error
    except ValueError as error:
        raise ArgumentError(f"the parts of actions have different lengths, of which each must be {num_envs}") from error
    except Exception as error:
        raise ArgumentTypeError(
            f"actions={actions!r:.200} don't have the form of the action space {action_space} ({error}): give a batch "
            f"of that form, or a list of {num_envs} actions"
        ) from error


def _has_leaves(space: Space[Any]) -> bool:
    """Tell whether a batch of the space is a Dict or Tuple of batches (else a tuple of single actions)."""
    return batch_space.dispatch(type(space)) in (
        batch_space.dispatch(spaces.Dict),
        batch_space.dispatch(spaces.Tuple),
    )


def _is_list_of_actions(actions: Any, single_action_space: Space[Any]) -> bool:
    kind = Mapping if isinstance(single_action_space, spaces.Dict) else tuple
    return isinstance(actions, list) and bool(actions) and all(isinstance(action, kind) for action in actions)


def _check_shape(action: Any, space: Space[Any], index: int) -> None:
    """Check one sub-environment's action as far as its form goes; its value is the environment's matter."""
    shape = fixed_action_shape(space)
    if shape is not None:
        if np.shape(action) != shape:
            raise ArgumentError(
                f"the action for sub-environment {index} has shape {np.shape(action)}, but {space} has {shape}"
            )
    elif isinstance(space, spaces.Dict):
        if not isinstance(action, Mapping) or not action.keys() >= space.spaces.keys():
            raise ArgumentError(f"the action for sub-environment {index} is {action!r:.100}, no value of {space}")
        for key, sub in space.spaces.items():
            _check_shape(action[key], sub, index)
    elif isinstance(space, spaces.Tuple):
        if len(action) != len(space.spaces):
            raise ArgumentError(f"the action for sub-environment {index} is {action!r:.100}, no value of {space}")
        for part, sub in zip(action, space.spaces, strict=True):
            _check_shape(part, sub, index)


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
