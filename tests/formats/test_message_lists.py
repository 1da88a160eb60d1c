"""Lists of messages without ids: LangChain's, pydantic-ai's, and those of OpenAI's and Anthropic's APIs.

The files have the shapes that langchain-core 1.7 and pydantic-ai 2.66 write. Requirements: F1.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hitherto
from hitherto import Message, Store, formats
from hitherto.model import Usage

from ..support.imports import (
    bring_in,
    bring_in_part,
    conversations,
    native,
    only,
    path_of,
    put_json,
    put_lines,
    threads,
    why_injected,
)

PNG = b"\x89PNG\xff\xfe>?"


@pytest.fixture
def store() -> Iterator[Store]:
    with hitherto.open("memory:") as store:
        yield store


# -- LangChain


def lc(kind: str, content: object, **data: object) -> dict[str, Any]:
    return {"type": kind, "data": {"content": content, "additional_kwargs": {}, "type": kind, "id": None, **data}}


def dumped(found: dict[str, Any]) -> dict[str, Any]:
    """The same message as `dumpd` writes it."""
    name = {"human": "HumanMessage", "ai": "AIMessage", "tool": "ToolMessage", "system": "SystemMessage"}[found["type"]]
    kwargs = {name: value for name, value in found["data"].items() if value not in (None, {})}
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", name], "kwargs": kwargs}


USED = {
    "input_tokens": 10,
    "output_tokens": 3,
    "input_token_details": {"cache_read": 2},
    "output_token_details": {"reasoning": 1},
}
LANGCHAIN = [
    lc("system", "Be brief."),
    lc("human", ["see", {"type": "image", "base64": "iVBOR__-Pj8=", "mime_type": "image/png"}]),
    lc("ai", [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "I look."}], usage_metadata=USED,
       tool_calls=[{"name": "look", "args": {"q": 1}, "id": "t1"}], response_metadata={"model_name": "gpt-5"}),
    lc("tool", "deep", tool_call_id="t1", status="error", artifact={"a": 1}),
    lc("ai", "Done."),
]  # fmt: skip
TOLD = ("U:see", "A:(hm)I look.C:look", "R:deep", "A:Done.")


@pytest.mark.parametrize("dump", [False, True])
def test_langchain_histories_come_in(dump: bool, store: Store, tmp_path: Path) -> None:
    body = [dumped(one) if dump else one for one in LANGCHAIN]
    bring_in(put_json(tmp_path / "f", body), store, "langchain")
    found = only(store)
    assert (threads(found), found.title, found.system_prompt) == ({TOLD}, "see", "Be brief.")
    thread = found.thread()
    assert (thread[0].blocks[1].content, thread[0].blocks[1].mime_type) == (PNG, "image/png")
    assert (thread[1].usage, thread[1].blocks[2].arguments) == (Usage(10, 3, 2, 0, 1), {"q": 1})
    assert (thread[2].tool_result_error, native(thread[2])["artifact"]) == (True, {"a": 1})
    assert {change.setup.model for change in found.setups()} == {"gpt-5"}


def test_langchain_keeps_old_calls_removals_and_odd_blocks(store: Store, tmp_path: Path) -> None:
    call = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    url = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    body = [
        lc("human", ["plain", url, 7]), lc("ai", "", additional_kwargs={"tool_calls": [call], "refusal": "no"}),
        lc("function", "deep", name="look"), lc("remove", "", id="x"), lc("system", "Be long."),
    ]  # fmt: skip
    report = bring_in(put_json(tmp_path / "f", {"messages": body}), store, "langchain")
    assert path_of(only(store)) == ("U:plain", "A:C:look", "R:deep", "E:Be long.")
    thread = only(store).thread()
    assert [b.type for b in thread[0].blocks] == ["content", "image_url"]
    assert native(thread[1])["additional_kwargs"] == {"refusal": "no"}
    assert report.bookkeeping == {"remove": 1}


def test_a_list_that_grew_adds_its_tail_and_one_that_differs_is_a_branch(store: Store, tmp_path: Path) -> None:
    bring_in(put_json(tmp_path / "1", LANGCHAIN), store, "langchain")
    assert bring_in(put_json(tmp_path / "2", [*LANGCHAIN, lc("human", "Thanks")]), store, "langchain").messages == 1
    bring_in(put_json(tmp_path / "3", [*LANGCHAIN, lc("human", "Why?")]), store, "langchain")
    assert threads(only(store)) == {(*TOLD, "U:Thanks"), (*TOLD, "U:Why?")}
    bring_in(put_json(tmp_path / "4", [*LANGCHAIN[:2], lc("ai", "Another answer")]), store, "langchain")
    assert len(list(conversations(store))) == 2  # it begins with the same question only


def test_a_list_of_histories_has_several_conversations(store: Store, tmp_path: Path) -> None:
    body = [[lc("human", str(n)), lc("ai", f"a{n}")] for n in range(3)]
    assert formats.load(put_json(tmp_path / "f", body), store).new == 3


def test_what_is_no_message_in_a_list_is_said(store: Store, tmp_path: Path) -> None:
    report = bring_in_part(put_json(tmp_path / "f", [lc("human", "a"), 7, lc("ai", "b"), {"x": 1}]), store)
    assert [one.name for one in report.unreadable] == ["f, entry 2", "f, entry 4"]
    assert path_of(only(store)) == ("U:a", "A:b")


# -- pydantic-ai


def request(*parts: dict[str, object], **more: object) -> dict[str, Any]:
    return {"parts": list(parts), "timestamp": "2026-08-19T04:32:28Z", "kind": "request", **more}


def response(*parts: dict[str, object], **more: object) -> dict[str, Any]:
    usage = {"input_tokens": 10, "output_tokens": 3, "cache_read_tokens": 2, "output_reasoning_tokens": 1, "cost": 5}
    return {"parts": list(parts), "usage": usage, "model_name": "gpt-5", "provider_name": "openai", "kind": "response",
            "timestamp": "2026-08-19T04:32:29Z", **more}  # fmt: skip


def part(kind: str, **fields: object) -> dict[str, object]:
    return {"part_kind": kind, **fields}


def example(**first: object) -> list[dict[str, Any]]:
    image = {"kind": "binary", "data": "iVBOR__-Pj8=", "media_type": "image/png", "identifier": "x"}
    link = {"kind": "image-url", "url": "https://x/y.png"}
    return [
        request(part("system-prompt", content="Be brief."), part("user-prompt", content=["see", image, link]),
                instructions="Be kind.", **first),
        response(part("thinking", content="hm", signature="sig"), part("text", content="I look."),
                 part("tool-call", tool_name="look", args={"q": 1}, tool_call_id="t1"),
                 part("tool-call", tool_name="look", args='{"q":', tool_call_id="t2")),
        request(part("tool-return", tool_name="look", content={"deep": 1}, tool_call_id="t1", outcome="success"),
                part("retry-prompt", tool_name="look", content=[{"type": "json"}], tool_call_id="t2"),
                part("retry-prompt", content="Say it again."), part("user-prompt", content="Well?")),
        response(part("text", content="Done."), part("hologram", beam=1)),
    ]  # fmt: skip


def test_pydantic_ai_requests_are_taken_apart(store: Store, tmp_path: Path) -> None:
    bring_in(put_json(tmp_path / "f", example()), store, "pydantic-ai")
    found = only(store)
    assert path_of(found) == (
        "U:see", "A:(hm)I look.C:lookC:look", 'R:{"deep":1}', 'R:[{"type":"json"}]', "U:Say it again.",
        "U:Well?", "A:Done.",
    )  # fmt: skip
    thread = found.thread()
    assert [b.type for b in thread[0].blocks] == ["content", "content", "image-url"]
    assert thread[0].blocks[1].content == PNG
    assert (thread[1].usage, native(thread[1])["usage"]) == (Usage(10, 3, 2, 0, 1), {"cost": 5})
    assert thread[1].blocks[0].extra == {"part": {"signature": "sig"}}
    assert [m.tool_result_error for m in thread[2:4]] == [False, True]
    assert [why_injected(m) for m in thread[4:6]] == ["reminder", None]
    assert [b.type for b in thread[6].blocks] == ["content", "hologram"]
    [setup] = {change.setup for change in found.setups()}
    assert (setup.provider, setup.model, setup.system_prompt) == ("openai", "gpt-5", "Be brief.\n\nBe kind.")


def test_pydantic_ai_names_the_conversation_itself(store: Store, tmp_path: Path) -> None:
    for n in range(2):
        bring_in(
            put_json(tmp_path / str(n), example(conversation_id=f"01a1f213-d4f2-7108-be05-00000000000{n}")),
            store,
            "pydantic-ai",
        )
    assert len(list(conversations(store))) == 2


def test_pydantic_ai_of_before_is_read(store: Store, tmp_path: Path) -> None:
    old = [
        request(part("user-prompt", content="q")),
        response(part("text", content="a"), usage={"request_tokens": 7, "response_tokens": 2}),
    ]
    bring_in(put_json(tmp_path / "f", old), store, "pydantic-ai")
    assert only(store).thread()[1].usage == Usage(7, 2)


# -- OpenAI's and Anthropic's


def test_an_array_of_chat_messages_is_a_conversation(store: Store, tmp_path: Path) -> None:
    call = {"id": "t", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    body: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t", "content": "deep"}, {"role": "assistant", "content": "So."},
    ]  # fmt: skip
    bring_in(put_json(tmp_path / "f", body), store, "openai")
    assert path_of(only(store)) == ("U:Why?", "A:C:look", "R:deep", "A:So.")
    assert (only(store).system_prompt, only(store).thread()[1].raw) == ("Be brief.", body[2])
    assert hitherto.history(only(store), "openai") == body
    grown = put_json(tmp_path / "g", [*body, {"role": "user", "content": "Thanks"}])
    assert bring_in(grown, store, "openai").messages == 1


def test_items_of_responses_and_messages_of_anthropic_are_known(store: Store, tmp_path: Path) -> None:
    items: list[object] = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Why?"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "t", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "t", "output": "deep"},
    ]
    bring_in(put_json(tmp_path / "items", {"input": items, "model": "gpt-5"}), store, "openai")
    assert path_of(only(store)) == ("U:Why?", "A:(hm)", "A:C:look", "R:deep")
    assert [c.setup.model for c in only(store).setups()] == ["gpt-5"]
    messages: list[object] = [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "deep"}]},
    ]
    with hitherto.open("memory:") as other:
        bring_in(put_json(tmp_path / "messages", messages), other, "openai")
        assert path_of(only(other)) == ("U:Why?", "A:C:look", "R:deep")
        assert (only(other).thread()[1].extra or {})["dialect"] == "anthropic"


def test_leaves_that_were_written_apart_are_one_tree_again(store: Store, tmp_path: Path) -> None:
    both = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    lines = [{"messages": [*both, {"role": "user", "content": leaf}]} for leaf in ("x", "y")]
    bring_in(put_lines(tmp_path / "f", lines), store, "openai")
    assert threads(only(store)) == {("U:q", "A:a", "U:x"), ("U:q", "A:a", "U:y")}


def test_our_own_lines_come_back(store: Store, tmp_path: Path) -> None:
    talk = store.start(system_prompt="Be brief.")
    for message in (Message.user("q"), Message.assistant("a"), Message.user("r")):
        talk.append(message)
    formats.save(talk, tmp_path / "x.openai.jsonl")
    with hitherto.open("memory:") as other:
        bring_in(tmp_path / "x.openai.jsonl", other, "openai")
        talk.append(Message.assistant("b"))
        formats.save(talk, tmp_path / "y.openai.jsonl")
        assert bring_in(tmp_path / "y.openai.jsonl", other, "openai").messages == 1
        assert path_of(only(other)) == ("U:q", "A:a", "U:r", "A:b")


NAMES = st.sampled_from(["type", "text", "content", "name", "id"])
LEAVES: st.SearchStrategy[object] = st.none() | st.booleans() | st.integers(-5, 2**70) | st.text(max_size=3)
ODD = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner), max_leaves=4)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["langchain", "pydantic-ai", "openai"]), st.lists(ODD, max_size=3), ODD, ODD)
def test_entries_of_any_shape_are_no_failure(format: str, odd: list[object], one: object, two: object) -> None:
    good: dict[str, list[object]] = {
        "langchain": [lc("human", "good"), lc("ai", one, tool_calls=two, usage_metadata=one)],
        "pydantic-ai": [request(part("user-prompt", content="good")),
                        response(part("text", content=one), part("tool-call", args=two))],
        "openai": [{"role": "user", "content": "good"}, {"role": "assistant", "content": one, "tool_calls": two}],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, hitherto.open("memory:") as store:
        path = Path(folder, "f")
        path.write_text(json.dumps([*good[format], *odd]))
        try:
            formats.load(path, store, format=format)
        except hitherto.PartialImport:
            assert odd or format == "openai"
        assert "good" in {message.text for message in store.messages()}
