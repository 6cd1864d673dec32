"""The server of `descend view`: the standard library's, on 127.0.0.1, for those who have the token.

    GET /TOKEN/               the list of runs and studies; of a single one, its page
    GET /TOKEN/item/N/        the page of one
    GET /TOKEN/stamp          text that changes when anything new was written; item/N/stamp of one

Everything else is refused: other methods, other paths, requests without the token, and requests whose Host header is
not this address, as those of a web page whose name was made to point here (DNS rebinding).
"""

from __future__ import annotations

import hmac
import secrets
import threading
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast

from descend.errors import ConfigurationError
from descend.pages.html import Live
from descend.view.subjects import home_page

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from descend.view.subjects import Subject

__all__ = ["ViewServer", "serve"]

ADDRESS = "127.0.0.1"
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

    Raises:
        ConfigurationError: the port cannot be had.
    """

    daemon_threads = True

    def __init__(self, shown: Sequence[Subject], port: int = 0) -> None:
        self.shown, self.token = list(shown), secrets.token_urlsafe(24)
        self._pages: dict[str, tuple[str, str]] = {}
        self._drawing = threading.Lock()
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"port {port} of {ADDRESS} cannot be used: {error}; name another with --port"
            ) from None
        self.url = f"http://{ADDRESS}:{self.server_port}/{self.token}/"
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    def answer(self, path: str) -> tuple[str, str] | None:
        """Content type and text of a path behind the token; None where there is nothing."""
        place, _, name = path.rpartition("/")
        if name not in ("", "stamp"):
            return None
        if place == "":
            if len(self.shown) == 1:
                return self._answered(name, "", self.shown[0].page, lambda: self.shown[0].stamp)
            stamp = "|".join
            return self._answered(
                name, "", lambda live: home_page(self.shown, live), lambda: stamp(one.stamp for one in self.shown)
            )
        head, _, number = place.partition("/")
        if head != "item" or not number.isdecimal() or len(number) > 4 or int(number) >= len(self.shown):
            return None
        one = self.shown[int(number)]
        return self._answered(name, "../../", one.page, lambda: one.stamp, place)

    def _answered(
        self, name: str, home: str, page: Callable[[Live], str], stamp: Callable[[], str], place: str = ""
    ) -> tuple[str, str]:
        now = stamp()
        if name == "stamp":
            return "text/plain; charset=utf-8", now
        with self._drawing:  # one at a time: a second request finds what the first one drew
            known = self._pages.get(place)
            if known is None or known[0] != now:
                known = now, page(Live(now, "stamp", home))
                self._pages[place] = known
        return "text/html; charset=utf-8", known[1]


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "descend", ""
    timeout = 30

    def do_GET(self) -> None:
        self._respond(body=True)

    def do_HEAD(self) -> None:
        self._respond(body=False)

    def _respond(self, *, body: bool) -> None:
        parts = urllib.parse.urlsplit(self.path)
        server = cast("ViewServer", self.server)
        if self.headers.get("Host", "") not in server.hosts:
            self._send(HTTPStatus.FORBIDDEN, "text/plain; charset=utf-8", "this address is not served\n", body=body)
            return
        token, _, rest = parts.path.removeprefix("/").partition("/")
        asked = urllib.parse.parse_qs(parts.query).get("token", [""])[0] if parts.path == "/" else ""
        if self._is_token(asked):
            self._send(HTTPStatus.SEE_OTHER, "text/plain", "", body=body, Location=f"/{server.token}/")
        elif not self._is_token(token):
            said = "the address needs the token that descend view printed\n"
            self._send(HTTPStatus.FORBIDDEN, "text/plain; charset=utf-8", said, body=body)
        elif (found := server.answer(rest)) is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", "there is no such page\n", body=body)
        else:
            self._send(HTTPStatus.OK, *found, body=body)

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
