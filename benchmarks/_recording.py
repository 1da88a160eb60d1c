"""Recording a chat: what it adds to a turn, for requests of all four dialects, which carry the whole history, and for a
client of ours.

Requests of the dialects go through a plain HTTP client (`_posting`). For the SDK and for our client, the provider is a
process of its own on loopback that answers at once, so that the turn is as short as a turn can be: nothing of what
recording costs can hide behind a model that thinks.

The ways that are compared take turns, in one process: each turn is made recorded, not recorded, and by hand, in random
order. What recording adds is the median of the differences between the same turn in two ways: a difference of medians
has the noise of two runs. Rows in CPU count the time of the calling thread, which also commits. They do not depend on
what a sync costs in that hour.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

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


Make = Callable[[int], object]  # one turn, by its number


class Cost(NamedTuple):
    """What the turns of one way have cost: one figure for each turn."""

    wall: list[float]
    cpu: list[float]


@contextmanager
def _sdk_turn(url: str, store: hitherto.Store | None, size: int) -> Iterator[Make]:
    """Turns through OpenAI's own SDK."""
    import openai

    sdk: Any = openai.OpenAI(base_url=url, api_key="k")
    if store is not None:
        hitherto.record(sdk, store)
    said = history("openai-chat", size)

    def turn(n: int) -> None:
        said.append({"role": "user", "content": f"And {n}?"})
        done = sdk.chat.completions.create(model="m", messages=said)
        said.append({"role": "assistant", "content": done.choices[0].message.content})

    with sdk:
        yield turn


@contextmanager
def _own_turn(url: str, store: hitherto.Store | None, size: int) -> Iterator[Make]:
    """Turns through a client of ours."""
    client = new_client(Config("openai-compatible", "m", url, "k", allow_insecure_base_url=True))
    if not isinstance(client, Client):
        raise TypeError("not a client that keeps its history")
    with client:
        client.replace_history(client.parse_history(history("openai-chat", size)))
        if store is not None:
            hitherto.record(client, store)
        yield lambda n: client.chat(f"And {n}?")


def _by_hand(store: hitherto.Store, size: int, given: list[Turn], dialect: str) -> Make:
    """The same two appends by hand."""
    talk = store.start()
    talk.extend([find_dialect(dialect).parse(entry) for entry in history(dialect, size)])

    def turn(n: int) -> None:
        talk.append(given[n].question)
        talk.append(given[n].said)

    return turn


def _take_turns(bench: Bench, ways: dict[str, Make], count: int) -> dict[str, Cost]:
    """Make the same turns in every way, one after the other."""
    for turn in ways.values():
        turn(0)  # connects, and keeps what was said before
    costs = {name: Cost([], []) for name in ways}
    for n in range(1, count + 1):
        for name in map(str, bench.shuffled(ways)):
            began, used = time.perf_counter(), time.thread_time()
            ways[name](n)
            costs[name].cpu.append(time.thread_time() - used)
            costs[name].wall.append(time.perf_counter() - began)
    return costs


def recording(bench: Bench) -> list[Row]:
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    try:
        return [row for size in (10, 1_000, 10_000) for row in [*_posted(bench, size), *_clients(bench, url, size)]]
    finally:
        process.kill()
        process.join()


def _added(runs: list[dict[str, Cost]], name: str, goal: float | None) -> list[Row]:
    """What recording adds, in times of two appends by hand: in wall time, and in CPU."""
    rows = []
    for clock, title in (("wall", name), ("cpu", f"{name}: CPU")):
        added, by_hand = [], []
        for run in runs:
            recorded, plain, two = (getattr(run[way], clock) for way in ("recorded", "not recorded", "by hand"))
            added.append(statistics.median(a - b for a, b in zip(recorded, plain, strict=True)))
            by_hand.append(statistics.median(two))
        note = both(added, by_hand, "adds", "two appends by hand")
        rows.append(at_most(title, ratios(added, by_hand), goal, note))
    return rows


def _posted(bench: Bench, size: int) -> list[Row]:
    """What recording adds to a request of each dialect."""
    rows = []
    for dialect in DIALECTS:
        given = turns(dialect, size, bench.pick(15, 30))
        for is_cleaned in (False, True):
            runs = []
            for number in range(bench.pick(3, 7)):
                place = bench.place("posted", dialect, size, is_cleaned, number)
                runs.append(_posted_turns(bench, place, size, given, dialect, is_cleaned))
            name = f"what recording adds to a turn of {dialect}{', cleaned' if is_cleaned else ''}, {size:,}"
            rows += _added(runs, name, GOAL)
    return rows


def _posted_turns(
    bench: Bench, place: str, size: int, given: list[Turn], dialect: str, is_cleaned: bool
) -> dict[str, Cost]:
    sanitiser = hitherto.Sanitiser.secrets() if is_cleaned else None
    with (
        hitherto.open(f"{place}/recorded.db", sanitiser=sanitiser) as store,
        hitherto.open(f"{place}/by-hand.db", sanitiser=sanitiser) as other,
        Posting(given, dialect, store) as recorded,
        Posting(given, dialect, None) as plain,
    ):
        by_hand = _by_hand(other, size, given, dialect)
        ways: dict[str, Make] = {"recorded": recorded.turn, "not recorded": plain.turn, "by hand": by_hand}
        return _take_turns(bench, ways, len(given) - 1)


def _clients(bench: Bench, url: str, size: int) -> list[Row]:
    """What recording adds to a turn of an SDK, and to one of a client of ours."""
    count = bench.pick(30, 100) if size < 100 else bench.pick(8, 20)
    rows = []
    for name, who, begin in (("sdk", "OpenAI's SDK", _sdk_turn), ("client", "a client of ours", _own_turn)):
        if name == "sdk" and size > _SDK_SIZE:
            continue
        runs = []
        for number in range(bench.pick(3, 7)):
            place = bench.place(name, size, number)
            with (
                hitherto.open(f"{place}/recorded.db") as store,
                hitherto.open(f"{place}/by-hand.db") as other,
                begin(url, store, size) as recorded,
                begin(url, None, size) as plain,
            ):
                by_hand = _by_hand(other, size, turns("openai-chat", 0, count), "openai-chat")
                ways = {"recorded": recorded, "not recorded": plain, "by hand": by_hand}
                runs.append(_take_turns(bench, ways, count))
        whole, bare = ([statistics.median(run[way].wall) for run in runs] for way in ("recorded", "not recorded"))
        note = both(whole, bare, "recorded", "not")
        rows.append(at_most(f"turn of {who} at {size:,} messages, recorded", ratios(whole, bare), None, note))
        goal = GOAL if name == "client" else None  # what an SDK does itself hides what is added
        rows += _added(runs, f"what recording adds to a turn of {who}, {size:,}", goal)
    return rows
