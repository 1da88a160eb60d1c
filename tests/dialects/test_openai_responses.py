"""OpenAI's responses: every item is a message, and the raws of a thread are the input of the next request.

The data is our own; a last part goes through recorded exchanges, where they are at hand.

Requirements: A10, B1, B2, B3, C2, C3, and that the same provider gets its own JSON back.
"""

import base64
import copy
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hitherto import Block, Message
from hitherto.dialects import calls, dialect
from hitherto.dialects.openai_responses import OpenAIResponses
from hitherto.errors import HithertoError, InvalidMessage
from hitherto.model import Setup, Usage, check

from ..support.thorough import examples

RESPONSES = OpenAIResponses()
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(16))
PNG_URL = "data:image/png;base64," + base64.b64encode(PNG).decode()
PDF = b"%PDF-1.7 something"
PDF_URL = "data:application/pdf;base64," + base64.b64encode(PDF).decode()
PAYLOADS = Path(__file__).resolve().parents[3] / "shared" / "corpora" / "provider_payloads" / "openai_responses"

Raw = dict[str, object]


def said(text: str, id: str = "msg_1") -> Raw:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": id, "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def thought(id: str = "rs_1") -> Raw:
    return {"id": id, "type": "reasoning", "summary": [], "encrypted_content": "gAAA"}


def function(call_id: str, arguments: str = "{}", **more: object) -> Raw:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments, **more}


# -- reading


def test_it_is_found_by_its_name() -> None:
    assert isinstance(dialect("openai-responses"), OpenAIResponses)


@pytest.mark.parametrize(
    ("raw", "role", "words"),
    [
        ({"role": "user", "content": "hi"}, "user", "hi"),
        ({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}, "user", "hi"),
        ({"role": "assistant", "content": "hi"}, "assistant", "hi"),
        (said("hi"), "assistant", "hi"),
        ({"role": "developer", "content": "hi"}, "event", "hi"),
        ({"type": "message", "role": "system", "content": "hi"}, "event", "hi"),
        ({"type": "additional_tools", "role": "developer", "tools": []}, "event", ""),
    ],
)
def test_a_message_is_read_in_each_of_its_forms(raw: Raw, role: str, words: str) -> None:
    message = RESPONSES.parse(raw)
    assert (message.role, message.text) == (role, words)
    assert message.raw is raw
    check(message)


def test_the_parts_of_a_content_become_blocks() -> None:
    parts: list[Raw] = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": PNG_URL, "detail": "auto"},
        {"type": "input_image", "image_url": "https://example.org/a.png"},
        {"type": "input_file", "filename": "a.pdf", "file_data": PDF_URL},
        {"type": "input_file", "file_id": "file-1"},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "refusal", "refusal": "no"},
        {"type": "hologram"},
    ]
    message = RESPONSES.parse({"role": "user", "content": parts})
    text, image, link, file, stored, sound, refusal, strange = message.blocks
    assert (message.text, text.content) == ("look", "look")
    assert (image.content, image.modality, image.mime_type) == (PNG, "image", "image/png")
    assert link == Block("image_url", "https://example.org/a.png")
    assert (file.content, file.mime_type, file.extra) == (PDF, "application/pdf", {"filename": "a.pdf"})
    assert (stored.type, stored.mime_type) == ("input_file", "application/json")
    assert (sound.content, sound.modality) == (b"RIFF", "audio")
    assert (refusal.type, refusal.content) == ("refusal", "no")
    assert (strange.type, strange.content) == ("hologram", '{"type":"hologram"}')


def test_annotations_of_a_text_are_kept_where_there_are_any() -> None:
    part = {"type": "output_text", "text": "x", "annotations": [{"type": "url_citation"}]}
    (block,) = RESPONSES.parse({"role": "assistant", "content": [part]}).blocks
    assert block.extra == {"annotations": [{"type": "url_citation"}]}
    assert RESPONSES.parse(said("x")).blocks[0].extra is None


def test_a_thought_shows_its_summary_and_not_what_is_sealed() -> None:
    summary = [{"type": "summary_text", "text": "first"}, {"type": "summary_text", "text": "second"}]
    message = RESPONSES.parse({**thought(), "summary": summary})
    (block,) = message.blocks
    assert (message.role, message.text) == ("assistant", "")
    assert (block.type, block.content, block.extra) == ("thinking", "first\n\nsecond", {"encrypted": True})


def test_a_thought_without_a_summary_shows_what_it_says() -> None:
    content = [{"type": "reasoning_text", "text": "hm"}]
    (block,) = RESPONSES.parse({"type": "reasoning", "id": "r", "summary": [], "content": content}).blocks
    assert (block.content, block.extra) == ("hm", None)


@pytest.mark.parametrize(
    ("raw", "name", "arguments"),
    [
        (function("c", '{"a": 1}'), "f", '{"a": 1}'),
        ({"type": "custom_tool_call", "call_id": "c", "name": "python", "input": "1+1"}, "python", "1+1"),
        ({"type": "apply_patch_call", "call_id": "c", "operation": {"path": "a"}}, "apply_patch", {"path": "a"}),
        ({"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}, "shell", {"commands": ["ls"]}),
        ({"type": "local_shell_call", "id": "x", "call_id": "c", "action": {}}, "local_shell", {}),
        ({"type": "computer_call", "call_id": "c", "action": {"type": "click"}}, "computer", {"type": "click"}),
        ({"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}}, "tool_search", {}),
    ],
)
def test_calls_that_wait_for_an_answer_of_ours(raw: Raw, name: str, arguments: object) -> None:
    message = RESPONSES.parse(raw)
    (block,) = calls(message)
    assert message.role == "assistant"
    assert (block.id, block.tool_name, block.arguments) == ("c", name, arguments)


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ({"type": "web_search_call", "id": "ws", "action": {"query": "a"}}, "web_search"),
        ({"type": "file_search_call", "id": "fs", "queries": ["a"]}, "file_search"),
        ({"type": "code_interpreter_call", "id": "ci", "code": "1"}, "code_interpreter"),
        ({"type": "image_generation_call", "id": "ig"}, "image_generation"),
        ({"type": "mcp_call", "id": "m", "name": "ask", "arguments": "{}"}, "ask"),
        ({"type": "tool_search_call", "id": "t", "execution": "server", "arguments": {}}, "tool_search"),
        ({"type": "shell_call", "call_id": "s", "environment": {"type": "container_reference"}}, "shell"),
    ],
)
def test_calls_that_the_provider_runs_itself_wait_for_nothing(raw: Raw, name: str) -> None:
    message = RESPONSES.parse(raw)
    assert (message.role, message.blocks[0].tool_name) == ("assistant", name)
    assert list(calls(message)) == []


def test_what_the_provider_made_or_found_out_is_readable() -> None:
    data = base64.b64encode(PNG).decode()
    drawn = RESPONSES.parse({"type": "image_generation_call", "id": "ig", "result": data, "output_format": "webp"})
    asked = RESPONSES.parse({"type": "mcp_call", "id": "m", "name": "ask", "arguments": "{}", "output": "42"})
    assert (drawn.blocks[1].content, drawn.blocks[1].mime_type) == (PNG, "image/webp")
    assert (asked.blocks[1].type, asked.blocks[1].content, asked.text) == ("tool_result", "42", "")


@pytest.mark.parametrize(
    ("raw", "content"),
    [
        ({"type": "function_call_output", "output": "42"}, "42"),
        ({"type": "function_call_output", "output": ""}, ""),
        ({"type": "function_call_output", "output": [{"type": "input_text", "text": "42"}]}, "42"),
        ({"type": "function_call_output", "output": [{"type": "input_image", "image_url": PNG_URL}]}, PNG),
        ({"type": "custom_tool_call_output", "output": "42"}, "42"),
        ({"type": "apply_patch_call_output", "status": "completed", "output": "ok"}, "ok"),
        ({"type": "shell_call_output", "output": [{"stdout": "a", "stderr": "b"}]}, "ab"),
        ({"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": PNG_URL}}, PNG),
        ({"type": "local_shell_call_output", "output": "ok"}, "ok"),
    ],
)
def test_results_carry_the_id_of_their_call(raw: Raw, content: object) -> None:
    message = RESPONSES.parse({"call_id": "c", **raw})
    (block,) = message.blocks
    assert (message.role, block.id, block.content) == ("tool_result", "c", content)
    assert not message.tool_result_error


def test_a_patch_that_failed_is_an_error() -> None:
    assert RESPONSES.parse({"type": "apply_patch_call_output", "call_id": "c", "status": "failed"}).tool_result_error


@pytest.mark.parametrize(
    ("kind", "role"),
    [
        ("compaction", "assistant"),
        ("mcp_list_tools", "assistant"),
        ("mcp_approval_request", "assistant"),
        ("mcp_approval_response", "user"),
        ("tool_search_output", "assistant"),
        ("item_reference", "assistant"),
        ("something_new", "assistant"),
    ],
)
def test_items_without_a_block_of_ours_are_kept_under_their_own_name(kind: str, role: str) -> None:
    raw: Raw = {"type": kind, "id": "x", "inside": [1, None]}
    message = RESPONSES.parse(raw)
    (block,) = message.blocks
    assert (message.role, block.type, block.mime_type) == (role, kind, "application/json")
    assert isinstance(block.content, str)
    assert json.loads(block.content) == raw
    assert message.text == ""


def test_an_item_that_is_only_an_id_is_a_reference() -> None:
    assert RESPONSES.parse({"id": "msg_1"}).blocks[0].type == "item_reference"


# -- requests


def test_an_input_of_text_alone_is_what_the_user_says() -> None:
    heard = RESPONSES.parse_request({"model": "m", "input": "hi", "instructions": "Be kind.", "tools": [{"type": "x"}]})
    assert [message.raw for message in heard.messages] == [{"role": "user", "content": "hi"}]
    assert heard.setup == Setup(model="m", system_prompt="Be kind.", tools=({"type": "x"},))
    assert (heard.after, heard.within) == (None, None)


def test_instructions_and_the_head_of_the_input_are_the_system_prompt() -> None:
    head: list[Raw] = [{"role": "developer", "content": "Be brief."}]
    rest: list[Raw] = [
        {"role": "user", "content": "hi"},
        {"type": "additional_tools", "role": "developer", "tools": []},
        {"role": "system", "content": "It is late."},
    ]
    heard = RESPONSES.parse_request({"instructions": "Be kind.", "input": head + rest})
    assert heard.setup.system_prompt == "Be kind.\n\nBe brief."
    assert heard.setup.raw == {"instructions": "Be kind.", "input": head}
    assert [message.role for message in heard.messages] == ["user", "event", "event"]
    body = RESPONSES.request(RESPONSES.history(heard.messages), heard.setup, {})
    assert (body["instructions"], body["input"]) == ("Be kind.", head + rest)


def test_tools_at_the_head_stay_in_the_input() -> None:
    tools: Raw = {"type": "additional_tools", "role": "developer", "tools": []}
    heard = RESPONSES.parse_request({"input": [tools]})
    assert (heard.setup, [message.raw for message in heard.messages]) == (Setup(), [tools])


@pytest.mark.parametrize("conversation", ["conv_1", {"id": "conv_1"}])
def test_a_request_may_go_on_from_what_the_provider_keeps(conversation: object) -> None:
    heard = RESPONSES.parse_request({"input": "hi", "previous_response_id": "resp_1", "conversation": conversation})
    assert (heard.after, heard.within) == ("resp_1", "conv_1")


def test_a_request_has_all_that_is_needed_and_leaves_nothing_with_the_provider() -> None:
    mine: Raw = {"name": "f", "description": "does", "parameters": {"type": "object"}}
    nested: Raw = {"type": "function", "function": mine}
    other: Raw = {"name": "f", "description": "does", "input_schema": {"type": "object"}}
    own: Raw = {"type": "function", **mine}
    setup = Setup("openai", "m", "Be kind.", ({"type": "web_search"}, own, mine, nested, other))
    assert RESPONSES.request([said("hi")], setup, {"temperature": 0}) == {
        "model": "m",
        "input": [said("hi")],
        "instructions": "Be kind.",
        "tools": [{"type": "web_search"}, own, own, own, own],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "temperature": 0,
    }


def test_options_go_on_top() -> None:
    assert RESPONSES.request([], Setup(), {"store": True})["store"] is True


@pytest.mark.parametrize(
    "form", [[{"type": "text", "text": "x"}], {"input": [{"role": "system", "content": "old"}]}, 7]
)
def test_a_form_that_is_not_ours_or_says_something_else_is_not_sent(form: object) -> None:
    body = RESPONSES.request([], Setup(system_prompt="new", raw=form), {})
    assert (body["instructions"], body["input"]) == ("new", [])


def test_a_schema_is_asked_for_by_the_format_of_the_text() -> None:
    schema: Raw = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    assert RESPONSES.schema_options(schema) == {"text": {"format": form}}


# -- answers

BODY: Raw = {
    "id": "resp_1",
    "model": "gpt-x",
    "status": "completed",
    "conversation": {"id": "conv_1"},
    "output": [thought(), function("c"), said("hi")],
    "usage": {
        "input_tokens": 10,
        "output_tokens": 5,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens_details": {"reasoning_tokens": 3},
    },
}


def test_each_item_of_an_answer_is_a_message_and_the_last_has_the_usage() -> None:
    answer = RESPONSES.answer(BODY)
    assert [message.raw for message in answer.messages] == BODY["output"]
    assert [message.usage for message in answer.messages] == [None, None, Usage(10, 5, 4, 0, 3)]
    assert [message.extra for message in answer.messages] == [
        {"response_id": "resp_1"},
        {"response_id": "resp_1"},
        {"response_id": "resp_1", "model": "gpt-x"},
    ]
    assert (answer.id, answer.within, answer.complete) == ("resp_1", "conv_1", True)


def test_an_answer_that_was_cut_short_says_why_on_its_last_message() -> None:
    why = {"reason": "max_output_tokens"}
    answer = RESPONSES.answer({**BODY, "status": "incomplete", "incomplete_details": why})
    extra = answer.messages[-1].extra or {}
    assert (extra["status"], extra["incomplete_details"]) == ("incomplete", why)
    assert answer.complete


@pytest.mark.parametrize(("status", "complete"), [("failed", True), ("cancelled", True), ("queued", False)])
def test_an_answer_without_items_has_no_messages(status: str, complete: bool) -> None:
    answer = RESPONSES.answer({"id": "resp_1", "status": status, "output": []})
    assert (answer.messages, answer.complete) == ([], complete)
    assert RESPONSES.answer({"error": {"message": "no"}}).messages == []


# -- what is the same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "user", "content": "a"}, {"type": "message", "role": "user", "content": "a", "status": None}),
        (
            {"role": "user", "content": "ab"},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        ),
        (said("a"), {"role": "assistant", "content": "a"}),
        (said("a", "msg_1"), said("a", "msg_2")),
        ({**said("a"), "phase": "final_answer"}, said("a")),
        (function("c", '{"a":1}', id="fc_1", status="completed"), function("c", '{ "a": 1 }')),
        (
            {"type": "function_call_output", "call_id": "c", "output": "1"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "1"}]},
        ),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "a", "detail": "auto"}]},
            {"role": "user", "content": [{"type": "input_image", "image_url": "a"}]},
        ),
        (thought("rs_1"), {**thought("rs_2"), "content": []}),
        (
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
        ),
        (
            {"type": "image_generation_call", "id": "ig", "result": "AAAA"},
            {"type": "image_generation_call", "id": "ig"},
        ),
        ({"type": "web_search_call", "id": "a", "action": {}}, {"type": "web_search_call", "action": {"x": None}}),
        (
            {"type": "web_search_call", "id": "a", "action": {"query": "q", "sources": [{"type": "api"}]}},
            {"type": "web_search_call", "id": "a", "action": {"query": "q"}},
        ),
        (
            {"type": "code_interpreter_call", "id": "a", "code": "1", "outputs": [{"logs": "1"}]},
            {"type": "code_interpreter_call", "id": "a", "code": "1", "outputs": None},
        ),
        (function("call_1", id="fc_1"), function("fc_1")),
        ({**function("c"), "namespace": "n"}, function("c")),
        (thought("rs_1"), {"type": "reasoning", "id": "rs_1", "summary": [{"text": "x"}]}),
        (thought("rs_1"), {**thought("rs_1"), "encrypted_content": "gBBB"}),
        (thought("rs_1"), {"type": "reasoning", "summary": [], "encrypted_content": "gBBB"}),
    ],
)
def test_items_that_say_the_same_are_alike(one: Raw, other: Raw) -> None:
    assert RESPONSES.likeness(one).fits(RESPONSES.likeness(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (said("a"), said("b")),
        ({"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}),
        (function("c"), function("d")),
        (function("c", '{"a":1}'), function("c", '{"a":2}')),
        (thought("rs_1"), {**thought("rs_2"), "encrypted_content": "gBBB"}),
        (
            {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
            {"type": "reasoning", "summary": [], "encrypted_content": "gBBB"},
        ),
        ({"type": "web_search_call", "id": "a"}, {"type": "web_search_call", "id": "b"}),
        ({"type": "web_search_call", "action": {"query": "a"}}, {"type": "web_search_call", "action": {"query": "b"}}),
        ({**function("c"), "namespace": "n"}, {**function("c"), "namespace": "m"}),
        ({"type": "item_reference", "id": "a"}, {"type": "item_reference", "id": "b"}),
        (
            {"type": "function_call_output", "call_id": "c", "output": "1"},
            {"type": "function_call_output", "call_id": "c", "output": "2"},
        ),
    ],
)
def test_items_that_say_something_else_are_not_alike(one: Raw, other: Raw) -> None:
    assert not RESPONSES.likeness(one).fits(RESPONSES.likeness(other))


def test_whatever_the_sdk_makes_of_an_answer_is_alike_to_it() -> None:
    from openai import BaseModel
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem

    models: tuple[type[BaseModel], ...] = (ResponseReasoningItem, ResponseFunctionToolCall, ResponseOutputMessage)
    for model, raw in zip(models, [thought(), function("c", id="fc_1", status="completed"), said("hi")], strict=True):
        item = model.model_validate(raw)
        for sent in (item.model_dump(), item.model_dump(exclude_unset=True), item.model_dump(exclude_none=True)):
            assert RESPONSES.likeness(sent).fits(RESPONSES.likeness(raw))


# -- writing what others said


def test_a_user_with_images_and_files_is_written_in_parts() -> None:
    blocks = [
        Block.text("look"),
        Block.image(PNG, "image/png"),
        Block("content", PDF, "text", "application/pdf", extra={"filename": "a.pdf"}),
        Block("image_url", "https://example.org/a.png"),
        Block.video(b"v", "video/mp4"),
    ]
    built = RESPONSES.build(Message.user(blocks))
    assert built.losses == ["video content is left out"]
    (raw,) = built.raws
    assert raw["content"] == [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": PNG_URL, "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": PDF_URL},
        {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"},
    ]
    assert [block.content for block in RESPONSES.parse(raw).blocks][:3] == ["look", PNG, PDF]


def test_an_answer_of_another_provider_becomes_items_in_its_order() -> None:
    blocks = [
        Block.thinking("hm"),
        Block.text("I will "),
        Block.text("look."),
        Block.tool_call("toolu_1", "read", {"path": "a"}),
        Block.tool_call("c2", "python", "1+1", kind="custom"),
        Block.text("There."),
    ]
    message = Message.assistant(blocks, raw={"role": "assistant"}, extra={"dialect": "anthropic"})
    built = RESPONSES.build(message)
    assert built.raws == [
        {"role": "assistant", "content": "I will look."},
        {"type": "function_call", "call_id": "toolu_1", "name": "read", "arguments": '{"path":"a"}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "python", "input": "1+1"},
        {"role": "assistant", "content": "There."},
    ]
    assert built.losses == ["a thought is left out"]
    assert RESPONSES.history([message]) == built.raws


def test_a_refusal_of_another_provider_is_said_as_text() -> None:
    built = RESPONSES.build(Message.assistant([Block("refusal", "no"), Block.tool_call("s", "x", {}, server=True)]))
    assert built.raws == [{"role": "assistant", "content": "no"}]
    assert built.losses == ["a call that the provider ran itself is left out"]


def test_results_among_a_users_words_are_said_first() -> None:
    blocks = (Block("tool_result", "42", id="a"), Block.text("and now?"))
    assert RESPONSES.build(Message("user", blocks)).raws == [
        {"type": "function_call_output", "call_id": "a", "output": "42"},
        {"role": "user", "content": "and now?"},
    ]


def test_a_result_may_have_images() -> None:
    blocks = [Block.text("a"), Block.image(PNG, "image/png")]
    built = RESPONSES.build(Message.tool_result("c", blocks))
    image = {"type": "input_image", "image_url": PNG_URL, "detail": "auto"}
    output = [{"type": "input_text", "text": "a"}, image]
    assert built.raws == [{"type": "function_call_output", "call_id": "c", "output": output}]
    assert built.losses == []


@pytest.mark.parametrize(
    "raw",
    [
        function("c"),
        {"type": "custom_tool_call", "call_id": "c", "name": "python", "input": "1"},
        {"type": "apply_patch_call", "call_id": "c", "operation": {}},
        {"type": "shell_call", "call_id": "c", "action": {}},
        {"type": "local_shell_call", "call_id": "c", "action": {}},
        {"type": "tool_search_call", "call_id": "c", "execution": "client"},
    ],
)
def test_each_kind_of_call_gets_its_own_kind_of_result(raw: Raw) -> None:
    (call,) = calls(RESPONSES.parse(raw))
    extra = {"kind": (call.extra or {}).get("kind")}
    (built,) = RESPONSES.build(Message.tool_result("c", Block.text("gone", **extra), error=True)).raws
    expected = str(raw["type"]) + "_output" if raw["type"] != "tool_search_call" else "tool_search_output"
    assert (built["type"], built["call_id"]) == (expected, "c")
    assert RESPONSES.parse(built).role == "tool_result"


def test_a_computer_is_answered_by_a_screenshot_or_not_at_all() -> None:
    seen = Message.tool_result("c", Block.image(PNG, "image/png", kind="computer_call"))
    told = Message.tool_result("c", Block.text("gone", kind="computer_call"))
    screen = {"type": "computer_screenshot", "image_url": PNG_URL}
    assert RESPONSES.build(seen).raws == [{"type": "computer_call_output", "call_id": "c", "output": screen}]
    assert RESPONSES.build(told).raws == []
    assert RESPONSES.build(told).losses == ["the result of a computer call without a screenshot is left out"]


def test_a_system_message_in_the_middle_is_one() -> None:
    raws = RESPONSES.build(Message("event", (Block.text("It is late."),))).raws
    assert raws == [{"role": "system", "content": "It is late."}]


def test_what_is_exported_can_be_changed_without_touching_the_messages() -> None:
    message = RESPONSES.parse(said("hi"))
    (first,) = RESPONSES.history([message])
    content = first["content"]
    assert isinstance(content, list)
    content[0]["text"] = "changed"
    assert RESPONSES.history([message]) == [said("hi")]


def test_what_is_written_has_the_types_of_the_sdk() -> None:
    from openai.types.responses import ResponseInputItemParam
    from pydantic import TypeAdapter

    adapter: TypeAdapter[object] = TypeAdapter(ResponseInputItemParam)
    parts = [Block.text("x"), Block.image(PNG, "image/png"), Block("content", PDF, "text", "application/pdf")]
    messages = [
        Message.user("x"),
        Message.user(parts),
        Message.assistant(
            [Block.text("x"), Block.tool_call("c", "f", {}), Block.tool_call("c", "f", "1", kind="custom")]
        ),
        Message.tool_result("c", parts),
        Message.tool_result("c", Block.image(PNG, "image/png", kind="computer_call")),
        Message("event", (Block.text("x"),)),
    ]
    kinds = ("custom_tool_call", "apply_patch_call", "shell_call", "tool_search_call")
    messages += [Message.tool_result("c", Block.text("x", kind=kind)) for kind in kinds]
    for raw in (raw for message in messages for raw in RESPONSES.build(message).raws):
        adapter.validate_python(raw)


# -- streams


def event(kind: str, **fields: object) -> Raw:
    return {"type": f"response.{kind}", **fields}


def streamed(items: Sequence[Raw]) -> list[Raw]:
    """The events of an answer, without the last."""
    head = {key: value for key, value in BODY.items() if key != "usage"} | {"status": "in_progress", "output": []}
    found = [event("created", response=head)]
    for index, item in enumerate(items):
        found.append(event("output_item.added", output_index=index, item={**item, "content": []}))
        if item["type"] == "message":
            text = json.loads(json.dumps(item))["content"][0]["text"]
            found += [
                event("output_text.delta", output_index=index, content_index=0, item_id=item["id"], delta=letter)
                for letter in text
            ]
        found.append(event("output_item.done", output_index=index, item=item))
    return found


def items_of(events: Sequence[Raw]) -> list[object]:
    assembly = RESPONSES.assembly()
    for one in events:
        assembly.feed(one)
    return [message.raw for message in assembly.answer().messages]


ITEMS = [thought(), function("c"), said("hello")]


def test_a_stream_ends_with_the_whole_answer() -> None:
    assembly = RESPONSES.assembly()
    events = [*streamed(ITEMS), event("completed", response=BODY)]
    assert "".join([assembly.feed(one) for one in events]) == "hello"
    assert assembly.answer() == RESPONSES.answer(BODY)
    assert assembly.answer().complete


@pytest.mark.parametrize("output", [[], None])
def test_where_the_last_event_has_no_items_those_that_were_done_count(output: object) -> None:
    assembly = RESPONSES.assembly()
    for one in [*streamed(ITEMS), event("completed", response={**BODY, "output": output})]:
        assembly.feed(one)
    answer = assembly.answer()
    assert [message.raw for message in answer.messages] == ITEMS
    assert (answer.messages[-1].usage, answer.complete) == (Usage(10, 5, 4, 0, 3), True)


def test_a_stream_that_breaks_off_gives_what_is_done_and_the_text_so_far() -> None:
    assembly = RESPONSES.assembly()
    for one in streamed(ITEMS)[:-3]:
        assembly.feed(one)
    answer = assembly.answer()
    part = {"type": "output_text", "text": "hel", "annotations": []}
    unfinished = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "incomplete",
        "content": [part],
    }
    assert [message.raw for message in answer.messages] == [thought(), function("c"), unfinished]
    assert (answer.complete, answer.id, answer.within) == (False, "resp_1", "conv_1")


def test_a_thought_comes_only_with_what_followed_it() -> None:
    events = streamed([thought("rs_1"), function("c"), thought("rs_2"), function("d")])
    assert items_of(events[:3]) == []
    assert items_of(events[:5]) == [thought("rs_1"), function("c")]
    assert items_of(events[:-1]) == [thought("rs_1"), function("c")]


def test_an_unfinished_call_is_left_out() -> None:
    events = streamed([function("c"), function("d", '{"a": 1}')])
    delta = event("function_call_arguments.delta", output_index=1, delta='{"a"')
    assert items_of([*events[:-1], delta]) == [function("c")]


def test_a_streamed_refusal_is_kept_and_is_no_text() -> None:
    assembly = RESPONSES.assembly()
    assert assembly.feed(event("refusal.delta", output_index=0, content_index=0, delta="no")) == ""
    (message,) = assembly.answer().messages
    assert message.blocks == (Block("refusal", "no"),)


def test_a_failed_stream_is_complete_and_keeps_what_was_done() -> None:
    failed = {"id": "resp_1", "status": "failed", "output": [], "error": {"code": "server_error", "message": "sorry"}}
    assembly = RESPONSES.assembly()
    for one in [*streamed([said("hello")]), event("failed", response=failed)]:
        assembly.feed(one)
    answer = assembly.answer()
    assert answer.complete
    assert [message.text for message in answer.messages] == ["hello"]
    assert (answer.messages[0].extra or {})["status"] == "failed"


def test_a_stream_that_said_nothing_has_no_messages() -> None:
    assembly = RESPONSES.assembly()
    assembly.feed({"type": "error", "message": "overloaded"})
    assembly.feed({"type": "keepalive"})
    assert (assembly.answer().messages, assembly.answer().complete) == ([], False)


SOME_ITEMS = st.lists(
    st.one_of(
        st.builds(said, st.text(min_size=1, max_size=5)),
        st.builds(function, st.sampled_from("abc")),
        st.just(thought()),
        st.just({"type": "web_search_call", "id": "w", "action": {}}),
    ),
    max_size=5,
)


@settings(deadline=None)
@given(SOME_ITEMS)
def test_any_stream_gives_what_the_whole_answer_says(items: list[Raw]) -> None:
    body = {**BODY, "output": items}
    assembly = RESPONSES.assembly()
    for one in [*streamed(items), event("completed", response=body)]:
        assembly.feed(one)
    assert assembly.answer() == RESPONSES.answer(body)


@settings(deadline=None)
@given(SOME_ITEMS, st.integers(0, 60))
def test_a_stream_cut_anywhere_gives_the_beginning_of_the_answer(items: list[Raw], cut: int) -> None:
    found = items_of(streamed(items)[:cut])
    whole = [item for item in found if isinstance(item, dict) and item.get("status") != "incomplete"]
    assert whole == items[: len(whole)]
    assert len(found) <= len(whole) + 1
    assert not found or whole == found[: len(whole)]


# -- hostile input

WORDS = (
    "role content type text image_url id call_id name arguments output summary action input status result results "
    "response item delta output_index content_index usage model instructions conversation environment tools"
)
KINDS = (
    "message reasoning function_call custom_tool_call function_call_output shell_call shell_call_output mcp_call "
    "image_generation_call computer_call_output input_text input_image input_file user assistant developer client"
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.text(max_size=8),
    st.sampled_from(KINDS.split(" ")),
)


def nested(inside: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(WORDS.split(" ")), inside, max_size=5)


JSON: st.SearchStrategy[object] = st.recursive(LEAVES, nested, max_leaves=15)


@settings(max_examples=examples(400), deadline=None)
@given(JSON, st.sampled_from(KINDS.split(" ")))
def test_anything_at_all_is_read_or_refused_with_our_own_error(value: object, kind: str) -> None:
    typed = {**value, "type": kind} if isinstance(value, dict) else {"type": kind, "content": value, "output": value}
    bodies = [value, typed, {"input": value}, {"input": [typed]}, {"output": [typed], "usage": value}]
    for read in (
        RESPONSES.parse,
        RESPONSES.parse_request,
        RESPONSES.answer,
        RESPONSES.likeness,
        RESPONSES.assembly().feed,
    ):
        for body in bodies:
            if isinstance(body, dict):
                try:
                    read(body)
                except HithertoError:
                    continue


EVENTS = ["created", "completed", "output_item.done", "output_text.delta", "refusal.delta", "output_item.added"]


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), JSON), max_size=5))
def test_a_stream_of_anything_gives_an_answer_or_our_own_error(values: list[tuple[str, object]]) -> None:
    assembly = RESPONSES.assembly()
    for kind, value in values:
        fields = value if isinstance(value, dict) else {"response": value, "item": value, "delta": value}
        try:
            assembly.feed({**fields, "type": f"response.{kind}"})
            assembly.answer()
        except HithertoError:
            continue


def test_nesting_without_end_is_refused() -> None:
    deep: object = "x"
    for _ in range(50_000):
        deep = [deep]
    for read in (RESPONSES.parse, RESPONSES.likeness, RESPONSES.assembly().feed):
        with pytest.raises(InvalidMessage):
            read({"type": "response.completed", "role": "user", "content": deep})


@pytest.mark.parametrize(
    "raw",
    [{}, {"role": 7}, {"type": 7}, {"role": "user", "content": [7]}, {"role": "user", "content": 7}, {"content": "x"}],
)
def test_what_is_no_item_is_refused(raw: Raw) -> None:
    with pytest.raises(InvalidMessage):
        RESPONSES.parse(raw)


@settings(deadline=None)
@given(st.lists(st.sampled_from([*ITEMS, {"role": "user", "content": "x"}, {"role": "system", "content": "y"}])))
def test_what_was_heard_is_what_is_sent_again(items: list[Raw]) -> None:
    given_items = copy.deepcopy(items)
    heard = RESPONSES.parse_request({"input": items})
    for message in heard.messages:
        check(message)
    body = RESPONSES.request(RESPONSES.history(heard.messages), heard.setup, {})
    assert (body["input"], body.get("instructions")) == (given_items, None)


# -- recorded exchanges


@pytest.mark.skipif(not PAYLOADS.is_dir(), reason="no recorded exchanges at hand")
def test_recorded_exchanges_come_back_as_they_were() -> None:
    for path in sorted(PAYLOADS.glob("*.json")):
        recorded = json.loads(path.read_text())
        asked = recorded["request_messages"] or []
        instructions = recorded["request_system"]
        heard = RESPONSES.parse_request(
            {**(recorded["request_other"] or {}), "input": asked, "instructions": instructions}
        )
        body = RESPONSES.request(RESPONSES.history(heard.messages), heard.setup, {})
        assert body["input"] == ([{"role": "user", "content": asked}] if isinstance(asked, str) else asked), path.name
        assert body.get("instructions") == (instructions or None), path.name
        answer = RESPONSES.answer(recorded["response"] or {})
        assert RESPONSES.history(answer.messages) == (recorded["response"] or {}).get("output", []), path.name
        for message in heard.messages + answer.messages:
            check(message)


@pytest.mark.skipif(not PAYLOADS.is_dir(), reason="no recorded exchanges at hand")
def test_recorded_streams_are_put_together() -> None:
    seen = 0
    for path in sorted(PAYLOADS.glob("*.json")):
        events = [one["data"] for one in json.loads(path.read_text())["response_stream_events"] or []]
        for last in [one for one in events if isinstance(one, dict) and one["type"] == "response.completed"]:
            seen += 1
            assert items_of(events) == last["response"]["output"], path.name
            done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
            assert items_of([one for one in events if one is not last]) == done, path.name
    assert seen


def test_thoughts_that_only_the_provider_has_are_not_sent_when_nothing_is_left_with_it() -> None:
    """Such a thought is a name for something that was stored there; a request that stores nothing cannot use it."""
    named: Raw = {"type": "reasoning", "id": "rs_1", "summary": []}
    whole: Raw = {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "x"}
    call: Raw = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "look", "arguments": "{}"}
    output: Raw = {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "seen"}
    question: Raw = {"type": "message", "id": "msg_1", "role": "user", "content": "and?"}
    history = [named, call, output, whole, call, output, question]
    bare = {name: value for name, value in call.items() if name != "id"}
    sent = OpenAIResponses().request(history, Setup(), {})["input"]
    assert sent == [bare, output, whole, call, output, question]
    assert OpenAIResponses().request(history, Setup(), {"store": True})["input"] == history
