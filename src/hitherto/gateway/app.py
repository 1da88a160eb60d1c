"""The gateway as an ASGI application: who may come in, and where a request leads.

The first part of a path names a provider, the rest is the provider's own. A caller is a program on this machine, or one
that has the token.
"""

import hmac
import re
from collections.abc import Mapping

from .passing import Passing, Receive, Scope, Send, refuse
from .upstreams import Upstream

__all__ = ["TOKEN", "Gateway"]

TOKEN = "x-hitherto-token"
_PORT = re.compile(r":[0-9]{1,5}$")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


class Gateway:
    """The application."""

    def __init__(self, upstreams: Mapping[str, Upstream], passing: Passing, *, token: str | None = None) -> None:
        """With a `token`, callers from anywhere may come in who have it; without one only those of this machine."""
        self._upstreams = upstreams
        self._passing = passing
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            return  # a websocket: the server answers for itself
        headers = _by_name(scope["headers"])
        path: bytes = scope["raw_path"]
        refusal = self._check_caller(headers, path)
        name, _, rest = self._without_token(path).removeprefix(b"/").partition(b"/")
        upstream = self._upstreams.get(name.decode("latin-1"))
        if refusal is not None:
            await refuse(send, 403, refusal)
        elif upstream is None:
            known = ", ".join(f"/{name}" for name in self._upstreams)
            await refuse(send, 404, f"this is hitherto's gateway; it leads to {known}")
        elif "upgrade" in headers:
            await refuse(
                send, 426, "the gateway speaks HTTP/1.1, and no WebSockets: send the request without an upgrade"
            )
        else:
            await self._passing.run(upstream, b"/" + rest, headers, scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Run from the start of the server to its end, and close the connections to the providers then."""
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await self._passing.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _check_caller(self, headers: Mapping[str, str], path: bytes) -> str | None:
        """Return why a caller may not come in; None if it may. Any page in a browser can send requests to this machine,
        and a name that an attacker points here (DNS rebinding) makes them look like its own."""
        if self._token is not None:
            given = headers.get(TOKEN, "").encode() or path.removeprefix(b"/").partition(b"/")[0]
            if hmac.compare_digest(given, self._token.encode()):
                return None
            return f"the gateway wants its token: in the header {TOKEN}, or as the first part of the path"
        if _PORT.sub("", headers.get("host", "").lower()) not in _LOOPBACK:
            return "the gateway answers to 127.0.0.1 and localhost"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return "a page of another site asked for this"
        return None

    def _without_token(self, path: bytes) -> bytes:
        if self._token is None:
            return path
        first, _, rest = path.removeprefix(b"/").partition(b"/")
        return rest if hmac.compare_digest(first, self._token.encode()) else path


def _by_name(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
