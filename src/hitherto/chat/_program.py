"""A child process that talks in lines of JSON, and ends when we do.

The program runs in a process group of its own. So Ctrl+C in the terminal reaches us and not the program, and all
processes that it starts end with it. A thread reads its lines into an inbox. Other events may be put there too, so that
the caller waits in one place. The error output is not read: it may repeat parts of the conversation, and errors go into
logs.
"""

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_PATIENCE_SECONDS = 2.0  # grace period for a program that was asked to end


class Ended:
    """The last item in the inbox: the program has closed its output."""


class Program:
    """A running program. `inbox` receives its lines, and `Ended` at the end."""

    def __init__(
        self, command: Sequence[str], folder: Path, env: Mapping[str, str], inbox: "queue.SimpleQueue[object]"
    ) -> None:
        """Start the program in `folder`, which is removed with all its content when the program has ended."""
        self.inbox = inbox
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._input = self._process.stdin
        reader = threading.Thread(
            target=_read, args=(self._process.stdout, self.inbox), name="hitherto-claude", daemon=True
        )
        reader.start()
        # This also runs without a call of `close`, so the thread must hold no reference to the program.
        self._end = weakref.finalize(self, _end, self._process, reader, folder, os.getpid())

    def write(self, message: Mapping[str, object]) -> None:
        """Send a line without waiting. A program that does not read its input cannot block the caller."""
        line = json.dumps(message).encode() + b"\n"
        threading.Thread(target=_write, args=(self._input, line), name="hitherto-claude-input", daemon=True).start()

    def status(self) -> int | None:
        """Return the exit status, negative for a signal, or None if the program still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_PATIENCE_SECONDS)
        return None

    def close(self) -> None:
        """End the program and all processes that it has started. May be called again."""
        self._end()


def _read(lines: IO[bytes], inbox: "queue.SimpleQueue[object]") -> None:
    with contextlib.suppress(ValueError, OSError):
        for line in lines:
            inbox.put(line)
    inbox.put(Ended())


def _write(file: IO[bytes], line: bytes) -> None:
    with contextlib.suppress(ValueError, OSError):  # the reader of its lines notices that it has ended
        file.write(line)
        file.flush()


def _end(process: "subprocess.Popen[bytes]", reader: threading.Thread, folder: Path, owner: int) -> None:
    if owner != os.getpid():  # a fork of the process that owns the program
        return
    _signal(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE_SECONDS)
    _signal(process, signal.SIGKILL)
    process.wait()
    if reader is not threading.current_thread():
        reader.join(_PATIENCE_SECONDS)
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if pipe:
                pipe.close()
    shutil.rmtree(folder, ignore_errors=True)


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Send a signal to the whole process group, which may outlive the program itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
