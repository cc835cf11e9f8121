"""Where the commands of one user find the secrets of a cluster.

    <state folder>/<port of the master>/node-secret      who has it may be a node
    <state folder>/<port of the master>/driver-secret    who has it may run programs

Each is 32 random bytes as hex. A secret is never part of an error, and never logged.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from asyncparl.errors import AuthenticationError

Role = Literal["node", "driver"]

ROLES: tuple[Role, ...] = ("node", "driver")

SECRET_BYTES = 32

_SECRET_VARIABLES = frozenset({"ASYNCPARL_NODE_SECRET", "ASYNCPARL_DRIVER_SECRET", "ASYNCPARL_SECRET_FILE"})

_HEX = re.compile(rb"[0-9a-fA-F]{%d}" % (2 * SECRET_BYTES))
_MAX_FILE_BYTES = 4096


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder that this user's clusters keep; it is made if there is none.

    `$ASYNCPARL_STATE`, else `$XDG_STATE_HOME/asyncparl`, else `~/.local/state/asyncparl`.

    Raises:
        AuthenticationError: it is somebody else's, others can write to it, or it cannot be made.
    """
    path = _state_path(os.environ if environ is None else environ)
    try:
        make_private_folder(path)
    except OSError as error:
        raise AuthenticationError(f"secrets cannot be kept in {path}: {error.strerror or error}") from error
    return path


def make_private_folder(path: Path) -> None:
    """Make a folder for this user alone. One that exists is left as it is.

    Raises:
        PermissionError: it is somebody else's, or others can write to it; the message says what to do.
        OSError: it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"others can write to it: chmod 700 {path}")


def create_secrets(port: int) -> dict[Role, bytes]:
    """The secrets of the cluster whose master listens at a port; those that are missing are made.

    Masters that start at the same time get the same.

    Raises:
        ValueError: there is no such port.
        AuthenticationError: a secret that is there cannot be trusted or read, or none can be written.
    """
    if not 0 < port < 1 << 16:
        raise ValueError(f"there is no port {port}")
    folder = state_folder() / str(port)
    try:
        make_private_folder(folder)
        for role in ROLES:
            _create(folder / _file_name(role))
    except OSError as error:
        raise AuthenticationError(f"secrets cannot be kept in {folder}: {error.strerror or error}") from error
    return {role: _read_secret(folder / _file_name(role)) for role in ROLES}


def remove_secrets(port: int) -> None:
    """Forget the secrets of a port; no error if there are none."""
    with contextlib.suppress(AuthenticationError):
        shutil.rmtree(state_folder() / str(port), ignore_errors=True)


def find_secret(
    role: Role, port: int, *, secret_file: str | None = None, environ: Mapping[str, str] | None = None
) -> bytes:
    """The secret with which a node or a driver joins the cluster at a port. Nothing is made.

    Looked for in this order: `secret_file`; the variables `ASYNCPARL_NODE_SECRET` or `ASYNCPARL_DRIVER_SECRET` (hex)
    and `ASYNCPARL_SECRET_FILE` (a path); the state folder. What is found first counts, also if it is wrong. An empty
    variable is none.

    Raises:
        AuthenticationError: there is none, others can read it, or it is no secret. Says what to do.
    """
    environ = os.environ if environ is None else environ
    variable = f"ASYNCPARL_{role.upper()}_SECRET"
    if secret_file is not None:
        return _read_secret(Path(secret_file).expanduser())
    if text := environ.get(variable):
        return _parse(text.encode(errors="replace"), f"the variable {variable}")
    if named := environ.get("ASYNCPARL_SECRET_FILE"):
        return _read_secret(Path(named).expanduser())
    path = _state_path(environ) / str(port) / _file_name(role)
    if not os.path.lexists(path):
        raise AuthenticationError(
            f"no secret for port {port}: `asyncparl start` makes one here, or the RemoteManager that is to listen "
            f"there; for one elsewhere copy {_for_people(path)} from its machine to the same place, or pass it with "
            "--secret-file (in a program secret_file=)"
        )
    return _read_secret(path)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for processes that run code of users, or might show it."""
    return {name: value for name, value in environ.items() if name not in _SECRET_VARIABLES}


def _state_path(environ: Mapping[str, str]) -> Path:
    if folder := environ.get("ASYNCPARL_STATE"):
        return Path(os.path.abspath(os.path.expanduser(folder)))
    base = environ.get("XDG_STATE_HOME", "")
    # The XDG specification says to ignore it if it is relative.
    if os.path.isabs(base):
        return Path(base) / "asyncparl"
    return Path(environ.get("HOME") or os.path.expanduser("~")) / ".local" / "state" / "asyncparl"


def _file_name(role: Role) -> str:
    return f"{role}-secret"


def _for_people(path: Path) -> str:
    home = os.path.expanduser("~")
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _create(path: Path) -> None:
    """Write a new secret, unless there is one. It is never seen half-written."""
    if os.path.lexists(path):
        return
    unfinished = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(secrets.token_hex(SECRET_BYTES).encode() + b"\n")
            file.flush()
            os.fsync(fd)
        # Unlike a rename, a link replaces nothing: the first one wins.
        with contextlib.suppress(FileExistsError):
            os.link(unfinished, path)
    finally:
        unfinished.unlink()


def _read_secret(path: Path) -> bytes:
    try:
        # Not waiting, should it be a pipe.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check_file(os.fstat(fd), path)
            content = os.read(fd, _MAX_FILE_BYTES)
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise AuthenticationError(f"the secret file {path} cannot be read: {what}") from error
    return _parse(content, str(path))


def _check_file(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise AuthenticationError(f"{path} is no secret file: it is no plain file")
    if os.geteuid() != 0 and status.st_uid not in (0, os.geteuid()):
        raise AuthenticationError(f"the secret file {path} belongs to another user")
    if status.st_mode & 0o077:
        raise AuthenticationError(f"others can use the secret file {path}: chmod 600 {path}")


def _parse(content: bytes, where: str) -> bytes:
    content = content.strip()
    if not _HEX.fullmatch(content):
        raise AuthenticationError(f"{where} holds no secret: a secret is {2 * SECRET_BYTES} hex digits")
    return bytes.fromhex(content.decode())
