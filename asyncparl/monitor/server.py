"""Serving the monitor: inside a Trio program, for as long as a block or a task runs."""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio
from hypercorn.config import Config, Sockets
from hypercorn.trio.run import worker_serve
from hypercorn.utils import wrap_app

from asyncparl.errors import ResourceError
from asyncparl.monitor.access import Access, is_loopback, keep_token, token_file
from asyncparl.monitor.cluster_source import open_source
from asyncparl.monitor.source import Source
from asyncparl.monitor.watch import Watch
from asyncparl.monitor.web import make_app
from asyncparl.runtime.state import state_folder
from asyncparl.speaking import say
from asyncparl.transport import Credentials

DEFAULT_PORT = 8011
_BACKLOG = 100
_HOST = re.compile(r"[\w.:-]+")


@dataclass(frozen=True, slots=True)
class Bind:
    """Where a monitor is served, and whether it asks for its token."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    is_choosy: bool = False
    """Another port will not do."""
    asks_token: bool = False

    @classmethod
    def parse(cls, text: str | bool, *, asks_token: bool = False) -> Bind:
        """From "[HOST:]PORT", a HOST alone, or True: the default. Beyond this machine the token is always asked for.

        Raises:
            ValueError: it is none of these.
        """
        if text is True or text in ("", "true"):
            return cls(asks_token=asks_token)
        host, _, port = str(text).rpartition(":")
        if not port.isdecimal():
            host, port = str(text), str(DEFAULT_PORT)
        host = host.strip("[]") or "127.0.0.1"
        if int(port) > 65535 or not _HOST.fullmatch(host):
            raise ValueError(f"{text!r} is no address for a monitor, such as 8011 or 0.0.0.0:8011")
        return cls(host, int(port), True, asks_token or not is_loopback(host))


@contextlib.asynccontextmanager
async def open_monitor(
    master: str, credentials: Credentials | None, bind: Bind, *, say: Callable[[str], None] | None = None
) -> AsyncIterator[str]:
    """Serve a monitor of the cluster at `master` while the block runs; gives its URL.

    Raises:
        ResourceError: the address cannot be used, or the master does not take us.
        AuthenticationError: our secret is not that of the cluster, or there is no place for the token.
    """
    async with open_source(master, credentials) as source, serve(source, bind, say=say) as url:
        yield url


@contextlib.asynccontextmanager
async def serve(source: Source, bind: Bind, *, say: Callable[[str], None] | None = None) -> AsyncIterator[str]:
    """Serve a monitor while the block runs; gives its URL, and says it.

    Raises:
        ResourceError: the address cannot be used.
        AuthenticationError: there is no place for the token.
    """
    say = say or _say
    access, is_new = Access(), False
    if bind.asks_token:
        token, is_new = keep_token(state_folder())
        access = Access(token)
    sock = _listen(bind)
    watch = Watch(source)
    error: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_guarded, watch.run)
            nursery.start_soon(_guarded, partial(_serve, sock, watch, access))
            url = _url(bind, sock)
            say(_greeting(url, access, is_new=is_new))
            try:
                yield url
            except BaseException as caught:
                error = caught
            nursery.cancel_scope.cancel()
    finally:
        sock.close()
    if error is not None:  # out here, so that it comes in no group
        raise error


async def _guarded(run: Callable[[], Awaitable[None]]) -> None:
    """A monitor that fails is no reason for the program to fail."""
    try:
        await run()
    except Exception:
        say(traceback.format_exc())
        _say("asyncparl monitor: it has failed; everything else goes on")


async def _serve(sock: socket.socket, watch: Watch, access: Access) -> None:
    config = Config()
    config.accesslog = None
    config.loglevel = "ERROR"
    config.include_server_header = False
    config.h11_max_incomplete_size = 16 << 10
    config.keep_alive_timeout = 60
    app: Any = make_app(watch, access)  # the types of the two libraries do not fit
    app = wrap_app(app, config.wsgi_max_body_size, "asgi")
    await worker_serve(app, config, sockets=Sockets([], [sock], []))


def _listen(bind: Bind) -> socket.socket:
    try:
        return _listen_at(bind.host, bind.port)
    except OSError as error:
        if bind.is_choosy or error.errno != errno.EADDRINUSE:
            raise ResourceError(f"the monitor cannot listen at {bind.host}:{bind.port}: {error.strerror}") from error
        return _listen_at(bind.host, 0)


def _listen_at(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _url(bind: Bind, sock: socket.socket) -> str:
    host = bind.host
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}/"


def _greeting(url: str, access: Access, *, is_new: bool) -> str:
    if not access.token:
        return f"asyncparl monitor: {url}"
    if is_new:
        return f"asyncparl monitor: {url}login#{access.token} (shown once; the token is in {_token_path()})"
    return f"asyncparl monitor: {url} (its token is in {_token_path()})"


def _token_path() -> Path:
    return token_file(state_folder())


def _say(line: str) -> None:
    say(f"{line}\n")
