"""The async facade: the same names, awaited (D11, D17)."""

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import assert_type

import pytest

import hitherto
from hitherto import Conversation, HithertoError, Message, Saved, Store
from hitherto.aio import AsyncConversation, AsyncStore, open_async
from hitherto.backend import Batch, Outcome
from hitherto.errors import Conflict, NotFound
from hitherto.listing import Page

from ..support.waiting import PATIENCE


def public(kind: type) -> dict[str, object]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


@pytest.mark.parametrize(("sync", "twin"), [(Store, AsyncStore), (Conversation, AsyncConversation)])
def test_both_colours_have_the_same_names_and_parameters(sync: type, twin: type) -> None:
    theirs, ours = public(sync), public(twin)
    assert set(ours) - {"sync"} == set(theirs)
    for name, value in theirs.items():
        if inspect.isfunction(value):
            mine = ours[name]
            assert inspect.isfunction(mine)
            assert list(inspect.signature(mine).parameters) == list(inspect.signature(value).parameters), name
            for key, parameter in inspect.signature(value).parameters.items():
                assert inspect.signature(mine).parameters[key].default == parameter.default, (name, key)
            assert inspect.iscoroutinefunction(mine) or name in ("messages", "subscribe", "batch"), name
            assert mine.__name__ == name
            assert mine.__doc__ == value.__doc__ or name == "messages", name


def test_type_checkers_see_what_is_awaited() -> None:
    """`make lint` checks the types: they are those of the sync methods, with async handles."""

    async def main() -> None:
        async with open_async("memory:") as store:
            talk = assert_type(await store.start(title="T"), AsyncConversation)
            assert_type(await talk.append(Message.user("hi")), Saved)
            assert_type(await talk.fork(), AsyncConversation)
            assert_type(await talk.thread(full=True), list[Saved])
            assert_type(await store.latest(), AsyncConversation | None)
            assert_type(await store.conversations(limit=3), Page)
            assert_type((talk.sync, store.sync), tuple[Conversation, Store])
            with pytest.raises(TypeError):
                await store.start(titel="T")  # type: ignore[call-arg]

    asyncio.run(main())


def test_a_call_that_returns_its_own_handle_does_so_awaited() -> None:
    async def main() -> None:
        async with open_async("memory:") as store:
            talk = await store.start()
            assert await talk.refresh() is talk
            assert await talk.follow() is talk
            assert await talk.fork() is not talk

    asyncio.run(main())


def test_the_first_example_works(tmp_path: Path) -> None:
    async def main() -> list[str]:
        async with hitherto.open_async(tmp_path / "chats.db") as store:
            talk = await store.start(title="T", system_prompt="Be terse.")
            await talk.append(Message.user("hi"))
            await talk.extend([Message.assistant("hello"), Message.user("why?")])
            assert (await talk.setup()).system_prompt == talk.system_prompt == "Be terse."
            assert [m.text async for m in store.messages(newest_first=False)] == ["hi", "hello", "why?"]
        async with open_async(tmp_path / "chats.db") as store:
            latest = await store.latest()
            assert latest is not None
            return [m.text for m in await latest.thread()]

    assert asyncio.run(main()) == ["hi", "hello", "why?"]


def test_everything_works_awaited() -> None:
    async def main() -> None:
        store = await open_async("memory:")
        talk = await store.ensure("k", title="T")
        first = await talk.append(Message.user("a"))
        await talk.append(Message.assistant("b"))
        fork = await talk.fork(first.id)
        await fork.append(Message.user("c"))
        assert len(await talk.branches()) == 2
        await talk.rename("new")
        await talk.describe({"a": "b"})
        await talk.configure(model="m")
        await talk.label("l", message=first.id)
        assert (talk.title, talk.metadata, talk.key) == ("new", {"a": "b"}, "k")
        await (await talk.subagent("s", "1")).append(Message.user("trace"))
        await talk.compact("gist")
        alone = await talk.detach(title="alone")
        assert len(await alone.thread(full=True)) == 3
        assert (await talk.usage()).messages == 1
        await talk.undo()
        await talk.follow()
        await talk.refresh()
        await talk.hold()
        assert talk.held
        await talk.release()
        ids = await store.save([Message.user("d")], conversation=talk)
        assert (await store.message(ids[0])).text == "d"
        assert len(await store.get(ids)) == len(await store.thread(first.id)) == 1
        assert (await store.conversation(first.id)).at == first.id
        assert len(await store.conversations(total=True)) == 2
        assert await store.delete(ids) == ids
        assert (await store.verify()).ok
        assert (await store.stats()).conversations == 2
        assert len(await store.activity(days=2)) == 2
        assert await store.scrub()
        listing = store.messages(conversation=talk, newest_first=False)
        assert (await anext(listing)).id == first.id
        assert listing.cursor is not None
        await store.purge(talk, reason="user-requested")
        with pytest.raises(NotFound):
            await store.conversation(talk.id)
        await store.close()
        with pytest.raises(HithertoError):
            await alone.thread()

    asyncio.run(main())


def test_many_tasks_ride_few_commits(tmp_path: Path) -> None:
    """10,000 concurrent appends go in rounds, each of them one commit; maintenance may add a few."""

    async def main() -> int:
        async with open_async(tmp_path / "c.db") as store:
            commits = count_commits(store.sync)
            talks = [await store.start() for _ in range(20)]
            before = commits()
            await asyncio.gather(*(talks[n % 20].append(Message.user(str(n))) for n in range(10_000)))
            for talk in talks:
                await talk.refresh()
            assert sum(talk.count for talk in talks) == 10_000
            assert (await store.verify()).ok
            return commits() - before

    assert asyncio.run(main()) < 200


def count_commits(store: Store) -> Callable[[], int]:
    counted = [0]
    inner = store.backend.commit

    def commit(batches: list[Batch]) -> list[Outcome]:
        counted[0] += 1
        return inner(batches)

    store.backend.commit = commit  # type: ignore[method-assign,assignment]  # counting is all it does
    return lambda: counted[0]


def test_a_cancelled_append_waits_for_its_outcome() -> None:
    async def main() -> None:
        async with open_async("memory:") as store:
            talk = await store.start()
            writing, go_on = threading.Event(), threading.Event()
            inner = store.sync.backend.commit

            def slow(batches: list[Batch]) -> list[Outcome]:
                writing.set()
                assert go_on.wait(PATIENCE)
                return inner(batches)

            store.sync.backend.commit = slow  # type: ignore[method-assign,assignment]  # slow on purpose
            task = asyncio.create_task(talk.append(Message.user("kept")))
            assert await asyncio.to_thread(writing.wait, PATIENCE)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=0.05)
            assert not done  # it waits
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [m.text for m in await talk.thread()] == ["kept"]

    asyncio.run(main())


def test_a_store_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_async(tmp_path):
            raise AssertionError("a folder is no store")

    with pytest.raises(HithertoError):
        asyncio.run(main())


_FORKED = """
import asyncio, os
from hitherto._system.task_threads import shared_threads

async def wait():
    return await shared_threads().run(lambda: 5)

assert asyncio.run(wait()) == 5  # the threads are there, and idle
child = os.fork()
if not child:
    os._exit(asyncio.run(wait()))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
"""


def test_a_forked_child_waits_in_threads_of_its_own() -> None:
    """It has none of its parent's; one that counted on them would wait for ever."""
    done = subprocess.run([sys.executable, "-c", _FORKED], timeout=60, check=False)
    assert done.returncode == 0


def test_items_and_batches_are_awaited() -> None:
    async def go() -> None:
        async with hitherto.open_async("memory:") as store:
            assert await store.find("t") is None
            talk = await store.ensure("t")
            first = await talk.items.put("a/1", b"1", expect=None)
            assert await talk.items.get("a/1") == first
            with pytest.raises(Conflict):
                await talk.items.put("a/1", b"2", expect=None)
            async with talk.batch() as batch:
                batch.append(Message.user("hi", key="k"))
                batch.items["a/2"] = b"2"
            assert [m.text for m in batch.saved] == ["hi"]
            for n in range(3, 80):
                batch = talk.batch()
                batch.items[f"b/{n:02d}"] = b"x"
                await batch.write()
            assert [item.name async for item in talk.items.scan("a/")] == ["a/1", "a/2"]
            assert len([item async for item in talk.items.scan("b/", reverse=True)]) == 77
            await talk.items.delete("a/1")
            lost = talk.batch()
            lost.append(Message.user("lost"))
            await lost.__aexit__(KeyError, KeyError(), None)
            assert [m.text for m in await talk.get(keys=["k"])] == ["hi"]
            found = await store.find("t")
            assert found is not None
            assert (await found.pop()).text == "hi"
            await store.items.put("theme", b"dark")
            assert (await store.items.get("theme")) is not None
            assert store.sync.items["theme"] == b"dark"

    asyncio.run(go())
