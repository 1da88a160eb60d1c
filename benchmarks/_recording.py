"""Recording a chat: what it adds to a turn, for an SDK that sends the whole history and for a client of ours.

The provider is a process of its own on loopback that answers at once, so that the turn is as short as a turn can be:
nothing of what recording costs can hide behind a model that thinks.
"""

import json
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import hitherto
from hitherto import Message
from hitherto.chat import Client, Config, new_client

from ._table import Bench, Row, at_most, both, ratios

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


def _history(size: int) -> list[dict[str, object]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": f"Message {n}. " + "It goes on for a while. " * 8} for n in range(size)]


def _sdk_turns(url: str, store: hitherto.Store | None, size: int, count: int) -> float:
    """Seconds of a turn through OpenAI's own SDK."""
    import openai

    sdk: Any = openai.OpenAI(base_url=url, api_key="k")
    if store is not None:
        hitherto.record(sdk, store)
    history = _history(size)
    with sdk:

        def turn(n: int) -> None:
            history.append({"role": "user", "content": f"And {n}?"})
            done = sdk.chat.completions.create(model="m", messages=history)
            history.append({"role": "assistant", "content": done.choices[0].message.content})

        return _timed(turn, count)


def _own_turns(url: str, store: hitherto.Store | None, size: int, count: int) -> float:
    """Seconds of a turn through a client of ours."""
    client = new_client(Config("openai-compatible", "m", url, "k", allow_insecure_base_url=True))
    if not isinstance(client, Client):
        raise TypeError("not a client that keeps its history")
    with client:
        client._replace(client.parse_history(_history(size)))
        if store is not None:
            hitherto.record(client, store)
        return _timed(lambda n: client.chat(f"And {n}?") and None, count)


def _timed(turn: Callable[[int], None], count: int) -> float:
    turn(0)  # connects, and keeps what was said before
    began = time.perf_counter()
    for n in range(count):
        turn(n + 1)
    return (time.perf_counter() - began) / count


def _appends(store: hitherto.Store, size: int, count: int) -> float:
    """Seconds of the same two appends by hand."""
    talk = store.start()
    talk.extend([Message(str(m["role"]), (hitherto.Block.text(str(m["content"])),), raw=m) for m in _history(size)])

    def turn(n: int) -> None:
        talk.append(Message.user(f"And {n}?", raw={"role": "user", "content": f"And {n}?"}))
        talk.append(Message.assistant("Yes. " * 40, raw=_SAID))

    return _timed(turn, count)


def recording(bench: Bench) -> list[Row]:
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    try:
        return [row for size in (10, 1000) for row in _rows(bench, url, size)]
    finally:
        process.kill()
        process.join()


def _rows(bench: Bench, url: str, size: int) -> list[Row]:
    found: dict[str, list[float]] = {}
    count = bench.pick(30, 100) if size < 100 else bench.pick(8, 20)  # the SDK itself takes its time over long ones
    for number in range(bench.pick(3, 7)):
        for name in bench.shuffled(["sdk", "sdk, recorded", "client", "client, recorded", "by hand"]):
            found.setdefault(str(name), []).append(_measured(bench, url, str(name), size, number, count))
    rows = []
    for name, who in (("sdk", "OpenAI's SDK"), ("client", "a client of ours")):
        plain, recorded = found[name], found[f"{name}, recorded"]
        added = [a - b for a, b in zip(recorded, plain, strict=True)]
        note = both(recorded, plain, "recorded", "not")
        rows.append(at_most(f"turn of {who} at {size:,} messages, recorded", ratios(recorded, plain), None, note))
        by_hand = found["by hand"]
        note = both(added, by_hand, "adds", "two appends by hand")
        rows.append(
            at_most(f"what recording adds to it, against two appends, {size:,}", ratios(added, by_hand), None, note)
        )
    return rows


def _measured(bench: Bench, url: str, name: str, size: int, number: int, count: int) -> float:
    """Seconds of a turn in this way."""
    turns = _sdk_turns if name.startswith("sdk") else _own_turns
    if name in ("sdk", "client"):
        return turns(url, None, size, count)
    with hitherto.open(f"{bench.place('recording', size, number, name.split(',', maxsplit=1)[0])}/c.db") as store:
        return _appends(store, size, count) if name == "by hand" else turns(url, store, size, count)
