"""Transcripts: commands and what they show, in files that people read, run for real.

    $ hitherto rename 6f1c2a84 "A better title"
    renamed 6f1c2a84, which was called Failing build

Ids, times and sizes are others in each run. So a transcript fits if everything else is the same, and if each id in it
stands for one id of the run, the same wherever it stands: what is typed in a command is translated before it is run.

Every transcript is run twice: in a pseudo-terminal, where what is shown must be the same line by line, and in pipes,
where it must be the same lines, since there standard output and standard error have no order between them.
`HITHERTO_TRANSCRIPTS=write make docs` writes what the terminal shows into the files, to be read before it is kept.
"""

import contextlib
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hitherto import errors

from .command import COMMAND, Terminal, World

COLUMNS, LINES = 80, 1000
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = set("|><;&*`$")
_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b(?=[0-9a-f]*\d)[0-9a-f]{8}\b|\b[0-9A-Za-z]{6}\b"
_TIMES = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?Z?)?|\d{4}-\d\d-\d\d|\d{8}T?\d{6}Z?"
_OTHER = rf"{_TIMES}|\b[0-9a-f]{{16}}\b|\d[\d,.]*|\S*/\S+"
_VARIES = re.compile(f"({_ID}|{_OTHER})")
_IS_ID = re.compile(_ID)
_FIRST = re.compile(r"^[\s●○│┊─┘├]*([0-9A-Za-z]{6})(?= \(|$)|\b([0-9a-f]{8})\b")  # where an id is surely one


@dataclass
class Step:
    """A command, what it is to show, and where that stands in the file."""

    typed: str
    shown: list[str]
    start: int
    end: int


@dataclass
class Names:
    """Which id of the run each id of the file stands for."""

    ours: dict[str, str] = field(default_factory=dict)
    theirs: dict[str, str] = field(default_factory=dict)

    def translate(self, typed: str) -> str:
        return _IS_ID.sub(lambda found: self.ours.get(found[0], found[0]), typed)

    def fits(self, written: str, shown: str) -> bool:
        """Is this line what was written, but for what varies?"""
        left, right = _VARIES.split(written), _VARIES.split(shown)
        if len(left) != len(right) or left[::2] != right[::2]:
            return False
        return all(self._same(a, b) for a, b in zip(left[1::2], right[1::2], strict=True))

    def _same(self, written: str, shown: str) -> bool:
        if bool(_IS_ID.fullmatch(written)) != bool(_IS_ID.fullmatch(shown)):
            return False
        if not _IS_ID.fullmatch(written) or written == shown:  # a word of six letters, say
            return bool(_IS_ID.fullmatch(written)) or _kind(written) == _kind(shown)
        if self.ours.setdefault(written, shown) != shown or self.theirs.setdefault(shown, written) != written:
            return False
        if len(written) > 8:  # what is shown short stands for the same
            self.ours.setdefault(written[:8], shown[:8])
            self.theirs.setdefault(shown[:8], written[:8])
        return True


def _kind(text: str) -> str:
    """Return the kind of a varying text: digits vary, the rest does not; of a path, only the last part counts."""
    if "/" in text:
        text = text.rstrip(".,;:)").rsplit("/", 1)[1]
    return "key" if re.fullmatch(r"[0-9a-f]{16}", text) else re.sub(r"\d+", "0", text.replace(",", ""))


def steps(text: str) -> Iterator[Step]:
    """The commands in a file, in order."""
    for block in _BLOCK.finditer(text):
        place, step = block.start(1), None
        for line in block[1].splitlines(keepends=True):
            if line.startswith("$ "):
                if step is not None:
                    yield step
                step = Step(line[2:].rstrip("\n"), [], place + len(line), place + len(line))
            elif step is not None:
                step.shown.append(line.rstrip("\n"))
                step.end = place + len(line)
            place += len(line)
        if step is not None:
            yield step


class Player:
    """Runs the commands of a transcript, one after the other."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.code = 0
        self._ids: set[str] = set()
        folder = world.root / "bin"
        folder.mkdir()
        script = folder / "hitherto"
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hitherto "$@"\n')
        script.chmod(0o755)
        world.env |= {"PATH": f"{folder}:{world.env['PATH']}", "NO_COLOR": "1", "COLUMNS": str(COLUMNS), "PAGER": "cat"}
        world.env |= {"USER": "someone", "SHELL": "/bin/bash"}

    def ids(self) -> set[str]:
        """All ids that there are, or were."""
        with contextlib.suppress(errors.HithertoError), self.world.store(read_only=True) as store:
            self._ids |= {id for message in store.messages() for id in (message.id, message.conversation)}
        return self._ids

    def in_terminal(self, typed: str) -> list[str]:
        terminal = Terminal(self.world, command=self._command(typed), size=(COLUMNS, LINES))
        try:
            self.code = terminal.end()
        finally:
            terminal.close()
        shown = terminal.shown.replace("\r\n", "\n").rstrip("\n")
        return self._placed(re.sub(r"^.*\r\x1b\[K", "", shown, flags=re.MULTILINE))

    def in_pipes(self, typed: str) -> list[str]:
        command = self._command(typed)
        done = self.world.plain(*command, forked=command[: len(COMMAND)] == COMMAND)
        self.code = done.returncode
        return self._placed((done.stdout + done.stderr).rstrip("\n"))

    def _placed(self, shown: str) -> list[str]:
        """The lines, with places as they would be on somebody's machine."""
        for place, called in (
            (self.world.place, "/home/ada/chats.db"),
            (self.world.here, "/home/ada/project"),
            (self.world.home, "/home/ada"),
        ):
            shown = shown.replace(str(place), called)
        return shown.split("\n") if shown else []

    def _command(self, typed: str) -> list[str]:
        if typed == "echo $?":
            return ["echo", str(self.code)]
        if not typed.startswith("hitherto ") or _SHELL & set(typed):
            return ["sh", "-c", typed]
        words = shlex.split(typed)[1:]
        return self.world.chatting(*words[1:]) if words[0] == "chat" else [*COMMAND, *words]


def play(path: Path, run: Callable[[str], list[str]], *, ordered: bool) -> str:
    """Run all commands of a file; the first that shows something else, and what."""
    names = Names()
    for step in steps(path.read_text()):
        shown = run(names.translate(step.typed))
        if not _fit(names, step.shown, shown, ordered=ordered):
            # What comes after would not fit either.
            return "\n".join([f"$ {step.typed}", "-- written:", *step.shown, "-- shown:", *shown])
    return ""


def write(path: Path, run: Callable[[str], list[str]], known: Callable[[], set[str]]) -> None:
    """Run all commands of a file, and write what they show into it. Where a command has an id of the file as it was, it
    means the one that appears in the same place now; `<1>` means the first that appears, `<2>` the second."""
    text = path.read_text()
    before = list(
        dict.fromkeys(
            id for step in steps(text) for line in step.shown for found in _FIRST.findall(line) for id in found if id
        )
    )
    now: list[str] = []
    done: list[tuple[Step, str, list[str]]] = []
    for step in steps(text):
        typed = re.sub(r"<(\d+)>", lambda found: now[int(found[1]) - 1], step.typed)
        typed = _IS_ID.sub(lambda found: _instead(found[0], before, now), typed)
        shown = [line.rstrip() for line in run(typed)]
        ids = known()
        for found in (id for line in shown for id in _IS_ID.findall(line)):
            if found not in now and found in ids | {id[:8] for id in ids}:
                now.append(found)
        done.append((step, typed, shown))
    for step, typed, shown in reversed(done):
        lines = "".join(f"{line}\n" for line in shown)
        text = f"{text[: step.start - len(step.typed) - 3]}$ {typed}\n{lines}{text[step.end :]}"
    path.write_text(text)


def _instead(id: str, before: list[str], now: list[str]) -> str:
    place = before.index(id) if id in before else len(now)
    return now[place] if place < len(now) else id


def _fit(names: Names, written: list[str], shown: list[str], *, ordered: bool) -> bool:
    shown = [line.rstrip() for line in shown]
    if ordered:
        return len(written) == len(shown) and all(names.fits(a, b) for a, b in zip(written, shown, strict=True))
    return Counter(map(_shape, written)) == Counter(map(_shape, shown)) and _learn(names, written, shown)


def _shape(line: str) -> str:
    return "\0".join(_VARIES.split(line)[::2])


def _learn(names: Names, written: list[str], shown: list[str]) -> bool:
    """Lines of the same shape stand in the same order: within one stream there is one."""
    left = sorted(range(len(written)), key=lambda n: (_shape(written[n]), n))
    right = sorted(range(len(shown)), key=lambda n: (_shape(shown[n]), n))
    return all(names.fits(written[a], shown[b]) for a, b in zip(left, right, strict=True))
