"""`hitherto` as people and pipes use it: real processes, a pseudo-terminal where one matters, and a service on loopback
that answers as OpenAI's does, a piece at a time. Most of the processes are forked from one that has done the imports;
some of each kind are started by the command itself.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import hitherto

from .forked import Forked, Forker

COMMAND = [sys.executable, "-m", "hitherto"]
PATIENCE = 150.0  # seconds: never waited for unless something is wrong
_SPACE = re.compile(r"(\S)\x08\x1b\[2C")  # how the editor writes a space at the end of a line
_STYLING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Service:
    """Answers chat completions with what it is told: pieces, or a function of the request that gives them. It waits
    before a piece that is None until `go` is set, and then says no more if `gone`."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.pieces: list[str | None] = ["Good ", "morning."]
        self.answers: dict[str, str] = {}  # by what the question begins with, in place of the pieces
        self.status = 200
        self.waiting = threading.Event()
        self.go = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            disable_nagle_algorithm = True  # or a piece waits until the one before it is acknowledged

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                outer.headers.append(dict(self.headers))
                outer.requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                with contextlib.suppress(OSError):
                    outer.answer(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(self.status)
        handler.send_header("content-type", "text/event-stream" if self.status == 200 else "application/json")
        handler.end_headers()
        if self.status != 200:
            handler.wfile.write(b'{"error": {"message": "out of order"}}')
            return
        for piece in [*self._pieces(), ""]:
            if piece is None:
                self.waiting.set()
                self.go.wait(PATIENCE)
                continue
            choice = {"index": 0, "delta": {"role": "assistant", "content": piece}, "finish_reason": None}
            if piece == "":
                choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
            handler.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            handler.wfile.flush()
        handler.wfile.write(b"data: [DONE]\n\n")

    def _pieces(self) -> list[str | None]:
        asked = str(self.requests[-1]["messages"][-1]["content"])
        answer = next((answer for begun, answer in self.answers.items() if asked.startswith(begun)), None)
        return self.pieces if answer is None else list(re.findall(r"\S+\s*", answer))

    def asked(self) -> list[tuple[str, str]]:
        """The last request's messages."""
        return [(message["role"], message["content"]) for message in self.requests[-1]["messages"]]

    def close(self) -> None:
        self.go.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def environment() -> dict[str, str]:
    """Return the environment of every process, with nothing of the user's. The certificates are those of the tests."""
    passed = ("PATH", "COVERAGE_PROCESS_START", "SSL_CERT_FILE", "OMP_WAIT_POLICY")
    return {name: os.environ[name] for name in passed if name in os.environ} | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TERM": "xterm",
        "LANG": "C.UTF-8",
    }


class World:
    """A folder, a home and a store of the test's own, and a service to talk to."""

    def __init__(self, root: Path, service: Service, forker: Forker) -> None:
        self.forker = forker
        self.root, self.here, self.home, self.service = root, root / "here", root / "home", service
        self.place = root / "store" / "chats.db"
        for folder in (self.here, self.home, self.place.parent):
            folder.mkdir()
        self.env = environment() | {
            "HOME": str(self.home),
            "XDG_DATA_HOME": str(self.home / "data"),
            "HITHERTO_STORE": str(self.place),
        }

    def chatting(self, *given: str) -> list[str]:
        """`hitherto chat`, with the service."""
        service = ["--provider", "openai-compatible", "--base-url", self.service.url]
        return [*COMMAND, "chat", *service, *given]

    def run(
        self, *given: str, said: str | bytes = "", forked: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        return self.plain(*self.chatting(*given), said=said, forked=forked, **env)

    def plain(
        self, *command: str, said: str | bytes = "", forked: bool = False, **env: str
    ) -> subprocess.CompletedProcess[str]:
        data = said.encode() if isinstance(said, str) else said
        how: dict[str, Any] = {"cwd": self.here, "env": self.env | env, "timeout": PATIENCE}
        if forked:
            assert list(command[: len(COMMAND)]) == COMMAND
            done = self.forker.run(command[len(COMMAND) :], given=data, **how)
        else:
            done = subprocess.run(command, input=data, capture_output=True, check=False, **how)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())

    def command(self, *given: str, said: str | bytes = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Any command, in pipes."""
        return self.plain(*COMMAND, *given, said=said, forked=True, **env)

    def store(self, **how: Any) -> hitherto.Store:
        return hitherto.open(self.place, **how)

    def thread(self) -> list[tuple[str, str]]:
        """Return the stored messages of the newest conversation."""
        with self.store() as store:
            talk = store.latest()
            assert talk is not None
            return [(message.role, message.text) for message in talk.thread()]

    def partials(self) -> list[str]:
        with self.store() as store:
            talk = store.latest()
            assert talk is not None
            return [partial.text for partial in talk.partials()]

    def traces(self) -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(self.root.rglob("*"))}


class Terminal:
    """A process in a pseudo-terminal: what it shows, and keys to press."""

    process: Forked | subprocess.Popen[bytes]

    def __init__(
        self,
        world: World,
        *given: str,
        command: list[str] | None = None,
        forked: bool = True,
        size: tuple[int, int] | None = None,
        **env: str,
    ) -> None:
        """`hitherto chat` with these arguments, or another command of ours or of anybody's. `size` is in columns and
        lines."""
        self.shown, self._raw = "", ""
        self._master, slave = pty.openpty()
        if size is not None:
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        env = world.env | {"INPUTRC": "/dev/null", "PROMPT_TOOLKIT_NO_CPR": "1"} | env
        command = command or world.chatting(*given)
        if forked and command[: len(COMMAND)] == COMMAND:
            arguments = command[len(COMMAND) :]
            streams = [slave, slave, slave]
            self.process = world.forker.start(arguments, cwd=world.here, env=env, streams=streams, session=True)
        else:
            self.process = subprocess.Popen(
                command,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                cwd=world.here,
                env=env,
                start_new_session=True,
                preexec_fn=lambda: _take_terminal(slave),  # noqa: PLW1509  # so that Ctrl+C reaches it
            )
        os.close(slave)

    @property
    def plain(self) -> str:
        """Return the shown text, without colours and movements of the cursor."""
        return _STYLING.sub("", self.shown)

    def read(self, until: str, after: int = 0) -> int:
        """Wait until something is shown after that place; gives the place behind it."""
        deadline = time.monotonic() + PATIENCE
        while until not in self.shown[after:]:
            assert time.monotonic() < deadline, self.shown
            assert self._more(deadline), f"it ended: {self.shown}"
        return self.shown.index(until, after) + len(until)

    def shows(self, *these: str, after: int = 0) -> str | None:
        """Which of these is shown first after that place; None if it ends without."""
        deadline = time.monotonic() + PATIENCE
        while not any(one in self.shown[after:] for one in these):
            assert time.monotonic() < deadline, self.shown
            if not self._more(deadline):
                return None
        return min((one for one in these if one in self.shown[after:]), key=self.shown[after:].index)

    def _more(self, deadline: float) -> bool:
        if not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # on Linux, this is how a terminal that nobody has open any more ends
            return False
        self._raw += data.decode(errors="replace")
        self.shown = _SPACE.sub(r"\1 ", self._raw)
        return bool(data)

    def wait_for_work(self) -> None:
        """Wait until the editor has given the terminal back: what is pressed from then on is not for it."""
        deadline = time.monotonic() + PATIENCE
        while not termios.tcgetattr(self._master)[3] & termios.ICANON:
            assert time.monotonic() < deadline, self.shown
            self._more(time.monotonic() + 0.01)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def end(self) -> int:
        """Wait for the end; how it went."""
        deadline = time.monotonic() + PATIENCE
        while self._more(deadline):
            assert time.monotonic() < deadline, self.shown
        code = self.process.wait(PATIENCE)
        assert "Traceback" not in self.shown, self.shown
        return code

    def stop(self, after: int) -> int:
        """Press Ctrl+C while an answer comes, and wait until it is said to have stopped. If it is not, press again:
        Python does not see a press in the very moment in which it begins to wait."""
        self.press("\x03")
        deadline = time.monotonic() + PATIENCE / 4
        while "stopped" not in self.shown[after:] and time.monotonic() < deadline:
            self._more(deadline)
        if "stopped" not in self.shown[after:]:
            self.press("\x03")
        return self.read("> ", self.read("stopped", after))

    def interrupt(self) -> int:
        """Press Ctrl+C until it ends, for the same reason."""
        while self.process.poll() is None:
            self.press("\x03")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
        return self.end()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


def _take_terminal(slave: int) -> None:
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


Open = Callable[..., Terminal]
