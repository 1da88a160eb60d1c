"""OpenAI's chat messages: what is read is kept, what is sent is what was read, and a stream is put together whole.

The data is our own; a last part goes through recorded exchanges, where they are at hand.

Requirements: A10, B1, B2, B3, C2, C3, and that the same provider gets its own JSON back.
"""

import base64
import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hitherto import Block, Message
from hitherto.attachment import Attachment
from hitherto.dialects import dialect
from hitherto.dialects._openai_blocks import accepts_strict
from hitherto.dialects._sse import DONE, Events
from hitherto.dialects.openai_chat import OpenAIChat
from hitherto.errors import HithertoError, InvalidMessage
from hitherto.model import Setup, Usage, check

from ..support.patience import cpu_seconds
from ..support.thorough import examples

CHAT = OpenAIChat()
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(16))
PNG_URL = "data:image/png;base64," + base64.b64encode(PNG).decode()
PDF = b"%PDF-1.7 something"
PDF_URL = "data:application/pdf;base64," + base64.b64encode(PDF).decode()
PAYLOADS = Path(__file__).resolve().parents[3] / "shared" / "corpora" / "provider_payloads" / "openai_chat"

Raw = dict[str, object]


def call(id: str, name: str, arguments: str) -> Raw:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chunk(delta: Raw, *, index: int = 0, reason: str | None = None) -> Raw:
    return {"id": "c1", "model": "m", "choices": [{"index": index, "delta": delta, "finish_reason": reason}]}


def assembled(chunks: Sequence[Mapping[str, object]]) -> tuple[str, Raw]:
    assembly = CHAT.assembly()
    said = "".join([assembly.feed(one) for one in chunks])
    (message,) = assembly.answer().messages
    assert isinstance(message.raw, dict)
    return said, message.raw


# -- reading


def test_it_is_found_by_its_name() -> None:
    assert isinstance(dialect("openai-chat"), OpenAIChat)


def test_a_user_says_text_and_the_raw_is_the_very_object() -> None:
    raw: Raw = {"role": "user", "content": "hello", "name": "ada"}
    message = CHAT.parse(raw)
    assert (message.role, message.text, message.raw) == ("user", "hello", raw)
    assert message.raw is raw


def test_the_parts_of_a_content_become_blocks() -> None:
    parts: list[Raw] = [
        {"type": "text", "text": "look: "},
        {"type": "image_url", "image_url": {"url": PNG_URL, "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "mp3"}},
        {"type": "file", "file": {"file_data": PDF_URL, "filename": "a.pdf"}},
        {"type": "text", "text": "what is it?"},
    ]
    message = CHAT.parse({"role": "user", "content": parts})
    _, image, sound, file, _ = message.blocks
    assert message.text == "look: what is it?"
    assert (image.content, image.modality, image.mime_type) == (PNG, "image", "image/png")
    assert (sound.content, sound.modality, sound.mime_type) == (b"RIFF", "audio", "audio/mpeg")
    assert (file.type, file.content, file.mime_type, file.extra) == (
        "content",
        PDF,
        "application/pdf",
        {"filename": "a.pdf"},
    )
    check(message)


def test_an_image_somewhere_else_is_kept_as_its_url_which_is_not_text() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    message = CHAT.parse({"role": "user", "content": [part]})
    assert message.text == ""
    assert message.blocks == (Block("image_url", "https://example.org/a.png"),)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "hologram", "beam": [1, 2]},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "input_audio", "input_audio": {"data": "not base64!", "format": "wav"}},
        {"type": "image_url", "image_url": 7},
        {"beam": None},
    ],
)
def test_an_unknown_part_is_kept_as_json_under_its_own_name(part: Raw) -> None:
    message = CHAT.parse({"role": "user", "content": [part]})
    (block,) = message.blocks
    assert block.type == part.get("type", "unknown")
    assert block.mime_type == "application/json"
    assert isinstance(block.content, str)
    assert json.loads(block.content) == part
    assert message.text == ""


def test_an_image_whose_base64_is_broken_is_kept_as_its_url() -> None:
    message = CHAT.parse({"role": "user", "content": [{"type": "image_url", "image_url": "data:image/png;base64,@"}]})
    assert message.blocks == (Block("image_url", "data:image/png;base64,@"),)


def test_an_answer_has_its_thought_first_then_its_words_then_its_calls() -> None:
    raw: Raw = {
        "role": "assistant",
        "tool_calls": [call("c1", "read", '{"path": "a"}')],
        "content": "I will look.",
        "reasoning_content": "hm",
    }
    thought, words, asked = CHAT.parse(raw).blocks
    assert (thought.type, thought.content) == ("thinking", "hm")
    assert words.content == "I will look."
    assert (asked.id, asked.tool_name, asked.arguments) == ("c1", "read", '{"path": "a"}')


def test_a_call_without_content_and_a_custom_call_are_calls() -> None:
    custom = {"id": "c2", "type": "custom", "custom": {"name": "python", "input": "print(1)"}}
    message = CHAT.parse({"role": "assistant", "tool_calls": [call("c1", "f", "{"), custom]})
    first, second = message.blocks
    assert (first.tool_name, first.arguments) == ("f", "{")
    assert (second.id, second.tool_name, second.arguments) == ("c2", "python", "print(1)")


@pytest.mark.parametrize("content", ["42", "", None, [{"type": "text", "text": "42"}]])
def test_a_tool_result_carries_the_id_of_its_call_even_if_it_is_empty(content: object) -> None:
    message = CHAT.parse({"role": "tool", "tool_call_id": "c1", "content": content})
    assert message.role == "tool_result"
    assert [block.id for block in message.blocks] == ["c1"]


def test_a_function_of_old_is_a_call_and_its_answer_a_result_of_the_same_id() -> None:
    asked = CHAT.parse({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}})
    result = CHAT.parse({"role": "function", "name": "f", "content": "1"})
    assert asked.blocks[0].tool_name == "f"
    assert result.role == "tool_result"
    assert asked.blocks[0].id == result.blocks[0].id == "f"


def test_refusals_annotations_and_sounds_are_kept() -> None:
    raw: Raw = {
        "role": "assistant",
        "content": "see there",
        "refusal": "no",
        "annotations": [{"type": "url_citation"}],
        "audio": {"id": "a1", "data": base64.b64encode(b"RIFFabc").decode(), "transcript": " spoken"},
    }
    words, refused, transcript, sound = CHAT.parse(raw).blocks
    assert words.extra == {"annotations": [{"type": "url_citation"}]}
    assert (refused.type, refused.content) == ("refusal", "no")
    assert transcript.content == " spoken"
    assert (sound.content, sound.mime_type) == (b"RIFFabc", "audio/wav")


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ({"reasoning": {"text": "hm"}}, "reasoning"),
        ({"tool_calls": [{"id": "c", "type": "teleport", "teleport": {}}]}, "teleport"),
        ({"audio": {"id": "a1"}}, "audio"),
    ],
)
def test_what_a_server_adds_in_a_form_of_its_own_is_kept_as_json(raw: Raw, kind: str) -> None:
    (block,) = CHAT.parse({"role": "assistant", **raw}).blocks
    assert (block.type, block.mime_type) == (kind, "application/json")


@pytest.mark.parametrize(
    ("data", "mime_type"),
    [(b"ID3x", "audio/mpeg"), (b"fLaC", "audio/flac"), (b"OggS", "audio/ogg"), (b"\x00\x01\x02", "audio/pcm")],
)
def test_a_spoken_answer_is_known_by_its_first_bytes(data: bytes, mime_type: str) -> None:
    audio = {"id": "a", "data": base64.b64encode(data).decode()}
    (block,) = CHAT.parse({"role": "assistant", "content": None, "audio": audio}).blocks
    assert (block.content, block.mime_type) == (data, mime_type)


def test_a_film_is_kept_as_one() -> None:
    part = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    (block,) = CHAT.parse({"role": "user", "content": [part]}).blocks
    assert (block.content, block.modality, block.mime_type) == (b"\0\0\0", "video", "video/mp4")


def test_a_thought_under_both_of_its_names_is_one_thought() -> None:
    message = CHAT.parse({"role": "assistant", "content": "x", "reasoning_content": "hm", "reasoning": "hm"})
    assert [block.type for block in message.blocks] == ["thinking", "content"]


# -- requests


def test_the_system_messages_at_the_head_are_lifted_and_later_ones_stay() -> None:
    head: list[Raw] = [{"role": "system", "content": "Be kind."}, {"role": "developer", "content": "Be brief."}]
    rest: list[Raw] = [
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "It is late."},
        {"role": "user", "content": "bye"},
    ]
    heard = CHAT.parse_request(
        {"model": "gpt-x", "messages": head + rest, "tools": [{"type": "function", "function": {}}]}
    )
    assert [message.role for message in heard.messages] == ["user", "event", "user"]
    assert heard.setup.system_prompt == "Be kind.\n\nBe brief."
    assert heard.setup.raw == head
    assert (heard.setup.model, heard.setup.tools) == ("gpt-x", ({"type": "function", "function": {}},))
    assert CHAT.request(CHAT.history(heard.messages), heard.setup, {})["messages"] == head + rest


def test_one_plain_system_message_is_only_its_text() -> None:
    heard = CHAT.parse_request({"messages": [{"role": "system", "content": "Be kind."}]})
    assert (heard.setup, heard.messages) == (Setup(system_prompt="Be kind."), [])


@pytest.mark.parametrize(
    "head",
    [
        {"role": "developer", "content": "x"},
        {"role": "system", "content": [{"type": "text", "text": "x"}]},
        {"role": "system", "content": "x", "name": "n"},
        {"role": "system", "content": ""},
    ],
)
def test_any_other_form_of_the_system_prompt_comes_back_as_it_was(head: Raw) -> None:
    heard = CHAT.parse_request({"messages": [head]})
    assert CHAT.request([], heard.setup, {})["messages"] == [head]


def test_a_changed_prompt_replaces_the_old_one_whatever_form_that_had() -> None:
    setup = Setup(system_prompt="new", raw=[{"role": "developer", "content": "old"}])
    assert CHAT.request([], setup, {})["messages"] == [{"role": "system", "content": "new"}]


def test_the_form_that_another_provider_has_is_not_sent() -> None:
    setup = Setup(system_prompt="x", raw=[{"type": "text", "text": "x"}])
    assert CHAT.request([], setup, {})["messages"] == [{"role": "system", "content": "x"}]


def test_a_request_has_the_prompt_once_and_tools_in_the_form_of_the_provider() -> None:
    own: Raw = {"type": "web_search"}
    mine: Raw = {"name": "f", "description": "does", "parameters": {"type": "object"}}
    flat: Raw = {"type": "function", **mine}
    other: Raw = {"name": "f", "description": "does", "input_schema": {"type": "object"}}
    setup = Setup("openai", "m", "Be kind.", (own, mine, flat, other))
    body = CHAT.request([{"role": "user", "content": "hi"}], setup, {"temperature": 0})
    wrapped = {"type": "function", "function": mine}
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}],
        "tools": [own, wrapped, wrapped, wrapped],
        "temperature": 0,
    }


def test_what_is_exported_can_be_changed_without_touching_the_messages() -> None:
    raw: Raw = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    message = CHAT.parse(copy.deepcopy(raw))
    (first,) = CHAT.history([message])
    content = first["content"]
    assert isinstance(content, list)
    content[0]["text"] = "changed"
    assert CHAT.history([message]) == [raw]


CLOSED: Raw = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def test_a_schema_is_asked_for_strictly_only_if_it_can_be() -> None:
    strict = {**CLOSED, "additionalProperties": False}
    asked = CHAT.schema_options(strict)["response_format"]
    assert asked == {"type": "json_schema", "json_schema": {"name": "answer", "schema": strict, "strict": True}}
    assert not accepts_strict(CLOSED)
    assert not accepts_strict({**strict, "required": []})
    assert not accepts_strict({**strict, "properties": {"a": CLOSED}})
    assert not accepts_strict({**strict, "properties": {"a": {"type": "array", "items": CLOSED}}})
    assert not accepts_strict({**strict, "$defs": {"b": {"anyOf": [CLOSED]}}})
    assert not accepts_strict({"type": "array", "items": strict})


# -- answers


def test_an_answer_is_its_message_as_it_came_with_what_is_worth_knowing() -> None:
    raw: Raw = {"role": "assistant", "content": "hi", "refusal": None, "annotations": []}
    body: Raw = {
        "id": "chatcmpl-1",
        "model": "gpt-x",
        "choices": [{"index": 0, "message": raw, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
    }
    answer = CHAT.answer(body)
    (message,) = answer.messages
    assert message.raw == raw
    assert message.extra == {"finish_reason": "stop", "model": "gpt-x", "response_id": "chatcmpl-1"}
    assert message.usage == Usage(10, 5, 4, 0, 3)
    assert (answer.complete, answer.others, answer.id) == (True, (), None)


def test_further_choices_are_others() -> None:
    choices = [{"index": n, "message": {"role": "assistant", "content": str(n)}} for n in range(3)]
    answer = CHAT.answer({"choices": choices})
    assert [message.text for message in answer.messages] == ["0"]
    assert [[message.text for message in other] for other in answer.others] == [["1"], ["2"]]


@pytest.mark.parametrize("body", [{}, {"error": {"message": "no"}}, {"choices": []}, {"choices": [{"index": 0}]}])
def test_an_answer_without_choices_has_no_messages(body: Raw) -> None:
    assert CHAT.answer(body).messages == []


# -- what is the same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"content": "ab"}, {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
        ({"content": "a", "refusal": None, "annotations": [], "audio": None, "function_call": None}, {"content": "a"}),
        ({"content": "a", "reasoning_content": "hm", "reasoning_details": [1]}, {"content": "a", "name": None}),
        ({"content": None, "tool_calls": [call("1", "f", '{"a":1}')]}, {"tool_calls": [call("1", "f", '{ "a": 1 }')]}),
        (
            {"content": "", "tool_calls": [call("1", "f", "{}")]},
            {"content": None, "tool_calls": [call("1", "f", "{}")]},
        ),
        ({"content": "a", "tool_calls": []}, {"content": "a", "tool_calls": None}),
        ({"content": None, "refusal": "no"}, {"content": [{"type": "refusal", "refusal": "no"}]}),
        ({"content": "a"}, {"content": "a", "name": "agent"}),
        ({"content": "a\n"}, {"content": "a"}),
        ({"content": "a", "reasoning": "hm"}, {"content": "<think>\nhm\n</think>\n\na"}),
        ({"content": "\n\n", "tool_calls": [call("1", "f", "{}")]}, {"tool_calls": [call("1", "f", "{}")]}),
        (
            {"content": "a", "tool_calls": [call("1", "f", '{"n":1.0}')]},
            {"content": "a", "tool_calls": [call("1", "f", '{"n":1}')]},
        ),
        (
            {"content": "a", "audio": {"id": ""}, "function_call": {"name": "", "arguments": ""}, "refusal": ""},
            {"content": "a"},
        ),
    ],
)
def test_messages_that_say_the_same_are_alike(one: Raw, other: Raw) -> None:
    assert CHAT.likeness({"role": "assistant", **one}).fits(CHAT.likeness({"role": "assistant", **other}))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"content": "a"}, {"content": "b"}),
        ({"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}),
        ({"tool_calls": [call("1", "f", "{}")]}, {"tool_calls": [call("2", "f", "{}")]}),
        ({"tool_calls": [call("1", "f", '{"a":1}')]}, {"tool_calls": [call("1", "f", '{"a":2}')]}),
        ({"tool_calls": [call("1", "f", "not json")]}, {"tool_calls": [call("1", "f", "not  json")]}),
        ({"tool_calls": [call("1", "f", "{}")]}, {"content": "f"}),
        ({"role": "tool", "tool_call_id": "1", "content": "a"}, {"role": "tool", "tool_call_id": "2", "content": "a"}),
        ({"content": "no"}, {"refusal": "no"}),
        ({"content": "a", "name": "one"}, {"content": "a", "name": "two"}),
        ({"role": "user", "content": "a", "name": "ann"}, {"role": "user", "content": "a"}),
        ({"role": "user", "content": "a "}, {"role": "user", "content": "a"}),
        ({"role": "user", "content": "<think>x</think>a"}, {"role": "user", "content": "a"}),
        ({"tool_calls": [call("1", "f", '{"n":1}')]}, {"tool_calls": [call("1", "f", '{"n":true}')]}),
        (
            {"tool_calls": [call("1", "f", "{}"), call("2", "f", "{}")]},
            {"tool_calls": [call("2", "f", "{}"), call("1", "f", "{}")]},
        ),
        (
            {"content": [{"type": "image_url", "image_url": {"url": "a"}}]},
            {"content": [{"type": "image_url", "image_url": {"url": "b"}}]},
        ),
    ],
)
def test_messages_that_say_something_else_are_not_alike(one: Raw, other: Raw) -> None:
    assert not CHAT.likeness({"role": "assistant", **one}).fits(CHAT.likeness({"role": "assistant", **other}))


def test_an_answer_that_is_sent_back_by_its_text_alone_is_the_stored_one() -> None:
    stored: Raw = {
        "role": "assistant",
        "content": "hi",
        "refusal": None,
        "annotations": [{"type": "url_citation"}],
        "reasoning": "hm",
    }
    assert CHAT.likeness(stored) == CHAT.likeness({"role": "assistant", "content": "hi"})


def test_whatever_the_sdk_makes_of_an_answer_is_alike_to_it() -> None:
    from openai.types.chat import ChatCompletion

    raw: Raw = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call("a", "f", "{}")]}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
    choice = {"index": 0, "finish_reason": "stop", "logprobs": None, "message": raw}
    message = ChatCompletion.model_validate({**body, "choices": [choice]}).choices[0].message
    for sent in (message.model_dump(), message.to_dict(), message.model_dump(exclude_none=True)):
        assert CHAT.likeness(sent) == CHAT.likeness(raw)


def kept(content: str) -> Attachment:
    """A long text of a raw, as the store gives it back."""
    return Attachment(len(content), lambda: iter([content.encode()]), text=True)


def test_a_long_text_that_was_left_in_the_store_is_read_when_it_is_needed() -> None:
    raw: Raw = {"role": "user", "content": "long"}
    left: Raw = {"role": "user", "content": kept("long")}
    assert CHAT.likeness(left) == CHAT.likeness(raw)
    assert CHAT.history([Message("user", raw=left)]) == [raw]
    large = Block("tool_call", kept('{"name":"f","parameters":"{}"}'), "text", "application/json", "a")
    assert CHAT.build(Message.assistant(large)).raws[0]["tool_calls"] == [call("a", "f", "{}")]


def test_an_image_of_automatic_detail_is_the_same_as_one_without() -> None:
    def image(**detail: str) -> Raw:
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a", **detail}}]}

    assert CHAT.likeness(image(detail="auto")) == CHAT.likeness(image())
    assert CHAT.likeness(image(detail="high")) != CHAT.likeness(image())


# -- writing what others said


def test_a_user_with_images_and_files_is_written_in_parts() -> None:
    blocks = [
        Block.text("look"),
        Block.image(PNG, "image/png"),
        Block("content", PDF, "text", "application/pdf", extra={"filename": "a.pdf"}),
        Block.audio(b"RIFF", "audio/wav"),
        Block("content", b"plain", "text", "text/plain"),
    ]
    built = CHAT.build(Message.user(blocks))
    assert built.losses == []
    assert built.raws == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": PNG_URL}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF_URL}},
                {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
                {"type": "text", "text": "plain"},
            ],
        }
    ]
    assert [block.content for block in CHAT.parse(built.raws[0]).blocks][:3] == ["look", PNG, PDF]


def test_an_attachment_is_read_when_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    message = Message.user(Block.image(Attachment.from_file(tmp_path / "a.png"), "image/png"))
    image = {"type": "image_url", "image_url": {"url": PNG_URL}}
    assert CHAT.build(message).raws == [{"role": "user", "content": [image]}]


def test_an_answer_of_another_provider_is_written_and_its_thought_is_lost() -> None:
    blocks = [
        Block.thinking("hm"),
        Block.text("I will "),
        Block.text("look."),
        Block.tool_call("toolu_1", "read", {"path": "a"}),
        Block.tool_call("srv_1", "web_search", {"q": "a"}, server=True),
        Block("hologram", "{}"),
    ]
    message = Message.assistant(blocks, raw={"role": "assistant", "content": []}, extra={"dialect": "anthropic"})
    built = CHAT.build(message)
    assert built.raws == [
        {"role": "assistant", "content": "I will look.", "tool_calls": [call("toolu_1", "read", '{"path":"a"}')]}
    ]
    assert built.losses == [
        "a thought is left out",
        "a call that the provider ran itself is left out",
        "content of type hologram is left out",
    ]
    assert CHAT.history([message]) == built.raws


def test_a_custom_call_of_either_openai_dialect_stays_one() -> None:
    for kind in ("custom", "custom_tool_call"):
        built = CHAT.build(Message.assistant(Block.tool_call("c", "python", "print(1)", kind=kind)))
        custom = {"id": "c", "type": "custom", "custom": {"name": "python", "input": "print(1)"}}
        assert built.raws == [{"role": "assistant", "content": None, "tool_calls": [custom]}]


def test_refusals_links_and_calls_without_arguments_are_written() -> None:
    refused = CHAT.build(Message.assistant([Block("refusal", "no"), Block.tool_call("c", "f", None)])).raws
    assert refused == [{"role": "assistant", "content": None, "refusal": "no", "tool_calls": [call("c", "f", "{}")]}]
    link = Block("image_url", "https://example.org/a.png")
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    assert CHAT.build(Message.user(link)).raws == [{"role": "user", "content": [image]}]


def test_what_a_user_shows_that_cannot_be_sent_is_told() -> None:
    built = CHAT.build(Message.user([Block.video(b"v", "video/mp4"), Block("hologram", "{}")]))
    assert (built.raws, built.losses) == ([], ["video content is left out", "content of type hologram is left out"])
    named = CHAT.build(Message.user(Block("content", b"PK", "text", "application/zip"))).raws[0]["content"]
    assert isinstance(named, list)
    assert named[0]["file"]["filename"] == "document"


def test_a_function_of_old_is_answered_in_its_own_way() -> None:
    result = Message.tool_result("f", Block.text("42", kind="function_call"))
    assert CHAT.build(result).raws == [{"role": "function", "name": "f", "content": "42"}]


def test_an_answer_of_thoughts_alone_is_no_entry() -> None:
    built = CHAT.build(Message.assistant(Block.thinking("hm")))
    assert (built.raws, built.losses) == ([], ["a thought is left out"])


def test_each_call_gets_its_own_result_and_images_in_it_are_lost() -> None:
    blocks = (
        Block("content", "1", id="a"),
        Block("content", "x", id="b"),
        Block("content", "2", id="a"),
        Block("content", PNG, "image", "image/png", "b"),
    )
    built = CHAT.build(Message("tool_result", blocks))
    assert built.raws == [
        {"role": "tool", "tool_call_id": "a", "content": "1\n2"},
        {"role": "tool", "tool_call_id": "b", "content": "x"},
    ]
    assert built.losses == ["image content is left out"]


def test_results_among_a_users_words_are_said_first() -> None:
    blocks = (Block("tool_result", "42", id="a"), Block.text("and now?"))
    assert CHAT.build(Message("user", blocks)).raws == [
        {"role": "tool", "tool_call_id": "a", "content": "42"},
        {"role": "user", "content": "and now?"},
    ]


def test_an_event_is_sent_only_if_a_provider_has_seen_it() -> None:
    ours = Message("event", (Block.text("renamed"),))
    theirs = Message("event", (Block.text("It is late."),), extra={"dialect": "openai-responses"}, raw={"role": "x"})
    assert CHAT.history([ours]) == []
    assert CHAT.history([theirs]) == [{"role": "system", "content": "It is late."}]


def test_what_is_written_has_the_types_of_the_sdk() -> None:
    from openai.types.chat import ChatCompletionMessageParam
    from pydantic import TypeAdapter

    adapter: TypeAdapter[object] = TypeAdapter(ChatCompletionMessageParam)
    parts = [Block.text("x"), Block.image(PNG, "image/png"), Block("content", PDF, "text", "application/pdf")]
    asked = [Block.text("x"), Block.tool_call("c", "f", {}), Block.tool_call("c", "f", "1", kind="custom")]
    messages = [Message.user("x"), Message.user(parts), Message.assistant(asked), Message.tool_result("c", "x")]
    for raw in (raw for message in messages for raw in CHAT.build(message).raws):
        adapter.validate_python(raw)


# -- streams


def test_a_streamed_text_is_put_together_and_told_piece_by_piece() -> None:
    chunks = [chunk({"role": "assistant", "content": "", "refusal": None}), chunk({"content": "Hel"})]
    assembly = CHAT.assembly()
    assert [assembly.feed(one) for one in chunks] == ["", "Hel"]
    assert not assembly.answer().complete
    assert assembly.answer().messages[0].text == "Hel"
    assert assembly.feed(chunk({"content": "lo", "reasoning_content": "hm"})) == "lo"
    assembly.feed(chunk({}, reason="stop"))
    assembly.feed({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
    (message,) = assembly.answer().messages
    assert message.raw == {"role": "assistant", "content": "Hello", "refusal": None, "reasoning_content": "hm"}
    assert message.usage == Usage(1, 2)
    assert message.extra == {"finish_reason": "stop", "model": "m", "response_id": "c1"}
    assert assembly.answer().complete


def piece(index: int | None, id: str | None = None, name: str | None = None, arguments: str | None = None) -> Raw:
    function = {"name": name, "arguments": arguments}
    found: Raw = {"function": {key: value for key, value in function.items() if value is not None}}
    if index is not None:
        found["index"] = index
    return found | ({"id": id, "type": "function"} if id else {})


def test_streamed_calls_are_put_together_by_their_index() -> None:
    chunks = [
        chunk({"role": "assistant", "content": None, "tool_calls": [piece(0, "a", "f", "")]}),
        chunk({"tool_calls": [piece(0, arguments='{"x"'), piece(1, "b", "g", "{")]}),
        chunk({"tool_calls": [piece(1, arguments="}")]}),
        chunk({"tool_calls": [piece(0, arguments=":1}")]}),
        chunk({}, reason="tool_calls"),
    ]
    said, raw = assembled(chunks)
    assert said == ""
    assert raw == {
        "role": "assistant",
        "content": None,
        "tool_calls": [call("a", "f", '{"x":1}'), call("b", "g", "{}")],
    }


def test_a_stream_that_breaks_off_keeps_its_text_and_leaves_unfinished_calls_out() -> None:
    chunks = [
        chunk({"role": "assistant", "content": "I will"}),
        chunk({"tool_calls": [piece(0, "a", "f", "{}"), piece(1, "b", "g", '{"x"')]}),
    ]
    _, raw = assembled(chunks)
    assert raw == {"role": "assistant", "content": "I will", "tool_calls": [call("a", "f", "{}")]}


def test_a_stream_that_breaks_off_in_thought_can_be_sent_again() -> None:
    _, raw = assembled([chunk({"role": "assistant", "content": None, "reasoning_content": "hm"})])
    assert raw["content"] == ""


def test_a_stream_that_said_nothing_is_no_message() -> None:
    assembly = CHAT.assembly()
    assert assembly.answer().messages == []
    assembly.feed(chunk({"role": "assistant", "content": ""}))
    assembly.feed({"error": {"message": "overloaded"}, "choices": 7})
    assert (assembly.answer().messages, assembly.answer().complete) == ([], False)


def test_several_choices_are_kept_apart() -> None:
    assembly = CHAT.assembly()
    told = [assembly.feed(chunk({"content": str(n)}, index=n)) for n in (1, 0, 1)]
    for n in range(2):
        assembly.feed(chunk({}, index=n, reason="stop"))
    answer = assembly.answer()
    assert told == ["", "0", ""]
    assert [answer.messages[0].text, answer.others[0][0].text] == ["0", "11"]


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(0, "a", "f", "{}"), piece(0, "b", "g", "{}")],  # every call has the index 0
        [piece(None, "a", "f", "{}"), piece(None, "b", "g", "{"), piece(None, arguments="}")],  # no index
        [piece(0, "a", "f", "{"), piece(0, "a", "f", "}"), piece(1, "b", "g", "{}")],  # id and name again
    ],
)
def test_servers_that_count_in_their_own_way_are_understood(pieces: list[Raw]) -> None:
    chunks = [chunk({"role": "assistant", "tool_calls": [one]}) for one in pieces]
    _, raw = assembled([*chunks, chunk({}, reason="tool_calls")])
    assert raw["tool_calls"] == [call("a", "f", "{}"), call("b", "g", "{}")]
    assert raw["role"] == "assistant"


def test_a_streamed_sound_is_put_together() -> None:
    chunks = [
        chunk({"role": "assistant", "audio": {"id": "au", "transcript": "Hel"}}),
        chunk({"audio": {"data": "UklG", "transcript": "lo"}}),
        chunk({"audio": {"data": "Rg==", "expires_at": 7}}),
        chunk({}, reason="stop"),
    ]
    _, raw = assembled(chunks)
    assert raw["audio"] == {"id": "au", "transcript": "Hello", "data": "UklGRg==", "expires_at": 7}


def test_content_that_comes_as_parts_is_kept_in_order() -> None:
    thinking = {"type": "thinking", "thinking": "hm"}
    chunks = [
        chunk({"role": "assistant", "content": "a"}),
        chunk({"content": [thinking]}),
        chunk({"content": "b"}),
        chunk({"content": [thinking]}),
        chunk({}, reason="stop"),
    ]
    _, raw = assembled(chunks)
    assert raw["content"] == [{"type": "text", "text": "a"}, thinking, {"type": "text", "text": "b"}, thinking]


def test_an_unfinished_custom_call_is_left_out() -> None:
    def custom(index: int) -> Raw:
        return {"index": index, "id": f"c{index}", "type": "custom", "custom": {"name": "python", "input": "1"}}

    _, raw = assembled([chunk({"role": "assistant", "content": "x", "tool_calls": [custom(0), custom(1)]})])
    assert [one["id"] for one in json.loads(json.dumps(raw["tool_calls"]))] == ["c0"]


def test_a_long_stream_takes_time_that_grows_with_its_length() -> None:
    def assemble() -> None:
        assembly = CHAT.assembly()
        for _ in range(50_000):
            assembly.feed(chunk({"content": "word ", "reasoning_content": "hm "}))
        assert len(assembly.answer().messages[0].text) == 250_000

    assert cpu_seconds(assemble, 1) < 20


@st.composite
def deltas(draw: st.DrawFn) -> list[Raw]:
    """What a server that keeps to the rules may stream."""
    found: list[Raw] = [{"role": "assistant", "content": draw(st.sampled_from(["", None]))}]
    found += [{"content": draw(st.text(max_size=5))} for _ in range(draw(st.integers(0, 4)))]
    for index in range(draw(st.integers(0, 3))):
        found.append({"tool_calls": [piece(index, f"id{index}", draw(st.sampled_from(["f", "get"])), "")]})
        arguments = json.dumps(draw(st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)))
        cuts = sorted(draw(st.lists(st.integers(0, len(arguments)), max_size=3)))
        for start, end in zip([0, *cuts], [*cuts, len(arguments)], strict=True):
            found.append({"tool_calls": [piece(index, arguments=arguments[start:end])]})
    return found


@settings(max_examples=60, deadline=None)
@given(deltas())
def test_a_stream_is_put_together_as_openais_own_sdk_does_it(given_deltas: list[Raw]) -> None:
    from openai.lib.streaming.chat import ChatCompletionStreamState
    from openai.types.chat import ChatCompletionChunk

    chunks = [chunk(delta) for delta in given_deltas] + [chunk({}, reason="stop")]
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for one in chunks:
        whole = {**copy.deepcopy(one), "object": "chat.completion.chunk", "created": 1}
        state.handle_chunk(ChatCompletionChunk.model_validate(whole))
    theirs = state.current_completion_snapshot.choices[0].message
    _, ours = assembled(chunks)
    assert ours["content"] == theirs.content
    expected = [call(c.id, c.function.name, c.function.arguments) for c in theirs.tool_calls or []]
    assert ours.get("tool_calls", []) == expected


# -- server-sent events


def stream(events: Sequence[object], end: str = "\n") -> bytes:
    return "".join(f"data: {json.dumps(event, ensure_ascii=False)}{end}{end}" for event in events).encode()


@settings(deadline=None)
@given(
    st.lists(st.dictionaries(st.text(), st.text(), max_size=3), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 400), max_size=30),
)
def test_events_are_the_same_however_the_bytes_are_cut(events: list[Raw], end: str, cuts: list[int]) -> None:
    data = b"\xef\xbb\xbf: hello" + end.encode() + stream(events, end) + b"data: [DONE]" + end.encode() * 2
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    decoder = Events()
    found = [one for a, b in itertools.pairwise(places) for one in decoder.feed(data[a:b])]
    assert found + decoder.finish() == [*events, DONE]
    assert decoder.unread == []


def test_events_may_be_cut_between_any_two_bytes() -> None:
    events = [{"a": "täxt 🙂"}, {"b": 2}]
    for end in ("\n", "\r\n", "\r"):
        decoder = Events()
        found = [one for byte in stream(events, end) for one in decoder.feed(bytes([byte]))]
        assert found + decoder.finish() == events


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_of_several_lines_may_be_cut_anywhere_too(end: bytes) -> None:
    data = end.join([b'data: {"a":', b"data: 1}", b"", b""])
    for cut in range(len(data) + 1):
        decoder = Events()
        assert decoder.feed(data[:cut]) + decoder.feed(b"") + decoder.feed(data[cut:]) == [{"a": 1}]
        assert decoder.unread == []


def test_an_event_may_have_several_lines_and_other_fields() -> None:
    decoder = Events()
    data = b'event: x\nid: 1\ndata: {"a":\ndata:1}\nretry: 5\n\n:ping\n\ndata\n\n'
    assert decoder.feed(data) == [{"a": 1}]
    assert decoder.unread == []


@pytest.mark.parametrize("data", [b"oops", b"[1]", b'"text"', b'{"a": ', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 9999])
def test_data_that_is_no_object_is_passed_over_and_counted(data: bytes) -> None:
    decoder = Events()
    assert decoder.feed(b"data: " + data + b'\n\ndata: {"a":1}\n\n') == [{"a": 1}]
    assert len(decoder.unread) == 1


def test_the_last_event_counts_even_without_an_empty_line_but_half_of_one_does_not() -> None:
    decoder = Events()
    assert decoder.feed(b'data: {"a":1}') == []
    assert decoder.finish() == [{"a": 1}]
    assert decoder.feed(b'data: {"a":') == []
    assert decoder.finish() == []
    assert len(decoder.unread) == 1


def test_an_event_without_end_is_refused_and_comments_do_not_count() -> None:
    decoder = Events(largest=1000)
    for _ in range(100):
        decoder.feed(b": still alive, still thinking\n")
    decoder.feed(b"data: " + b"x" * 900 + b"\n")
    with pytest.raises(InvalidMessage, match="1,000 bytes"):
        decoder.feed(b"data: " + b"x" * 200)


def test_a_large_event_in_small_chunks_is_joined_once() -> None:
    data = b'data: {"a":"' + b"x" * 50_000_000 + b'"}\n\n'

    def decode() -> None:
        decoder = Events()
        found = [one for at in range(0, len(data), 1024) for one in decoder.feed(data[at : at + 1024])]
        assert len(str(found[0]["a"])) == 50_000_000

    assert cpu_seconds(decode, 1) < 20


# -- hostile input

WORDS = [
    "role",
    "content",
    "type",
    "text",
    "image_url",
    "url",
    "file",
    "input_audio",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "id",
    "refusal",
    "audio",
    "custom",
    "choices",
    "message",
    "messages",
    "delta",
    "index",
    "usage",
    "tools",
    "model",
    "reasoning",
    "data",
]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.sampled_from(["assistant", "user", "tool", "text", "image_url", "function", "custom", "file", "refusal"]),
)


def nested(inside: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inside, max_size=5)


JSON: st.SearchStrategy[object] = st.recursive(LEAVES, nested, max_leaves=15)


@settings(max_examples=examples(300), deadline=None)
@given(JSON)
def test_anything_at_all_is_read_or_refused_with_our_own_error(value: object) -> None:
    for read in (CHAT.parse, CHAT.parse_request, CHAT.answer, CHAT.likeness, CHAT.assembly().feed):
        with_role = {"role": "assistant", **value} if isinstance(value, dict) else {"role": "user", "content": value}
        for given_value in (value, with_role, {"choices": [value]}, {"choices": [{"message": value, "delta": value}]}):
            if isinstance(given_value, dict):
                try:
                    read(given_value)
                except HithertoError:
                    continue


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(JSON, max_size=4))
def test_a_stream_of_anything_gives_an_answer_or_our_own_error(values: list[object]) -> None:
    assembly = CHAT.assembly()
    for value in values:
        try:
            assembly.feed({"choices": [{"index": 0, "delta": value}]})
        except HithertoError:
            continue
    try:
        assembly.answer()
    except HithertoError:
        return


def test_nesting_without_end_is_refused() -> None:
    deep: object = "x"
    for _ in range(50_000):
        deep = [deep]
    for read in (CHAT.parse, CHAT.assembly().feed):
        with pytest.raises(InvalidMessage):
            read({"role": "user", "content": deep, "choices": deep})


@pytest.mark.parametrize("raw", [{}, {"role": None}, {"role": 7}, {"content": "x"}, {"role": "user", "content": 7}])
def test_what_is_no_message_is_refused(raw: Raw) -> None:
    with pytest.raises(InvalidMessage):
        CHAT.parse(raw)


PARTS = st.sampled_from(
    [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": PNG_URL}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "new", "x": [None]},
    ]
)
ENTRIES = st.one_of(
    st.fixed_dictionaries({"role": st.just("user"), "content": st.text(max_size=5) | st.lists(PARTS, max_size=3)}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.none() | st.text(max_size=5)},
        optional={
            "tool_calls": st.just([call("a", "f", "{}")]),
            "refusal": st.none(),
            "reasoning": st.text(max_size=3),
        },
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": st.just("a"), "content": st.text(max_size=5)}),
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer"]), "content": st.text(max_size=5)}),
)


@settings(deadline=None)
@given(st.lists(ENTRIES, max_size=6))
def test_what_was_heard_is_what_is_sent_again(history: list[Raw]) -> None:
    given_history = copy.deepcopy(history)
    heard = CHAT.parse_request({"model": "m", "messages": history})
    for message in heard.messages:
        check(message)
    assert CHAT.request(CHAT.history(heard.messages), heard.setup, {})["messages"] == given_history
    assert history == given_history


# -- recorded exchanges


def exchanges() -> list[Path]:
    return sorted(PAYLOADS.glob("*.json"))


@pytest.mark.skipif(not PAYLOADS.is_dir(), reason="no recorded exchanges at hand")
def test_recorded_exchanges_come_back_as_they_were() -> None:
    for path in exchanges():
        recorded = json.loads(path.read_text())
        asked = recorded["request_messages"] or []
        heard = CHAT.parse_request({**(recorded["request_other"] or {}), "messages": asked})
        body = CHAT.request(CHAT.history(heard.messages), heard.setup, {})
        assert body["messages"] == asked, path.name
        choices = (recorded["response"] or {}).get("choices") or []
        answer = CHAT.answer(recorded["response"] or {})
        assert CHAT.history(answer.messages) == [choice["message"] for choice in choices[:1]], path.name
        for message in heard.messages + answer.messages:
            check(message)


@pytest.mark.skipif(not PAYLOADS.is_dir(), reason="no recorded exchanges at hand")
def test_recorded_streams_are_put_together() -> None:
    seen = 0
    for path in exchanges():
        events = json.loads(path.read_text())["response_stream_events"] or []
        chunks = [event["data"] for event in events if isinstance(event["data"], dict)]
        if not chunks:
            continue
        seen += 1
        said, raw = assembled(chunks)
        pieces = [choice["delta"] for one in chunks for choice in one["choices"] if choice["index"] == 0]
        for name in ("content", "refusal"):
            assert (raw.get(name) or "") == "".join(delta.get(name) or "" for delta in pieces), path.name
        assert said == (raw["content"] or "")
        arguments = [c["function"].get("arguments") or "" for delta in pieces for c in delta.get("tool_calls") or []]
        whole = json.loads(json.dumps(raw.get("tool_calls") or []))
        assert "".join(c["function"].get("arguments") or "" for c in whole) == "".join(arguments), path.name
    assert seen


@pytest.mark.parametrize(
    ("end", "is_complete"), [([DONE], True), ([], False), ([{"error": {"message": "no"}}, DONE], False)]
)
def test_done_ends_an_answer_without_a_reason_but_not_after_an_error(end: list[Raw], *, is_complete: bool) -> None:
    said: Raw = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]}
    assembly = CHAT.assembly()
    for event in [said, *end]:
        assembly.feed(event)
    answer = assembly.answer()
    assert ([message.text for message in answer.messages], answer.complete) == (["a"], is_complete)
