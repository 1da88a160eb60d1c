"""Bringing in what other programs keep: how fast, in how much memory, and how fast its tokens are counted.

The command line reads sessions as Claude Code writes them, into a sealed store. Its memory is what the system says of
the process. The largest are streams, which are made while they are read.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from ._children import Child
from ._sessions import session_lines, write_session
from ._sides import SEALED_KEY
from ._table import Bench, Row, at_least, at_most

_EACH = 500  # messages of a session


class _Done(NamedTuple):
    """One run of the command line."""

    cpu: float
    wall: float
    megabytes: float


def rescuing(bench: Bench) -> list[Row]:
    return [*_rates(bench), *_memory(bench)]


def _run(*words: str, given: Iterator[bytes] | None = None) -> _Done:
    """Run a command, and give it these lines."""
    began = time.perf_counter()
    pipe = None if given is None else subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-m", "hitherto", *words], stdin=pipe, stdout=subprocess.DEVNULL)
    if given is not None:
        file: IO[bytes] | None = process.stdin
        assert file is not None
        with file:
            file.writelines(given)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"hitherto {words[0]} ended with {process.returncode}")
    return _Done(used.ru_utime + used.ru_stime, time.perf_counter() - began, used.ru_maxrss / 1024)


def _options(folder: str) -> list[str]:
    key = Path(folder) / "key"
    if not key.exists():
        key.write_bytes(SEALED_KEY)
        key.chmod(0o600)
    return ["--store", f"{folder}/hitherto.db", "--key", f"file:{key}"]


# -- speed


def _sanitise(_: str, source: str) -> float:
    """CPU seconds of the sanitiser alone, over the messages that an import gives it."""
    from hitherto import Sanitiser
    from hitherto.formats._files import Files
    from hitherto.formats.importers.claude_code import FORMAT
    from hitherto.sanitiser.redactor import Redactor

    files = Files(Path(source))
    redactor = Redactor(Sanitiser.secrets(), bytes(32))
    took = 0.0
    for talk in FORMAT.read_files(files, list(files.names())):
        said = [one.message for one in talk.messages]
        began = time.process_time()
        for message in said:
            redactor.message(message)
        took += time.process_time() - began
    return took


def _import_here(folder: str, source: str, is_clean: bool) -> float:
    """CPU seconds of an import in this process."""
    import hitherto
    from hitherto import Key, Sanitiser, formats

    cleaner = Sanitiser.secrets() if is_clean else None
    with hitherto.open(f"{folder}/{time.monotonic_ns()}.db", key=Key(SEALED_KEY), sanitiser=cleaner) as store:
        began = time.process_time()
        formats.load(Path(source), store)
        return time.process_time() - began


def _rates(bench: Bench) -> list[Row]:
    sessions, rounds = bench.pick(10, 80), bench.pick(3, 5)
    source = Path(bench.place("sessions"))
    for number in range(sessions):
        write_session(source / "project", number, _EACH)
    count = sessions * _EACH
    size = sum(file.stat().st_size for file in source.rglob("*.jsonl"))
    plain, clean, alone = [], [], []
    for _ in range(rounds):
        with Child(None, bench.place("import")) as child:
            plain.append(child(_import_here, str(source), False))
            alone.append(child(_sanitise, str(source)))
            clean.append(child(_import_here, str(source), True))
    note = f"{count:,} messages of {size / count:,.0f} bytes, {size / statistics.median(plain) / 1e6:.0f} MB/s"
    shares = [a / c for a, c in zip(alone, clean, strict=True)]
    return [
        at_least("import sealed: messages per CPU second", [count / seconds for seconds in plain], 20_000, note),
        at_least("import with the sanitiser / the sanitiser alone: speed", shares, 0.8),
    ]


# -- memory


def _sessions(count: int) -> Iterator[bytes]:
    """Yield the lines of so many messages, in sessions that follow each other."""
    for number in range(count // _EACH):
        yield from session_lines(number, _EACH)


def _memory(bench: Bench) -> list[Row]:
    one, many = bench.pick(20_000, 500_000), bench.pick(20_000, 1_000_000)
    large = _options(bench.place("one"))
    session = _run("import", "-", *large, given=session_lines(0, one))
    store = _options(bench.place("many"))
    stream = _run("import", "-", *store, given=_sessions(many))
    usage = _run("usage", "--json", *store)
    took = f"{stream.wall:.0f} s, {many * 2_150 / 1e9:.1f} GB"
    return [
        at_most(f"import one session of {one:,} messages: MB of memory", [session.megabytes], 200),
        at_most(f"import a stream of {many:,} messages: MB of memory", [stream.megabytes], 200, took),
        at_most(f"hitherto usage over {many:,} messages: seconds", [usage.wall], None, f"{usage.megabytes:.0f} MB"),
    ]
