"""The contract of attachments under the store.

Large content is kept once, read when it is needed, and collected a day after it was abandoned.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ...attachment import CHUNK, LARGE, Attachment
from ...backend import (
    Backend,
)
from ...conversation import Conversation
from ...errors import (
    AlreadyExists,
    Damaged,
    InvalidArgument,
    NotFound,
    PayloadTooLarge,
)
from ...model import Block, Message, Saved
from ...store import Store
from .stores import (
    Changing,
    id_bytes,
    interrupt_commit,
    noise,
    pack_all,
)


class AttachingContract:
    """Large content: kept once, read lazily, collected when it is abandoned."""

    def test_binary_of_any_size_comes_back_equal(self, store: Store, open_store: Callable[[], Store]) -> None:
        sizes = (0, LARGE - 1, LARGE, LARGE + 1, CHUNK - 1, CHUNK, CHUNK + 1, 1_000_000)
        talk = store.start()
        for size in sizes:
            message = Message.user([Block.image(noise(size), "image/png"), Block.text("and?")])
            assert talk.append(message).blocks == tuple(message.blocks)
        for found in (talk.thread(), open_store().conversation(talk.id).thread(), list(store.messages())[::-1]):
            assert [m.blocks[0].content for m in found] == [noise(size) for size in sizes]
        pack_all(store)
        assert [m.blocks[0].content for m in open_store().conversation(talk.id).thread()] == [noise(s) for s in sizes]

    def test_what_compresses_well_comes_back_equal_too(self, store: Store) -> None:
        """Chunks that are squeezed, chunks that are not, and content that looks like a squeezed chunk."""
        magic = b"\x28\xb5\x2f\xfd"
        contents = [bytes(CHUNK * 3), b"ab" * CHUNK + noise(CHUNK), magic * LARGE, b"\x01" * LARGE, b"\x00" * LARGE]
        talk = store.start()
        talk.append(Message.user([Block.image(content, "image/png") for content in contents]))
        assert [block.content for block in talk.thread()[0].blocks] == contents

    def test_the_same_image_twice_is_kept_once(self, store: Store, backend: Backend) -> None:
        """In one message, in several, and from a handle of another; but not across conversations."""
        talk, other = store.start(), store.start()
        image = Block.image(noise(LARGE), "image/png")
        talk.append(Message.user([image, Block.image(noise(LARGE), "image/jpeg")]))
        talk.append(Message.user(image))
        store.conversation(talk.id).append(Message.user(image))
        (row,) = backend.attachments(id_bytes(talk))
        assert (len(row.messages), row.chunks) == (3, 1)
        other.append(Message.user(image))
        assert len(backend.attachments(id_bytes(other))) == 1
        store.purge(talk, reason="user-requested")
        assert backend.attachments(id_bytes(talk)) == []
        assert other.thread()[0].blocks[0].content == noise(LARGE)

    def test_long_strings_in_the_providers_json_come_back_equal(self, store: Store, backend: Backend) -> None:
        long = "ä🎉" * LARGE
        assert len(long.encode()) > 4 * LARGE
        raw = {
            "data": [{"image": {"b64": "A" * (LARGE + 1)}}, "x" * LARGE, ["B" * (LARGE + 1), long, "", None, 1.5]],
            "again": long,
            "\0": {"bytes": noise(LARGE), "few": b"\xff"},
            "nul": "\0" * (LARGE + 1),
        }
        message = Message(
            role="assistant",
            blocks=[Block.text("y" * 300_000, cited=["C" * (LARGE + 1)]), Block.image(noise(LARGE), "image/png")],
            raw=raw,
            extra={"long": long, "deep": [[[["D" * (2 * LARGE)]]]]},
            privacy={"why": "E" * (LARGE + 1)},
        )
        talk = store.start()
        saved = talk.append(message)
        pack_all(store)
        (read,) = talk.thread()
        assert read == saved == store.message(saved.id) == next(iter(store.messages()))
        for name in ("raw", "extra", "privacy"):
            assert getattr(read, name) == getattr(message, name), name
        assert read.blocks == tuple(message.blocks)
        assert len(backend.attachments(id_bytes(talk))) == 8

    def test_text_and_bytes_that_are_the_same_do_not_get_in_each_others_way(self, store: Store) -> None:
        talk = store.start()
        same = "z" * (LARGE + 1)
        talk.append(Message.user(Block.image(same.encode(), "image/png")))
        talk.append(Message.user("x", raw={"z": same}))
        store.damaged_on_purpose = True  # type: ignore[attr-defined]  # verified here, as long as it is expected to fail
        first, second = talk.thread()
        assert (first.blocks[0].content, second.raw) == (same.encode(), {"z": same})
        assert store.verify().problems == ()

    def test_a_file_and_a_string_that_are_the_same_are_given_back_as_they_are(
        self, store: Store, tmp_path: Path
    ) -> None:
        same = "z" * (LARGE + 1)
        file = tmp_path / "same"
        file.write_text(same)
        talk = store.start()
        saved = talk.append(Message.user(Block.image(Attachment.from_file(file), "image/png"), raw={"z": same}))
        file.unlink()
        assert saved.raw == {"z": same}
        assert isinstance(saved.blocks[0].content, Attachment)
        assert saved.blocks[0].content.read() == same.encode()

    def test_attachments_can_be_read_when_they_are_wanted(self, store: Store, tmp_path: Path) -> None:
        content = noise(CHUNK * 2 + 5)
        text = "ü" * LARGE
        talk = store.start()
        saved = talk.append(Message.user(Block.video(content, "video/mp4"), raw={"t": [text]}))
        found = [
            talk.thread(attachments="lazy")[0],
            store.thread(saved, attachments="lazy")[0],
            store.message(saved, attachments="lazy"),
            store.get([saved], attachments="lazy")[0],
            next(store.messages(attachments="lazy")),
        ]
        for n, message in enumerate(found):
            video, words = message.blocks[0].content, message.raw["t"][0]  # type: ignore[index]  # as above
            assert isinstance(video, Attachment)
            assert isinstance(words, Attachment)
            assert (video.size, video.text, words.size, words.text) == (len(content), False, 2 * LARGE, True)
            assert [len(piece) for piece in video] == [CHUNK, CHUNK, 5]
            assert (video.read(), video.load(), words.load(), words.read()) == (content, content, text, text.encode())
            video.save(tmp_path / f"{n}.mp4")
            assert (tmp_path / f"{n}.mp4").read_bytes() == content
            with pytest.raises(AlreadyExists):
                words.save(tmp_path / f"{n}.mp4")
            assert (tmp_path / f"{n}.mp4").read_bytes() == content
        assert len(list(tmp_path.glob("*.mp4*"))) == len(found)  # nothing unfinished is left
        with pytest.raises(InvalidArgument):
            talk.thread(attachments="eager")  # type: ignore[arg-type]  # on purpose
        assert found[0].text == ""
        assert "97" not in repr(found[0].blocks[0].content)

    def test_a_file_is_attached_by_its_path(self, store: Store, tmp_path: Path) -> None:
        for size in (0, 1, LARGE, CHUNK + 1):
            file = tmp_path / f"{size}.png"
            file.write_bytes(noise(size))
            talk = store.start()
            saved = talk.append(Message.user(Block.image(Attachment.from_file(file), "image/png")))
            given = saved.blocks[0].content
            file.unlink()
            assert isinstance(given, Attachment)  # of the store: the file is not needed any more
            assert given.read() == noise(size)
            assert talk.thread()[0].blocks[0].content == noise(size)
        for nothing in (tmp_path, tmp_path / "never", ""):
            with pytest.raises(InvalidArgument):
                Attachment.from_file(nothing)

    def test_what_was_read_lazily_can_be_said_again_elsewhere(self, store: Store) -> None:
        talk, other = store.start(), store.start()
        talk.append(Message.user(Block.image(noise(CHUNK + 1), "image/png"), raw={"t": "x" * (LARGE + 1)}))
        (lazy,) = talk.thread(attachments="lazy")
        other.append(lazy)
        talk.append(lazy)
        store.purge(talk, reason="user-requested")
        (read,) = other.thread()
        assert (read.blocks[0].content, read.raw) == (noise(CHUNK + 1), {"t": "x" * (LARGE + 1)})
        with pytest.raises(NotFound):
            lazy.blocks[0].content.read()  # type: ignore[union-attr]  # an attachment

    def test_a_message_with_attachments_can_be_labelled(self, store: Store, backend: Backend) -> None:
        talk = store.start()
        saved = talk.append(Message.user(Block.image(noise(LARGE), "image/png"), raw={"t": "x" * (LARGE + 1)}))
        talk.label("loose")
        pack_all(store)
        talk.label("packed")
        (read,) = talk.thread()
        assert (read.label, read.blocks, read.raw) == ("packed", saved.blocks, saved.raw)
        assert [row.messages for row in backend.attachments(id_bytes(talk))] == [
            (store.engine.message_ids.number(saved.id),)
        ] * 2

    def test_the_last_message_that_refers_takes_the_attachment_along(self, store: Store, backend: Backend) -> None:
        for packed in (False, True):
            talk = store.start()
            image = Block.image(noise(LARGE), "image/png")
            first, second = talk.append(Message.user(image)), talk.append(Message.user(image))
            if packed:
                pack_all(store)
            store.delete([second.id])
            assert len(backend.attachments(id_bytes(talk))) == 1
            assert store.message(first).blocks[0].content == noise(LARGE)
            store.delete([first.id])
            assert backend.attachments(id_bytes(talk)) == []

    def test_a_detached_thread_has_attachments_of_its_own(self, store: Store, backend: Backend) -> None:
        talk = store.start()
        for n in range(3):
            talk.append(Message.user(Block.image(noise(LARGE + n), "image/png"), raw={"t": "x" * (LARGE + 1)}))
        pack_all(store)
        alone = talk.detach()
        assert len(backend.attachments(id_bytes(alone))) == 4
        store.purge(talk, reason="user-requested")
        assert [m.blocks[0].content for m in alone.thread()] == [noise(LARGE + n) for n in range(3)]
        assert alone.thread()[2].raw == {"t": "x" * (LARGE + 1)}

    def test_too_large_is_refused_and_nothing_is_staged(self, backend: Backend, tmp_path: Path) -> None:
        """One attachment has a limit; text and JSON have another, wherever they end up. (Points: letters alone are the
        base64 of something, which is no text.)"""
        store = Store(backend, max_attachment=CHUNK, max_write_bytes=300_000)
        talk = store.start()
        file = tmp_path / "file"
        file.write_bytes(bytes(CHUNK + 1))
        large = [
            Message.user(Block.image(bytes(CHUNK + 1), "image/png")),
            Message.user(Block.image(Attachment.from_file(file), "image/png")),
            Message.user("x", raw={"t": "x" * (CHUNK + 1)}),
            Message.user("x", raw=["x." * 100_000, "y." * 50_000]),
            Message.user("x" * 100_001, raw={"t": "x." * 100_000}),
            Message.user("x", extra={"t": "é" * 75_000, "u": "è" * 75_000}),
        ]
        for message in large:
            for write in (talk.append, lambda m: store.save([m]), lambda m: talk.extend([Message.user("fine"), m])):
                with pytest.raises(PayloadTooLarge):
                    write(message)
        with pytest.raises(PayloadTooLarge):
            talk.extend([Message.user("x", raw="x." * 75_000), Message.user("x", raw="y." * 75_000)])
        assert backend.attachments(id_bytes(talk)) == []
        assert (store.stats().messages, store.stats().conversations) == (0, 1)
        assert backend.collect(1 << 60) == 0
        talk.append(Message.user(Block.image(bytes(CHUNK), "image/png"), raw=["x." * 100_000]))  # the control
        assert store.verify().problems == ()

    def test_a_file_that_changes_while_it_is_read_is_refused(self, store: Store, tmp_path: Path) -> None:
        talk = store.start()
        content = noise(CHUNK * 2)
        for other in (content[:-1], content + b"x", noise(CHUNK * 2 + 7)[7:], b"", content + bytes(CHUNK * 40)):
            changing = Changing(content, other)
            attachment = Attachment(len(content), changing)
            with pytest.raises(InvalidArgument):
                talk.append(Message.user(Block.image(attachment, "image/png")))
            assert changing.reads == 2  # once for its name, once for its bytes
        shrunk = tmp_path / "shrunk"
        shrunk.write_bytes(content)
        attachment = Attachment.from_file(shrunk)
        shrunk.write_bytes(content[:-1])
        with pytest.raises(InvalidArgument):
            talk.append(Message.user(Block.image(attachment, "image/png")))
        assert talk.refresh().count == 0

    def test_after_a_file_that_changed_the_real_content_is_kept(self, store: Store) -> None:
        """Chunks of the other content, staged under the name of this one, do no harm."""
        talk = store.start()
        content = noise(CHUNK + 1)
        for other in (noise(CHUNK * 40), b"", noise(CHUNK)):
            attachment = Attachment(len(content), Changing(content, other))
            with pytest.raises(InvalidArgument):
                talk.append(Message.user(Block.image(attachment, "image/png")))
        talk.append(Message.user(Block.image(content, "image/png")))
        assert talk.thread()[0].blocks[0].content == content

    def test_a_file_that_vanishes_is_refused(self, store: Store, tmp_path: Path) -> None:
        talk = store.start()
        file = tmp_path / "file"
        file.write_bytes(noise(LARGE))
        attachment = Attachment.from_file(file)
        file.unlink()
        with pytest.raises(InvalidArgument):
            talk.append(Message.user(Block.image(attachment, "image/png")))
        assert talk.refresh().count == 0
        talk.append(Message.user("goes on"))

    def test_abandoned_chunks_are_collected_after_a_day_and_not_before(self, backend: Backend) -> None:
        now = [1_700_000_000_000_000]
        store = Store(backend, clock=lambda: now[0])
        talk = store.start()
        kept = talk.append(Message.user(Block.image(noise(LARGE), "image/png")))
        backend.stage(id_bytes(talk), b"abandoned", 0, [b"by a process that was killed"], last=True, at=now[0])
        assert len(backend.attachments(id_bytes(talk))) == 2  # the control: something was abandoned
        day = 24 * 3600 * 1_000_000
        now[0] += day
        assert store.maintain().collected == 0
        now[0] += 1
        assert store.maintain().collected == 1
        assert len(backend.attachments(id_bytes(talk))) == 1
        now[0] += 100 * day
        assert store.maintain().collected == 0
        assert store.message(kept).blocks[0].content == noise(LARGE)
        assert store.verify().problems == ()

    def test_what_the_collector_took_is_staged_again(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """The collector, or the delete of the last message that refers, comes between staging and adopting."""
        store = Store(backend)

        def meanwhile() -> None:
            assert backend.collect(1 << 60) == 1

        def append(talk: Conversation, message: Message) -> Saved:
            with monkeypatch.context() as patch:
                interrupt_commit(patch, backend, meanwhile)
                return talk.append(message)

        talk = store.start()
        message = Message.user(Block.image(noise(CHUNK + 1), "image/png"), raw={"n": 1})
        saved = append(talk, message)
        assert store.message(saved).blocks[0].content == noise(CHUNK + 1)
        with monkeypatch.context() as patch:
            interrupt_commit(patch, backend, meanwhile)
            (id,) = store.save([message])
        assert store.message(id).blocks[0].content == noise(CHUNK + 1)

        def delete() -> None:
            Store(backend).delete([saved.id])

        before = talk.fork(before=saved)
        with monkeypatch.context() as patch:
            interrupt_commit(patch, backend, delete)
            again = before.append(message)
        assert store.message(again).blocks[0].content == noise(CHUNK + 1)
        assert store.verify().problems == ()

    def test_what_a_lazy_attachment_was_is_not_found_when_its_message_is_gone(self, store: Store) -> None:
        talk = store.start()
        saved = talk.append(Message.user(Block.image(noise(CHUNK * 3), "image/png")))
        (lazy,) = talk.thread(attachments="lazy")
        content = lazy.blocks[0].content
        assert isinstance(content, Attachment)
        pieces = iter(content)
        next(pieces)
        store.delete([saved.id])
        with pytest.raises(NotFound):
            list(pieces)
        with pytest.raises(NotFound):
            content.read()

    def test_damaged_attachments_are_noticed_and_named(
        self, store: Store, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        talk = store.start()
        saved = talk.append(Message.user(Block.image(noise(CHUNK * 2), "image/png")))
        sound = talk.append(Message.user(Block.image(noise(LARGE), "image/png")))
        store.damaged_on_purpose = True  # type: ignore[attr-defined]  # see above
        id = id_bytes(talk)
        (row,) = (row for row in backend.attachments(id) if row.chunks == 2)
        chunks, whole = backend.chunks, list(backend.chunks(id, row.name))

        def instead(name: bytes, broken: list[bytes]) -> Callable[..., Iterator[bytes]]:
            return lambda id, wanted, start=0: iter(broken[start:]) if wanted == name else chunks(id, wanted, start)

        for broken in (
            [whole[0][:-1], whole[1]],
            [whole[0], whole[1][:-1]],
            [whole[1], whole[0]],
            [whole[0], whole[0]],
            [whole[0], bytes([whole[1][0] ^ 1]) + whole[1][1:]],
            [whole[0], whole[1][:40] + b"?" + whole[1][41:]],
            [b"", whole[1]],
        ):
            monkeypatch.setattr(backend, "chunks", instead(row.name, broken))
            with pytest.raises(Damaged):
                talk.thread()
            assert [m.problem is None for m in store.messages()] == [True, False]
            assert {problem.message for problem in store.verify().problems} == {saved.id}
            assert store.message(sound).blocks[0].content == noise(LARGE)
        monkeypatch.setattr(backend, "chunks", chunks)
        assert store.verify().problems == ()
        assert talk.thread()[0].blocks[0].content == noise(CHUNK * 2)
