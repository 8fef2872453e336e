"""An environment as the user named it: an id, or a class, factory or id in a file of theirs."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import tomli_w
from gymnasium.envs.registration import find_highest_version, parse_env_id

from joblib_envs.envs.registration import register
from joblib_envs.errors import ArgumentError

__all__ = ["EnvironmentSource"]


@dataclass(frozen=True)
class EnvironmentSource:
    """A factory of environments that any process can call.

    Args:
        target: ``CartPole-v1``, ``module:Id-v0``, ``path/to/file.py:NAME`` where NAME is
            a class or a factory in the file, or ``path/to/file.py:Id-v0`` for an id that
            the file registers.
        kwargs: Arguments of the environment's constructor.
        near: A folder. A relative file is looked for in the working directory, then here
            and in the folders above.
        num_envs: The numbers of sub-environments, where a study has others for it than for the rest.
        n_jobs: The same of workers.

    Example:
        >>> EnvironmentSource("CartPole-v1")().spec.id
        'CartPole-v1'
    """

    target: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    near: Path | None = field(default=None, compare=False)
    num_envs: tuple[int, ...] = ()
    n_jobs: tuple[int, ...] = ()

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make one environment."""
        if self._is_file:
            maker = getattr(self._module(), self._name, None)
            if callable(maker):
                env: gymnasium.Env[Any, Any] = maker(**self.kwargs)
                return env
            return gymnasium.make(self._name, **self.kwargs)
        _import_from_working_directory(self.target)
        register()
        return gymnasium.make(self.target, **self.kwargs)

    @property
    def label(self) -> str:
        """The name for tables and charts: without the file's folder."""
        return f"{Path(self._path).name}:{self._name}" if self._is_file else self.target

    @property
    def slug(self) -> str:
        """The name for a folder."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", self._name if self._is_file else self.target).strip("-")

    def check(self) -> None:
        """Raise :class:`ArgumentError` unless the name leads to an environment; make none."""
        if self._is_file:
            module = self._module()
            if not callable(getattr(module, self._name, None)):
                _check_id(self._name, f"{self.target!r}: {module.__name__} has no such class or function, and")
        elif self.target.endswith(".py"):
            raise ArgumentError(
                f"environment {self.target!r} names a file only: add what to take from it, as in `{self.target}:MyEnv`"
            )
        else:
            _import_from_working_directory(self.target)
            _check_id(self.target.rpartition(":")[2], f"{self.target!r}:")

    def target_from(self, folder: Path) -> str:
        """Return the target as a study in this folder should have it: found again, yet no machine's path."""
        if not self._is_file:
            return self.target
        file, folder = self._file(), folder.resolve()
        found = any((each / self._path).resolve() == file for each in (folder, *folder.parents))
        if found and not Path(self._path).is_absolute():
            return self.target
        return f"{os.path.relpath(file, folder)}:{self._name}"

    def to_table(self, folder: Path | None) -> dict[str, Any]:
        """Return the table of a study's file in this folder that stands for it."""
        table: dict[str, Any] = {"id": self.target_from(folder) if folder else self.target}
        numbers = {"num_envs": list(self.num_envs), "n_jobs": list(self.n_jobs)}
        table |= {name: values for name, values in numbers.items() if values}
        return table | ({"kwargs": _kwargs_to_toml(self.kwargs)} if self.kwargs else {})

    @property
    def is_id(self) -> bool:
        """Whether it is made by ``gymnasium.make``, not by calling something in a file."""
        return not (self._is_file and self._name.isidentifier())

    @property
    def imports(self) -> tuple[str, ...]:
        """The import that pasted code needs for a file; the file's folder must be on the path."""
        if not self._is_file:
            return ()
        stem = Path(self._path).stem
        return (f"import {stem}",) if self.is_id else (f"from {stem} import {self._name}",)

    @property
    def env_code(self) -> str:
        """The id in quotes, or the name of the class or factory."""
        return json.dumps(self._name if self._is_file else self.target) if self.is_id else self._name

    @property
    def make_code(self) -> str:
        """The expression that makes one environment."""
        kwargs = [f"{name}={value!r}" for name, value in self.kwargs.items()]
        if self.is_id:
            return f"gymnasium.make({', '.join((self.env_code, *kwargs))})"
        return f"{self._name}({', '.join(kwargs)})"

    @property
    def _is_file(self) -> bool:
        return self._path.endswith(".py")

    @property
    def _path(self) -> str:
        return self.target.rpartition(":")[0]

    @property
    def _name(self) -> str:
        return self.target.rpartition(":")[2]

    def _module(self) -> ModuleType:
        """Import the file by its name, its folder on ``sys.path``, so that workers can too."""
        path = self._file()
        if not path.stem.isidentifier():
            raise ArgumentError(
                f"environment {self.target!r}: {path.name!r} can't be imported by name; "
                "rename it to letters, digits and underscores"
            )
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        try:
            module = importlib.import_module(path.stem)
        except Exception as error:
            raise ArgumentError(
                f"environment {self.target!r}: importing the file raised {type(error).__name__}: {error}"
            ) from error
        if Path(getattr(module, "__file__", None) or "").resolve() != path:
            raise ArgumentError(f"environment {self.target!r}: another module is called {path.stem!r}; rename the file")
        return module

    def _file(self) -> Path:
        """Find the file."""
        near = self.near.resolve() if self.near else Path.cwd()
        folders = list(dict.fromkeys((Path.cwd(), near, *near.parents) if self.near else (Path.cwd(),)))
        found = next((path for folder in folders if (path := folder / self._path).is_file()), None)
        if found is None:
            looked = "" if Path(self._path).is_absolute() else f" in {', '.join(map(str, folders))}"
            raise ArgumentError(f"environment {self.target!r}: there is no file {self._path!r}{looked}")
        return found.resolve()


def _kwargs_to_toml(kwargs: Mapping[str, Any]) -> Any:
    """Return a table, or JSON text for values that TOML has no word for (null)."""
    try:
        tomli_w.dumps(dict(kwargs))
    except TypeError:
        return json.dumps(kwargs)
    return dict(kwargs)


def _import_from_working_directory(target: str) -> None:
    """Import the module of ``module:Id-v0``, which may stand in the working directory."""
    module = target.rpartition(":")[0]
    if not module:
        return
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        importlib.import_module(module)
    except Exception as error:
        raise ArgumentError(
            f"environment {target!r}: importing {module!r} raised {type(error).__name__}: {error}; "
            "give an id, `module:Id-v0`, or `path/to/file.py:NAME`"
        ) from error


def _check_id(env_id: str, prefix: str) -> None:
    register()
    try:
        namespace, name, version = parse_env_id(env_id)
        if version is None and find_highest_version(namespace, name) is not None:
            return  # gymnasium.make takes the newest
        gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        raise ArgumentError(
            f"environment {prefix} {error} Give a registered id, `module:Id-v0`, or `path/to/file.py:NAME`"
        ) from error
