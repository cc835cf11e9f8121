"""Which folders of this program hold code that other machines do not have.

A root is a folder that is an entry of `sys.path`, or could be one: the folder of the main script, and each folder from
which this program has imported a module. What is installed (the standard library, site-packages) is no root. asyncparl
itself is never sent: versions are compared elsewhere. An editable install is code like any other: it is sent.

A unit is what is sent as a whole, because its parts may be imported later: a top-level package or module.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

OURS = "asyncparl"

_INSTALLED_NAMES = frozenset({"site-packages", "dist-packages"})

LEFT_OUT = _INSTALLED_NAMES | {"__pycache__", "node_modules"}
"""Names of folders in which nothing is to be sent."""

MAX_ENTRIES = 1_000_000
"""So many files and folders, of any kind, are looked at before we give up."""

_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")


@dataclass(frozen=True, slots=True)
class Root:
    """A folder with code of the user's.

    Attributes:
        path: the folder, without links.
        modules: full names of the modules that were imported from it.
        is_main: the program was started in it, so that all of it may be needed.
        main: the main script, relative to it; None for a notebook, for `python -c`, and in every other root.
    """

    path: str
    modules: frozenset[str] = frozenset()
    is_main: bool = False
    main: str | None = None


def find_roots(main_path: str | None, sys_path: Sequence[str], modules: Mapping[str, Any]) -> list[Root]:
    """The roots of this program, in the order of `sys.path`.

    Args:
        main_path: the main script; None if there is none (a notebook, `python -c`): then the working directory
            stands for its folder, if it is on `sys.path`.
        sys_path: usually `sys.path`.
        modules: usually `sys.modules`; its `__main__` tells of `python -m`.
    """
    main_folder, main = _find_main(main_path, sys_path, modules.get("__main__"))
    found: dict[str, set[str]] = {} if main_folder is None else {main_folder: set()}
    root_of = functools.cache(_root_of)
    for name, module in list(modules.items()):
        folder = _origin(name, module)
        path = None if folder is None else root_of(folder)
        if path is not None:
            found.setdefault(path, set()).add(name)
    order: dict[str | None, int] = {}
    for number, entry in enumerate(sys_path):
        order.setdefault(_real(entry), number)
    # What is on no `sys.path` (some editable installs) comes last, in the order of the imports.
    paths = sorted(found, key=lambda path: order.get(path, len(sys_path)))
    return [
        Root(path, frozenset(found[path]), path == main_folder, main if path == main_folder else None) for path in paths
    ]


def _find_main(main_path: str | None, sys_path: Sequence[str], module: Any) -> tuple[str | None, str | None]:
    """The root of the main script, and the script relative to it."""
    if main_path is None:
        cwd = _real("")
        return (cwd if cwd in map(_real, sys_path) else None), None
    name = getattr(getattr(module, "__spec__", None), "name", None) or ""
    above = _folder_above(name, main_path) if name else None
    if above is not None:
        folder, main = os.path.realpath(above), os.path.relpath(os.path.abspath(main_path), above)
    else:
        # Python puts the folder of the real file on `sys.path`.
        folder, main = os.path.split(os.path.realpath(main_path))
    # The program is an installed command, such as pytest; its script is on every machine, or is not needed.
    is_command = folder == _real(sysconfig.get_path("scripts")) and not main.endswith(".py")
    if name.partition(".")[0] == OURS or is_command or _is_installed(folder):
        return None, None
    return folder, main


def _origin(name: str, module: Any) -> str | None:
    """The folder in which a module was found; None if it is not of a source file of the user's."""
    if name.partition(".")[0] in ("__main__", "__mp_main__", OURS):
        return None
    try:
        # Past any `__getattr__`: looking at a lazy module must not load it.
        file = object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:
        return None
    return _folder_above(name, file) if isinstance(file, str) else None


def _folder_above(name: str, file: str) -> str | None:
    """The folder in which `name` is found as `file`; None if the two do not agree, or it is no source."""
    stem, extension = os.path.splitext(os.path.abspath(file))
    parts = stem.split(os.sep)
    if parts[-1] == "__init__":
        parts.pop()
    names = name.split(".")
    if extension != ".py" or parts[-len(names) :] != names:
        return None
    return os.sep.join(parts[: -len(names)]) or os.sep


def _root_of(folder: str) -> str | None:
    """The path of the root that this folder is; None if what is in it was installed, or it is in a zip."""
    real = _real(folder)
    if real is None or not os.path.isdir(real) or _is_installed(folder) or _is_installed(real):
        return None
    return real


def _is_installed(folder: str) -> bool:
    if not _INSTALLED_NAMES.isdisjoint(folder.split(os.sep)):
        return True
    return any(is_inside(folder, installed) for installed in _installed_folders())


@functools.cache
def _installed_folders() -> frozenset[str]:
    paths = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return frozenset(either for path in paths for either in (path, os.path.realpath(path)))


def is_inside(path: str, folder: str) -> bool:
    """Whether `path` is the folder or lies below it. Neither may have links in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _real(path: str) -> str | None:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return None  # the working directory was removed, or it is no path


# --- units --------------------------------------------------------------------------------------------------


def imported_units(root: Root, *, is_narrow: bool) -> list[str]:
    """The units that were imported from a root, relative to it."""
    names = root.modules if is_narrow else {name.partition(".")[0] for name in root.modules}
    units = {find_unit(root.path, name, is_narrow=is_narrow) for name in names}
    return sorted(filter(None, units))


def find_unit(folder: str, name: str, *, is_narrow: bool) -> str | None:
    """The unit that holds the module `name`, relative to the folder; None if it is not there, or asyncparl.

    A package without `__init__.py` belongs to nobody. If `is_narrow`, only the part of it counts that `name` is in.
    """
    parts = name.split(".")
    if parts[0] == OURS:
        return None
    for num_parts in range(1, len(parts) + 1):
        relative = "/".join(parts[:num_parts])
        path = os.path.join(folder, relative)
        if os.path.isfile(os.path.join(path, "__init__.py")):
            return relative
        if os.path.isfile(path + ".py"):
            return relative + ".py"
        if not os.path.isdir(path):
            return None
        if not is_narrow:
            return relative
    return None


def import_of_any(names: Iterable[str]) -> re.Pattern[bytes]:
    """Finds lines that may import a module of one of these names; quicker by far than parsing the source."""
    any_name = "|".join(sorted(name for name in names if name.isidentifier())) or "(?!)"
    return re.compile(rf"(?m)(?:^|[:;])[ \t]*(?:import|from)\b[^\n]*\b(?:{any_name})\b".encode())


def imported_names(source: bytes) -> set[str]:
    """Full names that a source imports. Of `from a import b` both `a` and `a.b`, because `b` may be a module."""
    names: set[str] = set()
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return names  # it is no Python, so nobody imports it
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


# --- folders ------------------------------------------------------------------------------------------------


class TreeTooLarge(ValueError):
    """There are too many files below a folder to look at them all."""


def walk(
    top: str,
    borders: Sequence[str],
    is_left_out: Callable[[str, str], bool] = lambda relative, path: False,
    *,
    relative: str = "",
    max_entries: int = MAX_ENTRIES,
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every plain file below a folder, as (relative path, entry), but those that are never sent.

    A folder that cannot be read is empty.

    Args:
        top: the folder. borders: links that lead out of all these folders are left out.
        is_left_out: whether a folder, given as (relative path, path), is left out.
        relative: what the relative paths start with.

    Raises:
        TreeTooLarge: there are more than `max_entries` files and folders.
    """
    pending = [(top, relative, frozenset([os.path.realpath(top)]))]
    num_left = max_entries
    while pending:
        folder, prefix, above = pending.pop()
        entries = entries_of(folder, num_left + 1)
        num_left -= len(entries)
        if num_left < 0:
            raise TreeTooLarge(f"there are more than {max_entries:,} files below {top}: too many to look for code")
        if folder != top and is_environment(folder):
            continue
        for entry in entries:
            path = prefix + entry.name
            real = os.path.realpath(entry.path) if entry.is_symlink() else ""
            if entry.name.startswith(".") or (real and not any(is_inside(real, border) for border in borders)):
                continue
            # Asked of the target, for a link that leads in circles would be an error.
            if os.path.isfile(real) if real else entry.is_file():
                yield path, entry
            elif not os.path.isdir(real or entry.path) or entry.name in LEFT_OUT or is_left_out(path, entry.path):
                continue
            elif real not in above:  # a link to a folder that it lies in would never end
                pending.append((entry.path, path + "/", above | {os.path.realpath(entry.path)}))


def is_environment(path: str) -> bool:
    """Whether this is the folder of a virtual environment."""
    return any(os.path.exists(os.path.join(path, mark)) for mark in _ENVIRONMENT_MARKS)


def entries_of(folder: str, limit: int = MAX_ENTRIES) -> list[os.DirEntry[str]]:
    """What is in a folder, in no order; nothing if it cannot be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return list(islice(entries, limit))
    return []
