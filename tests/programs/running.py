"""Programs below `.tools/programs`, each run in an empty home against a provider on loopback."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from hitherto import Store
from hitherto.rescue import Rescue

_FOLDER = os.environ.get("HITHERTO_PROGRAMS", "")
SECONDS = 120  # for one run of a program

_COMMANDS = {
    "claude": ("node", "npm/node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs"),
    "codex": ("node", "npm/node_modules/@openai/codex/bin/codex.js"),
    "gemini": ("node", "npm/node_modules/@google/gemini-cli/bundle/gemini.js"),
    "llm": ("python/bin/llm",),
    "ccusage": ("node", "npm/node_modules/ccusage/dist/index.js"),
}


def needs(program: str) -> pytest.MarkDecorator:
    """Skip tests unless `make test-programs` runs them, and has installed the program."""
    there = bool(_FOLDER) and (Path(_FOLDER) / _COMMANDS[program][-1]).exists()
    return pytest.mark.skipif(not there, reason=f"`make test-programs` installs {program}, and runs it")


def _command(program: str) -> list[str]:
    *before, last = _COMMANDS[program]
    return [*before, str(Path(_FOLDER).resolve() / last)]


class AppServer:
    """Codex, asked by lines of JSON-RPC."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process, self._asked = process, 0
        self.call("initialize", clientInfo={"name": "tests", "title": "tests", "version": "1"})

    def call(self, method: str, **params: object) -> Any:
        """Call a method, and return its result."""
        self._asked += 1
        self._write({"id": self._asked, "method": method, "params": params})
        answer = next(line for line in self._lines() if line.get("id") == self._asked and "method" not in line)
        return answer["result"]

    def wait_for(self, event: str) -> None:
        next(line for line in self._lines() if line.get("method") == event)

    def _write(self, line: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def _lines(self) -> Iterator[Any]:
        assert self._process.stdout is not None
        yield from map(json.loads, self._process.stdout)


class Terminal:
    """A terminal of tmux with a program in it."""

    def __init__(self, socket: Path) -> None:
        self._tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]

    def press(self, *keys: str) -> None:
        subprocess.run([*self._tmux, "send-keys", *keys], check=True, timeout=SECONDS)

    def say(self, text: str, answer: str) -> None:
        """Type a line, and wait for what the program shows then. A program that was still drawing takes the first
        Enter for a part of the text."""
        self.press("-l", text)
        self.wait_for(text)
        self.press("Enter")
        self.press_until(answer, "Enter", every=4)

    def press_until(self, text: str, *keys: str, every: float = 0.5) -> None:
        def is_there() -> bool:
            if text not in self.screen():
                self.press(*keys)
                return False
            return True

        wait_until(is_there, every=every)

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.screen())

    def screen(self) -> str:
        done = subprocess.run(
            [*self._tmux, "capture-pane", "-p"], capture_output=True, text=True, timeout=SECONDS, check=True
        )
        return done.stdout


def wait_until(is_done: Callable[[], object], *, every: float = 0.2) -> None:
    end = time.monotonic() + SECONDS / 4
    while not is_done():
        assert time.monotonic() < end, "the program did not show what was waited for"
        time.sleep(every)


class Home:
    """An empty home, with a folder of work in it."""

    def __init__(self, path: Path, **variables: str) -> None:
        self.path, self.work = path, path / "work"
        self.work.mkdir(parents=True)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(path),
            "TERM": "dumb",
            "NO_PROXY": "127.0.0.1",
            "HTTPS_PROXY": "http://127.0.0.1:9",  # no program reaches anything but the provider
            "HTTP_PROXY": "http://127.0.0.1:9",
            **variables,
        }

    def put_on_path(self, program: str) -> None:
        """Let the program be found by its name, as an installation does."""
        commands = self.path / "bin"
        commands.mkdir(exist_ok=True)
        (commands / program).write_text(f'#!/bin/sh\nexec {" ".join(_command(program))} "$@"\n')
        (commands / program).chmod(0o755)
        self.env["PATH"] = f"{commands}:{self.env['PATH']}"

    def run(self, program: str, *words: str) -> str:
        """Run a program to its end, and return all that it printed. Its failure fails the test."""
        done = subprocess.run(
            [*_command(program), *words], cwd=self.work, env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout + done.stderr

    @contextmanager
    def terminal(self, program: str, *words: str) -> Iterator[Terminal]:
        """Run a program in a terminal."""
        socket = self.path / "tmux"
        tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        env = {**self.env, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        begin = ["new-session", "-d", "-x", "160", "-y", "50", *_command(program), *words]
        subprocess.run([*tmux, *begin], cwd=self.work, env=env, check=True, timeout=SECONDS)
        try:
            yield Terminal(socket)
        finally:
            subprocess.run([*tmux, "kill-server"], check=False, timeout=SECONDS)

    @contextmanager
    def app_server(self) -> "Iterator[AppServer]":
        """Run Codex as the server that editors talk to."""
        with subprocess.Popen(
            [*_command("codex"), "app-server"], cwd=self.work, env=self.env, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        ) as process:  # fmt: skip
            timer = Timer(SECONDS, process.kill)
            timer.start()
            try:
                yield AppServer(process)
            finally:
                timer.cancel()
                process.terminate()

    def rescue(self, store: Store, *programs: str) -> int:
        """Bring in what the programs have written, all of it, and return the number of new messages."""
        work = Rescue(store, programs=programs, env=self.env, home=self.path)
        reports = [work.bring_in(place) for place in work.places()]
        assert not [one for report in reports for one in (*report.unreadable, *report.waiting, *report.notes)]
        return sum(report.messages for report in reports)
