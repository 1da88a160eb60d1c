"""Another program that talks in lines of JSON, and what keeps it from outliving us.

The program runs in a process group of its own, so that Ctrl+C in the terminal reaches us and not it, and so that
whatever it starts ends with it. Its lines are read by a thread into an inbox, where other things may be put too: who
waits, waits in one place. What it says on its error output is not read: it may repeat what was said in the
conversation, and errors go into logs.
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

_PATIENCE_SECONDS = 2.0  # for a program that was asked to end


class Ended:
    """In the inbox: the program will say no more."""


class Program:
    """A running program. `inbox` has its lines, and at last `Ended`."""

    def __init__(
        self, command: Sequence[str], folder: Path, env: Mapping[str, str], inbox: "queue.SimpleQueue[object]"
    ) -> None:
        """`folder` is where it runs; it is removed with everything in it when the program has ended."""
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
        # Also when nobody closes it: no reference to the program may be held by the thread.
        self._end = weakref.finalize(self, _end, self._process, reader, folder, os.getpid())

    def write(self, message: Mapping[str, object]) -> None:
        """Send a line. A program that does not read its input does not stop us: it is waited for in the inbox only."""
        line = json.dumps(message).encode() + b"\n"
        threading.Thread(target=_write, args=(self._input, line), name="hitherto-claude-input", daemon=True).start()

    def status(self) -> int | None:
        """How it ended, if it has: the exit status, negative for a signal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_PATIENCE_SECONDS)
        return None

    def close(self) -> None:
        """End it, with everything it has started. May be called again."""
        self._end()


def _read(lines: IO[bytes], inbox: "queue.SimpleQueue[object]") -> None:
    with contextlib.suppress(ValueError, OSError):
        for line in lines:
            inbox.put(line)
    inbox.put(Ended())


def _write(file: IO[bytes], line: bytes) -> None:
    with contextlib.suppress(ValueError, OSError):  # that it has ended is seen where its lines are read
        file.write(line)
        file.flush()


def _end(process: "subprocess.Popen[bytes]", reader: threading.Thread, folder: Path, owner: int) -> None:
    if owner != os.getpid():  # forked from the one whose program it is
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
    """To the whole group, which may be there still when the program itself has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
