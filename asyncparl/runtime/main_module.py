"""The driver's `__main__`, in processes where another module has that name.

A class of the user's script is pickled as `__main__.Simulator`. In a worker `__main__` is a module that imports the
script when such a name is first wanted, under the name `__mp_main__`, so that `if __name__ == "__main__":` keeps the
script from starting again (multiprocessing has the same convention). What travels back is pickled as
`__mp_main__.Result`, which the driver takes for its own `__main__`.
"""

from __future__ import annotations

import os
import runpy
import sys
import types
from typing import Any

ALIAS = "__mp_main__"


def describe_main() -> tuple[str | None, str | None]:
    """The driver's main script: (path, module name), each None if it has none (a notebook, `python -c`)."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    spec = getattr(main, "__spec__", None)
    name = getattr(spec, "name", None) if spec is not None else None
    return (os.path.abspath(path) if path and os.path.exists(path) else None), name


def answer_to_alias() -> None:
    """In the driver: let `__mp_main__` mean `__main__`."""
    sys.modules.setdefault(ALIAS, sys.modules["__main__"])


class _LazyMain(types.ModuleType):
    def __init__(self, path: str | None, module: str | None) -> None:
        super().__init__("__main__")
        self.__dict__["_source"] = (path, module)

    def __getattr__(self, name: str) -> Any:
        source = self.__dict__.pop("_source", None)
        if source is None or name.startswith("__"):
            if source is not None:
                self.__dict__["_source"] = source
            raise AttributeError(f"the main script has no {name!r}")
        path, module = source
        if module is not None:
            self.__dict__.update(runpy.run_module(module, run_name=ALIAS, alter_sys=False))
        elif path is not None:
            self.__dict__.update(runpy.run_path(path, run_name=ALIAS))
        return getattr(self, name)


def install_lazy_main(path: str | None, module: str | None) -> None:
    """In a worker: make `__main__` the driver's script, imported when it is needed."""
    sys.modules["__main__"] = sys.modules[ALIAS] = _LazyMain(path, module)
