"""Appends of many tasks, in rounds: what they share, and what they do not (D11, D17)."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import TypeVar

import pytest

import hitherto
from hitherto import HithertoError, Message, Saved
from hitherto._system.task_threads import MOST_THREADS
from hitherto.aio import AsyncConversation, AsyncStore, _append_queue, open_async
from hitherto.aio._append_queue import AppendQueue, Outcome, PendingAppend, StoreThreads, are_small
from hitherto.attachment import LARGE, Attachment
from hitherto.backend import Batch
from hitherto.errors import Closed, InvalidMessage
from hitherto.model import Block

from ..support.waiting import PATIENCE

T = TypeVar("T")


class Gate:
    """Lets nobody through until it is opened."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.reached, self._opened = threading.Event(), threading.Event()
        if is_open:
            self.open()

    def open(self) -> None:
        self._opened.set()

    def pass_through(self) -> None:
        self.reached.set()
        assert self._opened.wait(PATIENCE)

    async def wait_until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, PATIENCE)


class Commits:
    """Records the sizes of a store's commits; each passes through the gate that is next, if there is one."""

    def __init__(self, store: AsyncStore) -> None:
        self.sizes: list[int] = []
        self.gates: list[Gate] = []
        backend = store.sync.backend
        inner = backend.commit

        def commit(batches: Sequence[Batch]) -> list[hitherto.backend.Outcome]:
            self.sizes.append(len(batches))
            if self.gates:
                self.gates.pop(0).pass_through()
            return inner(batches)

        backend.commit = commit  # type: ignore[method-assign]  # as above


@asynccontextmanager
async def opened(place: Path | str = "memory:", clock: Callable[[], int] | None = None) -> AsyncIterator[AsyncStore]:
    async with open_async(place, clock=clock, maintenance=False) as store:
        yield store


async def turn_the_loop() -> None:
    """Give every task that can go on the time to do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def soon(waited: Awaitable[T]) -> T:
    return await asyncio.wait_for(waited, PATIENCE)


async def texts(talk: AsyncConversation) -> list[str]:
    return [message.text for message in await talk.thread()]


# -- one round


async def append_together(count: int) -> list[int]:
    """So many tasks append at once: the sizes of the commits."""
    async with opened() as store:
        talks = [await store.start() for _ in range(count)]
        commits = Commits(store)
        saved = await asyncio.gather(*(talk.append(Message.user(talk.id)) for talk in talks))
        assert [message.text for message in saved] == [talk.id for talk in talks]
        return commits.sizes


def test_tasks_that_append_in_one_turn_of_the_loop_share_one_commit() -> None:
    assert asyncio.run(append_together(64)) == [64]


def test_control_rounds_of_one_append_make_a_commit_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_append_queue, "_LARGEST_ROUND", 1)
    assert asyncio.run(append_together(8)) == [1] * 8


def test_a_round_takes_no_more_than_fits_into_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_append_queue, "_LARGEST_ROUND", 40)
    assert asyncio.run(append_together(100)) == [40, 40, 20]


def test_one_thread_prepares_a_round_and_one_callback_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    callbacks: list[object] = []
    begin = PendingAppend.begin

    def noted(call: PendingAppend) -> None:
        threads.add(threading.get_ident())
        begin(call)

    async def main() -> None:
        async with opened() as store:
            talks = [await store.start() for _ in range(64)]
            loop = asyncio.get_running_loop()
            call_soon = loop.call_soon_threadsafe

            def counted(*given: object) -> asyncio.Handle:
                callbacks.append(given)
                return call_soon(*given)  # type: ignore[arg-type]  # as above

            with monkeypatch.context() as patch:
                patch.setattr(loop, "call_soon_threadsafe", counted)
                await asyncio.gather(*(talk.append(Message.user("x")) for talk in talks))

    monkeypatch.setattr(PendingAppend, "begin", noted)
    asyncio.run(main())
    assert len(threads) == len(callbacks) == 1


def test_appends_that_come_during_a_commit_share_the_next_one() -> None:
    async def main() -> None:
        async with opened() as store:
            talk = await store.start()
            commits = Commits(store)
            gate = Gate()
            commits.gates = [gate]
            first = asyncio.create_task(talk.append(Message.user("0")))
            await gate.wait_until_reached()
            others = [asyncio.create_task(talk.append(Message.user(str(n)))) for n in range(1, 40)]
            await turn_the_loop()
            gate.open()
            await asyncio.gather(first, *others)
            assert commits.sizes == [1, 39]
            assert await texts(talk) == [str(n) for n in range(40)]

    asyncio.run(main())


# -- what belongs to one call


def test_an_error_belongs_to_one_call() -> None:
    async def main() -> None:
        async with opened() as store:
            talk = await store.start()
            bad: list[Message] = [Message("user", [Block("content", 5)])]  # type: ignore[arg-type]  # as above
            results = await asyncio.gather(
                talk.append(Message.user("a")), talk.extend(bad), talk.append(Message.user("b")), return_exceptions=True
            )
            assert isinstance(results[1], InvalidMessage)
            assert await texts(talk) == ["a", "b"]

    asyncio.run(main())


def test_an_interrupt_reaches_the_call_that_it_met() -> None:
    """KeyboardInterrupt is no Exception: it must reach its task, and leave the round's other calls alone."""
    interrupted = ContextVar("interrupted", default=False)

    def clock() -> int:
        if interrupted.get():
            raise KeyboardInterrupt
        return 1_800_000_000_000_000

    async def append(talk: AsyncConversation, text: str, *, interrupt: bool) -> str:
        interrupted.set(interrupt)
        try:
            return (await talk.append(Message.user(text))).text
        except KeyboardInterrupt:
            return "interrupted"

    async def main() -> None:
        async with opened(clock=clock) as store:
            talk = await store.start()
            results = await asyncio.gather(*(append(talk, text, interrupt=text == "b") for text in "abc"))
            assert results == ["a", "interrupted", "c"]
            assert await texts(talk) == ["a", "c"]

    asyncio.run(main())


def contexts_seen() -> list[str]:
    """The value of a context variable at each step of eight appends of one round."""
    who = ContextVar("who", default="nobody")
    seen: list[str] = []

    def clock() -> int:
        seen.append(who.get())
        return 1_800_000_000_000_000

    async def append(talk: AsyncConversation, name: str) -> None:
        who.set(name)
        await talk.append(Message.user(name))

    async def main() -> None:
        async with opened(clock=clock) as store:
            talks = [await store.start() for _ in range(8)]
            seen.clear()
            await asyncio.gather(*(append(talk, f"task {n}") for n, talk in enumerate(talks)))
            del seen[8:]  # closing looks at the clock, too

    asyncio.run(main())
    return seen


def test_every_append_is_prepared_in_the_context_of_its_task() -> None:
    assert contexts_seen() == [f"task {n}" for n in range(8)]


def test_control_in_one_context_for_all_they_would_see_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = copy_context()
    monkeypatch.setattr(_append_queue, "copy_context", lambda: empty)
    assert contexts_seen() == ["nobody"] * 8


def test_an_error_is_freed_with_its_task() -> None:
    """It holds what was said: no circle of references keeps it until the collector comes."""

    async def fail(talk: AsyncConversation) -> "weakref.ref[HithertoError]":
        try:
            await talk.append(Message.user("x"), on_conflict="raise")
        except HithertoError as error:
            return weakref.ref(error)
        raise AssertionError("another message is the head")

    async def main() -> None:
        async with opened() as store:
            talk = await store.start()
            await (await store.conversation(talk.id)).append(Message.user("before"))
            gc.disable()
            try:
                found = await fail(talk)
                await turn_the_loop()
                assert found() is None
            finally:
                gc.enable()

    asyncio.run(main())


# -- cancelling


STAGES = ["queued", "prepared", "committed"]


async def cancel_at(stage: str) -> tuple[bool, list[str]]:
    """Cancel an append at this stage: whether its task waited for the outcome, and what was kept."""
    clock_gates: list[Gate] = []
    clock_gate, commit_gate = Gate(), Gate()

    def clock() -> int:
        for gate in clock_gates:
            gate.pass_through()
        return 1_800_000_000_000_000

    async with opened(clock=clock) as store:
        talk = await store.start()
        Commits(store).gates = [commit_gate]
        if stage == "prepared":
            clock_gates.append(clock_gate)
        task = asyncio.create_task(talk.append(Message.user("kept")))
        await asyncio.sleep(0)
        if stage == "prepared":
            await clock_gate.wait_until_reached()
        if stage == "committed":
            await commit_gate.wait_until_reached()
        task.cancel()
        await turn_the_loop()
        waited = not task.done()
        clock_gate.open()
        commit_gate.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        return waited, await texts(talk)


@pytest.mark.parametrize("stage", STAGES)
def test_a_cancelled_task_waits_for_its_append(stage: str) -> None:
    assert asyncio.run(cancel_at(stage)) == (True, ["kept"])


@pytest.mark.parametrize("stage", STAGES)
def test_control_a_future_that_can_be_cancelled_is_not_waited_for(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task would be over before its message is kept."""
    monkeypatch.delattr(Outcome, "cancel")
    waited, _ = asyncio.run(cancel_at(stage))
    assert not waited


def test_a_timeout_comes_after_the_outcome() -> None:
    async def main() -> None:
        async with opened() as store:
            talk = await store.start()
            gate = Gate()
            Commits(store).gates = [gate]

            async def append() -> int:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0):
                        await talk.append(Message.user("kept"))
                current = asyncio.current_task()
                assert current is not None
                return current.cancelling()

            task = asyncio.create_task(append())
            await gate.wait_until_reached()
            await turn_the_loop()
            assert not task.done()
            gate.open()
            assert await soon(task) == 0
            assert await texts(talk) == ["kept"]

    asyncio.run(main())


# -- order, and who waits for whom


def stalled(gate: Gate, text: str) -> Iterator[Message]:
    """Messages that come when the gate is open."""
    gate.pass_through()
    yield Message.user(text)


async def append_behind_a_long_one(seconds: float = PATIENCE) -> tuple[bool, bool, list[str]]:
    """An append takes long. Whether one of another handle is done meanwhile, for which we wait so long, whether one of
    the same handle is, and what the handle's thread is in the end."""
    async with opened() as store:
        talk, other = await store.start(), await store.start()
        gate = Gate()
        first = asyncio.create_task(talk.append(Message.user("first")))
        long = asyncio.create_task(talk.extend(stalled(gate, "long")))
        await gate.wait_until_reached()
        same = asyncio.create_task(talk.append(Message.user("last")))
        beside = asyncio.create_task(other.append(Message.user("beside")))
        await asyncio.wait([beside], timeout=seconds)
        found = beside.done(), same.done()
        gate.open()
        await soon(asyncio.gather(first, long, same, beside))
        return *found, await texts(talk)


def test_an_append_that_takes_long_holds_up_its_own_handle_only() -> None:
    assert asyncio.run(append_behind_a_long_one()) == (True, False, ["first", "long", "last"])


def test_control_a_long_append_in_a_round_holds_up_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_append_queue, "are_small", lambda _: True)
    assert asyncio.run(append_behind_a_long_one(0.05))[:2] == (False, False)


@pytest.mark.parametrize("size", [10, LARGE])
def test_appends_of_one_handle_keep_the_order_of_the_calls(size: int) -> None:
    """Whether they go in rounds, or some of them in threads of their own."""

    async def main() -> None:
        async with opened() as store:
            talk = await store.start()
            said = [f"{n} " + "x" * (size if n % 3 == 0 else 1) for n in range(60)]
            await asyncio.gather(*(talk.append(Message.user(text)) for text in said))
            assert await texts(talk) == said

    asyncio.run(main())


def test_control_long_appends_would_change_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule that a busy handle's calls stay in the queue."""

    async def main() -> list[str]:
        async with opened() as store:
            talk = await store.start()
            gate = Gate()
            long = asyncio.create_task(talk.extend(stalled(gate, "long")))
            await gate.wait_until_reached()
            await soon(talk.append(Message.user("last")))
            gate.open()
            await long
            return await texts(talk)

    def is_never_busy(queue: AppendQueue, call: PendingAppend) -> None:
        queue._submit(queue._threads.submit, queue._run_alone, [call])

    monkeypatch.setattr(AppendQueue, "_begin_alone", is_never_busy)
    assert asyncio.run(main()) == ["last", "long"]


def test_an_append_that_another_process_was_faster_than_holds_up_nobody(tmp_path: Path) -> None:
    """Its commit is stale, and it is prepared again; the calls of its round are done before that, and its handle's
    calls keep their order."""

    async def main() -> None:
        async with opened(tmp_path / "store.db") as store:
            talk, other = await store.start(), await store.start()
            with hitherto.open(tmp_path / "store.db") as others:
                others.conversation(talk.id).rename("changed")
            commits = Commits(store)
            gate = Gate()
            commits.gates = [Gate(is_open=True), gate]
            first = asyncio.create_task(talk.append(Message.user("first")))
            second = asyncio.create_task(talk.append(Message.user("second")))
            assert (await soon(other.append(Message.user("beside")))).text == "beside"
            await gate.wait_until_reached()
            third = asyncio.create_task(talk.append(Message.user("third")))
            await turn_the_loop()
            assert not any(task.done() for task in (first, second, third))
            gate.open()
            await soon(asyncio.gather(first, second, third))
            assert await texts(talk) == ["first", "second", "third"]
            assert commits.sizes[0] == 3

    asyncio.run(main())


def test_order_holds_while_another_store_writes_to_the_conversation(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "store.db") as store:
            talk = await store.start()
            over = threading.Event()

            def disturb() -> None:
                with hitherto.open(tmp_path / "store.db") as others:
                    theirs = others.conversation(talk.id)
                    while not over.is_set():
                        theirs.rename("again")

            disturber = threading.Thread(target=disturb)
            disturber.start()
            try:
                for group in range(5):
                    said = [Message.user(f"{group * 20 + n}") for n in range(20)]
                    await asyncio.gather(*(talk.append(message) for message in said))
            finally:
                over.set()
                await asyncio.to_thread(disturber.join)
            assert await texts(talk) == [str(n) for n in range(100)]

    asyncio.run(main())


def test_reads_do_not_wait_behind_appends() -> None:
    async def main() -> None:
        async with opened() as store:
            talk = await store.start()
            await talk.append(Message.user("there"))
            gate = Gate()
            Commits(store).gates = [gate]
            writing = [asyncio.create_task(talk.append(Message.user("more"))) for _ in range(100)]
            await gate.wait_until_reached()
            assert await soon(texts(talk)) == ["there"]
            gate.open()
            await asyncio.gather(*writing)

    asyncio.run(main())


async def append_beside_reads(seconds: float = PATIENCE) -> bool:
    """Whether an append is done, within so long, while as many calls as there are threads take longer."""
    async with opened() as store:
        talk = await store.start()
        gate = Gate()
        reads = [asyncio.create_task(store.threads.run(gate.pass_through)) for _ in range(MOST_THREADS)]
        await gate.wait_until_reached()
        task = asyncio.create_task(talk.append(Message.user("x")))
        await asyncio.wait([task], timeout=seconds)
        done = task.done()
        gate.open()
        await asyncio.gather(task, *reads)
        return done


def test_calls_that_take_long_do_not_hold_up_appends() -> None:
    assert asyncio.run(append_beside_reads())


def test_control_in_one_pool_they_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreThreads, "submit_round", StoreThreads.submit)
    assert not asyncio.run(append_beside_reads(0.05))


# -- several loops, and the end


def test_several_loops_use_one_store() -> None:
    async def main() -> None:
        async with opened() as store:
            talk = await store.start()

            async def append(loop: int) -> None:
                own = await store.conversation(talk.id)
                for n in range(10):
                    await own.append(Message.user(f"{loop} {n}"), on_conflict="follow")

            await asyncio.gather(*(asyncio.to_thread(asyncio.run, append(loop)) for loop in range(6)))
            found = [text.split() for text in await texts(await talk.follow())]
            for loop in range(6):
                assert [n for who, n in found if who == str(loop)] == [str(n) for n in range(10)]
            await talk.append(Message.user("last"))
            assert len(store.threads._queues) == 1  # those of loops that are closed are gone

    asyncio.run(main())


def test_several_stores_are_used_by_one_loop() -> None:
    """A commit of one of them that takes long does not hold up the others."""

    async def main() -> None:
        async with opened() as one, opened() as other:
            slow, quick = await one.start(), await other.start()
            gate = Gate()
            Commits(one).gates = [gate]
            task = asyncio.create_task(slow.append(Message.user("x")))
            await gate.wait_until_reached()
            await soon(quick.append(Message.user("x")))
            assert not task.done()
            gate.open()
            await task

    asyncio.run(main())


def test_appends_that_were_called_before_the_store_is_closed_are_kept(tmp_path: Path) -> None:
    async def main() -> list[Saved]:
        async with opened(tmp_path / "store.db") as store:
            talk = await store.start()
            tasks = [asyncio.create_task(talk.append(Message.user(str(n)))) for n in range(700)]
            await asyncio.sleep(0)
        with pytest.raises(Closed):
            await talk.append(Message.user("late"))
        return await asyncio.gather(*tasks)

    assert len(asyncio.run(main())) == 700
    with hitherto.open(tmp_path / "store.db") as store:
        (talk,) = store.conversations().items
        assert talk.count == 700


@pytest.mark.parametrize("end", ["store", "threads"])
def test_an_append_that_comes_too_late_is_refused(end: str) -> None:
    """And no task waits for ever. The control of the one above: this is what closing at once would do."""

    async def main() -> None:
        async with opened() as store:
            talk = await store.start()
            task = asyncio.create_task(talk.append(Message.user("x")))
            await asyncio.sleep(0)
            if end == "store":
                store.sync.close()
            else:
                store.threads.close()
            with pytest.raises(Closed):
                await soon(task)

    asyncio.run(main())


def test_a_cancelled_close_closes_the_store() -> None:
    async def main() -> None:
        store = await open_async("memory:")
        talk = await store.start()
        gate = Gate()
        Commits(store).gates = [gate]
        writing = asyncio.create_task(talk.append(Message.user("kept")))
        await gate.wait_until_reached()
        closing = asyncio.create_task(store.close())
        await turn_the_loop()
        closing.cancel()
        await turn_the_loop()
        assert not closing.done()
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert store.is_closed
        assert (await writing).text == "kept"

    asyncio.run(main())


def test_a_loop_that_is_closed_during_a_round_leaves_the_message(tmp_path: Path) -> None:
    """Nobody waits for it any more, and the thread of the round ends without an error."""
    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(open_async(tmp_path / "store.db")._open())
    talk = loop.run_until_complete(store.start())
    gate = Gate()
    Commits(store).gates = [gate]
    task = loop.create_task(talk.append(Message.user("kept")))
    loop.run_until_complete(gate.wait_until_reached())
    call = next(iter(store.threads._queues[loop]._calls))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    gate.open()
    store.threads._rounds.shutdown(wait=True)
    assert not call.is_waiting
    assert [message.text for message in store.sync.conversation(talk.id).thread()] == ["kept"]
    store.sync.close()
    store.threads.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is what the test is about


# -- what is small


@pytest.mark.parametrize(
    ("message", "small"),
    [
        (Message.user("x" * 100), True),
        (Message.user("x" * LARGE), False),
        (Message("user", [Block("content", Attachment.from_file(__file__))]), False),
        (Message("user", [Block("content", "x", extra={"a": [{"b": "x" * LARGE}]})]), False),
        (Message("user", [Block.text("x")], raw={"a": ["b", 5, None]}), True),
        (Message("user", [Block.text("x")], raw={"x" * LARGE: 1}), False),
        (Message("user", [Block.text("x")], raw=list(range(2_000))), False),
        ("no message", True),
        (5, True),
    ],
)
def test_messages_are_small_if_they_are_prepared_at_once(message: Message, small: bool) -> None:
    assert are_small([message]) is small
    assert are_small((Message.user("x"), message)) is small
    assert not are_small(iter([message]))


def test_a_value_that_holds_itself_is_not_small() -> None:
    circle: list[object] = []
    circle.append(circle)
    assert not are_small([Message("user", [Block.text("x")], raw=circle)])
