"""Measured processes. Each is a fork of this one, which has everything imported and no store open."""

import contextlib
import gc
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from ._sides import ALL_SIDES

_processes = multiprocessing.get_context("fork")


def _serve(pipe: Connection, side: str | None, folder: str) -> None:
    gc.freeze()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        opened = None if side is None else ALL_SIDES[side](folder)
        while True:
            call = pipe.recv()
            if call is None:
                break
            function, arguments = call
            pipe.send((function(opened if side is not None else folder, *arguments), None))
        if opened is not None:
            opened.close()
    except EOFError:
        pass
    except BaseException:  # noqa: BLE001  # whatever it was, the parent reports it
        with contextlib.suppress(OSError):
            pipe.send((None, traceback.format_exc(limit=-4)))
    os._exit(0)


class Child:
    """A process with one side open (or, without a side, with nothing but a folder), that runs functions on it."""

    def __init__(self, side: str | None, folder: str) -> None:
        self._pipe, theirs = _processes.Pipe()
        self._process = _processes.Process(target=_serve, args=(theirs, side, folder), daemon=True)
        self._process.start()
        theirs.close()

    def __call__(self, function: Callable[..., Any], *arguments: object) -> Any:
        self.send(function, *arguments)
        return self.receive()

    def send(self, function: Callable[..., Any], *arguments: object) -> None:
        with contextlib.suppress(OSError):  # if it is dead, it has said why
            self._pipe.send((function, arguments))

    def receive(self) -> Any:
        try:
            result, error = self._pipe.recv()
        except (EOFError, OSError):
            result, error = None, "a measured process died"
        if error is not None:
            raise RuntimeError(error)
        return result

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join(30)
        if self._process.is_alive():
            self.kill()
        self._pipe.close()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def once(side: str | None, folder: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Run one function in a process of its own."""
    with Child(side, folder) as child:
        return child(function, *arguments)
