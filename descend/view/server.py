"""The server of `descend view`: the standard library's, on 127.0.0.1, for those who have the token.

    GET /TOKEN/               the list of runs and studies; of a single one, its page
    GET /TOKEN/item/N/        the page of one
    GET /TOKEN/stamp          text that changes when anything new was written; item/N/stamp of one
    GET /TOKEN/figure/NAME/N  what stands under the title of figure N, drawn when it is first asked for; of a page of
                              one run item/N/figure/...

Everything else is refused: other methods, other paths, requests without the token, and requests whose Host header is
not this address, as those of a web page whose name was made to point here (DNS rebinding).
"""

from __future__ import annotations

import hmac
import secrets
import threading
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast

from descend.errors import ConfigurationError
from descend.pages.html import Live, figure_body
from descend.terminal.display import printable, shortened
from descend.view.subjects import home_page, home_stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from descend.pages.parts import Figure
    from descend.view.subjects import Subject

__all__ = ["ViewServer", "serve"]

ADDRESS = "127.0.0.1"
_AT_ONCE = 2  # processes that draw, each of which has 100 MB
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class ViewServer(ThreadingHTTPServer):
    """Serves the pages of some runs and studies.

    Args:
        shown: What is served; it stays the same, its files need not.
        port: 0 for any that is free.

    Attributes:
        url: Where a browser begins; it has the token.
        drawn: How many figures were drawn.

    Raises:
        ConfigurationError: the port cannot be had.
    """

    daemon_threads = True

    def __init__(self, shown: Sequence[Subject], port: int = 0) -> None:
        self.shown, self.token = list(shown), secrets.token_urlsafe(24)
        places = ["", *(f"item/{place}" for place in range(len(self.shown)))]
        self._pages = {place: _ServedPage() for place in places}
        self._drawing = threading.BoundedSemaphore(_AT_ONCE)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"port {port} of {ADDRESS} cannot be used: {error}; name another with --port"
            ) from None
        self.url = f"http://{ADDRESS}:{self.server_port}/{self.token}/"
        self.drawn = 0
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    def answer(self, path: str) -> tuple[str, str] | None:
        """Content type and text of a path behind the token; None where there is nothing."""
        place, figure, name = path.partition("figure/")
        place, end = (place.removesuffix("/"), "") if figure else (path.rpartition("/")[0], path.rpartition("/")[2])
        served = self._pages.get(place)
        if served is None or end not in ("", "stamp") or (place and not path.startswith(f"{place}/")):
            return None
        if figure:
            body = self._figure(served, *name.split("/")) if name.count("/") == 1 else None
            return None if body is None else ("text/html; charset=utf-8", body)
        shown = self.shown if place == "" and len(self.shown) != 1 else [self.shown[_number(place)]]
        now = home_stamp(shown) if shown is self.shown else shown[0].stamp
        if end == "stamp":
            return "text/plain; charset=utf-8", now
        make = partial(home_page, shown) if shown is self.shown else shown[0].page
        return "text/html; charset=utf-8", served.text(now, "../../" if place else "", make)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing is printed where a connection fails: a terminal is no log of what others send."""

    def _figure(self, served: _ServedPage, name: str, number: str) -> str | None:
        offered = served.figures.get(name)
        if offered is None or not number.isdecimal() or len(number) > 4:
            return None
        with offered.lock:  # a second browser waits for what the first one has drawn
            if offered.body is None:
                with self._drawing:
                    self.drawn += 1
                    offered.body = figure_body(offered.make)
        return offered.body(int(number))


@dataclass
class _Offered:
    """A figure of a page, and its drawing once it was asked for."""

    make: Callable[[], Figure]
    lock: threading.Lock = field(default_factory=threading.Lock)
    body: Callable[[int], str] | None = None


class _ServedPage:
    """A page as it was made last, with its figures."""

    def __init__(self) -> None:
        self.figures: dict[str, _Offered] = {}
        self._lock = threading.Lock()
        self._stamp, self._text = "", ""

    def text(self, stamp: str, home: str, make: Callable[[Live], str]) -> str:
        """The page, made once for each stamp; figures whose numbers are the same stay drawn."""
        with self._lock:  # a second request waits for what the first one makes, and for no drawing
            if self._text == "" or self._stamp != stamp:
                offered: dict[str, _Offered] = {}

                def offer(name: str, draw: Callable[[], Figure]) -> None:
                    offered[name] = self.figures.get(name) or _Offered(draw)

                self._text = make(Live(stamp, "stamp", home, offer))
                self._stamp, self.figures = stamp, offered
            return self._text


def _number(place: str) -> int:
    return int(place.removeprefix("item/") or 0)


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "descend", ""
    timeout = 30

    def do_GET(self) -> None:
        self._respond(body=True)

    def do_HEAD(self) -> None:
        self._respond(body=False)

    def _respond(self, *, body: bool) -> None:
        server = cast("ViewServer", self.server)
        target = self.path
        for host in server.hosts:
            target = target.removeprefix(f"http://{host}")  # as a proxy is asked
        path, _, query = target.partition("?")  # no URL is taken apart, since anything may stand here
        token, _, rest = path.removeprefix("/").partition("/")
        asked = [word.removeprefix("token=") for word in query.split("&") if word.startswith("token=")]
        if not path.startswith("/"):
            self._say(HTTPStatus.BAD_REQUEST, "the request names no path, which begins with a slash", body=body)
        elif self.headers.get("Host", "") not in server.hosts:
            self._say(HTTPStatus.FORBIDDEN, "this address is not served", body=body)
        elif path == "/" and asked and self._is_token(asked[0]):
            self._send(HTTPStatus.SEE_OTHER, "text/plain", "", body=body, Location=f"/{server.token}/")
        elif self._is_token(token):
            self._answer(rest, body=body)
        else:
            said = "the address needs the token that descend view printed"
            self._say(HTTPStatus.FORBIDDEN, said, body=body)

    def _answer(self, path: str, *, body: bool) -> None:
        try:
            found = cast("ViewServer", self.server).answer(path)
        except Exception as error:  # one page that fails is none of the others, and no traceback in a terminal
            said = f"this page could not be made, which is a fault of descend: {type(error).__name__}: {error}"
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, shortened(printable(said)), body=body)
            return
        if found is None:
            self._say(HTTPStatus.NOT_FOUND, "there is no such page", body=body)
        else:
            self._send(HTTPStatus.OK, *found, body=body)

    def _say(self, status: HTTPStatus, text: str, *, body: bool) -> None:
        self._send(status, "text/plain; charset=utf-8", f"{text}\n", body=body)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), cast("ViewServer", self.server).token.encode())

    def _send(self, status: HTTPStatus, kind: str, text: str, *, body: bool, **headers: str) -> None:
        data = text.encode(errors="replace")
        try:
            self.send_response(status)
            for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(data)
        except OSError:  # the browser has left
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # so does the base class
        """Nothing is printed for a request."""


def serve(shown: Sequence[Subject], port: int = 0, ready: Callable[[str], None] = print) -> None:
    """Serve until Ctrl-C.

    Args:
        shown: See `subjects`.
        port: 0 for any that is free.
        ready: Called with the URL once it can be opened.

    Raises:
        ConfigurationError: the port cannot be had.
    """
    with ViewServer(shown, port) as server:
        ready(server.url)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return
