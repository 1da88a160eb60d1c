"""Files of every released format open, read as they were, and can be written to (A11: format migration)."""

import gzip
from pathlib import Path

import pytest

import hitherto
from hitherto import Message

KEPT = sorted((Path(__file__).parent / "data").glob("format-*.db.gz"))


@pytest.fixture(params=KEPT, ids=lambda path: path.name)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "store.db"
    file.write_bytes(gzip.decompress(request.param.read_bytes()))
    return file


def test_there_is_a_kept_file_of_every_format() -> None:
    from hitherto.backends._schema import MIGRATIONS

    assert [file.name for file in KEPT] == [f"format-{n + 1}.db.gz" for n in range(len(MIGRATIONS))]


def test_a_kept_file_reads_as_it_was(path: Path) -> None:
    with hitherto.open(path) as store:
        assert store.verify().problems == ()
        titles = {info.title for info in store.conversations()}
        assert titles - {"Large"} == {"Kept", "By key"}
        talk = store.ensure("user-42")
        assert (talk.title, talk.metadata, [m.text for m in talk.thread()]) == ("By key", {"a": "b"}, ["hello"])
        kept = store.latest(project="/p")
        assert kept is not None
        assert (kept.system_prompt, kept.model) == ("Be verbose.", "gpt-5")
        assert [m.text for m in kept.thread()] == ["The gist.", "and now?"]
        (tool_result,) = [m for m in store.messages() if m.key == "result-1"]
        assert tool_result.tool_result_error
        branch = store.thread(tool_result.id)
        assert [m.text for m in branch[:2]] == ["question 0 \0 🎉", "answer 0"]
        assert branch[3].raw == {"id": "msg_1"}
        assert branch[10].blocks[1].content == bytes(range(256))
        assert branch[11].blocks[0].arguments == {"path": "a.py"}
        assert store.conversation(branch[3]).system_prompt == "Be terse."
        assert len(list(store.messages(subagent="review"))) == 1
        assert len(list(store.messages(label="picture"))) == 1
        assert branch[0].created_at.year == 2023


def test_what_a_kept_file_has_in_packs_and_attachments_reads_as_it_was(path: Path) -> None:
    """From format 2 on. Packed or not, searching and packing work in files that began before there was either."""
    with hitherto.open(path) as store:
        if any(info.title == "Large" for info in store.conversations()):
            seen, answer, after = store.conversation("00000000-0000-4000-8000-000000000002").thread()
            assert seen.blocks[1].content == bytes(range(256)) * 1200
            assert seen.raw == {"data": ["ä" * 70_000]}
            assert (answer.text, after.text) == ("I see.", "after packing")
            assert store.backend.packs(range(0, 320, 32))
        assert [hit.snippet for hit in store.search("gist")] == ["The gist."]
        assert store.maintain().complete
        assert store.verify().problems == ()


def test_a_kept_file_can_be_written_to(path: Path) -> None:
    with hitherto.open(path) as store:
        talk = store.ensure("user-42")
        talk.append(Message.assistant("again"))
        assert store.verify().ok
    with hitherto.open(path) as store:
        assert [m.text for m in store.ensure("user-42").thread()] == ["hello", "again"]
