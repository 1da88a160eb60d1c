"""Many processes and many threads on one store; some are killed, some are interrupted (C6, C15, D19).

The default sizes take seconds. `HITHERTO_FULL=1` runs C15 as it is written: eight processes, ten thousand appends
each.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType

import pytest

import hitherto
from hitherto import Conversation, Message, Saved, Store
from hitherto._engine import committer
from hitherto._engine.process import is_gone, this
from hitherto.backend import Batch, Outcome
from hitherto.errors import Conflict

from ..support.waiting import until

FULL = os.environ.get("HITHERTO_FULL") == "1"
PROCESSES = 8
APPENDS = 10_000 if FULL else 120  # of each process
KILLS = 25 if FULL else 3  # of each process
PATIENCE = 60.0  # seconds after which something that should happen counts as stuck
STUCK = 40.0  # the same, for a single call


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A store in memory, if the machine has such a place: a killed process loses nothing that it wrote to a file,
    so no test here needs a real disk."""
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK):
        with tempfile.TemporaryDirectory(prefix="hitherto-", dir=memory) as directory:
            yield Path(directory) / "store.db"
    else:
        yield tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with hitherto.open(path) as store:
        yield store


class Child:
    """One of the programs in `support.writer_processes`, and the lines that it says."""

    def __init__(self, *arguments: object) -> None:
        program = [sys.executable, str(Path(__file__).parents[1] / "support/writer_processes.py")]
        self.process = subprocess.Popen(
            [*program, *(str(argument) for argument in arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._lines: SimpleQueue[list[str] | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.decode().split())
        self._lines.put(None)

    def line(self) -> list[str] | None:
        """The words of the next line; None after the last."""
        try:
            return self._lines.get(timeout=PATIENCE)
        except Empty:
            raise AssertionError("the process is stuck") from None

    def lines(self) -> Iterator[list[str]]:
        while (words := self.line()) is not None:
            yield words

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        """Leave nothing behind."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


@pytest.fixture
def launch() -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def start(*arguments: object) -> Child:
        child = Child(*arguments)
        children.append(child)
        return child

    yield start
    for child in children:
        child.end()


def in_threads(work: Callable[[int], object], count: int) -> None:
    """Run `work` in so many threads at once; the first error is raised."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> None:
        barrier.wait(PATIENCE)
        work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(begin, range(count)))


def chain(talk: Conversation) -> list[Saved]:
    """The messages of a conversation that has no branches."""
    thread = talk.thread()
    assert len(thread) == talk.refresh().count
    return thread


# Processes


class Writer:
    """A process that appends, and whoever starts it again when it was killed."""

    def __init__(self, name: str, own: str) -> None:
        self.name, self.own = name, own
        self.saved: list[int] = []
        self.repeated: set[int] = set()  # these were not acknowledged when the process was killed: they may be double

    def run(self, launch: Callable[..., Child], path: Path, shared: str, chance: random.Random) -> None:
        deadlines = sorted(chance.sample(range(APPENDS - 1), KILLS))
        while True:
            first = self.saved[-1] + 1 if self.saved else 0
            self.repeated.add(first)
            child = launch("appender", path, self.name, first, APPENDS, self.own, shared)
            for (number,) in child.lines():
                self.saved.append(int(number))
                if deadlines and int(number) >= deadlines[0]:
                    child.kill()
                    del deadlines[0]
            ended = child.wait()
            if ended == 0:
                return
            assert ended == -signal.SIGKILL

    def check(self, messages: Sequence[Saved], *, odd: bool) -> None:
        found = [int(m.text.split()[1]) for m in messages if m.text.split()[0] == self.name]
        assert found == sorted(found), "in the order in which they were written"
        times = Counter(found)
        assert set(times) == {number for number in self.saved if number % 2 == odd}, "all that was acknowledged"
        assert {number for number, count in times.items() if count > 1} <= self.repeated
        assert max(times.values()) <= 2 + KILLS


@pytest.mark.timeout(7200 if FULL else 300)
def test_eight_processes_lose_and_reorder_nothing_though_some_are_killed(
    store: Store, path: Path, launch: Callable[..., Child]
) -> None:
    """C15: each writes to a conversation of its own and to one that all share; an error such as "database is locked"
    would end the process with another code than the two that are expected."""
    shared = store.start(title="shared").id
    writers = [Writer(f"writer-{n}", store.start(title=f"own {n}").id) for n in range(PROCESSES)]
    in_threads(lambda n: writers[n].run(launch, path, shared, random.Random(n)), PROCESSES)
    together = chain(store.conversation(shared))
    for writer in writers:
        assert writer.saved == list(range(APPENDS))
        writer.check(together, odd=True)
        writer.check(chain(store.conversation(writer.own)), odd=False)
    assert len(together) <= PROCESSES * (APPENDS // 2 + KILLS)
    assert store.verify().ok


def test_threads_of_several_processes_share_one_conversation(
    store: Store, path: Path, launch: Callable[..., Child]
) -> None:
    """C15, D19: what a thread prepared on top of another thread's message is not saved if that one was not, even if
    another process got as far meanwhile."""
    shared = store.start().id
    crowds = [launch("crowd", path, name, 4, 30, shared) for name in ("left", "right", "centre")]
    assert [crowd.wait() for crowd in crowds] == [0, 0, 0]
    texts = [message.text.split() for message in chain(store.conversation(shared))]
    for name in ("left", "right", "centre"):
        for thread in range(4):
            assert [int(number) for who, number in texts if who == f"{name}.{thread}"] == list(range(30))
    assert store.verify().ok


def killed_turns(
    store: Store, path: Path, launch: Callable[..., Child], how: str, kills: int
) -> tuple[list[int], list[str]]:
    """Kill a writer of turns so many times, now between a turn's last write and its COMMIT, now somewhere in it: the
    turns that were acknowledged, and everything that is there."""
    talk = store.start().id
    saved: list[int] = []
    begun = 0
    for kill in range(kills):
        inside = kill % 2 == 0
        stop = begun + 1 + kill % 4
        child = launch("turns", path, talk, begun + 1, stop if inside else -1, how)
        for what, number in child.lines():
            begun = max(begun, int(number))
            if what == "saved":
                saved.append(int(number))
            elif int(number) == stop and what == ("inside" if inside else "begin"):
                child.kill()
        assert child.wait() == -signal.SIGKILL
    assert store.verify().ok
    return saved, [message.text for message in chain(store.conversation(talk))]


def halves(texts: Sequence[str]) -> set[int]:
    """The turns of which only one message is there."""
    times = Counter(int(text.split()[0]) for text in texts)
    return {number for number, count in times.items() if count != 2}


def test_a_process_killed_within_a_turn_leaves_no_half_of_it(
    store: Store, path: Path, launch: Callable[..., Child]
) -> None:
    """C6: 20 kills, no acknowledged turn lost, no turn halved."""
    saved, texts = killed_turns(store, path, launch, "together", 20)
    assert halves(texts) == set()
    assert {f"{number} {what}" for number in saved for what in ("asked", "answered")} <= set(texts)
    assert len(saved) >= 20


def test_two_appends_instead_of_one_turn_can_be_halved(store: Store, path: Path, launch: Callable[..., Child]) -> None:
    """The control for the one above."""
    _, texts = killed_turns(store, path, launch, "apart", 6)
    assert len(halves(texts)) >= 3


def test_of_two_processes_that_expect_the_same_head_one_wins(
    store: Store, path: Path, launch: Callable[..., Child]
) -> None:
    """D19: every round has one winner, and the loser is told the winner's message as the head."""
    talk = store.start()
    head = talk.append(Message.user("first")).id
    rivals = [launch("rival", path, talk.id, name) for name in ("left", "right")]
    assert [rival.line() for rival in rivals] == [["ready"], ["ready"]]
    winners = Counter[int]()
    for _ in range(100):
        for rival in rivals:
            rival.tell(head)
        results = [rival.line() or [] for rival in rivals]
        won = [id for result, id in results if result == "won"]
        lost = [id for result, id in results if result == "lost"]
        assert len(won) == len(lost) == 1
        assert lost == won
        winners[[result for result, _ in results].index("won")] += 1
        head = won[0]
    assert len(chain(store.conversation(talk.id))) == 101
    assert store.verify().ok


def test_without_an_expected_head_both_processes_branch(store: Store, path: Path, launch: Callable[..., Child]) -> None:
    """The control for the one above, and what D19 says of an append without `expect_head`: nobody's message is lost."""
    talk = store.start()
    talk.append(Message.user("first"))
    rivals = [launch("rival", path, talk.id, name) for name in ("left", "right")]
    assert [rival.line() for rival in rivals] == [["ready"], ["ready"]]
    for _ in range(5):
        for rival in rivals:
            rival.tell("-")
        assert [(rival.line() or [""])[0] for rival in rivals] == ["won", "won"]
    assert sorted(branch.depth for branch in talk.branches()) == [6, 6]
    assert talk.refresh().count == 11


# Threads


class Commits:
    """Records the sizes of a store's commits, and can hold one up."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self._store, self._awaited = store, 0
        self._commit = store.backend.commit
        monkeypatch.setattr(store.backend, "commit", self.commit)

    def hold_until(self, count: int) -> None:
        """Forget the sizes, and hold the next commit up until it and the queue behind it have `count` batches."""
        self.sizes.clear()
        self._awaited = count

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.sizes.append(len(batches))
        count, self._awaited = self._awaited, 0
        until(lambda: len(batches) + waiting(self._store) >= count)
        return self._commit(batches)


def sixty_four_threads(store: Store, commits: Commits, each: int) -> None:
    """Each appends to a conversation of its own, and to one that all share; then everything is there, in order. The
    first commit is held up until all threads have something to write."""
    shared = store.start().id
    mine = [store.start(title=f"own {n}").id for n in range(64)]

    def work(thread: int) -> None:
        own, ours = store.conversation(mine[thread]), store.conversation(shared)
        for number in range(each):
            own.append(Message.user(f"{number}"))
            ours.append(Message.user(f"{thread} {number}"), on_conflict="follow")

    commits.hold_until(64)
    in_threads(work, 64)
    together = [message.text.split() for message in chain(store.conversation(shared))]
    for thread in range(64):
        assert [message.text for message in chain(store.conversation(mine[thread]))] == [f"{n}" for n in range(each)]
        assert [int(number) for who, number in together if who == str(thread)] == list(range(each))
    assert len(together) == 64 * each
    assert store.verify().ok


def test_sixty_four_threads_lose_and_reorder_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """C15, in one process: and where they meet, they ride one commit."""
    commits = Commits(store, monkeypatch)
    sixty_four_threads(store, commits, 10)
    assert sum(commits.sizes[:2]) >= 64
    assert sum(commits.sizes) >= 2 * 64 * 10


def test_a_pen_that_takes_one_batch_at_a_time_makes_a_commit_for_each(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control for the one above: it is the pen that groups."""
    monkeypatch.setattr(committer, "BATCH_SIZE", 1)
    commits = Commits(store, monkeypatch)
    sixty_four_threads(store, commits, 3)
    assert set(commits.sizes) == {1}
    assert len(commits.sizes) >= 2 * 64 * 3


class Gate:
    """Holds up a store's commits until it is opened."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        self._commit = store.backend.commit
        monkeypatch.setattr(store.backend, "commit", self.commit)

    def open(self) -> None:
        self._open.set()

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.sizes.append(len(batches))
        self.reached.set()
        assert self._open.wait(PATIENCE)
        return self._commit(batches)


def waiting(store: Store) -> int:
    """How many batches wait for the pen."""
    return len(store.engine.committer._queue)


def test_all_who_come_during_a_commit_share_the_next_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first commit is held up; all threads that are not in it go together in the next."""
    talk = store.start()
    gate = Gate(store, monkeypatch)

    def work(thread: int) -> None:
        talk.append(Message.user(str(thread)))

    with ThreadPoolExecutor(64) as pool:
        done = pool.map(work, range(64))
        until(lambda: sum(gate.sizes) + waiting(store) == 64)
        gate.open()
        list(done)
    assert len(gate.sizes) == 2
    assert sum(gate.sizes) == 64
    assert len(chain(talk)) == 64


def test_a_handle_shared_by_sixteen_threads_makes_one_chain(store: Store) -> None:
    """D19: every message stands below the one before, whoever wrote it, and no thread's are out of order."""
    talk = store.start()
    in_threads(lambda n: [talk.append(Message.user(f"{n} {number}")) for number in range(40)], 16)
    texts = [message.text.split() for message in chain(talk)]
    assert len(texts) == 16 * 40
    for thread in range(16):
        assert [int(number) for who, number in texts if who == str(thread)] == list(range(40))
    assert talk.at == talk.head
    assert store.verify().ok


def test_a_shared_handle_makes_one_chain_though_others_change_the_conversation(store: Store) -> None:
    """D19: a label or a title makes what was prepared meanwhile stale; it is prepared again, in its place."""
    talk = store.start()
    first = talk.append(Message.user("first")).id

    def work(thread: int) -> None:
        for number in range(30):
            if thread == 0:
                talk.label(f"label {number}", message=first)
            elif thread == 1:
                talk.rename(f"title {number}")
            else:
                talk.append(Message.user(f"{thread} {number}"))

    in_threads(work, 10)
    texts = [message.text.split() for message in chain(talk)[1:]]
    assert len(texts) == 8 * 30
    for thread in range(2, 10):
        assert [int(number) for who, number in texts if who == str(thread)] == list(range(30))
    assert store.verify().ok


def test_a_row_that_others_wrote_takes_the_place_of_what_is_on_its_way(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D19: a message of ours is on its way; others write, and somebody here looks. Then it is known that ours will be
    prepared again, and nobody goes below the message that it would have been, nor takes it for deleted."""
    talk = store.start()
    talk.append(Message.user("first"))
    with hitherto.open(store.backend.info.location) as others:
        theirs = others.conversation(talk.id)
        gate = Gate(store, monkeypatch)
        threads = [threading.Thread(target=lambda: talk.append(Message.user("on its way")))]
        threads[0].start()
        assert gate.reached.wait(PATIENCE)
        theirs.rename("title")
        theirs.label("starred")
        store.conversation(talk.id)
        threads.append(threading.Thread(target=lambda: talk.append(Message.user("the next one"))))
        threads[1].start()
        until(lambda: waiting(store) > 0)
        gate.open()
        for thread in threads:
            thread.join()
        assert others.verify().problems == ()
    assert {message.text for message in store.messages(conversation=talk.id)} == {"first", "on its way", "the next one"}


def test_of_two_threads_that_expect_the_same_head_one_wins(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """D19: also while the first one's message is on its way, and not yet the head that a read would show."""
    talk = store.start()
    head = talk.append(Message.user("first")).id
    gate = Gate(store, monkeypatch)
    results: list[tuple[str, str | int | None]] = []

    def work(name: str) -> None:
        try:
            results.append(("won", store.conversation(talk.id).append(Message.user(name), expect_head=head).id))
        except Conflict as conflict:
            results.append(("lost", conflict.head))

    rivals = [threading.Thread(target=work, args=(name,)) for name in ("left", "right")]
    rivals[0].start()
    assert gate.reached.wait(PATIENCE)
    rivals[1].start()
    until(lambda: bool(results) or waiting(store) > 0)
    gate.open()
    for rival in rivals:
        rival.join(PATIENCE)
    assert sorted(what for what, _ in results) == ["lost", "won"]
    assert len({id for _, id in results}) == 1
    assert len(chain(store.conversation(talk.id))) == 2


@pytest.mark.parametrize("count", [2, 8])
def test_of_many_threads_that_expect_the_same_head_one_wins(store: Store, count: int) -> None:
    """D19, as often as it takes to meet in every way."""
    talk = store.start()
    head = talk.append(Message.user("first")).id
    handles = [store.conversation(talk.id) for _ in range(count)]
    for _ in range(50):
        results: list[tuple[str, str | int | None]] = []

        def work(thread: int, head: str = head, results: list[tuple[str, str | int | None]] = results) -> None:
            try:
                results.append(("won", handles[thread].append(Message.user("x"), expect_head=head).id))
            except Conflict as conflict:
                results.append(("lost", conflict.head))

        in_threads(work, count)
        assert [what for what, _ in results].count("won") == 1
        assert len({id for _, id in results}) == 1
        head = str(results[0][1])
    assert len(chain(store.conversation(talk.id))) == 51


# Ctrl+C


def test_a_process_goes_on_after_ctrl_c_at_random_moments(
    store: Store, path: Path, launch: Callable[..., Child]
) -> None:
    """C15: the main thread is interrupted 60 times amid its appends and those of three other threads; nobody gets
    stuck, and nothing that was acknowledged is lost."""
    chance = random.Random(0)
    shared = store.start().id
    child = launch("interrupted", path, shared, 3)
    assert child.line() == ["ready"]
    for _ in range(60):
        for _ in range(chance.randrange(1, 6)):
            assert child.line() == ["saved"]
        child.process.send_signal(signal.SIGINT)
        while child.line() != ["interrupted"]:
            pass
    child.tell("stop")
    kept = Counter(" ".join(words[1:]) for words in child.lines() if words[0] == "kept")
    assert child.wait() == 0
    assert kept["main at-last"] == 1
    found = Counter(message.text for message in store.messages())
    assert set(kept) <= set(found)
    assert max(found.values()) == 1
    assert len(kept) > 200
    for info in store.conversations(limit=100).items:
        chain(store.conversation(info.id))
    assert store.verify().ok


class Interrupt:
    """Presses Ctrl+C at one moment of a call: where the interpreter would look for it, which is when a function
    begins and when a built-in one returns."""

    def __init__(self, moment: int) -> None:
        self.moment = moment
        self.where: str | None = None
        self._seen = 0

    def _look(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename != __file__:
            self._seen += 1
            if self._seen == self.moment:
                sys.setprofile(None)
                self.where = f"{event} in {frame.f_code.co_qualname}, line {frame.f_lineno}"
                raise KeyboardInterrupt

    def during(self, call: Callable[[], object]) -> bool:
        """Make the call; was it interrupted?"""
        sys.setprofile(self._look)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        return self.where is not None


def works(store: Store, talk: str, path: Path) -> str | None:
    """What does not work any more, in this store or beside it."""
    problems: list[str] = []

    def use() -> None:
        try:
            store.conversation(talk).append(Message.user("after"), on_conflict="follow")
            store.start().append(Message.user("elsewhere"))
            with hitherto.open(path, timeout_seconds=1) as other:
                other.conversation(talk).append(Message.user("beside"), on_conflict="follow")
            store.conversation(talk).append(Message.user("again"), on_conflict="follow")
            problems.extend(str(problem) for problem in store.verify().problems)
            texts = [message.text for message in store.conversation(talk).thread()]
            problems.extend(text for text in ("before", "after", "beside", "again") if text not in texts)
        except hitherto.HithertoError as error:
            problems.append(repr(error))

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(STUCK)
    return "stuck" if thread.is_alive() else ", ".join(problems) or None


class Beside:
    """Another thread, whose commit is held up until the thread that is to be interrupted waits for it."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        other = store.start()
        self._store, self._gate, self._over = store, Gate(store, monkeypatch), threading.Event()
        self._threads = [
            threading.Thread(target=other.append, args=(Message.user("beside"),), daemon=True),
            threading.Thread(target=self._watch, daemon=True),
        ]
        self._threads[0].start()
        assert self._gate.reached.wait(PATIENCE)
        self._threads[1].start()

    def _watch(self) -> None:
        until(lambda: self._over.is_set() or any(entry.waits for entry in self._store.engine.committer._queue))
        self._gate.open()

    def end(self) -> str | None:
        self._over.set()
        for thread in self._threads:
            thread.join(STUCK)
        return "the other thread is stuck" if any(thread.is_alive() for thread in self._threads) else None


def interrupt_everywhere(directory: Path, *, contended: bool) -> Iterator[str | None]:
    """Interrupt an append at each moment in turn, alone or while it waits for another thread's commit: what did not
    work afterwards."""
    hit, moment = True, 0
    while hit:
        moment += 1
        path = directory / f"{moment}.db"
        store = hitherto.open(path)
        talk = store.start()
        talk.append(Message.user("before"))
        interrupt = Interrupt(moment)
        problem = None
        with pytest.MonkeyPatch.context() as monkeypatch:
            beside = Beside(store, monkeypatch) if contended else None
            hit = interrupt.during(partial(talk.append, Message.user("now")))
            if beside is not None:
                problem = beside.end()
        problem = problem or works(store, talk.id, path)
        if problem is None:
            began = time.monotonic()
            store.close()
            if time.monotonic() - began > STUCK:
                problem = "close waits for a write that nobody makes"
        yield f"{interrupt.where}: {problem}" if problem else None


@pytest.mark.parametrize("contended", [False, True], ids=["alone", "while others write"])
def test_ctrl_c_at_any_moment_of_an_append_leaves_the_store_working(path: Path, contended: bool) -> None:
    """C15: no deadlock, no lock left behind, nothing lost: in this process and in others."""
    outcomes: list[str | None] = []
    for outcome in interrupt_everywhere(path.parent, contended=contended):
        outcomes.append(outcome)
        if sum(outcome is not None for outcome in outcomes) == 12:
            break  # enough to see what is wrong
    assert [outcome for outcome in outcomes if outcome] == []
    assert len(outcomes) > 50


def test_a_closed_store_is_gone_although_somebody_still_refers_to_it(path: Path) -> None:
    """Or its leases would hold until they run out."""
    store = hitherto.open(path)
    who = this(store.engine.opened)
    assert not is_gone(who)
    store.close()
    assert is_gone(who)
