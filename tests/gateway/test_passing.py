"""Bytes pass the gateway unchanged, in both directions, and the tree fills. Requirements: G1, A9."""

import gzip
import json
import socket
import threading
import time
import zlib
from contextlib import closing

import pytest
import zstandard

from hitherto import Store

from ..support.provider import anthropic_answer, chat_answer
from .running import ask, gateway
from .scripted import CHATS, SECRET, Scripted, as_events, running, thread


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", CHATS)
def test_a_chat_passes_byte_for_byte_and_is_kept(store: Store, upstream: Scripted, name: str, streamed: bool) -> None:
    path, body, answer, events = CHATS[name]
    if streamed:
        path = path.replace(":generateContent?", ":streamGenerateContent?alt=sse&")
        upstream.stream(*as_events(events))
    else:
        upstream.say(answer)
    data = json.dumps({**body, "stream": streamed}, indent=1).encode()
    with running(store, upstream) as one:
        headers = {"X-Api-Key": SECRET, "Authorization": f"Bearer {SECRET}", "anthropic-beta": "a,b", "x-own": "1"}
        got = one.ask(path, data, headers)
    assert got.status == 200
    assert got.body == b"".join(piece for piece in upstream.pieces if isinstance(piece, bytes))
    (seen,) = upstream.seen
    assert seen.path == "/" + path.split("/", 2)[2]
    assert seen.body == data
    assert seen.named("anthropic-beta") == ["a,b"]
    assert seen.named("x-api-key") == [SECRET]
    assert seen.named("host") == [upstream.url.removeprefix("http://")]
    assert thread(store) == [("user", "hi"), ("assistant", "hello there")]


def test_a_request_is_the_same_with_the_gateway_and_without(store: Store, upstream: Scripted) -> None:
    headers = {"user-agent": "me/1", "accept-encoding": "br, gzip", "accept": "*/*", "X-Twice": "a", "cookie": "c=d"}
    upstream.say(anthropic_answer("hello"))
    with running(store, upstream) as one:
        for address in (upstream.url, one.address + "/anthropic"):
            ask(address + "/v1/messages?beta=true&x=%2F%20|", b'{"messages": []}', headers)
    direct, passed = upstream.seen
    assert (direct.method, direct.path, direct.body) == (passed.method, passed.path, passed.body)
    assert sorted((k.lower(), v) for k, v in direct.headers) == sorted((k.lower(), v) for k, v in passed.headers)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/models"), ("HEAD", "/"), ("POST", "/v1/files"), ("DELETE", "/v1/files/a%2Fb"), ("PUT", "/x//../y")],
)
def test_what_is_no_chat_passes_and_is_not_kept(store: Store, upstream: Scripted, method: str, path: str) -> None:
    upstream.status, upstream.pieces = 201, [b"\x00\xff not json"]
    with running(store, upstream) as one:
        got = one.ask("/openai" + path, b"\x01\x02" if method in ("POST", "PUT") else None, method=method)
    assert got.status == 201
    assert got.body == (b"" if method == "HEAD" else b"\x00\xff not json")
    assert upstream.seen[0].path == path
    assert store.latest() is None


def compress(encoding: str, data: bytes) -> bytes:
    if encoding == "gzip":
        return gzip.compress(data)
    if encoding == "deflate":
        return zlib.compress(data)
    if encoding == "br":
        brotli = pytest.importorskip("brotli", reason="brotli is not installed")
        found: bytes = brotli.compress(data)
        return found
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
@pytest.mark.parametrize("streamed", [False, True])
def test_compressed_bodies_pass_as_they_are_and_are_kept_decoded(
    store: Store, upstream: Scripted, encoding: str, streamed: bool
) -> None:
    path, body, answer, events = CHATS["anthropic"]
    whole = b"".join(as_events(events)) if streamed else json.dumps(answer).encode()
    packed = compress(encoding, whole)
    pieces = [packed[at : at + 50] for at in range(0, len(packed), 50)]
    if streamed:
        upstream.stream(*pieces)
    else:
        upstream.say({})
        upstream.pieces = [*pieces]
    upstream.headers["content-encoding"] = encoding
    asked = compress(encoding, json.dumps(body).encode())
    with running(store, upstream) as one:
        got = one.ask(path, asked, {"content-encoding": encoding})
    assert got.body == packed
    assert ("content-encoding", encoding) in got.headers
    assert upstream.seen[0].body == asked
    assert thread(store) == [("user", "hi"), ("assistant", "hello there")]


def test_an_answer_comes_as_it_is_said_and_not_at_its_end(store: Store, upstream: Scripted) -> None:
    go = threading.Event()
    first, *rest = as_events(CHATS["anthropic"][3])
    upstream.stream(first, lambda: go.wait(60), *rest)
    with running(store, upstream) as one, closing(one.connect()) as connection:
        connection.request("POST", "/anthropic/v1/messages", json.dumps(CHATS["anthropic"][1]).encode())
        got = connection.getresponse()
        assert got.read1() == first  # the provider has not said more
        assert thread(store) == [("user", "hi")]  # the question is kept before the answer comes
        go.set()
        assert first + got.read() == b"".join([first, *rest])
    assert thread(store) == [("user", "hi"), ("assistant", "hello there")]


def test_a_long_request_in_chunks_passes_while_it_comes(store: Store, upstream: Scripted) -> None:
    upstream.say(anthropic_answer("long"))
    text = "x" * 1_000_000
    data = json.dumps({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": text}]}).encode()
    with running(store, upstream) as one, closing(one.connect()) as connection:
        pieces = iter([data[:400_000], data[400_000:]])
        connection.request(
            "POST", "/anthropic/v1/messages", pieces, {"transfer-encoding": "chunked"}, encode_chunked=True
        )
        assert connection.getresponse().read() == json.dumps(anthropic_answer("long")).encode()
    assert upstream.seen[0].body == data
    assert thread(store) == [("user", text), ("assistant", "long")]


def test_two_requests_share_a_connection(store: Store, upstream: Scripted) -> None:
    upstream.say(chat_answer("one"))
    with running(store, upstream) as one, closing(one.connect()) as connection:
        for _ in range(2):
            connection.request("POST", "/openai/v1/chat/completions", json.dumps(CHATS["openai-chat"][1]).encode())
            assert connection.getresponse().read() == upstream.pieces[0]
    assert len(upstream.seen) == 2


def test_headers_of_one_connection_and_of_ours_are_not_passed_on(store: Store, upstream: Scripted) -> None:
    upstream.say(chat_answer("one"))
    upstream.headers |= {"Keep-Alive": "timeout=5", "x-request-id": "r1", "set-cookie": "a=b"}
    headers = {"connection": "keep-alive, x-mine", "x-mine": "1", "te": "trailers", "proxy-authorization": "p",
               "X-Hitherto-User": "ada", "X-Hitherto-Conversation": "mine"}  # fmt: skip
    with running(store, upstream) as one:
        got = one.ask("/openai/v1/chat/completions", CHATS["openai-chat"][1], headers)
    names = {name.lower() for name, _ in upstream.seen[0].headers}
    assert names == {"host", "content-type", "content-length", "accept-encoding"}
    assert {("x-request-id", "r1"), ("set-cookie", "a=b")} <= set(got.headers)
    assert "keep-alive" not in dict(got.headers)


def test_a_head_may_be_long_but_not_without_end(store: Store, upstream: Scripted) -> None:
    upstream.say(chat_answer("one"))
    with running(store, upstream) as one:
        long = {"x-token": "t" * 60_000}
        assert one.ask("/openai/v1/chat/completions", CHATS["openai-chat"][1], long).status == 200
        with socket.create_connection(("127.0.0.1", one.port), timeout=60) as connection:
            connection.sendall(b"GET /openai/v1/models HTTP/1.1\r\nx: ")
            with pytest.raises(OSError, match=r"reset|Broken pipe"):  # noqa: PT012  # either may meet it
                while True:
                    connection.sendall(b"x" * 65_536)
                    time.sleep(0)
        assert one.ask("/openai/v1/chat/completions", CHATS["openai-chat"][1]).status == 200


def test_an_upgrade_is_refused_so_that_programs_fall_back(store: Store, upstream: Scripted) -> None:
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    with running(store, upstream) as one:
        got = one.ask("/openai/v1/responses", None, headers, method="GET")
    assert got.status == 426
    assert "HTTP/1.1" in got.json["error"]["message"]
    assert upstream.seen == []


def test_an_offer_of_http_2_is_not_taken_up(store: Store, upstream: Scripted) -> None:
    """Java's client makes it with every request, and goes on with HTTP/1.1."""
    upstream.say(chat_answer("one"))
    headers = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAAAAIAAAAB"}
    with running(store, upstream) as one, closing(one.connect()) as connection:
        for _ in range(2):
            body = json.dumps(CHATS["openai-chat"][1])
            connection.request("POST", "/openai/v1/chat/completions", body.encode(), headers)
            assert connection.getresponse().read() == upstream.pieces[0]
    assert not {"upgrade", "http2-settings"} & {name.lower() for name, _ in upstream.seen[1].headers}


def test_a_redirect_is_passed_on_and_never_followed(store: Store, upstream: Scripted) -> None:
    other = Scripted()
    try:
        upstream.status, upstream.headers["location"] = 307, other.url + "/v1/messages"
        with running(store, upstream) as one:
            got = one.ask("/anthropic/v1/messages", CHATS["anthropic"][1], {"x-api-key": SECRET})
        assert (got.status, dict(got.headers)["location"]) == (307, other.url + "/v1/messages")
        assert other.seen == []
        assert thread(store) == [("user", "hi")]
    finally:
        other.close()


def test_a_path_that_leads_nowhere_says_what_there_is(store: Store, upstream: Scripted) -> None:
    with running(store, upstream) as one:
        got = one.ask("/v1/messages", CHATS["anthropic"][1])
    assert got.status == 404
    assert "/anthropic" in got.json["error"]["message"]


def test_a_provider_that_cannot_be_reached_is_an_error_and_the_question_is_kept(store: Store) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it does not listen
        with gateway(store, anthropic=f"http://127.0.0.1:{taken.getsockname()[1]}") as one:
            got = one.ask("/anthropic/v1/messages", CHATS["anthropic"][1], {"x-api-key": SECRET})
    assert got.status == 502
    assert SECRET not in got.body.decode()
    assert thread(store) == [("user", "hi")]
