"""The contract of packing under the store.

Packing changes where bodies lie and nothing that a reader sees, whatever other writers do meanwhile.
"""

import threading
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from ... import threads
from ..._engine import packing as _packing
from ..._engine.packs import run_of
from ...backend import (
    DONE,
    Backend,
    Batch,
    Change,
)
from ...conversation import Conversation
from ...errors import (
    Damaged,
    HasChildren,
    NotFound,
)
from ...ids import RUN
from ...model import Message, Saved, Usage
from ...store import Store
from ..toys import ToyCodec
from .stores import (
    fill,
    grown,
    id_bytes,
    interrupt_call,
    pack_all,
    row_of,
    texts,
    visible,
)


class PackingContract:
    """Packing changes where bodies lie and nothing that a reader sees."""

    def test_packing_changes_nothing_that_anybody_can_see(
        self, store: Store, open_store: Callable[[], Store], backend: Backend
    ) -> None:
        talk = grown(store)
        before, row = visible(store, talk), row_of(backend, talk)
        pack_all(store)
        assert backend.packs(range(0, backend.edge(), RUN)) != []  # the control: something is packed
        assert visible(store, talk) == before
        assert visible(open_store(), talk) == before
        after = row_of(backend, talk)
        assert after == replace(row, token=after.token, proof=after.proof, rewrites=after.rewrites)
        assert store.maintain().packed == 0
        assert visible(store, talk) == before

    def test_handles_that_were_there_before_go_on_after_packing(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 20)
        other = talk.fork(at=path[10])
        side = talk.subagent("critic", "1")
        side.append(Message.user("hm"))
        pack_all(store)
        assert talk.append(Message.user("on"), on_conflict="raise").parent == path[-1].id
        assert other.append(Message.user("fork")).parent == path[10].id
        assert side.append(Message.user("hm, hm")).label == "subagent:critic:1"
        assert texts(talk.thread()) == [*texts(path), "on"]
        assert texts(other.thread()) == [*texts(path[:11]), "fork"]
        assert texts(side.thread()) == ["hm", "hm, hm"]

    def test_a_fork_into_the_middle_of_a_pack_grows_and_is_packed_too(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 40)
        pack_all(store)
        forks = [talk.fork(at=path[at]) for at in (0, 17, 31, 32, 63, 79)]
        for n in range(33):
            for fork in forks:
                fork.append(Message.user(f"f{n}"))
        wanted = [texts(fork.thread()) for fork in forks]
        assert [len(thread) for thread in wanted] == [34, 51, 65, 66, 97, 113]
        pack_all(store)
        assert [texts(fork.thread()) for fork in forks] == wanted
        assert talk.thread() == path
        assert len(talk.branches()) == 6

    def test_undo_compact_detach_compare_and_usage_see_through_packs(self, store: Store) -> None:
        talk = store.start(system_prompt="s")
        path = fill(talk, 19)
        talk.append(Message.assistant("counted", usage=Usage(3, 4)))
        pack_all(store)
        assert (talk.usage().total_tokens, talk.usage().messages) == (7, 39)
        assert texts(talk.undo()) == ["q18", "a18", "counted"]
        talk.append(Message.user("q18, better"))
        pack_all(store)
        other = talk.fork(at=path[20])
        other.append(Message.user("another"))
        compared = threads.compare(talk, other)
        assert (compared.shared, compared.left[0]) == (path[:21], path[21])
        alone = talk.detach()
        pack_all(store)
        assert texts(alone.thread()) == [*texts(path[:36]), "q18, better"]
        assert alone.thread()[0].origin == f"{talk.id}/{path[0].id}"
        root = talk.compact(lambda thread: f"{len(thread)} summed up")
        assert root.text == "37 summed up"
        pack_all(store)
        assert texts(talk.thread()) == ["37 summed up"]
        assert texts(talk.thread(full=True)) == [*texts(path[:36]), "q18, better", "37 summed up"]
        assert texts(talk.undo()) == ["37 summed up"]
        assert texts(talk.thread())[-1] == "q18, better"

    def test_what_is_deleted_from_a_packed_run_is_gone_and_the_rest_stays(
        self, store: Store, open_store: Callable[[], Store], backend: Backend
    ) -> None:
        """A suffix, then a whole run, then everything."""
        talk = store.start()
        path = fill(talk, 40)
        pack_all(store)
        size = talk.refresh().state.row.size
        for left in (70, 64, 63, 33, 1):
            store.delete([path[left].id], recursive=True)
            fresh = open_store().conversation(talk.id)
            assert (fresh.thread(), fresh.count, fresh.at) == (path[:left], left, path[left - 1].id)
            assert list(store.messages(newest_first=False)) == path[:left]
            with pytest.raises(NotFound):
                store.get([path[left].id])
            assert row_of(backend, talk).size < size
            assert store.verify().problems == ()
        assert store.delete([path[0].id]) == [path[0].id]
        assert backend.packs(range(0, 200, RUN)) == []
        assert store.conversation(talk.id).append(Message.user("anew")).parent is None

    def test_after_a_delete_a_packed_run_goes_on_elsewhere_and_is_packed_again(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 16)
        pack_all(store)
        store.delete([path[20].id], recursive=True)
        again = store.conversation(talk.id)
        more = fill(again, 20)
        pack_all(store)
        assert again.thread() == [*path[:20], *more]

    def test_a_delete_in_packs_takes_subagents_along_and_clears_compaction_links(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 20)
        trace = talk.subagent("review", "r", call=path[33])
        traced = fill(trace, 17)
        root = talk.compact("gist")
        fill(talk, 16)
        summed = talk.thread()
        pack_all(store)
        with pytest.raises(HasChildren):
            store.delete([path[33].id])
        gone = store.delete([path[33].id], recursive=True)
        assert set(gone) == {m.id for m in (*path[33:], *traced)}
        assert list(store.messages(subagent="review")) == []
        assert store.message(root.id).link is None
        assert texts(talk.thread(full=True)) == texts(summed)
        assert talk.thread()[1:] == summed[1:]
        assert store.thread(path[32]) == path[:33]

    def test_a_packed_message_can_be_labelled(self, store: Store, open_store: Callable[[], Store]) -> None:
        talk = store.start()
        path = fill(talk, 20)
        pack_all(store)
        for message in (path[0], path[13], path[31], path[39]):
            talk.label("good", message=message)
        talk.label("better", message=path[13])
        talk.label(None, message=path[31])
        found = open_store()
        assert [m.id for m in found.messages(label="good", newest_first=False)] == [path[0].id, path[39].id]
        assert [m.id for m in found.messages(label="better")] == [path[13].id]
        labels = {message.id: message.label for message in found.conversation(talk.id).thread() if message.label}
        assert labels == {path[0].id: "good", path[13].id: "better", path[39].id: "good"}
        assert (found.message(path[13]).revision, found.message(path[31]).label) == (2, None)
        assert texts(found.conversation(talk.id).thread()) == texts(path)
        pack_all(store)
        assert [m.id for m in store.messages(label="better")] == [path[13].id]

    def test_a_partial_pack_grows_message_by_message(self, store: Store, open_store: Callable[[], Store]) -> None:
        """Each message is there once, at whatever time it is packed."""
        talk = store.start()
        path: list[Saved] = []
        for n in range(70):
            path.append(talk.append(Message.user(f"m{n}")))
            if n % 5 == 0 or n in (30, 31, 32):
                pack_all(store)
            if n % 7 == 0:
                assert open_store().conversation(talk.id).thread() == path
        pack_all(store)
        assert talk.thread() == path
        assert list(store.messages(newest_first=False)) == path

    def test_rows_beyond_a_pack_are_labelled_and_deleted_like_others(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 3)
        pack_all(store)
        path += fill(talk, 3)
        talk.label("loose", message=path[8])
        talk.label("packed", message=path[2])
        store.delete([path[10].id], recursive=True)
        assert [m.label for m in store.conversation(talk.id).thread()] == [
            None, None, "packed", None, None, None, None, None, "loose", None,
        ]  # fmt: skip
        store.delete([path[4].id], recursive=True)
        assert texts(store.conversation(talk.id).thread()) == texts(path[:4])

    def test_a_key_is_known_although_its_message_is_packed(self, store: Store) -> None:
        talk = store.start()
        first = talk.append(Message.user("one", key="k1"))
        fill(talk, 20)
        pack_all(store)
        count = talk.refresh().count
        again = store.conversation(talk.id)
        assert again.append(Message.user("one", key="k1")) == first
        assert (talk.refresh().count, again.at) == (count, first.id)

    def test_a_packed_conversation_is_purged_whole(self, store: Store, backend: Backend) -> None:
        talk, other = store.start(), store.start()
        path, kept = fill(talk, 40), fill(other, 40)
        pack_all(store)
        store.purge(talk, reason="user-requested")
        assert [pack.conversation for pack in backend.packs(range(0, 400, RUN))].count(id_bytes(talk)) == 0
        with pytest.raises(NotFound):
            store.get([path[0].id])
        assert other.thread() == kept

    def test_large_messages_share_no_pack(self, store: Store, backend: Backend) -> None:
        """Reading one message of a pack takes a few milliseconds at most, so a pack has an end."""
        talk = store.start()
        path = talk.extend([Message.user(letter * 600_000) for letter in "abc"])
        more = fill(talk, 20)
        store.maintain()
        assert talk.thread() == [*path, *more]
        assert list(store.messages(newest_first=False)) == [*path, *more]
        assert all(pack.count < RUN for pack in backend.packs([store.engine.message_ids.number(path[0].id)]))

    def test_one_packs_while_another_writes(self, open_store: Callable[[], Store]) -> None:
        """Two stores with beliefs of their own: no message is lost, doubled or left without its body."""
        mine, theirs = open_store(), open_store()
        talk = mine.start()
        path = fill(talk, 20)
        away = theirs.conversation(talk.id)
        pack_all(theirs)
        path.append(talk.append(Message.user("mine"), on_conflict="raise"))
        talk.label("l", message=path[3])
        pack_all(theirs)
        path.append(away.append(Message.user("theirs"), on_conflict="follow"))
        mine.delete([path.pop().id])
        pack_all(mine)
        theirs.delete([path.pop().id])
        away.label("m", message=path[5])
        path += fill(away.follow(), 20)
        pack_all(mine)
        for store in (mine, theirs):
            assert texts(store.conversation(talk.id).thread()) == texts(path)
            assert [m.label for m in store.get([path[3].id, path[5].id])] == ["l", "m"]
            assert store.verify().problems == ()

    def test_threads_pack_and_write_at_once(self, open_store: Callable[[], Store]) -> None:
        """Appending, labelling, deleting, listing and packing, each in a thread and store of its own."""
        stores = [open_store() for _ in range(4)]
        talk = stores[0].start()
        first = fill(talk, 20)
        doomed = stores[0].start()
        goners = fill(doomed, 20)
        problems: list[BaseException] = []

        def attempt(work: Callable[[], object]) -> Callable[[], None]:
            def run() -> None:
                try:
                    work()
                except BaseException as error:  # noqa: BLE001  # shown below
                    problems.append(error)

            return run

        def append() -> None:
            for n in range(40):
                talk.append(Message.user(f"n{n}"))

        def label() -> None:
            handle = stores[1].conversation(talk.id)
            for n in range(20):
                handle.label(f"label {n}", message=first[n])

        def delete() -> None:
            for message in reversed(goners[8:]):
                stores[2].delete([message.id])

        def pack() -> None:
            for _ in range(12):
                stores[3].maintain()
                assert texts(stores[3].thread(first[-1])) == texts(first)

        workers = [threading.Thread(target=attempt(work)) for work in (append, label, delete, pack)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for problem in problems:
            raise problem
        last = open_store()
        thread = last.conversation(talk.id).thread()
        assert texts(thread) == [*texts(first), *(f"n{n}" for n in range(40))]
        assert [m.label for m in thread[:20]] == [f"label {n}" for n in range(20)]
        assert last.conversation(doomed.id).thread() == goners[:8]
        assert last.verify().problems == ()

    def test_a_pack_that_was_built_too_early_is_not_put_over_a_longer_one(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two threads of one store maintain it, and a third one appends: what the slower one has built is too short by
        the time it is written."""
        store = Store(backend, ToyCodec())
        talk = store.start()
        path = fill(talk, 2)

        def meanwhile() -> None:
            path.append(talk.append(Message.user("meanwhile")))
            store.maintain()

        monkeypatch.setattr(_packing, "_build", interrupt_call(_packing._build, meanwhile))
        store.maintain()
        assert store.conversation(talk.id).thread() == path
        assert store.verify().problems == ()

    @pytest.mark.parametrize("how", ["append", "look"])
    def test_a_pack_that_was_built_too_early_is_not_put_over_that_of_another_store(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        """As above, in two processes. The one with the shorter pack has heard of the row that the other has written, by
        an append that was stale or because somebody looked."""
        mine, theirs = Store(backend, ToyCodec()), Store(backend, ToyCodec())
        talk = mine.start()
        path = fill(talk, 2)

        def meanwhile() -> None:
            path.append(theirs.conversation(talk.id).append(Message.user("theirs")))
            theirs.maintain()
            if how == "append":
                path.append(talk.append(Message.user("mine"), on_conflict="follow"))
            else:
                talk.refresh()

        monkeypatch.setattr(_packing, "_build", interrupt_call(_packing._build, meanwhile))
        mine.maintain()
        assert texts(mine.conversation(talk.id).thread()) == texts(path)
        assert mine.verify().problems == ()

    def test_a_pack_that_was_built_too_early_is_given_up_if_messages_changed(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for change in ("label", "delete", "purge", "append"):
            store = Store(backend, ToyCodec())
            talk = store.start()
            path = fill(talk, 2)

            def meanwhile(change: str = change, store: Store = store, talk: Conversation = talk) -> None:
                if change == "label":
                    talk.label("new", message=talk.thread()[1])
                elif change == "delete":
                    store.delete([talk.thread()[3].id])
                elif change == "purge":
                    store.purge(talk, reason="user-requested")
                else:
                    talk.append(Message.user("more"))

            with monkeypatch.context() as patch:
                patch.setattr(_packing, "_build", interrupt_call(_packing._build, meanwhile))
                store.maintain()
            assert store.verify().problems == ()
            if change == "purge":
                continue
            wanted = texts(path[:3] if change == "delete" else path) + ["more"] * (change == "append")
            assert texts(store.conversation(talk.id).thread()) == wanted
            assert (store.message(path[1]).label == "new") == (change == "label")

    def test_verify_is_content_while_others_pack(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        store = Store(backend, ToyCodec())
        talk = store.start()
        fill(talk, 150)  # more than verify reads at a time
        scan = backend.scan
        monkeypatch.setattr(backend, "scan", interrupt_call(scan, store.maintain))
        report = store.verify()
        assert report.problems == ()

    def test_a_listing_goes_on_when_a_packed_message_is_deleted_meanwhile(self, store: Store) -> None:
        """A message in a row that was read is listed; a message in a pack is looked up when it is its turn."""
        talk = store.start()
        path = talk.extend([Message.user(str(n), label="l") for n in range(40)])
        pack_all(store)
        listing = store.messages(label="l", newest_first=False)
        begun = [next(listing)]
        store.delete([path[35].id], recursive=True)
        assert begun + list(listing) == path[:35]

    def test_verify_sees_through_packs(self, store: Store, backend: Backend) -> None:
        talk = store.start()
        path = fill(talk, 20)
        sound = store.start()
        fill(sound, 20)
        pack_all(store)
        assert (store.verify().problems, store.verify().messages) == ((), 80)
        store.damaged_on_purpose = True  # type: ignore[attr-defined]  # the fixture verifies every other store
        row = row_of(backend, talk)
        first = store.engine.message_ids.number(path[0].id)
        pack = backend.packs([first])[0]
        header = backend.messages(numbers=[first + 3])[0]
        swapped = replace(backend.packs([run_of(store.engine.message_ids.number(path[39].id))])[0], first=first)
        broken = [
            Change(row.id, None, row, pack=(replace(pack, body=pack.body[:-1] + bytes([pack.body[-1] ^ 1])),)),
            Change(row.id, None, row, pack=(replace(pack, body=b""),)),
            Change(row.id, None, row, pack=(replace(pack, count=pack.count - 1),)),
            Change(row.id, None, row, pack=(replace(pack, parent=12345),)),
            Change(row.id, None, row, pack=(swapped,)),
            Change(row.id, None, row, unpack=(first,)),
            Change(row.id, None, row, amend=(replace(header, seq=header.seq + 1000),)),
            Change(row.id, None, row, amend=(replace(header, revision=5),)),
            Change(row.id, None, row, amend=(replace(header, role="system"),)),
            Change(row.id, None, row, amend=(replace(header, size=header.size + 1),)),
            Change(row.id, None, row, drop=(header.number,)),
        ]
        for change in broken:
            assert backend.commit([Batch((replace(change, expect=row.token),))]) == [DONE]
            report = store.verify()
            assert not report.ok, change
            assert {problem.conversation for problem in report.problems} == {talk.id}
            add = (header,) if change.drop else ()
            fixed = Change(row.id, row.token, row, add=add, amend=() if add else (header,), pack=(pack,))
            assert backend.commit([Batch((fixed,))]) == [DONE]
            assert store.verify().ok, change

    def test_a_damaged_pack_hides_no_other(self, store: Store, backend: Backend) -> None:
        talk = store.start()
        path = fill(talk, 40)
        pack_all(store)
        store.damaged_on_purpose = True  # type: ignore[attr-defined]  # see above
        row = row_of(backend, talk)
        pack = backend.packs([store.engine.message_ids.number(path[32].id)])[0]
        broken = replace(pack, body=b"\x00" + pack.body)
        backend.commit([Batch((Change(row.id, row.token, row, pack=(broken,)),))])
        listed = list(store.messages(newest_first=False))
        assert [m.id for m in listed] == [m.id for m in path]
        assert [m.problem is not None for m in listed] == [False] * 32 + [True] * 32 + [False] * 16
        assert listed[:32] == path[:32]
        for read in (talk.thread, lambda: store.message(path[40])):
            with pytest.raises(Damaged):
                read()
        assert store.thread(path[31]) == path[:32]
        assert {p.message for p in store.verify().problems} >= {m.id for m in path[32:64]}
