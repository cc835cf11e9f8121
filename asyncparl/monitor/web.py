"""The pages, and the streams that keep them new. Nothing here changes anything but the reader's own cookie.

Every answer says by its `Content-Security-Policy` that it needs nothing but what is served here: no script or style in
a page, nothing from elsewhere. What actors and programs wrote reaches a page as JSON and is set there as text.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import asyncparl
from asyncparl.errors import AsyncparlError
from asyncparl.monitor.access import COOKIE, COOKIE_LIFE_S, Access
from asyncparl.monitor.event_response import EventResponse, Tell
from asyncparl.monitor.log_view import LogReader, follow_log
from asyncparl.monitor.observer import Observer
from asyncparl.monitor.prometheus import exposition
from asyncparl.monitor.views import VIEWS, Query, attention, changes
from asyncparl.monitor.watch import TOO_MANY, TooManyWatchers, Watch

_HERE = Path(__file__).parent
_MAX_LOGIN_BYTES = 1000
_PAGES = {"/": "overview", "/nodes": "nodes", "/actors": "actors", "/runs": "runs", "/events": "events"}
_OPEN_PATHS = ("/login", "/static/")
_SCRAPE_AGE_S = 2.0
_FIRST_AGE_S = 1.5

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class _Guard:
    """In front of everything: lets in who may look, and only to look."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, _with_headers(send, scope["path"]))

    def _refusal(self, request: Request) -> Response | None:
        path = request.url.path
        if not self._access.is_addressed_well(request.headers.get("host", "")):
            return PlainTextResponse("This monitor is for this machine: open it as http://localhost:PORT\n", 400)
        if path.startswith(_OPEN_PATHS):
            return None
        if self._access.may_look(request.cookies, request.headers.get("authorization", "")):
            return None
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/login", 303)
        return PlainTextResponse("The monitor's token is needed.\n", 401, headers={"WWW-Authenticate": "Bearer"})


def _with_headers(send: Send, path: str) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(_HEADERS)
            if not path.startswith("/static/"):
                headers["Cache-Control"] = "no-store"
        await send(message)

    return send_with_headers


class _Pages:
    """The functions behind the routes."""

    def __init__(self, watch: Watch, access: Access) -> None:
        self._watch = watch
        self._access = access
        self._templates = Jinja2Templates(_HERE / "templates")
        self._logs = LogReader(watch)

    def routes(self) -> list[Route | Mount]:
        """All there are. Only GET, but for the login."""
        return [
            *(Route(path, self._page(name), name=name) for path, name in _PAGES.items()),
            Route("/actors/{actor_id}", self.actor),
            Route("/actors/{actor_id}/death", self.death),
            Route("/actors/{actor_id}/log", self.download),
            Route("/stream/log/{actor_id}", self.log),
            Route("/stream/{view}", self.stream),
            Route("/metrics", self.metrics),
            Route("/login", self.login, methods=["GET", "POST"]),
            Route("/static/plotly.js", plotly_js),
            Mount("/static", StaticFiles(directory=_HERE / "static")),
        ]

    def _page(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def page(request: Request) -> Response:
            return self._render(request, f"{name}.html", page=name)

        return page

    async def actor(self, request: Request) -> Response:
        """The page of one actor, also of one that nobody knows (yet)."""
        return self._render(request, "actor.html", page="actors", actor_id=request.path_params["actor_id"][:64])

    async def stream(self, request: Request) -> Response:
        """The events by which a page is kept new."""
        view = VIEWS.get(request.path_params["view"])
        if view is None:
            raise HTTPException(404)
        return EventResponse(partial(self._follow, view, Query.of(request.query_params)))

    async def _follow(self, view: Callable[[Observer, Query], dict[str, Any]], query: Query, tell: Tell) -> None:
        told: dict[str, Any] | None = None
        try:
            with self._watch.watching():
                picture = await self._watch.look(no_older_than_s=_FIRST_AGE_S)
                while True:
                    new = view(self._watch.observer, query)
                    new |= {"fault": picture.fault, "address": picture.address, "time": round(picture.time)}
                    new |= attention(picture)
                    await tell("picture", changes(told, new))
                    told = new
                    picture = await self._watch.wait_newer(picture.number)
        except TooManyWatchers:
            await tell("refused", TOO_MANY)  # the page hangs up

    async def log(self, request: Request) -> Response:
        """The events of an actor's log."""
        actor_id, text = request.path_params["actor_id"], request.query_params.get("q", "")[:200]
        return EventResponse(partial(follow_log, self._watch, self._logs, actor_id, text))

    async def download(self, request: Request) -> Response:
        """The whole log, as text."""
        actor_id = request.path_params["actor_id"]
        try:
            lines = await self._logs.whole(actor_id)
        except AsyncparlError as error:
            return PlainTextResponse(f"There is no log to be had: {error}\n", 404)
        name = "".join(letter for letter in actor_id if letter.isalnum())[:64]
        headers = {"Content-Disposition": f'attachment; filename="{name}.log"'}
        return StreamingResponse(lines, media_type="text/plain", headers=headers)

    async def death(self, request: Request) -> Response:
        """How an actor ended, as JSON; null if nobody knows."""
        death = await self._logs.death(request.path_params["actor_id"])
        return Response(json.dumps(death), media_type="application/json")

    async def metrics(self, _request: Request) -> Response:
        """For Prometheus."""
        await self._watch.look(no_older_than_s=_SCRAPE_AGE_S)
        text, content_type = exposition(self._watch.observer)
        return Response(text, headers={"Content-Type": content_type})

    async def login(self, request: Request) -> Response:
        """Takes the token, for a cookie."""
        if not self._access.token:
            return RedirectResponse("/", 303)
        if request.method != "POST":
            return self._render(request, "login.html", page="login")
        if not self._access.is_token((await _body(request)).decode(errors="replace")):
            return PlainTextResponse("wrong token\n", 403)
        response = Response(status_code=204)
        response.set_cookie(
            COOKIE,
            self._access.new_cookie(),
            max_age=COOKIE_LIFE_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    def _render(self, request: Request, template: str, **values: Any) -> Response:
        values |= {"version": asyncparl.__version__, "address": self._watch.source.address}
        return self._templates.TemplateResponse(request, template, values)


async def plotly_js(_request: Request) -> Response:
    """From the installed package, so that no page needs the internet. The package itself is not imported."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise HTTPException(404)
    path = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    return FileResponse(path, media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})


def make_app(watch: Watch, access: Access) -> Starlette:
    """The whole site. `watch` must be running."""
    return Starlette(routes=_Pages(watch, access).routes(), middleware=[Middleware(_Guard, access=access)])


async def _body(request: Request) -> bytes:
    body = b""
    async with contextlib.aclosing(request.stream()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > _MAX_LOGIN_BYTES:
                raise HTTPException(413)
    return body
