"""Processes of `python -m hitherto`, or another module, forked from a process that has done the imports.

Most of the second that `hitherto chat` takes is the import of a provider's SDK. The forked processes skip that.
Otherwise they are ordinary processes: each has a process id, a folder, an environment, standard
streams, signals and an exit code of its own, and a terminal if it is given one. Tests of the start itself, and one
test of each kind, use the ordinary command.

This file is also the program from which they are forked. It is told what to start over a socket, one line of JSON and
the streams each, and tells the process id, and how the process ended, over a pipe that comes with them.
"""

import array
import atexit
import contextlib
import fcntl
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

IMPORTS = (
    *("hitherto.cli._chat", "hitherto.cli._dialogue", "hitherto.cli._session", "hitherto.cli._line_editor"),
    *("hitherto.chat", "hitherto.recorder", "hitherto.store", "hitherto.backends.sqlite"),
    *("hitherto.cli._backup_restore", "hitherto.opening", "hitherto.backends.sqlite.retrying_reader"),
    *("hitherto.formats.own.jsonl", "hitherto.cli._question", "hitherto.cli._slash_commands"),
    *(
        f"hitherto.cli.{name}"
        for name in ("_main", "_conversation", "_log", "_search", "_purge_verify", "_stats", "_doctor")
    ),
    *("platformdirs.unix", "hitherto.backends.sqlite.fts", "hitherto._engine.verify", "hitherto._engine.statistics"),
    *(
        "hitherto._sealing.sealed",
        "cryptography.hazmat.primitives.ciphers.aead",
        "cryptography.hazmat.primitives.kdf.hkdf",
    ),
)


class Forked:
    """A process, to be used like a `subprocess.Popen`."""

    def __init__(self, status: io.FileIO) -> None:
        self._status, self._lock = status, threading.Lock()
        self.returncode: int | None = None
        self.pid = int(status.readline())

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        while self.returncode is None:
            try:
                ready = select.select([self._status], [], [], timeout)[0]
            except (OSError, ValueError):  # another thread has read it meanwhile, and closed the pipe
                continue
            if not ready:
                raise subprocess.TimeoutExpired("hitherto", timeout or 0)
            with self._lock:
                if self.returncode is None:
                    self.returncode = os.waitstatus_to_exitcode(int(self._status.readline()))
                    self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()


class Forker:
    """The process from which the others are forked."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.support.forked", str(theirs.fileno())]
            self._process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def start(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        streams: Sequence[int],
        module: str = "hitherto",
        session: bool = False,
    ) -> Forked:
        """`python -m hitherto`, with these arguments; as the first process of its terminal, if `session`."""
        reader, writer = os.pipe()
        told = {"module": module, "arguments": list(arguments), "cwd": str(cwd), "env": dict(env), "session": session}
        line = json.dumps(told).encode() + b"\n"
        try:
            sent = socket.send_fds(self._socket, [line], [*streams, writer])
            self._socket.sendall(line[sent:])
        finally:
            os.close(writer)
        return Forked(io.FileIO(reader))

    def run(
        self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], given: bytes, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Give it something to read, which fits into a pipe, and wait for its end and for all that it writes."""
        read, write = os.pipe()
        os.write(write, given)
        os.close(write)
        pipes = [os.pipe(), os.pipe()]
        process = self.start(arguments, cwd=cwd, env=env, streams=[read, *(pipe[1] for pipe in pipes)])
        for descriptor in (read, *(pipe[1] for pipe in pipes)):
            os.close(descriptor)
        written: list[bytes] = [b"", b""]

        def drain(number: int) -> None:
            with io.FileIO(pipes[number][0]) as pipe:
                written[number] = pipe.readall()

        readers = [threading.Thread(target=drain, args=(number,)) for number in range(2)]
        for reader in readers:
            reader.start()
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
            for reader in readers:
                reader.join()
        return subprocess.CompletedProcess(list(arguments), code, *written)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(60)


# -- the process from which the others are forked


def _lines(control: socket.socket, woken: int, tell: Callable[[], None]) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """The processes to start, one by one; `tell` is called whenever a process has ended."""
    data, fds = b"", array.array("i")
    while True:
        ready = select.select([control.fileno(), woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            tell()
        if control.fileno() in ready:
            more, came, _, _ = socket.recv_fds(control, 1 << 16, 4)
            if not more:
                return
            data += more
            fds.extend(came)
            if data.endswith(b"\n"):
                yield json.loads(data), list(fds)
                data, fds = b"", array.array("i")
                tell()


_code: list[int] = []  # the exit code of the process that this one has become, at its end


def end() -> None:
    """End the process at once, after all other exit handlers. From here on Python would only free its memory piece by
    piece, which takes ten times as long as most commands do. Not if an exception is left to report, or if the last
    output could not be written."""
    if _code:
        with contextlib.suppress(OSError, ValueError):  # Python tries it again, and says so
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_code[0])


def serve(control: socket.socket) -> None:
    atexit.register(end)  # the first is called last

    import openai

    for name in IMPORTS:
        __import__(name)
    openai.OpenAI(api_key="none", base_url="http://127.0.0.1:9").close()  # imports the rest
    gc.collect()
    gc.freeze()  # what is here already is nothing for those that are forked to collect
    assert threading.active_count() == 1
    statuses: dict[int, int] = {}  # the pipes to tell the status over, by process id
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)

    def tell() -> None:
        for pid in list(statuses):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with contextlib.suppress(BrokenPipeError), io.FileIO(statuses.pop(pid), "w") as pipe:
                    pipe.write(b"%d\n" % status)

    for told, (*streams, status) in _lines(control, woken, tell):
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            for descriptor in (woken, waker, status, *statuses.values()):
                os.close(descriptor)
            become(told, streams)
            return
        os.write(status, b"%d\n" % pid)
        statuses[pid] = status
        for descriptor in streams:
            os.close(descriptor)


def become(told: dict[str, Any], streams: Sequence[int]) -> None:
    """Be the process that was asked for, until its end."""
    if told["session"]:
        os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if told["session"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["env"])
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        like = getattr(sys, name)  # as Python itself made it, for other files
        file = open(number, f"{mode}b", closefd=False)  # noqa: SIM115  # it is the process's for good
        at_once = mode == "w" and (number == 2 or file.isatty())
        stream = io.TextIOWrapper(file, like.encoding, like.errors, "\n" if mode == "w" else None, at_once)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = [told["module"], *told["arguments"]]
    try:
        runpy.run_module(told["module"], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, int):
            _code.append(ended.code & 0xFF)
        raise


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
