"""What a turn costs as a database grows from ten thousand messages to ten million.

The rows are real: a store writes five thousand messages, and the server multiplies them (`tests/support/bulk.py`), half
of them inside one workspace, which so becomes the largest, half as workspaces of their own. Stores read and verify
samples of what came of it, and the server looks at its tables, before the clock starts.

A turn takes a commit, and what that takes changes with the hour. So beside every turn an INSERT alone is timed, into a
table that does not grow, and turns are compared as so many of these.

The words of messages are multiplied up to a million: beyond that, making the index would take most of the time.
"""

import random
import statistics
import time
from collections.abc import Callable
from uuid import uuid4

import psycopg

import hitherto
from hitherto import Conversation, Message, Store
from tests.support.bulk import multiply, span, spread

from ._corpus import Passages
from ._postgres import postgres
from ._table import Bench, Row, at_most, ratios

_MESSAGES = 5_000  # of the model
_LENGTH = 40  # messages of a conversation
_TALKS = _MESSAGES // _LENGTH
_WORDS = 1_000_000  # messages whose words are searched
_AT_ONCE = 20  # copies made by one statement
_ROUNDS = 5
_MODEL, _SMALL, _LARGE = "model", "w0", "large"
_EPOCH = 1_600_000_000_000_000  # when the first message was written; copies come later, and all of them before now
_COMMON, _RARE = 30, 9_000  # the rank of a word by its frequency

Times = dict[str, list[float]]  # seconds, a median for each round
Connection = psycopg.Connection[tuple[object, ...]]


def growth(bench: Bench) -> list[Row]:
    sizes = [2 * _MESSAGES * 10**n for n in range(2 if bench.quick else 4)]
    found: dict[int, Times] = {}
    rows: list[Row] = []
    passages = Passages()
    with postgres("maintenance_work_mem=1GB", "max_wal_size=16GB") as server:
        _begin(server.url, passages)
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute("CREATE TABLE raw_message (id uuid PRIMARY KEY, said text, answered text)")
            step, copies = span(connection, _MODEL), [0]
            spread(connection, _MODEL, [_LARGE, _SMALL])
            for size in sizes:
                seconds = _grow(connection, copies, size // (2 * _MESSAGES), step, words=size <= _WORDS)
                _check(server.url, passages, copies)
                found[size] = _measured(server.url, connection, passages, copies, bench.pick(20, 60))
                rows += _size_rows(connection, size, seconds)
    return _time_rows(found) + rows


def _begin(url: str, passages: Passages) -> None:
    """The model, as a store writes it."""
    ticks = iter(range(_EPOCH, 2 * _EPOCH, 1_000))
    with hitherto.open(url, workspace=_MODEL, clock=lambda: next(ticks), maintenance=False) as store:
        for number in range(_TALKS):
            said = [(Message.assistant if n % 2 else Message.user)(t) for n, t in enumerate(_texts(passages, number))]
            store.ensure(f"talk {number}", title=f"Talk {number}").extend(said)
        store.maintain()
        store.search("nothing")  # has the index take everything in


def _texts(passages: Passages, number: int) -> list[str]:
    return [passages.text(number * _LENGTH + n, 40, 400) for n in range(_LENGTH)]


# -- growing


def _grow(connection: Connection, copies: list[int], count: int, step: int, *, words: bool) -> float:
    """Have so many copies in the large workspace, and as many small ones; in how many seconds. Copies are named by
    where they begin, which is above all that was written since the last ones."""
    began = time.monotonic()
    query = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'hitherto' AND indexname = 'word_by_words'"
    [(again,)] = connection.execute(query).fetchall()
    if words:
        connection.execute("DROP INDEX hitherto.word_by_words")  # to make it anew is quicker
    start = span(connection, _LARGE) // step + 100
    more = range(start, start + count - len(copies))
    for n in range(0, len(more), _AT_ONCE):
        some = more[n : n + _AT_ONCE]
        multiply(connection, _LARGE, some, step, model=_MODEL, words=words)
        spread(connection, _MODEL, [f"w{number}" for number in some], words=words)
    copies += more
    if words:
        connection.execute(again)
    connection.execute("VACUUM (ANALYZE)")
    connection.execute("CHECKPOINT")
    return time.monotonic() - began


def _name(number: int, copy: int) -> str:
    """A conversation of a copy, in the large workspace."""
    return f"talk {number}/{copy}" if copy else f"talk {number}"


def _check(url: str, passages: Passages, copies: list[int]) -> None:
    """The newest small workspace as a whole, and some conversations of the large one, text by text."""
    with hitherto.open(url, workspace=f"w{copies[-1]}", maintenance=False) as store:
        report = store.verify()
        if not report.ok or report.messages < _MESSAGES:
            raise RuntimeError(f"a workspace that was copied is not as it should be: {report}")
    with hitherto.open(url, workspace=_LARGE, maintenance=False) as store:
        for copy in (copies[0], copies[-1], random.choice(copies)):
            number = random.randrange(_TALKS)
            found = [message.text for message in store.ensure(_name(number, copy)).thread()]
            if found[:_LENGTH] != _texts(passages, number):
                raise RuntimeError(f"{_name(number, copy)} is not as it was written")


# -- measuring


def _measured(url: str, connection: Connection, passages: Passages, copies: list[int], count: int) -> Times:
    """Each kind of work some times in each round, in shuffled order: the medians of rounds."""
    found: Times = {}
    with (
        hitherto.open(url, workspace=_LARGE, maintenance=False) as large,
        hitherto.open(url, workspace=_SMALL, maintenance=False) as small,
    ):
        works: dict[str, Callable[[], object]] = {"an INSERT alone": lambda: _insert(connection, passages)}
        for where, store, most in (("large", large, copies), ("small", small, [0])):
            works |= {f"{what}, {where}": work for what, work in _works(store, passages, most).items()}
        for number in range(_ROUNDS + 1):
            todo = random.sample([*works] * count, count * len(works))
            times: Times = {name: [] for name in works}
            for name in todo:
                began = time.perf_counter()
                works[name]()
                times[name].append(time.perf_counter() - began)
            if number:  # the first warms up
                for name, seconds in times.items():
                    found.setdefault(name, []).append(statistics.median(seconds))
    return found


def _insert(connection: Connection, passages: Passages) -> None:
    texts = [passages.text(random.randrange(100_000), 40, 400) for _ in range(2)]
    connection.execute("INSERT INTO raw_message VALUES (%s, %s, %s)", (uuid4(), *texts))


def _works(store: Store, passages: Passages, copies: list[int]) -> dict[str, Callable[[], object]]:
    def talk() -> Conversation:
        return store.ensure(_name(random.randrange(_TALKS), random.choice(copies)))

    def turn() -> None:
        said, answered = (passages.text(random.randrange(100_000), 40, 400) for _ in range(2))
        talk().extend([Message.user(said), Message.assistant(answered)])

    def search(rank: int) -> None:
        store.search(passages.words[rank + random.randrange(20)], limit=20)

    return {
        "a turn": turn,
        "a resume": lambda: list(talk().thread()),
        "a new conversation": lambda: store.start(title="New"),
        "the list of 20": lambda: store.conversations(limit=20),
        "a search for a common word": lambda: search(_COMMON),
        "a search for a rare word": lambda: search(_RARE),
    }


# -- rows


def _time_rows(found: dict[int, Times]) -> list[Row]:
    first, *later = found
    rows = []
    for name in found[first]:
        for size in later:
            if "search" in name and size > _WORDS:
                continue
            own, then = _scaled(found[size], name), _scaled(found[first], name)
            limit = 1.5 if name.startswith("a turn") and size == max(found) else None
            note = ", ".join(f"{statistics.median(times[name]) * 1e3:.2f} ms" for times in (found[first], found[size]))
            if name == "an INSERT alone":
                own, then = found[size][name], found[first][name]
            rows.append(at_most(f"growth: {name}, at {size:,} / at {first:,}", ratios(own, then), limit, note))
    return rows


def _scaled(times: Times, name: str) -> list[float]:
    """What waits for the disk, in INSERTs."""
    commits = name.startswith(("a turn", "a new"))
    return ratios(times[name], times["an INSERT alone"]) if commits else times[name]


_SIZES = """
SELECT c.relname, pg_table_size(c.oid), pg_indexes_size(c.oid), (SELECT string_agg(
    i.relname || ' ' || pg_size_pretty(pg_relation_size(i.oid)), ', ' ORDER BY pg_relation_size(i.oid) DESC)
    FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid WHERE x.indrelid = c.oid)
FROM pg_class c WHERE c.relnamespace = 'hitherto'::regnamespace AND c.relkind = 'r'
    AND c.relname IN ('message', 'pack', 'conversation', 'word') ORDER BY 1
"""


def _size_rows(connection: Connection, size: int, seconds: float) -> list[Row]:
    """Bytes for each message (of the words: of those that have any)."""
    rows = [at_most(f"growth: seconds to make {size:,} messages", [seconds], None)]
    for table, bytes_, indexes, which in connection.execute(_SIZES).fetchall():
        each = _MESSAGES + (min(size, _WORDS) if table == "word" else size)
        note = f"and {indexes / each:.0f} of indexes: {which}"
        rows.append(at_most(f"growth: bytes of {table} for a message, at {size:,}", [bytes_ / each], None, note))
    return rows
