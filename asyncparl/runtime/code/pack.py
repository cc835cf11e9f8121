"""One package of the program's code, and of the extra files that the user names.

From a root goes every `.py` file of each unit that was imported from it. From the folder of the main script goes all
code below it, because remote code may import what the driver has not. There are two exceptions, where that could be
half a disk: the home, the temporary folder and what is above them; and a tree with more than 2,000 Python files. From
there goes what was imported, and what the main script's source imports, directly or not.

Never sent: hidden files and folders, virtual environments, `__pycache__`, `node_modules`, `build` and `dist` (unless
they are packages or were imported), and links to outside of the root, unless that is where an imported unit is.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import io
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from asyncparl.runtime.code import MAX_BYTES, MAX_FILES, fault_of_name, too_large, too_many
from asyncparl.runtime.code.roots import (
    LEFT_OUT,
    MAX_ENTRIES,
    OURS,
    Root,
    TreeTooLarge,
    entries_of,
    find_unit,
    import_of_any,
    imported_names,
    imported_units,
    is_environment,
    is_inside,
    walk,
)

MAX_MAIN_FILES = 2_000
"""Of a main folder with more Python files than this, only what is imported is sent."""

_MAX_MAIN_ENTRIES = 50_000

_BUILD_NAMES = frozenset({"build", "dist"})

_SECRET_NAMES = (
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    ".env*",
    "*secret*",
)

_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Package:
    """What is sent to other machines, in one piece.

    Attributes:
        digest: SHA-256 of `content`, as hex: its name.
        files: (name in the package, size) of each, sorted.
        content: the zip; `__init__.py` of this folder describes it.
        main: the name in the package of the main script, if there is one.
    """

    digest: str
    files: tuple[tuple[str, int], ...] = field(repr=False)
    content: bytes = field(repr=False)
    main: str | None

    @property
    def size(self) -> int:
        """Bytes of `content`."""
        return len(self.content)


class _File(NamedTuple):
    """A file that is sent. `relative` to the folder it was found for, with `/` between the parts."""

    relative: str
    path: str
    size: int
    is_executable: bool = False


def pack(roots: Sequence[Root], extra_files: Sequence[str] = (), cwd: str | None = None) -> Package:
    """Read all files and make a package of them. The same files give the same package, on any machine.

    Args:
        roots: see `find_roots`.
        extra_files: globs relative to `cwd` (`configs/*.yaml`, `assets/**`); a folder stands for all that is in it.
            Each file goes to the same place in the working folder of a job, and beside the code if it lies in a root.
        cwd: by default the working directory.

    Raises:
        ValueError: a glob that matches nothing, leads out of `cwd`, or matches what is never sent; too many files or
            bytes. The message names them.
        OSError: an extra file cannot be read. (Code that cannot be read cannot have been imported; it is left out.)
    """
    members: dict[str, _File] = {}
    for number, root in enumerate(roots):
        members.update((f"code/{number}/{file.relative}", file) for file in _code_files(root))
    for file in _extra_files(extra_files, os.path.realpath(cwd or os.getcwd())):
        members.update((name, file) for name in _places(file, roots))
    # Extra files have been checked by now; code of such a name can hardly be imported.
    members = {name: file for name, file in members.items() if not fault_of_name(name)}
    if len(members) > MAX_FILES:
        raise too_many(file.path for file in members.values())
    _check_size(members.values())
    main = next((f"code/{n}/{root.main}" for n, root in enumerate(roots) if root.main is not None), None)
    return _write(members, main if main in members else None)


def check_files(extra_files: Sequence[str], cwd: str) -> None:
    """Whether these globs can be sent from `cwd`. Raises as `pack`."""
    for _ in _extra_files(extra_files, os.path.realpath(cwd)):
        pass


# --- code ---------------------------------------------------------------------------------------------------


def _code_files(root: Root) -> Iterable[_File]:
    is_narrow = _is_crowded(root.path)
    files: dict[str, _File] = {}
    if root.is_main and not is_narrow:
        try:
            files = _all_code(root)
        except TreeTooLarge:
            is_narrow = True
    for unit in imported_units(root, is_narrow=is_narrow):
        _add(files, _files_of_unit(root, unit))
    if root.main is not None:
        # It may have another ending than the rest.
        _add(files, _plain_file(root.main, os.path.join(root.path, root.main)))
        if is_narrow:
            _follow_imports(root, files)
    return files.values()


def _all_code(root: Root) -> dict[str, _File]:
    files: dict[str, _File] = {}
    for file in _code_below(root, root.path, "", max_entries=_MAX_MAIN_ENTRIES):
        files[file.relative] = file
        if len(files) > MAX_MAIN_FILES:
            raise TreeTooLarge
    return files


def _follow_imports(root: Root, files: dict[str, _File]) -> None:
    """Add what the files import from the root, and what that imports, until there is nothing new."""
    names = {entry.name.removesuffix(".py") for entry in entries_of(root.path)}
    interesting = import_of_any(names)
    pending = list(files.values())
    while pending:
        source = _read(pending.pop().path)
        for name in imported_names(source) if interesting.search(source) else ():
            unit = find_unit(root.path, name, is_narrow=True)
            if unit is not None:
                pending += _add(files, _files_of_unit(root, unit))


def _add(files: dict[str, _File], more: Iterable[_File]) -> list[_File]:
    """Add files to the others; those that are new."""
    new = []
    for file in more:
        if file.relative not in files:
            files[file.relative] = file
            new.append(file)
            if len(files) > MAX_FILES:
                raise too_many(file.path for file in files.values())
    return new


def _files_of_unit(root: Root, unit: str) -> Iterator[_File]:
    path = os.path.join(root.path, unit)
    return _plain_file(unit, path) if unit.endswith(".py") else _code_below(root, path, unit + "/")


def _code_below(root: Root, top: str, relative: str, *, max_entries: int = MAX_ENTRIES) -> Iterator[_File]:
    def is_left_out(relative: str, path: str) -> bool:
        if relative == OURS:
            return True
        is_build = os.path.basename(path) in _BUILD_NAMES and not os.path.exists(os.path.join(path, "__init__.py"))
        package = relative.replace("/", ".")
        return is_build and not any(f"{name}.".startswith(f"{package}.") for name in root.modules)

    borders = (root.path, os.path.realpath(top))
    for path, entry in walk(top, borders, is_left_out, relative=relative, max_entries=max_entries):
        if path.endswith(".py") and path != f"{OURS}.py":
            yield from _plain_file(path, entry.path)


def _is_crowded(folder: str) -> bool:
    """Whether a folder holds things that have nothing to do with each other."""
    return any(is_inside(os.path.realpath(place), folder) for place in (os.path.expanduser("~"), tempfile.gettempdir()))


# --- extra files --------------------------------------------------------------------------------------------


def _extra_files(patterns: Sequence[str], cwd: str) -> Iterator[_File]:
    if isinstance(patterns, str):
        raise TypeError(f"extra files are a list of globs, not one string: [{patterns!r}]")
    found: set[str] = set()
    for pattern in patterns:
        matches_any = False
        for file in _files_of_pattern(pattern, cwd):
            matches_any = True
            if file.relative not in found:
                found.add(file.relative)
                yield file
            if len(found) > MAX_FILES:
                raise too_many(found)
        if not matches_any:
            raise ValueError(f"the glob {pattern!r} of extra files matches no file in {cwd} that can be sent")


def _files_of_pattern(pattern: str, cwd: str) -> Iterator[_File]:
    parts = os.path.normpath(pattern).split(os.sep) if pattern else []
    if os.path.isabs(pattern) or parts[:1] == [os.pardir]:
        raise ValueError(f"the glob {pattern!r} of extra files leads out of the working directory {cwd}")
    while parts[-1:] == ["**"] or parts == [os.curdir]:
        parts.pop()  # a folder stands for all that is in it
    for path in _matches(cwd, parts) if pattern else ():
        relative = os.path.relpath(path, cwd)
        if not is_inside(os.path.realpath(path), cwd):
            raise ValueError(f"the glob {pattern!r} of extra files leads out of {cwd}: {relative} is a link")
        if any(_is_never_sent(os.path.join(cwd, parent)) for parent in _with_parents(relative)):
            continue
        for name, file_path in _below(path, "" if path == cwd else relative, cwd):
            _check_extra_file(name, pattern)
            yield from _plain_file(name, file_path, keeps_mode=True)


def _matches(folder: str, parts: list[str]) -> Iterator[str]:
    """The files and folders below a folder that match a glob, given as its parts. `**` does not follow links."""
    if not parts:
        yield folder
        return
    first, rest = parts[0], parts[1:]
    if first == "**":
        yield from _matches(folder, rest)
        for entry in _visible(folder):
            if entry.is_dir(follow_symlinks=False):
                yield from _matches(entry.path, parts)
    elif any(character in first for character in "*?["):
        for entry in _visible(folder):
            if fnmatch.fnmatchcase(entry.name, first):
                yield from _matches(entry.path, rest)
    elif os.path.lexists(path := os.path.join(folder, first)):
        yield from _matches(path, rest)


def _visible(folder: str) -> list[os.DirEntry[str]]:
    return [entry for entry in entries_of(folder) if not entry.name.startswith(".") and not _is_never_sent(entry.path)]


def _is_never_sent(path: str) -> bool:
    return os.path.basename(path) in LEFT_OUT or is_environment(path)


def _with_parents(relative: str) -> Iterator[str]:
    while relative not in ("", os.curdir):
        yield relative
        relative = os.path.dirname(relative)


def _below(path: str, relative: str, border: str) -> Iterator[tuple[str, str]]:
    if not os.path.isdir(path):
        yield relative, path
        return
    for name, entry in walk(path, [border], relative=f"{relative}/" if relative else ""):
        yield name, entry.path


def _check_extra_file(relative: str, pattern: str) -> None:
    name = os.path.basename(relative)
    is_code = name.endswith(".py") and not name.startswith(".")
    if not is_code and any(fnmatch.fnmatch(name.lower(), secret) for secret in _SECRET_NAMES):
        raise ValueError(
            f"the glob {pattern!r} of extra files matches {relative}, which looks like a secret and is never sent: "
            "narrow the glob, or rename the file if it is none"
        )
    if any(part.startswith(".") for part in relative.split("/")):
        raise ValueError(f"the glob {pattern!r} of extra files matches {relative}: what is hidden is never sent")
    if fault := fault_of_name(f"files/{relative}"):
        raise ValueError(f"the glob {pattern!r} of extra files matches {relative!r}, which cannot be sent: {fault}")


def _places(file: _File, roots: Sequence[Root]) -> Iterator[str]:
    """Where in the package an extra file goes: code looks for its data in the working folder, or beside itself."""
    yield f"files/{file.relative}"
    for number, root in enumerate(roots):
        if is_inside(file.path, root.path):
            relative = os.path.relpath(file.path, root.path)
            if relative.partition("/")[0] not in (OURS, f"{OURS}.py"):
                yield f"code/{number}/{relative}"


# --- files --------------------------------------------------------------------------------------------------


def _plain_file(relative: str, path: str, *, keeps_mode: bool = False) -> Iterator[_File]:
    """The file, unless it has just gone or is something else."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode):
            yield _File(relative, path, status.st_size, keeps_mode and bool(status.st_mode & stat.S_IXUSR))


def _read(path: str) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""


def _check_size(files: Iterable[_File]) -> None:
    sizes = [(file.path, file.size) for file in files]
    if sum(size for _, size in sizes) > MAX_BYTES:
        raise too_large(sizes)


def _write(members: dict[str, _File], main: str | None) -> Package:
    buffer = io.BytesIO()
    files = []
    # Stored: what deflate makes of the same content depends on the version of zlib.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, file in sorted(members.items()):
            try:
                with open(file.path, "rb") as source:
                    content = source.read()
            except OSError:
                if name.startswith("files/"):
                    raise
                continue
            info = zipfile.ZipInfo(name, _ZIP_DATE)
            info.create_system = 3  # Unix, wherever this runs
            info.external_attr = (stat.S_IFREG | (0o755 if file.is_executable else 0o644)) << 16
            archive.writestr(info, content)
            files.append((name, len(content)))
    content = buffer.getvalue()
    return Package(hashlib.sha256(content).hexdigest(), tuple(files), content, main)
