"""Requests that no page of ours makes: each parameter that the OpenAPI describes, with values that it does not expect.

No answer may be a bug (500), each is JSON as described or a problem with a hint, and nothing that was sent comes back
as markup. Requirement: H1.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

import hitherto
from hitherto import Store
from hitherto.viewer import openapi, values

from ..support import scenes
from ..support.thorough import THOROUGH
from .asking import Client, Seen

HOSTILE = (
    "", " ", "\0", "a\0b", "/", "//evil.example", "..", "../../etc/passwd", "%2e%2e%2f", ".json", "?", "#", "&x=1",
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' OR 1=1 --", "{{7*7}}", "${7*7}",
    "\r\nSet-Cookie: a=b",
    "\u202e", "\ufeff", "١٢٣", "²", "🦆", "é" * 500, "x" * 20_000, "(" * 3_000, '"' * 1_001, "a OR " * 2_000, "*", "-",
    "NEAR(",
    "-1", "0", "1", "2", "99", "00000", "1e9", "0x10", "NaN", "99999999999999999999", "999999999", "true", "null", "[]",
    "2026-13-45", "2026-02-30", "0001-01-01", "9999-12-31", "10000-01-01", "2026-01-01T00:00:00Z",
    "@", "@~1", "00000000", "00000000-0000-0000-0000-000000000000", "zzzzzz", "tool_result", "user", "chat",
    "workspace", "items", "eyJhIjoxfQ==",
)  # fmt: skip
ENCODED = ("%ff", "%ed%a0%80", "%c0%af", "%00", "%", "%zz", "%u0041", "+", "%0d%0aX-Evil:%201")
SENT = [*(quote(one, safe="") for one in HOSTILE), *ENCODED]
USUAL = SENT if THOROUGH else [*SENT[::4], "9999-12-31"]  # for pages, which take longer than their twins
DESCRIBED = openapi.describe()["paths"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, dict[str, str]]]:
    with hitherto.open(tmp_path_factory.mktemp("viewer") / "chats.db") as store:
        talk = scenes.coding(store)
        ends = [branch.id for branch in talk.branches()]
        known = {"conversation": talk.id, "message": ends[0], "left": ends[0], "right": ends[-1], "at": ends[1]}
        yield Client(store), known


def requests(path: str, parameters: list[dict[str, Any]], known: dict[str, str], sent: list[str]) -> Iterator[str]:
    """Yield addresses in which one parameter is hostile and the others are right."""
    for given in parameters:
        for value in sent:
            right = {one["name"]: known[one["name"]] for one in parameters if one["name"] in known}
            named = {
                name: value if name == given["name"] else right.get(name, "") for name in ("conversation", "message")
            }
            query = {one["name"]: right.get(one["name"], "") for one in parameters if one["in"] == "query"}
            if given["in"] == "query":
                query[given["name"]] = value
            yield path.format(**named) + "?" + "&".join(f"{name}={text}" for name, text in query.items())


@pytest.mark.parametrize("twin", openapi.TWINS, ids=lambda twin: twin.path)
def test_every_answer_is_as_described_or_a_problem(twin: openapi.Twin, place: tuple[Client, dict[str, str]]) -> None:
    client, known = place
    right = twin.path.format(**known) + f"?left={known['left']}&right={known['right']}"
    assert client.get(right).status == 200  # the control
    for address in requests(twin.path, DESCRIBED[twin.path]["get"]["parameters"], known, SENT):
        answer = client.get(address)
        assert answer.status in (200, 303, 400, 404), address
        assert not {"x-evil", "set-cookie"} & answer.headers.keys(), address
        if answer.status != 303:
            assert answer.headers["content-type"] == "application/json", address
            found = msgspec.json.decode(answer.body, type=twin.value if answer.status == 200 else values.Problem)
            assert not isinstance(found, values.Problem) or found.error, address


PAGES = (  # what the OpenAPI does not describe: pages, parts of pages and files, by the names of their parameters
    ("/", ("cursor", "kind", "project", "label", "model", "source", "since", "until", "forked", "held")),
    ("/search", ("q", "best", "role", "offset")),
    ("/usage", ("days",)),
    ("/c/{conversation}", ("from", "count", "q")),
    ("/c/{conversation}/map", ("at", "all", "part")),
    ("/c/{conversation}/compare", ("left", "right")),
    ("/c/{conversation}/export", ("at",)),
    ("/c/{conversation}/export/file", ("format", "at", "redact")),
    ("/c/{conversation}/m/{message}", ("from", "count", "q", "find")),
    ("/c/{conversation}/m/{message}/window", ("from", "count")),
    ("/c/{conversation}/m/{message}/text", ("block",)),
    ("/c/{conversation}/m/{message}/media/0", ("keep",)),
)


@pytest.mark.parametrize(("path", "query"), PAGES, ids=[path for path, _ in PAGES])
def test_no_page_shows_what_was_sent_as_markup(
    path: str, query: tuple[str, ...], place: tuple[Client, dict[str, str]]
) -> None:
    client, known = place
    parameters = [{"name": name, "in": "query"} for name in query]
    parameters += [{"name": name, "in": "path"} for name in ("conversation", "message") if f"{{{name}}}" in path]
    for address in requests(path, parameters, known, USUAL):
        answer = client.get(address)
        assert answer.status in (200, 303, 400, 404), address
        if "html" in answer.headers.get("content-type", ""):
            for tag, attributes in Seen(answer.body.decode("utf-8", "replace")).tags:
                assert not any(name.startswith("on") for name in attributes), address
                assert tag != "script" or (attributes.get("src") or "").startswith("/static/"), address


def test_a_hostile_store_is_asked_the_same(store: Store) -> None:
    talk = scenes.hostile(store)
    client = Client(store)
    for twin in openapi.TWINS:
        for end in talk.branches():
            path = twin.path.format(conversation=talk.id, message=end.id)
            answer = client.get(f"{path}?q=script&left={end.id}&right={talk.head}")
            assert answer.status == 200, path
            msgspec.json.decode(answer.body, type=twin.value)
