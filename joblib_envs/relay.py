"""Carries a worker's warnings and log records to the caller.

A worker follows the warning filters and log levels that the caller had when it started:
what they turn into an error is raised in the environment, what they ignore isn't sent.
The caller shows the rest by its own filters and handlers, as a plain loop would.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from joblib_envs.processes import unpickled

__all__ = ["OutputSettings", "Relay", "replay"]


@dataclass(frozen=True)
class OutputSettings:
    """The caller's warning filters and log levels, for a worker to follow."""

    filters: bytes
    levels: dict[str, int] = field(default_factory=dict)
    pid: int = field(default_factory=os.getpid)

    @classmethod
    def current(cls) -> OutputSettings:
        """Read this process's settings."""
        kept = []
        for entry in warnings.filters:
            try:
                cloudpickle.dumps(entry)
            except Exception:  # a filter on a class that can't travel concerns no worker
                continue
            kept.append(entry)
        loggers = logging.Logger.manager.loggerDict
        levels = {
            name: logger.level
            for name, logger in loggers.items()
            if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET
        }
        return cls(cloudpickle.dumps(kept), {"": logging.getLogger().level, **levels})


class Relay(logging.Handler):
    """Collects the warnings and log records of this worker process.

    Args:
        settings: The caller's filters and levels.
    """

    def __init__(self, settings: OutputSettings) -> None:
        super().__init__()
        self._settings = settings
        self._records: list[tuple[str, tuple[Any, ...]]] = []

    def install(self) -> Callable[[], None]:
        """Collect from now on.

        Returns:
            A function that puts everything back as it was. In the caller's own process, where
            joblib may run a task, nothing is changed: warnings and logs are where they belong.
        """
        if self._settings.pid == os.getpid():
            return lambda: None
        caught = warnings.catch_warnings()
        caught.__enter__()
        warnings.resetwarnings()
        for action, message, category, module, line in reversed(unpickled(self._settings.filters)):
            # The caller decides what was shown before: here it is only known what this worker showed.
            chosen = "always" if action in ("default", "once", "module") else action
            warnings.filters.insert(0, (chosen, message, category, module, line))  # type: ignore[attr-defined]
        warnings.simplefilter("always", append=True)
        warnings.showwarning = self._show  # type: ignore[assignment]
        root = logging.getLogger()
        levels = {name: logging.getLogger(name).level for name in self._settings.levels}
        handlers, root.handlers = root.handlers, [self]
        for name, level in self._settings.levels.items():
            logging.getLogger(name).setLevel(level)

        def restore() -> None:
            root.handlers = handlers
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
            caught.__exit__(None, None, None)

        return restore

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a log record, its message formatted here where its arguments are."""
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        attributes = {**record.__dict__, "msg": text, "args": None, "exc_info": None}
        plain = {key: value for key, value in attributes.items() if isinstance(value, str | int | float | None)}
        self._records.append(("log", (plain,)))

    def drain(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Return what was collected since the last call."""
        if not self._records:
            return []
        records, self._records = self._records, []
        return records

    def _show(
        self,
        message: Warning,
        category: type[Warning],
        filename: str,
        lineno: int,
        *_where: Any,
    ) -> None:
        self._records.append(("warning", (str(message), _portable(category), filename, lineno)))


_registries: dict[str, dict[Any, Any]] = {}


def _registry_of(filename: str) -> dict[Any, Any]:
    """Return where Python notes which warnings of a file it has shown: in the file's module, if that is loaded."""
    if filename not in _registries:
        modules = list(sys.modules.values())
        module = next((module for module in modules if getattr(module, "__file__", None) == filename), None)
        namespace: dict[str, Any] = {} if module is None else vars(module)
        _registries[filename] = namespace.setdefault("__warningregistry__", {})
    return _registries[filename]


def replay(records: list[tuple[str, tuple[Any, ...]]]) -> None:
    """Show a worker's warnings and log records in this process, by its own filters and handlers."""
    for kind, arguments in records:
        if kind == "log":
            record = logging.makeLogRecord(arguments[0])
            logger = logging.getLogger(record.name)
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)
        else:
            message, category, filename, lineno = arguments
            warnings.warn_explicit(message, category, filename, lineno, registry=_registry_of(filename))


def _portable(category: type[Warning]) -> type[Warning]:
    """Return a class that the caller knows: the warning's, or its nearest importable ancestor."""
    for ancestor in category.__mro__:
        try:
            pickle.loads(pickle.dumps(ancestor))
        except Exception:
            continue
        if ancestor.__module__ != "__main__":
            return ancestor
    return UserWarning
