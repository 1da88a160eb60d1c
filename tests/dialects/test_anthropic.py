"""What Anthropic says is kept as it was said, read as messages, and sent again exactly so (A10, B1 to B3, C2, C3).

The data is written here. Where the real API is to be believed rather than us, the official SDK puts the same stream
together, and recorded traffic is read if it is at hand.
"""

import base64
import copy
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hitherto.attachment import Attachment
from hitherto.dialects._types import Answer, Dialect, calls
from hitherto.dialects.anthropic import Anthropic
from hitherto.dialects.gemini import Gemini
from hitherto.errors import HithertoError, InvalidMessage
from hitherto.model import Block, Message, Setup, Usage, check

from ..support.thorough import examples

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpora" / "provider_payloads" / "anthropic"
RECORDED = sorted(CORPUS.glob("*.json"))
DIALECT: Dialect = Anthropic()
PNG = b"\x89PNG\r\n\x1a\n\x00\xff"
PDF = b"%PDF-1.7 \xe2\xe3"

Raw = dict[str, Any]


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def only(raw: Raw) -> Block:
    """The one block that an assistant's block is read as."""
    (block,) = DIALECT.parse({"role": "assistant", "content": [raw]}).blocks
    return block


def result(id: str, content: object, **more: object) -> Raw:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


# -- reading one entry


@pytest.mark.parametrize("content", ["Why?", [{"type": "text", "text": "Why?"}]])
def test_text_alone_and_text_in_a_list_read_the_same(content: object) -> None:
    message = DIALECT.parse({"role": "user", "content": content})
    assert (message.role, message.text, message.raw) == ("user", "Why?", {"role": "user", "content": content})


def test_a_system_message_in_the_middle_keeps_its_role() -> None:
    assert DIALECT.parse({"role": "system", "content": "Be brief."}).role == "system"


def test_thoughts_keep_their_signature_and_are_not_text() -> None:
    raw: Raw = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "c2VjcmV0"},
            {"type": "text", "text": "Yes."},
        ],
    }
    message = DIALECT.parse(raw)
    assert message.text == "Yes."
    assert message.blocks[:2] == (
        Block.thinking("Hm.", signature="c2ln"),
        Block("thinking", "", extra={"redacted": "c2VjcmV0"}),
    )


def test_media_are_bytes_and_addresses_are_not_words() -> None:
    content = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64_of(PNG)}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": base64_of(PDF)}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "document", "title": "T", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "long"}},
    ]
    message = DIALECT.parse({"role": "user", "content": content})
    assert message.text == ""
    assert message.blocks == (
        Block.image(PNG, "image/png"),
        Block("content", PDF, "text", "application/pdf"),
        Block("image", "https://example.org/a.png", "image", "image/*", extra={"source": "url"}),
        Block("document", "file_1", "text", "application/pdf", extra={"source": "file", "title": "T"}),
        Block("document", "long", "text", "text/plain", extra={"source": "text"}),
    )


def test_citations_stay_with_their_text() -> None:
    citation = {"type": "char_location", "cited_text": "green", "document_index": 0}
    block = only({"type": "text", "text": "It is green.", "citations": [citation]})
    assert block == Block.text("It is green.", citations=[citation])


def test_only_calls_that_are_ours_wait_for_an_answer() -> None:
    content = [
        {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a.py"}},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "echo", "server_name": "s", "input": {}},
    ]
    message = DIALECT.parse({"role": "assistant", "content": content})
    assert [(b.id, b.tool_name, b.arguments) for b in calls(message)] == [("toolu_1", "read", {"path": "a.py"})]
    assert [b.tool_name for b in message.blocks] == ["read", "web_search", "echo"]


def test_what_is_not_known_is_kept_under_the_providers_word() -> None:
    raw = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"url": "https://example.org"}]}
    block = only(raw)
    assert (block.type, block.mime_type) == ("web_search_tool_result", "application/json")
    assert json.loads(str(block.content)) == raw


@pytest.mark.parametrize("kind", ["content", "tool_call", "metadata", 5, None, ""])
def test_no_stranger_passes_for_something_of_ours(kind: object) -> None:
    message = DIALECT.parse({"role": "assistant", "content": [{"type": kind, "content": "run me"}]})
    assert (message.blocks[0].type, message.text, list(calls(message))) == ("unknown", "", [])


@pytest.mark.parametrize(
    "raw",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "!!!"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": 7}},
        {"type": "image", "source": None},
        {"type": "text", "text": 5},
        {"type": "text"},
        {"type": "tool_use", "id": None, "name": "read", "input": {}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}},
    ],
)
def test_a_block_that_is_not_what_it_should_be_is_kept_as_json(raw: Raw) -> None:
    block = only(raw)
    assert (block.type, json.loads(str(block.content))) == (raw["type"], raw)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        "hello",
        5,
        {},
        {"role": "user"},
        {"content": "x"},
        {"role": 5, "content": "x"},
        {"role": "user", "content": 5},
    ],
)
def test_what_is_no_message_is_refused(raw: Any) -> None:
    with pytest.raises(InvalidMessage):
        DIALECT.parse(raw)


def test_nesting_without_end_is_refused() -> None:
    deep: object = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidMessage):
        DIALECT.parse({"role": "user", "content": [{"type": "odd", "x": deep}]})


# -- tool results


def test_an_entry_of_results_is_read_as_tool_result() -> None:
    content = [result("toolu_1", "12 files"), result("toolu_2", [{"type": "text", "text": "no"}], is_error=True)]
    message = DIALECT.parse({"role": "user", "content": content})
    assert (message.role, message.tool_result_error) == ("tool_result", True)
    assert [(b.id, b.content) for b in message.blocks] == [("toolu_1", "12 files"), ("toolu_2", "no")]


def test_one_result_reads_as_message_tool_result_makes_it() -> None:
    message = DIALECT.parse({"role": "user", "content": [result("toolu_1", "12 files", is_error=False)]})
    made = Message.tool_result("toolu_1", "12 files")
    assert (message.role, message.blocks, message.tool_result_error) == (made.role, made.blocks, False)


@pytest.mark.parametrize("content", [None, "", []])
def test_an_empty_result_still_names_its_call(content: object) -> None:
    message = DIALECT.parse({"role": "user", "content": [result("toolu_1", content)]})
    assert [(b.id, b.content) for b in message.blocks] == [("toolu_1", "")]


def test_results_among_words_stay_the_users() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64_of(PNG)}}
    content = [result("toolu_1", "12 files"), result("toolu_2", [image]), {"type": "text", "text": "and now?"}]
    message = DIALECT.parse({"role": "user", "content": content})
    assert (message.role, message.text) == ("user", "and now?")
    assert [(b.type, b.id) for b in message.blocks[:2]] == [("tool_result", "toolu_1"), ("tool_result", "toolu_2")]
    assert message.blocks[0].content == "12 files"
    assert json.loads(str(message.blocks[1].content)) == [image]


# -- requests


def test_a_request_says_model_prompt_tools_and_history() -> None:
    tool: Raw = {"name": "read", "description": "d", "input_schema": {"type": "object"}}
    body = {"model": "claude", "system": "Be brief.", "tools": [tool], "messages": [{"role": "user", "content": "Hi"}]}
    heard = DIALECT.parse_request(body)
    assert heard.setup == Setup(model="claude", system_prompt="Be brief.", tools=(tool,))
    assert [m.text for m in heard.messages] == ["Hi"]


def test_a_system_prompt_with_more_than_text_is_kept_as_it_came_and_sent_so() -> None:
    system = [{"type": "text", "text": "A"}, {"type": "text", "text": "B", "cache_control": {"type": "ephemeral"}}]
    setup = DIALECT.parse_request({"system": system, "messages": []}).setup
    assert (setup.system_prompt, setup.raw) == ("A\n\nB", system)
    assert DIALECT.request([], setup, {})["system"] == system


def test_a_system_prompt_is_sent_in_the_form_in_which_it_came_unless_it_was_changed() -> None:
    blocks = [{"type": "text", "text": "A"}]
    setup = DIALECT.parse_request({"system": blocks, "messages": []}).setup
    assert (setup.system_prompt, DIALECT.request([], setup, {})["system"]) == ("A", blocks)
    changed = msgspec.structs.replace(setup, system_prompt="B")
    assert DIALECT.request([], changed, {})["system"] == "B"
    foreign = msgspec.structs.replace(setup, raw=[{"role": "system", "content": "A"}])
    assert DIALECT.request([], foreign, {})["system"] == "A"


@pytest.mark.parametrize(
    "body", [None, [], {"messages": 5}, {"messages": [5]}, {"system": 5}, {"tools": {}}, {"model": 1}]
)
def test_what_is_no_request_is_refused(body: Any) -> None:
    with pytest.raises(InvalidMessage):
        DIALECT.parse_request(body)


def test_the_system_prompt_is_in_a_request_once_and_not_in_the_history() -> None:
    setup = Setup(
        model="claude", system_prompt="Be brief.", tools=({"name": "read", "parameters": {"type": "object"}},)
    )
    history = DIALECT.history([Message.user("Hi")])
    body = DIALECT.request(history, setup, {"max_tokens": 10, "temperature": 0})
    assert body == {
        "model": "claude",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"name": "read", "input_schema": {"type": "object"}}],
        "max_tokens": 10,
        "temperature": 0,
    }


def test_a_request_without_prompt_and_tools_names_neither() -> None:
    assert DIALECT.request([], Setup(model="claude"), {}).keys() == {"model", "messages", "max_tokens"}


def test_tools_of_the_provider_are_sent_as_they_are() -> None:
    tools: tuple[Raw, ...] = ({"type": "web_search_20250305", "name": "web_search"}, {"name": "a", "input_schema": {}})
    assert DIALECT.request([], Setup(tools=tools), {})["tools"] == list(tools)


def test_the_system_prompt_of_another_provider_is_sent_as_text() -> None:
    setup = Setup(system_prompt="A", raw={"parts": [{"text": "A"}]})
    assert DIALECT.request([], setup, {})["system"] == "A"


def test_a_schema_is_asked_for_with_its_objects_closed() -> None:
    inside = {"type": "object", "properties": {}, "default": {"type": "object"}}
    schema = {"type": "object", "properties": {"a": inside, "b": {"anyOf": [{"type": "object"}, {"type": "null"}]}}}
    before = copy.deepcopy(schema)
    either = {"anyOf": [{"additionalProperties": False, "type": "object"}, {"type": "null"}]}
    properties = {"a": {"additionalProperties": False, **inside}, "b": either}
    closed = {"additionalProperties": False, "type": "object", "properties": properties}
    assert DIALECT.schema_options(schema) == {"output_config": {"format": {"type": "json_schema", "schema": closed}}}
    assert schema == before


def test_the_sdk_has_the_option_that_asks_for_a_schema() -> None:
    types = pytest.importorskip("anthropic.types")
    assert DIALECT.schema_options({}).keys() <= types.MessageCreateParams.__args__[0].__annotations__.keys()
    assert {"format"} <= types.OutputConfigParam.__annotations__.keys()


# -- answers

USAGE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 200,
    "cache_creation_input_tokens": 30,
    "output_tokens": 7,
    "output_tokens_details": {"thinking_tokens": 3},
}


def body_of(content: list[Raw], **more: object) -> Raw:
    body: Raw = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": content}
    return body | {"stop_reason": "end_turn", "stop_sequence": None, "usage": USAGE} | more


def test_an_answer_is_one_message_whose_raw_goes_into_the_next_request() -> None:
    content: list[Raw] = [{"type": "text", "text": "Yes.", "citations": None}]
    answer = DIALECT.answer(body_of(content, container={"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"}))
    (message,) = answer.messages
    assert message.raw == {"role": "assistant", "content": content}
    assert message.extra == {"stop_reason": "end_turn", "model": "claude", "container": "container_1"}
    assert (answer.id, answer.complete, message.text) == ("msg_1", True, "Yes.")


def test_input_tokens_are_all_that_the_model_read() -> None:
    (message,) = DIALECT.answer(body_of([{"type": "text", "text": "Yes."}])).messages
    assert message.usage == Usage(240, 7, 200, 30, 3)


def test_an_answer_that_says_nothing_is_kept_with_its_usage_and_is_not_sent_again() -> None:
    answer = DIALECT.answer(body_of([]))
    (message,) = answer.messages
    assert (message.blocks, message.raw, message.usage) == ((), None, Usage(240, 7, 200, 30, 3))
    assert (answer.id, DIALECT.history(answer.messages)) == ("msg_1", [])


@pytest.mark.parametrize(
    "body", [{"type": "error", "error": {"type": "overloaded_error"}}, {"content": None}, {"content": "x"}]
)
def test_an_error_is_no_answer(body: Raw) -> None:
    with pytest.raises(InvalidMessage):
        DIALECT.answer(body)


# -- streams


def pieces(text: str, sizes: Iterator[int]) -> Iterator[str]:
    while text:
        size = next(sizes)
        yield text[:size]
        text = text[size:]


def events_of(body: Raw, sizes: Iterator[int]) -> Iterator[Raw]:
    """The stream in which the API would have given this answer."""
    first = {"input_tokens": 10, "output_tokens": 1}
    yield {"type": "message_start", "message": body | {"content": [], "stop_reason": None, "usage": first}}
    yield {"type": "ping"}
    for index, block in enumerate(body["content"]):
        start, deltas = dict(block), []
        for name, kind in (("text", "text_delta"), ("thinking", "thinking_delta")):
            if name in block:
                start[name] = ""
                deltas += [{"type": kind, name: piece} for piece in pieces(block[name], sizes)]
        if "signature" in block:
            start["signature"] = ""
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        if "input" in block:
            start["input"] = {}
            written = json.dumps(block["input"]) if block["input"] else ""
            deltas += [{"type": "input_json_delta", "partial_json": p} for p in ["", *pieces(written, sizes)]]
        if "citations" in block:
            del start["citations"]
            deltas += [{"type": "citations_delta", "citation": citation} for citation in block["citations"]]
        yield {"type": "content_block_start", "index": index, "content_block": start}
        yield from ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": body["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": body["usage"]}
    yield {"type": "message_stop"}


def forever(sizes: list[int]) -> Iterator[int]:
    while True:
        yield from sizes


def assembled(events: list[Raw]) -> Answer:
    assembly = DIALECT.assembly()
    for event in events:
        assembly.feed(event)
    return assembly.answer()


CITATION = {
    "type": "char_location",
    "cited_text": "a",
    "document_index": 0,
    "document_title": "T",
    "start_char_index": 0,
    "end_char_index": 1,
}
FOUND = {"type": "web_search_result", "url": "https://example.org", "title": "T", "encrypted_content": "eA=="}
FULL: list[Raw] = [
    {"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmF0dXJl"},
    {"type": "redacted_thinking", "data": "c2VjcmV0"},
    {"type": "text", "text": "I look.", "citations": [CITATION, CITATION]},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "späť"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [FOUND]},
    {"type": "text", "text": "Now I read 📖."},
    {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a.py", "lines": [1, 2.5, None, True]}},
    {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_stream_becomes_the_answer_that_the_api_gives_without_streaming(size: int) -> None:
    body = body_of(FULL, stop_reason="tool_use")
    assert assembled(list(events_of(body, forever([size])))) == DIALECT.answer(body)


def test_the_official_sdk_puts_the_same_stream_together_in_the_same_way() -> None:
    streaming = pytest.importorskip("anthropic.lib.streaming._messages")
    events = list(events_of(body_of(FULL), forever([4])))
    snapshot, buffers = None, dict[int, bytes]()
    for event in copy.deepcopy(events):
        if event["type"] != "ping":
            snapshot = streaming.accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    theirs = [block.to_dict() for block in snapshot.content]
    (message,) = assembled(events).messages
    assert message.raw == {"role": "assistant", "content": theirs}


def test_feed_gives_the_words_as_they_come_and_no_thoughts() -> None:
    assembly = DIALECT.assembly()
    words = [assembly.feed(event) for event in events_of(body_of(FULL), forever([5]))]
    assert "".join(words) == "I look.Now I read 📖."
    assert DIALECT.answer(body_of(FULL)).messages[0].text == "".join(words)


def test_text_that_comes_with_the_start_of_a_block_counts() -> None:
    assembly = DIALECT.assembly()
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "He"}}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "llo"}}
    assert (assembly.feed(start), assembly.feed(delta)) == ("He", "llo")
    assert assembly.answer().messages[0].text == "Hello"


def test_deltas_of_a_kind_that_nobody_knows_yet_are_taken_in() -> None:
    events: list[Raw] = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": None}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "new_delta", **delta}}
            for delta in (
                {"content": "So "},
                {"content": "far", "list": [1]},
                {"list": [2], "flag": True, "other": None},
            )
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "a_new_event"},
        {"type": "message_stop"},
    ]
    (message,) = assembled(events).messages
    block = {"type": "compaction", "content": "So far", "list": [1, 2], "flag": True}
    assert message.raw == {"role": "assistant", "content": [block]}


def test_counts_in_a_stream_are_running_totals_and_null_changes_nothing() -> None:
    events: list[Raw] = [
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 9, "cache_read_input_tokens": 4}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "x"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 5, "input_tokens": None}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 8}},
    ]
    assert assembled(events).messages[0].usage == Usage(13, 8, 4)


# -- streams that break


def broken(content: list[Raw], missing: int) -> Answer:
    """The answer of a stream whose last events never came."""
    events = list(events_of(body_of(content), forever([4])))
    return assembled(events[: len(events) - missing])


def test_a_stream_without_its_end_is_incomplete() -> None:
    content: list[Raw] = [{"type": "text", "text": "Hello"}]
    assert broken(content, 0).complete
    answer = broken(content, 1)
    assert not answer.complete
    assert answer.messages[0].raw == {"role": "assistant", "content": content}


def test_a_stream_that_ends_in_an_error_is_incomplete() -> None:
    events = list(events_of(body_of([{"type": "text", "text": "Hello"}]), forever([4])))[:-2]
    answer = assembled([*events, {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}])
    assert (answer.complete, answer.messages[0].text) == (False, "Hello")


def test_text_that_broke_off_is_kept_as_long_as_it_is() -> None:
    answer = broken([{"type": "text", "text": "Hello there"}], 4)
    assert answer.messages[0].raw == {"role": "assistant", "content": [{"type": "text", "text": "Hello th"}]}


def test_half_a_call_is_neither_sent_back_nor_answered() -> None:
    answer = broken([{"type": "text", "text": "I read."}, FULL[6]], 4)
    (message,) = answer.messages
    assert message.raw == {"role": "assistant", "content": [{"type": "text", "text": "I read."}]}
    assert list(calls(message)) == []


def test_a_call_that_the_provider_ended_with_half_its_input_is_kept_for_reading_only() -> None:
    events: list[Raw] = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "I read."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {**FULL[6], "input": {}}},
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": '{"path": "a'},
        },
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]
    answer = assembled(events)
    (message,) = answer.messages
    assert message.raw == {"role": "assistant", "content": [{"type": "text", "text": "I read."}]}
    assert (answer.complete, list(calls(message))) == (False, [])
    assert json.loads(str(message.blocks[1].content))["input"] == '{"path": "a'


def test_a_thought_that_broke_off_can_be_read_but_is_not_sent_back() -> None:
    events = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hm"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "thinking", "thinking": "If"}},
    ]
    (message,) = assembled(events).messages
    assert message.raw == {"role": "assistant", "content": [{"type": "text", "text": "Hm"}]}
    assert message.blocks == (Block.text("Hm"), Block.thinking("If"))


def test_a_broken_answer_ends_neither_in_a_thought_nor_in_a_search_without_result() -> None:
    content = [FULL[5], FULL[3], FULL[0]]
    (message,) = broken(content, 2).messages
    assert message.raw == {"role": "assistant", "content": [FULL[5]]}
    (message,) = broken([FULL[3], FULL[4]], 2).messages
    assert message.raw == {"role": "assistant", "content": [FULL[3], FULL[4]]}


def test_a_turn_that_pauses_in_its_own_search_is_complete_and_sent_back_whole() -> None:
    body = body_of([FULL[3]], stop_reason="pause_turn")
    assert assembled(list(events_of(body, forever([4])))) == DIALECT.answer(body)


@pytest.mark.parametrize("events", [[], [{"type": "ping"}], [{"type": "message_start", "message": {"id": "m"}}]])
def test_nothing_that_arrived_is_no_message(events: list[Raw]) -> None:
    answer = assembled(events)
    assert (answer.messages, answer.complete) == ([], False)


@given(st.integers(0, 200), st.lists(st.integers(1, 9), min_size=1))
def test_wherever_a_stream_breaks_its_words_are_kept_and_what_is_sent_back_is_whole(cut: int, sizes: list[int]) -> None:
    assembly = DIALECT.assembly()
    events = list(events_of(body_of(FULL), forever(sizes)))[:cut]
    words = "".join([assembly.feed(event) for event in events])
    answer = assembly.answer()
    assert answer == assembly.answer()
    assert "".join(message.text for message in answer.messages) == words
    for raw in DIALECT.history(answer.messages):
        content = raw["content"]
        assert isinstance(content, list)
        whole = [block for block in content if block["type"] != "text"]
        assert all(block in FULL for block in whole)


# -- likeness


def alike(one: Raw, other: Raw) -> bool:
    return DIALECT.likeness(one).fits(DIALECT.likeness(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Hi", [{"type": "text", "text": "Hi"}]),
        ([{"type": "text", "text": "Hi", "citations": None}], "Hi"),
        ([{"type": "text", "text": "Hi", "citations": []}], "Hi"),
        ([{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}], "Hi"),
        ([result("t", "x")], [result("t", [{"type": "text", "text": "x", "cache_control": {"type": "e"}}])]),
        ([result("t", "x", is_error=False)], [result("t", "x")]),
        ([result("t", None)], [{"type": "tool_result", "tool_use_id": "t"}]),
        ([{**FULL[6], "caller": {"type": "direct"}}], [FULL[6]]),
        ("Hi", [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]),
        ([FULL[0], {"type": "text", "text": "Hi"}], "Hi"),
    ],
)
def test_the_same_thing_written_in_two_ways_is_alike(one: object, other: object) -> None:
    assert alike({"role": "user", "content": one}, {"content": other, "role": "user"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Hi", "hi"),
        ("Hi", "H i"),
        ([result("t", "x", is_error=True)], [result("t", "x")]),
        ([result("t", "x")], [result("u", "x")]),
        ([{**FULL[6], "input": {"a": None}}], [{**FULL[6], "input": {}}]),
        ([{**FULL[6], "input": {"cache_control": 1}}], [{**FULL[6], "input": {}}]),
        ([FULL[0]], [{**FULL[0], "signature": "b3RoZXI="}]),
    ],
)
def test_what_differs_is_not_alike(one: object, other: object) -> None:
    assert not alike({"role": "user", "content": one}, {"role": "user", "content": other})
    assert not alike({"role": "user", "content": one}, {"role": "assistant", "content": one})


def test_an_answer_that_the_sdk_parsed_and_the_user_sends_back_is_alike() -> None:
    types = pytest.importorskip("anthropic.types")
    body = body_of(FULL)
    parsed = types.Message.model_validate(body)
    sent = {"role": "assistant", "content": [block.model_dump() for block in parsed.content]}
    (message,) = DIALECT.answer(body).messages
    assert sent != message.raw
    assert alike(sent, dict(message.raw))  # type: ignore[call-overload]  # raw is a JSON object


# -- writing


def test_a_history_is_a_deep_copy_of_the_raws() -> None:
    raws: list[Raw] = [{"role": "user", "content": [{"type": "odd", "x": [1]}]}, {"role": "assistant", "content": "Hi"}]
    before = copy.deepcopy(raws)
    messages = [DIALECT.parse(raw) for raw in raws]
    history: Any = DIALECT.history(messages)
    assert history == before
    history[0]["content"][0]["x"].append(2)
    assert [message.raw for message in messages] == before


def test_a_long_text_that_was_left_in_the_store_is_read_for_the_history() -> None:
    lazy = Attachment(3, lambda: iter([b"lon", b"g"]), text=True)
    raw: Raw = {"role": "user", "content": [{"type": "text", "text": lazy}]}
    assert DIALECT.history([Message.user("", raw=raw)]) == [
        {"role": "user", "content": [{"type": "text", "text": "long"}]}
    ]


def test_a_likeness_has_no_text_that_is_still_in_the_store() -> None:
    def raw(text: object) -> Raw:
        return {"role": "user", "content": [{"type": "text", "text": text}]}

    lazy = Attachment(4, lambda: iter([b"long"]), text=True)
    assert DIALECT.likeness(raw(lazy)) == DIALECT.likeness(raw("long"))
    assert DIALECT.likeness({"role": "user", "content": lazy}) == DIALECT.likeness(raw("long"))
    assert DIALECT.parse(raw(lazy)).text == "long"


def test_results_that_belong_together_become_one_entry() -> None:
    later = Message("tool_result", [Block("content", "b", id="t2")], extra={"joined": True})
    history = DIALECT.history([Message.user("Hi"), Message.tool_result("t1", "a"), later])
    assert history[1:] == [{"role": "user", "content": [result("t1", "a"), result("t2", "b")]}]


def test_words_joined_to_a_raw_entry_are_added_to_it() -> None:
    first = DIALECT.parse({"role": "user", "content": [result("t1", "a")]})
    second = DIALECT.parse({"role": "user", "content": "Go on."})
    joined = Message("user", second.blocks, raw=second.raw, extra={"joined": True})
    text = {"type": "text", "text": "Go on."}
    assert DIALECT.history([first, joined]) == [{"role": "user", "content": [result("t1", "a"), text]}]


def test_what_another_provider_said_is_built_from_its_blocks() -> None:
    foreign = Message.assistant("Hello", raw={"role": "model", "parts": []}, extra={"dialect": "gemini"})
    nothing = Message.assistant([Block.thinking("Hm")], raw={"x": 1}, extra={"dialect": "gemini"})
    assert DIALECT.history([foreign, nothing]) == [{"role": "assistant", "content": "Hello"}]


def test_ids_that_another_provider_repeats_are_made_different() -> None:
    def turn() -> list[Message]:
        return [Message.assistant(Block.tool_call("read#0", "read", {})), Message.tool_result("read#0", "x")]

    history: Any = DIALECT.history([*turn(), *turn()])
    assert [entry["content"][0].get("id") or entry["content"][0]["tool_use_id"] for entry in history] == [
        "read_0",
        "read_0",
        "read_0-2",
        "read_0-2",
    ]


def test_a_user_message_is_built_with_its_media() -> None:
    blocks = [
        Block.text("Look:"),
        Block.image(PNG, "image/png"),
        Block("content", Attachment(len(PDF), lambda: iter([PDF])), "text", "application/pdf"),
        Block("image", "https://example.org/a.png", "image", extra={"source": "url"}),
        Block("document", "long", extra={"source": "text"}),
        Block.text("  "),
    ]
    built = DIALECT.build(Message.user(blocks))
    content = [
        {"type": "text", "text": "Look:"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64_of(PNG)}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": base64_of(PDF)}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "long"}},
    ]
    assert (built.raws, built.losses) == ([{"role": "user", "content": content}], [])


def test_what_cannot_be_said_is_named() -> None:
    blocks = [
        Block.thinking("Hm"),
        Block.audio(b"x", "audio/wav"),
        Block.tool_call("s", "search", {}, server=True),
        Block("codeExecutionResult", "{}", mime_type="application/json"),
        Block.image(b"x", "image/tiff"),
    ]
    built = DIALECT.build(Message.user(blocks))
    assert built.raws == []
    assert built.losses == [
        "a thought is left out",
        "audio (audio/wav) is left out",
        "a call that the provider ran itself is left out",
        "codeExecutionResult (application/json) is left out",
        "image (image/tiff) is left out",
    ]


@pytest.mark.parametrize("role", ["event", "system", "developer"])
def test_roles_that_the_api_does_not_know_are_left_out_and_named(role: str) -> None:
    built = DIALECT.build(Message(role, [Block.text("x")]))
    assert (built.raws, len(built.losses)) == ([], 1)


@pytest.mark.parametrize(
    ("arguments", "input", "losses"),
    [
        ({"a": 1}, {"a": 1}, 0),
        ('{"a": 1}', {"a": 1}, 0),
        (None, {}, 0),
        ("", {}, 0),
        ('{"a": ', {"arguments": '{"a": '}, 1),
        ([1], {"arguments": [1]}, 1),
    ],
)
def test_arguments_become_an_object(arguments: object, input: object, losses: int) -> None:
    built = DIALECT.build(Message.assistant(Block.tool_call("call_1", "read", arguments)))
    call = {"type": "tool_use", "id": "call_1", "name": "read", "input": input}
    assert built.raws == [{"role": "assistant", "content": [call]}]
    assert len(built.losses) == losses


def test_results_are_built_by_call_with_their_media_and_errors() -> None:
    blocks = [
        Block("content", "a", id="t1"),
        Block("content", PNG, "image", "image/png", id="t1"),
        Block("content", "bad", id="t2", extra={"error": True}),
        Block("content", "lost"),
    ]
    built = DIALECT.build(Message("tool_result", blocks, tool_result_error=True))
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64_of(PNG)}}
    first = result("t1", [{"type": "text", "text": "a"}, image])
    assert built.raws == [{"role": "user", "content": [first, result("t2", "bad", is_error=True)]}]
    assert built.losses == ["a tool result without the id of its call is left out"]
    failed = DIALECT.build(Message.tool_result("t1", "", error=True))
    assert failed.raws == [{"role": "user", "content": [result("t1", "", is_error=True)]}]


def test_the_sdk_puts_a_request_on_the_wire_as_it_is() -> None:
    sdk, http = pytest.importorskip("anthropic"), pytest.importorskip("httpx2")
    arrived: list[Any] = []

    def answer(request: Any) -> Any:
        arrived.append(json.loads(request.content))
        return http.Response(200, json=body_of(FULL))

    asked = DIALECT.parse({"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": None}]})
    said = DIALECT.answer(body_of(FULL)).messages
    told = Message.tool_result("toolu_1", [Block.text("x"), Block.image(PNG, "image/png")])
    setup = Setup(
        model="claude", system_prompt="Be brief.", tools=({"name": "read", "parameters": {"type": "object"}},)
    )
    body = DIALECT.request(DIALECT.history([asked, *said, told]), setup, DIALECT.schema_options({"type": "object"}))
    wire = http.Client(transport=http.MockTransport(answer))
    with sdk.Anthropic(api_key="none", base_url="http://127.0.0.1", http_client=wire) as client:
        client.messages.create(**body)
    assert arrived == [body]


def test_a_conversation_with_gemini_goes_on_here_with_every_call_answered() -> None:
    gemini = Gemini()
    turn: list[Raw] = [
        {"role": "user", "parts": [{"text": "Go"}]},
        {
            "role": "model",
            "parts": [{"text": "Hm", "thought": True}, *({"functionCall": {"name": "a.b"}} for _ in "12")],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "a.b", "response": {"result": n}}} for n in (1, 2)]},
    ]
    heard = gemini.parse_request({"contents": [*turn, *turn]}).messages
    history: Any = DIALECT.history([msgspec.structs.replace(m, extra={"dialect": "gemini"}) for m in heard])
    called = [[block["id"] for block in history[n]["content"]] for n in (1, 4)]
    answered = [[block["tool_use_id"] for block in history[n]["content"]] for n in (2, 5)]
    assert called == answered
    ids = [id for turn_ids in called for id in turn_ids]
    assert len(set(ids)) == 4
    assert all(re.fullmatch("[a-zA-Z0-9_-]+", id) for id in ids)


# -- anything at all

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
words = texts.filter(lambda text: bool(text.strip()))
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | texts
anything = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))
objects = st.dictionaries(texts, anything, max_size=3)
names = st.from_regex(r"[a-z]{1,8}", fullmatch=True)

text_blocks = st.fixed_dictionaries({"type": st.just("text"), "text": words})
media_blocks = st.builds(
    lambda data: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64_of(data)}},
    st.binary(max_size=20),
)
cited_blocks = st.fixed_dictionaries(
    {"type": st.just("text"), "text": words, "citations": st.lists(objects, min_size=1, max_size=2)}
)
said_blocks = st.one_of(
    text_blocks,
    cited_blocks,
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": texts, "signature": names}),
    st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": names}),
    st.fixed_dictionaries({"type": st.just("tool_use"), "id": names, "name": names, "input": objects}),
    st.fixed_dictionaries({"type": st.just("server_tool_use"), "id": names, "name": names, "input": objects}),
    st.fixed_dictionaries({"type": st.just("web_search_tool_result"), "tool_use_id": names, "content": anything}),
)
result_blocks = st.builds(result, names, texts | st.lists(text_blocks | media_blocks, max_size=3))
result_lists = st.lists(result_blocks, min_size=1, max_size=3, unique_by=lambda block: block["tool_use_id"])
raws = st.one_of(
    st.fixed_dictionaries(
        {"role": st.just("user"), "content": texts | st.lists(text_blocks | media_blocks, max_size=4)}
    ),
    st.fixed_dictionaries({"role": st.just("user"), "content": result_lists}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": texts | st.lists(said_blocks, max_size=4)}),
    st.builds(
        lambda results, said: {"role": "user", "content": [*results, *said]},
        result_lists,
        st.lists(text_blocks | media_blocks, min_size=1, max_size=2),
    ),
    st.fixed_dictionaries({"role": st.just("system"), "content": texts}),
)


@given(st.lists(raws, max_size=5))
def test_any_history_comes_back_equal(history: list[Raw]) -> None:
    before = copy.deepcopy(history)
    messages = DIALECT.parse_request({"messages": history}).messages
    for message in messages:
        check(message)
    assert DIALECT.history(messages) == before == history


@given(raws)
def test_what_is_built_of_blocks_reads_as_the_same_blocks(raw: Raw) -> None:
    message = DIALECT.parse(raw)
    built = DIALECT.build(message)
    if built.raws and not built.losses:
        again = DIALECT.parse(built.raws[0])
        assert (again.role, again.text.strip()) == (message.role, message.text.strip())
        assert [b.id for b in calls(again)] == [b.id for b in calls(message)]


@given(st.lists(said_blocks, min_size=1, max_size=4), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_any_chunking_of_any_answer_becomes_the_answer(content: list[Raw], sizes: list[int]) -> None:
    body = body_of(content)
    assert assembled(list(events_of(body, forever(sizes)))) == DIALECT.answer(body)


def touched(value: object, path: list[int], new: object) -> object:
    """The value with something in it, found by the numbers of the path, put in place of what was there."""
    if not path or not value or not isinstance(value, (dict, list)):
        return new
    if isinstance(value, list):
        at = path[0] % len(value)
        return [touched(item, path[1:], new) if i == at else item for i, item in enumerate(value)]
    chosen = list(value)[path[0] % len(value)]
    return {name: touched(item, path[1:], new) if name == chosen else item for name, item in value.items()}


def survive(value: Any) -> None:
    """Nothing but an error of ours comes out, whatever goes in."""
    assembly = DIALECT.assembly()
    for use in (DIALECT.parse, DIALECT.parse_request, DIALECT.answer, DIALECT.likeness, assembly.feed):
        with suppress(HithertoError):
            use(value)
    assembly.answer()


@given(anything)
def test_nothing_but_our_errors_comes_of_anything(value: object) -> None:
    survive(value)
    for name in ("content", "messages", "system", "tools", "message", "content_block", "delta"):
        survive({"type": "content_block_start", "index": 0, "role": "user", name: value})


REQUEST: Raw = {
    "model": "claude",
    "system": [{"type": "text", "text": "A"}],
    "tools": [{"name": "a"}],
    "messages": [{"role": "user", "content": [result("t", [{"type": "text", "text": "x"}])]}],
}


@settings(max_examples=examples(300))
@given(st.lists(st.integers(0, 9), max_size=5), anything, st.integers(0, 60))
def test_nothing_but_our_errors_comes_of_what_is_almost_right(path: list[int], new: object, which: int) -> None:
    survive(touched(body_of(FULL), path, new))
    survive(touched(REQUEST, path, new))
    survive(touched({"role": "assistant", "content": FULL}, path, new))
    events: list[Any] = list(events_of(body_of(FULL), forever([5])))
    events[which % len(events)] = touched(events[which % len(events)], path, new)
    assembly = DIALECT.assembly()
    for event in events:
        with suppress(HithertoError):
            assembly.feed(event)
        assembly.answer()


# -- recorded traffic


@pytest.mark.skipif(not RECORDED, reason="the recorded payloads are not here")
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem[-40:])
def test_recorded_traffic_is_kept_whole(path: Path) -> None:
    recorded = json.loads(path.read_text())
    body = {"messages": recorded["request_messages"], "system": recorded["request_system"], **recorded["request_other"]}
    heard = DIALECT.parse_request(body)
    for message in heard.messages:
        check(message)
    assert DIALECT.history(heard.messages) == recorded["request_messages"]
    sent = DIALECT.request([], heard.setup, {}).get("system")
    assert alike({"role": "s", "content": sent or []}, {"role": "s", "content": recorded["request_system"] or []})
    if recorded["streamed"]:
        check_stream([event["data"] for event in recorded["response_stream_events"]])
    else:
        check_answer(recorded["response"])


def check_answer(body: Raw) -> None:
    answer = DIALECT.answer(body)
    said = {"role": "assistant", "content": body["content"]}
    assert DIALECT.history(answer.messages) == ([said] if body["content"] else [])
    for message in answer.messages:
        check(message)
        assert message.text == "".join(b["text"] for b in body["content"] if b["type"] == "text")
    assert assembled(list(events_of(body, forever([7])))).messages == answer.messages


def check_stream(events: list[Raw]) -> None:
    answer = assembled(events)
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    text = "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta")
    (message,) = answer.messages
    check(message)
    assert (answer.complete, message.text) == (True, text)
    kept = json.dumps(message.raw)
    signatures = [delta["signature"] for delta in deltas if delta["type"] == "signature_delta"]
    assert all(json.dumps(signature) in kept for signature in signatures)
