"""What crosses from a worker process to its batch, packed and unpacked."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from joblib_envs.errors import UnpicklableError
from joblib_envs.failures import Failure
from joblib_envs.rows import Rows
from joblib_envs.shard import Reply, Request

__all__ = ["pack_reply", "pack_request", "unpack_reply"]


def _dumps(value: Any) -> bytes:
    """Pickle, by value only where that is needed: the plain pickler is the faster one."""
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:  # classes and functions of a script or a notebook
        data: bytes = cloudpickle.dumps(value)
        return data


def pack_request(request: Request) -> bytes:
    """Pickle a request.

    Raises:
        UnpicklableError: An argument of it can't be pickled; nobody has moved.
    """
    try:
        data: bytes = cloudpickle.dumps(request)
    except Exception as error:
        raise UnpicklableError(
            f"an argument of {request.method!r} can't be pickled, so it can't reach the worker processes: "
            f"{type(error).__name__}: {error}. Give plain data, or use backend='threading' or 'sequential', which need "
            f"no pickling"
        ) from error
    return data


def pack_reply(reply: Reply, rows: Rows, first_index: int, beside: Callable[[], Any] = lambda: None) -> bytes:
    """Pickle a reply; what can't be pickled becomes the failure of its sub-environment.

    Args:
        reply: What the shard answers.
        rows: The rows that it has filled.
        first_index: The batch's index of the first of them.
        beside: Returns what else is to cross, once what can't is taken out of the rows.
    """
    try:
        return _dumps((reply, rows.objects, beside()))
    except Exception:
        _fail_the_unpicklable(reply, rows, first_index)
        return _dumps((reply, rows.objects, beside()))


def unpack_reply(data: bytes, indices: Sequence[int]) -> tuple[Reply, Sequence[Sequence[Any]], Any]:
    """Unpickle a reply: (reply, object observations, what crossed beside it)."""
    try:
        reply, objects, beside = pickle.loads(data)
    except Exception as error:
        cannot = UnpicklableError(
            f"what the sub-environment returned can't be unpickled here: {type(error).__name__}: {error}"
        )
        cannot.__cause__ = error
        return Reply(failures={index: Failure.of(index, cannot) for index in indices}), (), None
    return reply, objects, beside


def _fail_the_unpicklable(reply: Reply, rows: Rows, first_index: int) -> None:
    for record in reply.records:
        for row, error in record.fail_what_cannot_cross(_refusal).items():
            _fail(reply, rows, first_index, row, "info, observation or action", error)
    infos = rows.infos.beside.items()
    results = enumerate(reply.results or ())
    observations = [(row, value) for objects in rows.objects for row, value in enumerate(objects)]
    for what, values in (("info", infos), ("observation", observations), ("result", results)):
        for row, value in values:
            try:
                _dumps(value)
            except Exception as error:
                _fail(reply, rows, first_index, row, what, error)
                if what == "result" and reply.results is not None:
                    reply.results[row] = None


def _refusal(value: Any) -> BaseException | None:
    """Return why a value can't be pickled, or None."""
    try:
        _dumps(value)
    except Exception as error:
        return error
    return None


def _fail(reply: Reply, rows: Rows, first_index: int, row: int, what: str, error: BaseException) -> None:
    cannot = UnpicklableError(
        f"the {what} of sub-environment {first_index + row} can't be pickled, so it can't leave its worker process: "
        f"{type(error).__name__}: {error}. Return plain data, or use backend='threading' or 'sequential', which need "
        f"no pickling"
    )
    reply.failures[first_index + row] = Failure.of(first_index + row, cannot, needs_reset=what != "result")
    if what != "result":
        rows.clear(row)
