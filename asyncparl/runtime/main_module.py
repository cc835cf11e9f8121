"""The driver's `__main__`, in processes where another module has that name.

A class of the user's script is pickled as `__main__.Simulator`. In a worker `__main__` is a module that imports the
script when such a name is first wanted, under the name `__mp_main__`, so that `if __name__ == "__main__":` keeps the
script from starting again (multiprocessing has the same convention). A script without that line is run up to its
`asyncparl.connect()`; what it defines after that travels as code. What travels back is pickled as `__mp_main__.Result`,
which the driver takes for its own `__main__`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from typing import Any
from weakref import WeakKeyDictionary

ALIAS = "__mp_main__"


def describe_main() -> tuple[str | None, str | None]:
    """The driver's main script: (path, module name), each None if it has none (a notebook, `python -c`)."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    spec = getattr(main, "__spec__", None)
    name = getattr(spec, "name", None) if spec is not None else None
    if name == "__main__":  # a folder or an archive was started: `__main__` is no module that can be found again
        name = None
    return (os.path.abspath(path) if path and os.path.exists(path) else None), name


def answer_to_alias() -> None:
    """In the driver: let `__mp_main__` mean `__main__`."""
    sys.modules.setdefault(ALIAS, sys.modules["__main__"])


_names_for_actors: WeakKeyDictionary[types.ModuleType, frozenset[str]] = WeakKeyDictionary()


def names_for_actors() -> frozenset[str]:
    """In the driver: what was in `__main__` at the first `connect()`, where actors that import the script stop."""
    main = sys.modules["__main__"]
    return _names_for_actors.setdefault(main, frozenset(vars(main)))


class ConnectReached(BaseException):
    """Ends the import of a script that has no `if __name__ == "__main__":`; all that came before is defined."""


class _LazyMain(types.ModuleType):
    def __init__(self, path: str | None, module: str | None) -> None:
        super().__init__("__main__")
        self.__dict__["_source"] = (path, module)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_source" not in self.__dict__:
            raise AttributeError(f"the main script has no {name!r}")
        self._load(*self.__dict__.pop("_source"))
        return getattr(self, name)

    def __repr__(self) -> str:
        # Part of the error where a pickle names what is not here.
        path = self.__dict__.get("__file__")
        return (
            f"<the script {path} as actors import it: up to its connect(), and without what is under "
            "`if __name__ == '__main__'`>"
        )

    def _load(self, path: str | None, module: str | None) -> None:
        spec = importlib.util.find_spec(module) if module else None
        if spec is not None and spec.origin is not None:
            path = spec.origin
        if path is None:
            return
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
        self.__dict__.update(
            __name__=ALIAS, __file__=path, __package__=spec.parent if spec is not None else None, __spec__=spec
        )
        _loading.append(self)
        try:
            exec(code, self.__dict__)
        except BaseException as error:
            if not _was_connect_reached(error):
                raise
        finally:
            _loading.remove(self)


_loading: list[_LazyMain] = []


def stop_if_loading() -> None:
    """Called by `connect()`: a worker that imports the driver's script must not run it."""
    if _loading:
        raise ConnectReached


def _was_connect_reached(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(ConnectReached) is not None
    return isinstance(error, ConnectReached)


def install_lazy_main(path: str | None, module: str | None) -> None:
    """In a worker: make `__main__` the driver's script, imported when it is needed."""
    sys.modules["__main__"] = sys.modules[ALIAS] = _LazyMain(path, module)
