"""Requests to the application, without a socket between."""

import asyncio
import json
import re
from functools import partial
from html.parser import HTMLParser
from typing import Any, NamedTuple

from hitherto import Store
from hitherto.viewer import app
from hitherto.viewer.access import Access


def _same(store: Store | None) -> Store:
    assert store is not None
    return store


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A browser that was let in, as far as the application can tell."""

    def __init__(self, store: Store | None, **how: Any) -> None:
        self.access = how.pop("access", None) or Access(partial(_same, store))
        self.door = app.build(self.access, **how)
        self.base = how.get("base", "")
        self.cookie = ""
        self.cookie = self.get(f"{self.base}/?token={self.door.token}").headers["set-cookie"].split(";")[0]

    def get(self, path: str, **headers: str | None) -> Answer:
        return self.ask("GET", path, b"", **headers)

    def ask(self, method: str, path: str, body: bytes = b"", **given: str | None) -> Answer:
        """Headers are keywords; None leaves one out."""
        headers = {"host": "127.0.0.1:8080", "cookie": self.cookie or None}
        headers |= {name.replace("_", "-"): value for name, value in given.items()}
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in headers.items() if v is not None],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8080),
        }
        return asyncio.run(self._ask(scope, body))

    async def _ask(self, scope: dict[str, Any], body: bytes) -> Answer:
        sent: list[Any] = []
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return given.pop(0) if given else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await self.door(scope, receive, send)
        headers = {k.decode(): v.decode("latin-1") for k, v in sent[0]["headers"]}
        return Answer(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))


def follow_all_links(client: Client, base: str = "", most: int = 300) -> set[str]:
    """Open the list and all that its pages lead to, and return the addresses. Each leads somewhere, and stays below the
    base."""
    seen: set[str] = set()
    waiting = [f"{base}/"]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = client.get(path)
        assert answer.status in (200, 303), path
        if "html" in answer.headers["content-type"] and "/export/file" not in path and len(seen) < most:
            found = re.findall(r' (?:href|src|action|data-window|data-map)="([^"#]+)"', answer.text)
            assert all(one.startswith((f"{base}/", "https://")) for one in found), (path, found)
            waiting += [one.replace("&amp;", "&") for one in found if one.startswith("/") and "/static/" not in one]
    return seen


class Seen(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
