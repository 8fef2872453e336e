"""What the tests of states have in common: values and environments that travel."""

from __future__ import annotations

import copy

from joblib_envs.equality import first_difference
from joblib_envs.state.pickling import DEFAULT_OPTIONS, captured, restored


def travelled(value, options=DEFAULT_OPTIONS, *, is_private=False):
    """Pickle and unpickle a value in this process; ``is_private``: as a task does."""
    data, departure = captured(value, options)
    return restored(data, departure.shared, is_private=is_private)


def difference_on_the_way(make, num_steps=40, *, options=DEFAULT_OPTIONS, own_actions=True, seed=3):
    """Compare an environment that travels before each call, as in tasks, with a twin that never does.

    Each is given the actions that its own action space samples, unless ``own_actions`` is False,
    and reset once without a seed.
    """
    envs = [make(), make()]
    try:
        for env in envs:
            env.action_space.seed(seed)
        answers = [_snapshot(env.reset(seed=seed)) for env in envs]
        for number in range(num_steps):
            envs[1] = travelled(envs[1], options, is_private=True)
            actions = [env.action_space.sample() for env in envs[: 1 + own_actions]]
            answers = [
                (action, _snapshot(_moved(env, action, reset=number == num_steps // 2)))
                for env, action in zip(envs, actions * (2 // len(actions)), strict=True)
            ]
            difference = first_difference(*answers, path=f"step {number}")
            if difference is not None:
                return difference
        return first_difference(*answers, path="the last step")
    finally:
        for env in envs:
            env.close()


def _moved(env, action, reset):
    step = env.step(copy.deepcopy(action))
    return step, env.reset() if step[2] or step[3] or reset else None


def _snapshot(value):
    return copy.deepcopy(value)  # environments may reuse their buffers
