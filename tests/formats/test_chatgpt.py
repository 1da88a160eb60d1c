"""ChatGPT's data export: every branch, tools, pictures from the zip, hidden nodes, shards.

Requirements: F1.
"""

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hitherto
from hitherto import Store, formats
from hitherto.errors import InvalidArgument

from ..support.imports import (
    bring_in,
    bring_in_part,
    conversations,
    native,
    only,
    path_of,
    put_json,
    threads,
    why_injected,
)

PNG = b"\x89PNG\r\n\x1a\n" + bytes(60)


@pytest.fixture
def store() -> Any:
    with hitherto.open("memory:") as store:
        yield store


def node(
    id: str,
    parent: str | None,
    role: str | None = None,
    *parts: object,
    at: float | None = None,
    content: dict[str, object] | None = None,
    **more: object,
) -> dict[str, object]:
    message: dict[str, object] | None = None
    if role is not None:
        message = {
            "id": id, "author": {"role": role, "name": more.pop("name", None), "metadata": {}}, "create_time": at,
            "content": content or {"content_type": "text", "parts": list(parts)}, "status": "finished_successfully",
            "weight": 1.0, "metadata": {}, "recipient": "all", **more,
        }  # fmt: skip
    return {"id": id, "message": message, "parent": parent, "children": []}


def talk(*nodes: dict[str, object], **more: object) -> dict[str, Any]:
    return {
        "title": "Pixels", "create_time": 1_700_000_000.5, "update_time": 1_700_000_009.0,
        "mapping": {one["id"]: one for one in nodes}, "moderation_results": [], "current_node": nodes[-1]["id"],
        "conversation_id": "6f0e4cf4-9c1f-4c3c-9d43-0a4c3f0f6d5e", "is_archived": True, **more,
    }  # fmt: skip


def of(kind: str, **content: object) -> dict[str, Any]:
    return {"content": {"content_type": kind, **content}}


def example() -> dict[str, Any]:
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-AAA111", "width": 1}
    listed: dict[str, Any] = {
        "metadata": {"attachments": [{"id": "file-AAA111", "name": "a.png", "mime_type": "image/png"}]}
    }
    hidden: dict[str, Any] = {"weight": 0.0, "metadata": {"is_visually_hidden_from_conversation": True}}
    model: dict[str, Any] = {"metadata": {"model_slug": "gpt-4o"}}
    thoughts = of("thoughts", thoughts=[{"summary": "Adding", "content": "two"}])
    t = 1.75e9
    return talk(
        node("root", None),
        node("s", "root", "system", "", **hidden),
        node("c", "s", "user", **of("user_editable_context", user_profile="I am Ada.")),
        node("u", "c", "user", at=t, **of("multimodal_text", parts=[image, "What is this?"]), **listed),
        node("a1", "u", "assistant", "A pixel.", at=t + 1, **model),
        node("a2", "u", "assistant", "One blue pixel.", at=t + 2, **model),
        node("u2", "a1", "user", "What is 2+2?", at=t + 3),
        node("call", "u2", "assistant", at=t + 4, recipient="python", **of("code", text="2+2"), **model),
        node("result", "call", "tool", at=t + 5, name="python", **of("execution_output", text="4")),
        node("thought", "result", "assistant", at=t + 6, **thoughts),
        node("a3", "thought", "assistant", "Four.", at=t + 7, metadata={"model_slug": "o3"}),
    )


def zipped(path: Path, *shards: list[object], **files: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as export:
        for number, shard in enumerate(shards):
            export.writestr(f"conversations-{number:03}.json", json.dumps(shard))
        for name, data in files.items():
            export.writestr(name.replace("__", "/"), data)
        export.writestr("user.json", "{}")
    return path


def test_every_branch_tool_and_picture_comes_in(store: Store, tmp_path: Path) -> None:
    path = zipped(tmp_path / "export.zip", [example()], **{"file-AAA111-a.png": PNG})
    report = bring_in(path, store, "chatgpt")
    found = only(store)
    start = ("E:", "U:I am Ada.", "U:What is this?")
    assert (report.messages, found.title) == (10, "Pixels")
    assert threads(found) == {
        (*start, "A:A pixel.", "U:What is 2+2?", "A:C:python", "R:4", "A:(Adding\n\ntwo)", "A:Four."),
        (*start, "A:One blue pixel."),
    }
    assert path_of(found)[-1] == "A:Four."
    thread = found.thread(events=True)
    assert [why_injected(m) for m in thread[:3]] == ["hidden", "context", None]
    [picture, words] = thread[2].blocks
    assert (picture.content, picture.mime_type, words.content) == (PNG, "image/png", "What is this?")
    assert thread[5].blocks[0].arguments == "2+2"
    assert thread[6].blocks[0].id == thread[5].blocks[0].id
    assert native(thread[8])["metadata"] == {"model_slug": "o3"}
    assert {change.setup.model for change in found.setups()} == {"gpt-4o", "o3"}
    assert thread[2].created_us == 175 * 10**13


def test_shards_hold_several_conversations_and_entries_without_messages(store: Store, tmp_path: Path) -> None:
    second = talk(node("x", None, "user", "Hi", at=5.0), conversation_id="second", title="Two")
    path = zipped(tmp_path / "export.zip", [example()], [second, {"id": "g-1", "title": "A project"}])
    report = bring_in(path, store, "chatgpt")
    assert {found.title for found in conversations(store)} == {"Pixels", "Two", "A project"}
    assert report.unknown == {"entry without messages": 1}


def test_a_conversation_saved_from_the_browser_is_not_in_a_list(store: Store, tmp_path: Path) -> None:
    bring_in(put_json(tmp_path / "saved.txt", example()), store, "chatgpt")
    assert len(threads(only(store))) == 2


def test_pictures_lie_beside_the_file_or_stay_as_pointers(store: Store, tmp_path: Path) -> None:
    put_json(tmp_path / "out" / "conversations.json", [example()])
    (tmp_path / "out" / "user-x").mkdir()
    (tmp_path / "out" / "user-x" / "file-AAA111-b.webp").write_bytes(PNG)
    bring_in(tmp_path / "out", store, "chatgpt")
    assert only(store).thread(events=True)[2].blocks[0].content == PNG
    with hitherto.open("memory:") as other:
        bring_in(put_json(tmp_path / "alone" / "c.json", [example()]), other, "chatgpt")
        pointer = only(other).thread(events=True)[2].blocks[0]
        assert (pointer.type, "file-AAA111" in str(pointer.content)) == ("metadata", True)


def test_a_later_export_adds_what_is_new(store: Store, tmp_path: Path) -> None:
    bring_in(put_json(tmp_path / "1.json", [example()]), store, "chatgpt")
    later = example()
    later["mapping"]["a4"] = node("a4", "u2", "assistant", "Vier.", at=1.76e9)
    later |= {"title": "Renamed", "current_node": "a4"}
    report = bring_in(put_json(tmp_path / "2.json", [later]), store, "chatgpt")
    assert (report.messages, len(threads(only(store)))) == (1, 3)
    assert (only(store).title, path_of(only(store))[-1]) == ("Renamed", "A:Vier.")


def test_the_tree_is_that_of_the_parents(store: Store, tmp_path: Path) -> None:
    """`children` disagrees, a parent is missing, two messages are each other's parents: nothing is lost."""
    body = talk(
        node("a", "nobody", "user", "lost", at=3.0),
        node("b", "c", "user", "first in a circle", at=1.0),
        node("c", "b", "assistant", "second", at=2.0),
        node("d", "a", "assistant", "below", at=4.0),
    )
    body["mapping"]["d"]["children"] = ["a", "nobody"]
    report = bring_in(put_json(tmp_path / "f", [body]), store, "chatgpt")
    assert threads(only(store)) == {("U:lost", "A:below"), ("U:first in a circle", "A:second")}
    assert report.unknown == {"parents in a circle": 1}


def test_odd_values_are_kept(store: Store, tmp_path: Path) -> None:
    deep: Any = "end"
    for _ in range(150):
        deep = [deep]
    body = talk(
        node("a", None, "user", "half \ud83d, NUL \0", at=1.0, extra=2**80),
        node("b", "a", "assistant", content={"content_type": "hologram", "beam": 1}, at=-5.0, deep=deep),
        {"id": "c", "message": {"id": "c"}, "parent": "b"},
        {"id": "d", "message": [], "parent": 7},
    )
    bring_in(put_json(tmp_path / "f", [body]), store, "chatgpt")
    first, second, third = only(store).thread(events=True)
    assert first.text == "half \ufffd, NUL \0"
    assert native(first)["extra"] == str(2**80)
    assert (second.blocks[0].type, second.blocks[0].content) == ("hologram", '{"content_type":"hologram","beam":1}')
    assert (third.role, third.blocks) == ("event", ())


def test_a_file_that_was_cut_off_gives_what_is_whole(store: Store, tmp_path: Path) -> None:
    text = json.dumps([example(), talk(node("x", None, "user", "Hi"), conversation_id="two")])
    path = tmp_path / "f"
    path.write_text(text[:-40])
    report = bring_in_part(path, store)
    assert (report.messages, "cut off" in report.unreadable[0].reason) == (10, True)


def test_lists_that_were_put_together_are_read_one_after_the_other(store: Store, tmp_path: Path) -> None:
    lists = [json.dumps([talk(node("x", None, "user", f"Hi {n}"), conversation_id=f"c{n}")]) for n in range(3)]
    path = tmp_path / "f"
    path.write_text("\n".join(lists))
    assert bring_in(path, store, "chatgpt").new == 3
    path.write_text(f"{lists[0]}{lists[1]} and more")
    report = bring_in_part(path, store)
    assert (report.unchanged, ["after the end of its list" in one.reason for one in report.unreadable]) == (2, [True])


def test_bytes_that_are_no_text_are_named(store: Store, tmp_path: Path) -> None:
    body = [talk(node("x", None, "user", "gr\xfcn"), conversation_id="c")]
    path = tmp_path / "f"
    path.write_bytes(json.dumps(body, ensure_ascii=False).encode("latin-1"))
    report = bring_in_part(path, store)
    assert ["no UTF-8" in one.reason for one in report.unreadable] == [True]
    assert only(store).thread()[0].text == "gr\N{REPLACEMENT CHARACTER}n"
    path.write_bytes(json.dumps(body).encode("utf-16"))
    with pytest.raises(InvalidArgument) as caught:
        formats.load(path, store)
    assert "UTF-16" in str(caught.value.hint)


def test_a_picture_that_is_damaged_in_the_zip_leaves_its_pointer(store: Store, tmp_path: Path) -> None:
    path = zipped(tmp_path / "e.zip", [example()], **{"file-AAA111-a.png": PNG})
    data = path.read_bytes()
    path.write_bytes(data.replace(PNG, PNG[:-1] + b"!", 1))
    bring_in(path, store, "chatgpt")
    assert only(store).thread(events=True)[2].blocks[0].type == "metadata"


def test_large_files_are_read_as_a_stream(monkeypatch: pytest.MonkeyPatch, store: Store, tmp_path: Path) -> None:
    monkeypatch.setattr("hitherto.formats.importers._json_elements._PIECE", 100)
    monkeypatch.setattr("hitherto.formats.importers._json_elements.MAX_ELEMENT_BYTES", 9000)
    bodies: list[object] = [
        talk(node("x", None, "user", f'{n} "quoted" \\ ]}}'), conversation_id=f"c{n}", title=str(n)) for n in range(9)
    ]
    bodies.insert(4, talk(node("x", None, "user", 'z"\\' * 9000), conversation_id="one long text"))
    bodies.insert(7, talk(*(node(f"x{n}", None, "user", "z" * 90) for n in range(99)), conversation_id="many texts"))
    report = bring_in_part(put_json(tmp_path / "f", bodies), store)
    assert (report.new, [one.name for one in report.unreadable]) == (9, ["f, entry 5", "f, entry 8"])
    assert {found.thread(events=True)[0].text for found in conversations(store)} == {
        f'{n} "quoted" \\ ]}}' for n in range(9)
    }


JSON = (
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.text(max_size=3) | st.just("a") | st.floats(allow_nan=False)
)


def lists(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["parts", "text", "role"]), inner, max_size=3)


TREES = st.lists(st.tuples(st.integers(-1, 12), st.booleans(), st.integers(0, 3)), min_size=1, max_size=12)


@settings(max_examples=30, deadline=None)
@given(TREES)
def test_every_message_of_any_tree_comes_in_once(shape: list[tuple[int, bool, int]]) -> None:
    """Whatever the parents are: missing, in a circle, empty. Each text is there once, below its parent."""
    nodes = []
    for number, (parent, empty, at) in enumerate(shape):
        above = None if parent < 0 else f"n{parent}"
        nodes.append(
            node(f"n{number}", above) if empty else node(f"n{number}", above, "user", f"t{number}", at=float(at))
        )
    texts = sorted(f"t{number}" for number, (_, empty, _) in enumerate(shape) if not empty)
    with tempfile.TemporaryDirectory() as folder, hitherto.open("memory:") as store:
        path = put_json(Path(folder, "f"), [talk(*nodes)])
        if not texts:
            return
        report = formats.load(path, store, format="chatgpt")
        assert report.messages == len(texts)
        assert formats.load(path, store, format="chatgpt").messages == 0
        found = {message.text: message for message in store.messages()}
        assert sorted(found) == texts
        for number, (parent, empty, _) in enumerate(shape):
            is_plain = 0 <= parent < len(shape) and parent != number and not shape[parent][1]
            if (
                not empty
                and is_plain
                and found[f"t{number}"].parent is not None
                and found[f"t{parent}"].seq < found[f"t{number}"].seq
            ):
                assert found[f"t{number}"].parent == found[f"t{parent}"].id


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.sampled_from(["id", "parent", "message", "children"]), st.recursive(JSON, lists), max_size=4))
def test_nodes_of_any_shape_are_no_failure(odd: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as folder, hitherto.open("memory:") as store:
        body = talk(node("a", None, "user", "Hi"))
        body["mapping"]["odd"] = odd
        message = {"id": "b", "message": {**odd, "author": odd, "content": odd, "metadata": odd}, "parent": "a"}
        body["mapping"]["b"] = message
        formats.load(put_json(Path(folder, "f"), [body]), store, format="chatgpt")
        assert "Hi" in {found.text for found in store.messages()}
