"""Decides which requests come in, and gives every answer its headers.

The page shows private conversations to one person on one machine. Any web page that this person visits can send
requests to a port of the machine, and any other user of the machine can connect to it. Hence:

- The `Host` must be one that was allowed: a name that an attacker points to this machine (DNS rebinding) is refused.
- A token in the address that `serve` prints opens the door once, and becomes a cookie that scripts cannot read and that
  the browser sends to no request of another site.
- A method that changes something needs a browser's word that our own page sent it (`Sec-Fetch-Site`), and the secret
  that this page holds.
- The content security policy lets nothing run or load that is not a file of ours. Nothing is kept in a cache, no
  address is told to other sites, and no other site can frame the page.
"""

import hmac
import secrets
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_SAFE_METHODS = frozenset({"GET", "HEAD"})
MAX_BODY_BYTES = 64 << 10
TOO_LARGE = 413

Refuse = Callable[[Scope, int, str, str], Response]  # status, title, explanation


class TooLarge(Exception):
    """The body of a request is larger than any form of ours."""


class Door:
    """The outermost layer of the application."""

    def __init__(
        self, app: ASGIApp, *, hosts: Iterable[str] = (), cookie: str = "hitherto", base: str = "", refuse: Refuse
    ) -> None:
        self._app = app
        self._hosts = LOOPBACK | {host.lower() for host in hosts}
        self._cookie, self._base, self._refuse = cookie, base, refuse
        self.token: str | None = secrets.token_urlsafe(24)  # None once it was used
        self._session = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # a websocket: there are none here, and the server answers 403
        answer = self._answer(scope)
        with_headers = _add_headers(send)
        if answer is None:
            await self._app(scope, _limit(receive), with_headers)
        else:
            await answer(scope, receive, with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """Return what a request gets in place of a page; None if it may come in."""
        headers = Headers(scope=scope)
        if len(headers.getlist("host")) != 1 or not self._is_allowed(headers["host"]):
            return self._refuse(scope, 403, "This name is not allowed", _FORWARDING)
        if scope["method"] not in _SAFE_METHODS | {"POST"}:
            return self._refuse(scope, 405, "There is no such action", "Pages are read with GET.")
        if _length(headers) > MAX_BODY_BYTES:
            return self._refuse(scope, TOO_LARGE, "That is too much", "No form of this page sends as much.")
        path = scope["path"].removeprefix(self._base)
        if path.startswith("/static/"):  # files of the program, the same for everybody
            return None
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0] if path == "/" else ""
        if not self._has_session(headers):
            return self._open(token) if token else self._refuse(scope, 403, "This page is locked", _NO_TOKEN)
        if token:
            return self._go_in()
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return self._refuse(scope, 403, "Another site asked for this", "Open the page itself.")
        if scope["method"] not in _SAFE_METHODS and headers.get("sec-fetch-site") != "same-origin":
            return self._refuse(scope, 403, "Another site asked for this", "Changes are made on the page itself.")
        return None

    def _is_allowed(self, host: str) -> bool:
        """Is this one of our names? The port does not matter: a tunnel may have another one."""
        name = host.lower()
        if not name.endswith("]"):
            before, colon, port = name.rpartition(":")
            if colon:
                if not port.isdecimal():
                    return False
                name = before
        return name in self._hosts

    def _has_session(self, headers: Headers) -> bool:
        for header in headers.getlist("cookie"):
            try:
                found = SimpleCookie(header).get(self._cookie)
            except CookieError:
                continue
            if found is not None and hmac.compare_digest(found.value.encode(), self._session.encode()):
                return True
        return False

    def _open(self, token: str) -> Response:
        """Let the bearer of the token in, once."""
        if self.token is None or not hmac.compare_digest(token.encode(), self.token.encode()):
            return self._refuse({"path": "/"}, 403, "This address was used already", _USED)
        self.token = None
        answer = self._go_in()
        answer.set_cookie(self._cookie, self._session, path=f"{self._base}/", httponly=True, samesite="strict")
        return answer

    def _go_in(self) -> Response:
        """Return a page that leads to the list, at an address without the token. A redirect would not do: its request
        carries no strict cookie if a link on another site led here."""
        place = f"{self._base}/"
        return HTMLResponse(
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>hitherto</title>'
            f'<link rel="icon" href="data:,">'
            f'<meta http-equiv="refresh" content="0; url={place}"></head>'
            f'<body><p><a href="{place}">Open the conversations</a></p></body></html>'
        )


_NO_TOKEN = (
    "Open the address that hitherto serve printed: the token in it lets one browser in, once. If it was used, press "
    "Ctrl+C there and start it again."
)
_USED = "The token in it lets one browser in, once. Press Ctrl+C where hitherto serve runs, and start it again."
_FORWARDING = (
    "The page answers to 127.0.0.1 and localhost. To read it from another machine, forward the port there with "
    "ssh -L 8080:127.0.0.1:PORT THIS-MACHINE, and open http://127.0.0.1:8080. Behind a proxy of your own, start "
    "it with --allow-host NAME."
)


def refuse_as_json(status: int, title: str, explanation: str) -> Response:
    """Return a refusal as JSON."""
    return JSONResponse({"error": title, "hint": explanation}, status)


def _length(headers: Headers) -> int:
    given = headers.get("content-length", "0")
    return int(given) if given.isdecimal() and len(given) < 16 else MAX_BODY_BYTES + 1


def _limit(receive: Receive) -> Receive:
    """Stop reading a body that is larger than any form."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > MAX_BODY_BYTES:
                raise TooLarge
        return message

    return limited


def _add_headers(send: Send) -> Send:
    """Set the headers of every answer. What an answer sets itself stays: files of ours may be cached, media have a
    stricter policy."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
