"""Who may look: everybody on this machine where the monitor is bound to it alone, else who has the token.

The token is a file that only its owner can read. Its URL carries it behind a `#`, which no browser sends, so it is in
no log of a server or a proxy; the page there posts it, and gets a cookie that proves it without holding it.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from asyncparl.errors import AuthenticationError

COOKIE = "asyncparl-monitor"
COOKIE_LIFE_S = 7 * 24 * 3600
_TOKEN_BYTES = 24
_MAX_TOKEN_CHARS = 200
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class Access:
    """Decides. `token` is empty where none is needed; then requests must be addressed to this machine by a local name,
    because a page from elsewhere could have its own name point here."""

    token: str = ""

    def is_addressed_well(self, host: str) -> bool:
        """Whether the `Host` of a request is one that we answer to."""
        name, _, port = host.rpartition(":")
        name = name if port.isdigit() and name else host
        return bool(self.token) or name.lower() in _LOCAL_NAMES or _is_loopback(name.strip("[]"))

    def may_look(self, cookies: Mapping[str, str], authorization: str) -> bool:
        """Whether a request comes from somebody who has the token."""
        if not self.token:
            return True
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return self.is_token(given)
        return self._is_cookie(cookies.get(COOKIE, ""))

    def is_token(self, given: str) -> bool:
        """Whether that is the token. Takes as long if it is not."""
        return hmac.compare_digest(given[:_MAX_TOKEN_CHARS].strip().encode(), self.token.encode())

    def new_cookie(self) -> str:
        """What proves the token, for a while."""
        until = str(int(time.time()) + COOKIE_LIFE_S)
        return f"{until}.{self._sign(until)}"

    def _is_cookie(self, given: str) -> bool:
        until, _, proof = given.partition(".")
        is_ours = hmac.compare_digest(proof.encode(), self._sign(until).encode())
        return is_ours and until.isdecimal() and int(until) > time.time()

    def _sign(self, text: str) -> str:
        return hmac.new(self.token.encode(), b"asyncparl monitor cookie " + text.encode(), sha256).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what is bound to that address."""
    return host == "localhost" or _is_loopback(host.strip("[]"))


def keep_token(folder: Path) -> tuple[str, bool]:
    """The token that is kept in the folder, and whether it was made just now.

    Raises:
        AuthenticationError: others can read it, or none can be written.
    """
    path = token_file(folder)
    try:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            return _read(path), False
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        with open(fd, "w") as file:
            file.write(token + "\n")
    except OSError as error:
        raise AuthenticationError(f"the monitor's token cannot be kept in {path}: {error.strerror or error}") from error
    return token, True


def token_file(folder: Path) -> Path:
    """Where the token is."""
    return folder / "monitor-token"


def _read(path: Path) -> str:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.geteuid():
        raise AuthenticationError(f"others can use the monitor's token: chmod 600 {path}, or delete it")
    token = path.read_text().strip()
    if len(token) < _TOKEN_BYTES:
        raise AuthenticationError(f"{path} holds no token; delete it, and a new one is made")
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
