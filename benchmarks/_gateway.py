"""The gateway beside a direct connection: one provider on loopback, in a process of its own, asked both ways in turn.

The provider answers in streams of events, as models do: after a moment, or at once, where the delay of one request is
measured, and one event each 20 ms where 64 streams come together. The gateway is the command itself, and keeps all of
it.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import hitherto

from ._table import Bench, Row, at_least, at_most

_OVERHEAD_MS = 2.0
_THROUGHPUT = 0.95
_STREAMS = 64
_TOKEN_SECONDS = 0.02
_THINK_SECONDS = 0.05  # before the first event; the question is kept meanwhile. Models take several times as long
_SYSTEM = "Be terse. " * 400  # a prompt of 4 kB


def gateway(bench: Bench) -> list[Row]:
    place = Path(bench.place("gateway")) / "store.db"
    with _running([sys.executable, "-m", "benchmarks._gateway"]) as provider:
        leads = f"anthropic={provider}"
        with _running(
            [sys.executable, "-m", "hitherto", "--store", str(place), "gateway", "--upstream", leads]
        ) as base:
            ways = {"direct": provider, "gateway": f"{base}/anthropic"}
            rows = asyncio.run(_measure(ways, bench.pick(100, 500), bench.pick(3, 7), bench.pick(50, 150)))
    with hitherto.open(place) as store:
        kept = sum(1 for message in store.messages() if message.role == "assistant")
    rows[-1] = rows[-1]._replace(note=f"{rows[-1].note}; {kept:,} answers kept")
    return rows


async def _measure(ways: dict[str, str], requests: int, rounds: int, events: int) -> list[Row]:
    clients = {way: await _Client.connect(url) for way, url in ways.items()}
    rows = []
    for think, goal, what in ((_THINK_SECONDS, _OVERHEAD_MS, "thinks for 50 ms"), (0.0, None, "answers at once")):
        single: dict[str, list[float]] = {way: [] for way in ways}
        for n in range(requests):
            for way, client in clients.items():
                single[way].append(await client.ask(n, events=3, think=think))
        median = {way: statistics.median(times) * 1000 for way, times in single.items()}
        over = f"median {median['direct']:.2f} ms direct, {median['gateway']:.2f} ms through the gateway"
        name = f"a model that {what}: delay that the gateway adds at the median, ms"
        rows.append(at_most(name, [median["gateway"] - median["direct"]], goal, over))
    ratios = []
    for n in range(rounds):
        took = {way: await _together(url, n, events) for way, url in ways.items()}
        ratios.append(took["direct"] / took["gateway"])
    streams = f"{events} events each, one every {_TOKEN_SECONDS * 1000:.0f} ms"
    return [
        *rows,
        at_least(f"{_STREAMS} streams through the gateway: share of the throughput", ratios, _THROUGHPUT, streams),
    ]


async def _together(url: str, n: int, events: int) -> float:
    clients = [await _Client.connect(url) for _ in range(_STREAMS)]
    began = time.perf_counter()
    todo = [client.ask(n * _STREAMS + i, events, _TOKEN_SECONDS, _TOKEN_SECONDS) for i, client in enumerate(clients)]
    await asyncio.gather(*todo)
    took = time.perf_counter() - began
    for client in clients:
        client.close()
    return took


class _Client:
    """A connection that is kept open."""

    def __init__(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._path, self._reader, self._writer = path, reader, writer

    @classmethod
    async def connect(cls, url: str) -> "_Client":
        parts = urlsplit(url)
        return cls(parts.path, *await asyncio.open_connection(parts.hostname, parts.port))

    async def ask(self, n: int, events: int, delay: float = 0.0, think: float = 0.0) -> float:
        """Ask once; the seconds to the end of the answer."""
        asked = [{"role": "user", "content": f"question {n} {time.perf_counter_ns()}"}]
        body = json.dumps({"model": "m", "stream": True, "system": _SYSTEM, "messages": asked, "max_tokens": events})
        began = time.perf_counter()
        self._writer.write(
            f"POST {self._path}/v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Delay: {delay}\r\nX-Think: {think}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        while not (await self._reader.readuntil(b"\r\n\r\n")).endswith(b"0\r\n\r\n"):
            pass
        return time.perf_counter() - began

    def close(self) -> None:
        self._writer.close()


@contextmanager
def _running(command: list[str]) -> Iterator[str]:
    """Run a server; its address."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate()


# -- the provider, in a process of its own


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            asked = json.loads(await reader.readexactly(int(fields["content-length"])))
            await asyncio.sleep(float(fields["x-think"]))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for event in _events(asked["max_tokens"]):
                data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
                writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                await writer.drain()
                if float(fields["x-delay"]):
                    await asyncio.sleep(float(fields["x-delay"]))
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _events(count: int) -> Iterator[dict]:
    usage = {"input_tokens": 5, "output_tokens": count}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    yield {"type": "message_start", "message": message}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    for n in range(count):
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": f"word {n} "}}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
    yield {"type": "message_stop"}


async def _provide() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_provide())
