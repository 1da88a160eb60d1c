"""Recording a chat: what it adds to a turn, for requests of all four dialects, which carry the whole history, and for a
client of ours.

Requests of the dialects go through a plain HTTP client (`_posting`). For the SDK and for our client, the provider is a
process of its own on loopback that answers at once, so that the turn is as short as a turn can be: nothing of what
recording costs can hide behind a model that thinks.
"""

import json
import statistics
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import hitherto
from hitherto.chat import Client, Config, new_client
from hitherto.dialects import dialect as find_dialect

from ._posting import DIALECTS, Posting, Turn, history, turns
from ._table import Bench, Row, at_most, both, ratios

_SDK_SIZE = 1_000  # messages up to which the SDK is measured: it takes its time over long histories
GOAL = 1.3  # times the two appends by hand
_SAID = {"role": "assistant", "content": "Yes. " * 40}
_ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": _SAID}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
}


def _serve(pipe: Connection) -> None:
    data = json.dumps(_ANSWER).encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
            self.wfile.write(head.encode() + data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    pipe.send(server.server_port)
    server.serve_forever()


def _sdk_turns(url: str, store: hitherto.Store | None, size: int, count: int) -> float:
    """Seconds of a turn through OpenAI's own SDK."""
    import openai

    sdk: Any = openai.OpenAI(base_url=url, api_key="k")
    if store is not None:
        hitherto.record(sdk, store)
    said = history("openai-chat", size)
    with sdk:

        def turn(n: int) -> None:
            said.append({"role": "user", "content": f"And {n}?"})
            done = sdk.chat.completions.create(model="m", messages=said)
            said.append({"role": "assistant", "content": done.choices[0].message.content})

        return _timed(turn, count)


def _own_turns(url: str, store: hitherto.Store | None, size: int, count: int) -> float:
    """Seconds of a turn through a client of ours."""
    client = new_client(Config("openai-compatible", "m", url, "k", allow_insecure_base_url=True))
    if not isinstance(client, Client):
        raise TypeError("not a client that keeps its history")
    with client:
        client.replace_history(client.parse_history(history("openai-chat", size)))
        if store is not None:
            hitherto.record(client, store)
        return _timed(lambda n: client.chat(f"And {n}?") and None, count)


def _timed(turn: Callable[[int], None], count: int) -> float:
    turn(0)  # connects, and keeps what was said before
    seconds = []
    for n in range(count):
        began = time.perf_counter()
        turn(n + 1)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _appends(store: hitherto.Store, size: int, given: list[Turn], dialect: str) -> float:
    """Seconds of the same two appends by hand."""
    talk = store.start()
    talk.extend([find_dialect(dialect).parse(entry) for entry in history(dialect, size)])

    def turn(n: int) -> None:
        talk.append(given[n].question)
        talk.append(given[n].said)

    return _timed(turn, len(given) - 1)


def recording(bench: Bench) -> list[Row]:
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    try:
        return [row for size in (10, 1_000, 10_000) for row in [*_posted(bench, size), *_rows(bench, url, size)]]
    finally:
        process.kill()
        process.join()


def _posted(bench: Bench, size: int) -> list[Row]:
    """What recording adds to a request of each dialect."""
    rows = []
    for dialect in DIALECTS:
        given = turns(dialect, size, bench.pick(10, 30))
        for is_cleaned in (False, True):
            found: dict[str, list[float]] = {}
            for number in range(bench.pick(3, 7)):
                for way in bench.shuffled(["recorded", "not recorded", "by hand"]):
                    place = bench.place("posted", dialect, size, is_cleaned, number, way)
                    found.setdefault(str(way), []).append(
                        _posted_turn(place, str(way), size, given, dialect, is_cleaned)
                    )
            added = [a - b for a, b in zip(found["recorded"], found["not recorded"], strict=True)]
            name = f"what recording adds to a turn of {dialect}{', cleaned' if is_cleaned else ''}, {size:,}"
            note = both(added, found["by hand"], "adds", "two appends by hand")
            rows.append(at_most(name, ratios(added, found["by hand"]), GOAL, note))
    return rows


def _posted_turn(place: str, way: str, size: int, given: list[Turn], dialect: str, is_cleaned: bool) -> float:
    sanitiser = hitherto.Sanitiser.secrets() if is_cleaned else None
    with hitherto.open(f"{place}/c.db", sanitiser=sanitiser) as store:
        if way == "by hand":
            return _appends(store, size, given, dialect)
        with Posting(given, dialect, store if way == "recorded" else None) as posting:
            return _timed(posting.turn, len(given) - 1)


def _rows(bench: Bench, url: str, size: int) -> list[Row]:
    found: dict[str, list[float]] = {}
    count = bench.pick(30, 100) if size < 100 else bench.pick(8, 20)
    by_sdk = ["sdk", "sdk, recorded"] if size <= _SDK_SIZE else []
    for number in range(bench.pick(3, 7)):
        for name in bench.shuffled([*by_sdk, "client", "client, recorded", "by hand"]):
            found.setdefault(str(name), []).append(_measured(bench, url, str(name), size, number, count))
    rows = []
    for name, who in (("sdk", "OpenAI's SDK"), ("client", "a client of ours")):
        if name not in found:
            continue
        plain, recorded = found[name], found[f"{name}, recorded"]
        added = [a - b for a, b in zip(recorded, plain, strict=True)]
        note = both(recorded, plain, "recorded", "not")
        rows.append(at_most(f"turn of {who} at {size:,} messages, recorded", ratios(recorded, plain), None, note))
        by_hand = found["by hand"]
        note = both(added, by_hand, "adds", "two appends by hand")
        goal = GOAL if name == "client" else None  # what an SDK does itself hides what is added
        rows.append(at_most(f"what recording adds to it, {size:,}", ratios(added, by_hand), goal, note))
    return rows


def _measured(bench: Bench, url: str, name: str, size: int, number: int, count: int) -> float:
    """Seconds of a turn in this way."""
    by = _sdk_turns if name.startswith("sdk") else _own_turns
    if name in ("sdk", "client"):
        return by(url, None, size, count)
    with hitherto.open(f"{bench.place('recording', size, number, name.split(',', maxsplit=1)[0])}/c.db") as store:
        if name == "by hand":
            return _appends(store, size, turns("openai-chat", 0, count), "openai-chat")
        return by(url, store, size, count)
