"""Messages made of what the SDKs take and return: `Message.from_openai` and its like."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from anthropic.types import Message as AnthropicAnswer
from anthropic.types import MessageParam
from google.genai import types as genai
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from openai.types.responses import Response

import hitherto
from hitherto import Block, HithertoError, Message
from hitherto.errors import InvalidMessage

from ..support.provider import anthropic_answer, chat_answer, gemini_answer, responses_answer, responses_text

PNG = "iVBORw0KGgo="
CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path":"a"}'}}
Reader = Callable[[Any], Message]

# Entries of histories, as people write them by hand and as SDKs do.
ENTRIES: list[tuple[Reader, dict[str, Any], str]] = [
    (Message.from_openai, {"role": "user", "content": "Why?"}, "user"),
    (Message.from_openai, {"role": "user", "content": ""}, "user"),
    (Message.from_openai, {"role": "system", "content": "Be terse."}, "event"),
    (Message.from_openai, {"role": "assistant", "content": None, "tool_calls": [CALL]}, "assistant"),
    (Message.from_openai, {"role": "tool", "tool_call_id": "call_1", "content": "text"}, "tool_result"),
    (
        Message.from_openai,
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}]},
        "user",
    ),
    (Message.from_openai_responses, {"role": "user", "content": "Why?"}, "user"),
    (Message.from_openai_responses, {"role": "user", "content": [{"type": "input_text", "text": "Why?"}]}, "user"),
    (
        Message.from_openai_responses,
        {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{}"},
        "assistant",
    ),
    (
        Message.from_openai_responses,
        {"type": "function_call_output", "call_id": "call_1", "output": "text"},
        "tool_result",
    ),
    (Message.from_openai_responses, {"type": "reasoning", "id": "rs_1", "summary": []}, "assistant"),
    (Message.from_anthropic, {"role": "user", "content": "Why?"}, "user"),
    (
        Message.from_anthropic,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}]},
        "assistant",
    ),
    (
        Message.from_anthropic,
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "text"}]},
        "tool_result",
    ),
    (Message.from_gemini, {"role": "user", "parts": [{"text": "Why?"}]}, "user"),
    (Message.from_gemini, {"role": "model", "parts": [{"functionCall": {"name": "read", "args": {}}}]}, "assistant"),
    (Message.from_gemini, {"parts": [{"inline_data": {"mime_type": "image/png", "data": PNG}}]}, "user"),
]
PROVIDERS = {
    "from_openai": "openai",
    "from_openai_responses": "openai-responses",
    "from_anthropic": "claude",
    "from_gemini": "gemini",
}


def name_of(read: Reader) -> str:
    return read.__name__


@pytest.mark.parametrize(("read", "entry", "role"), ENTRIES)
def test_an_entry_becomes_a_message_that_is_sent_again_as_it_was(
    read: Reader, entry: dict[str, Any], role: str
) -> None:
    message = read(entry)
    assert message.role == role
    with hitherto.open("memory:") as store:
        talk = store.start()
        saved = talk.append(message)
        assert store.message(saved.id).raw == entry
        if role == "user":
            assert hitherto.history(talk) == [entry]
            assert hitherto.history(talk, PROVIDERS[name_of(read)]) == [entry]


def test_the_message_does_not_change_with_the_dict_that_it_was_made_of() -> None:
    entry: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "Why?"}]}
    message = Message.from_openai(entry)
    entry["content"][0]["text"] = "changed"
    assert message.raw == {"role": "user", "content": [{"type": "text", "text": "Why?"}]}


def test_a_whole_history_of_chat_completions_comes_back() -> None:
    history: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": "Read it"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "text"},
        {"role": "assistant", "content": "Done."},
    ]
    with hitherto.open("memory:") as store:
        talk = store.start()
        talk.extend([Message.from_openai(entry) for entry in history])
        assert hitherto.history(talk) == history


def test_a_typed_entry_of_anthropic_needs_no_cast() -> None:
    entry: MessageParam = {"role": "user", "content": "Why?"}
    assert Message.from_anthropic(entry).text == "Why?"


def test_objects_of_the_sdks_are_read_with_what_they_cost() -> None:
    """The answer itself, or the response that holds it, where that has the tokens."""
    chat = ChatCompletion.model_validate(chat_answer("Hello"))
    claude = AnthropicAnswer.model_validate(anthropic_answer("Hello"))
    gemini = genai.GenerateContentResponse.model_validate(gemini_answer("Hello"))
    responses = Response.construct(**responses_answer([responses_text("Hello")]))
    assert gemini.candidates
    assert gemini.candidates[0].content
    read = [
        Message.from_openai(chat.choices[0].message),
        Message.from_openai(chat),
        Message.from_anthropic(claude),
        Message.from_gemini(gemini.candidates[0].content),
        Message.from_gemini(gemini),
        Message.from_openai_responses(responses.output[0]),
        Message.from_openai_responses(responses),
    ]
    for message in read:
        assert (message.role, message.text) == ("assistant", "Hello")
    assert [message.usage is not None for message in read] == [False, True, True, False, True, False, True]
    assert Message.from_gemini(genai.Content(role="user", parts=[genai.Part(text="hi")])).raw == {
        "role": "user",
        "parts": [{"text": "hi"}],
    }


def test_a_picture_in_an_object_of_google_is_kept() -> None:
    part = genai.Part.from_bytes(data=b"\x89PNG\xff\xfe", mime_type="image/png")
    message = Message.from_gemini(genai.Content(role="user", parts=[part]))
    assert [(block.modality, block.content) for block in message.blocks] == [("image", b"\x89PNG\xff\xfe")]


WRONG: list[tuple[Reader, object, str]] = [
    (Message.from_openai, "Why?", 'Message.user("…")'),
    (Message.from_gemini, {"role": "user", "content": "Why?"}, '"parts"'),
    (Message.from_gemini, {"role": "model", "content": "So."}, '"parts"'),
    (Message.from_openai, {"role": "user", "parts": [{"text": "hi"}]}, "Message.from_gemini({…})"),
    (Message.from_anthropic, {"role": "tool", "tool_call_id": "x", "content": "y"}, "Message.from_openai({…})"),
    (
        Message.from_openai,
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "y"}]},
        "Message.from_anthropic({…})",
    ),
    (Message.from_openai, {"type": "reasoning", "summary": []}, "Message.from_openai_responses({…})"),
    (Message.from_gemini, {"role": "user", "content": [{"type": "input_text"}]}, "Message.from_openai_responses({…})"),
    (Message.from_openai, {"role": "user"}, "content"),
    (Message.from_gemini, {"role": "user"}, "parts"),
    (Message.from_openai, chat_answer("a") | {"choices": []}, "response.choices"),
    (
        Message.from_openai_responses,
        responses_answer([responses_text("a"), responses_text("b")]),
        "for item in response.output",
    ),
    (Message.from_openai, {"role": "user", "content": ("a", "tuple")}, "plain JSON"),
    (Message.from_openai, "text", ""),
    (Message.from_openai, None, ""),
    (Message.from_openai, {"content": "no role"}, ""),
    (Message.from_openai_responses, {}, ""),
]


@pytest.mark.parametrize(("read", "wrong", "hint"), WRONG)
def test_what_cannot_be_read_is_refused_with_what_to_write(read: Reader, wrong: object, hint: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        read(wrong)
    assert hint in (caught.value.hint or "")


def test_a_question_that_was_appended_is_in_the_history_until_it_is_answered_and_after() -> None:
    """A recorder's question without an answer is left out, because it is asked again. One appended by hand is not."""
    with hitherto.open("memory:") as store:
        talk = store.start()
        question = {"role": "user", "content": "Why?"}
        talk.append(Message.from_openai(question))
        assert hitherto.history(talk) == [question]
        talk.append(Message.from_openai({"role": "assistant", "content": "Because."}))
        assert len(hitherto.history(talk)) == 2
        kept = store.start()
        kept.append(Message("user", (Block.text("Why?"),), extra={"dialect": "openai-chat"}, raw=question))
        assert hitherto.history(kept) == []  # the control


MISTAKES: list[tuple[object, str]] = [
    ("text", 'Message.user("…")'),
    ({"role": "user", "content": "hi"}, "Message.from_openai({…})"),
    ({"role": "user", "parts": []}, "Message.from_gemini({…})"),
    ({"type": "function_call", "call_id": "x"}, "Message.from_openai_responses({…})"),
    ({"role": "assistant", "content": [{"type": "tool_use"}]}, "Message.from_anthropic({…})"),
    ({"some": "thing"}, 'Message.user("…")'),
    (Block.text("hi"), "Message.user([block])"),
    (ChatCompletion.model_validate(chat_answer("a")).choices[0].message, "Message.from_openai(…)"),
    (genai.Content(), "Message.from_gemini(…)"),
    ([Message.user("hi")], "extend([…])"),
    (None, 'Message.user("…")'),
]


@pytest.mark.parametrize(("wrong", "hint"), MISTAKES)
def test_every_way_to_save_something_else_than_a_message_says_what_to_write(wrong: Any, hint: str) -> None:
    with hitherto.open("memory:") as store:
        talk = store.start()
        asynchronous: list[HithertoError] = []

        async def append() -> None:
            async with hitherto.open_async("memory:") as other:
                there = await other.start()
                for call in (there.append(wrong), there.extend([wrong]), other.save([wrong])):
                    with pytest.raises(InvalidMessage) as caught:
                        await call
                    asynchronous.append(caught.value)

        asyncio.run(append())
        found = [error.hint or "" for error in asynchronous]
        for save in (talk.append, lambda value: talk.extend([value]), lambda value: store.save([value])):
            with pytest.raises(InvalidMessage) as caught:
                save(wrong)
            found.append(caught.value.hint or "")
            assert f"hint: {caught.value.hint}" in caught.value.__notes__
        assert all(hint in one for one in found), found
        assert talk.count == 0


@pytest.mark.parametrize("wrong", ["text", {"role": "user", "content": "hi"}, Message.user("hi"), Block.text("hi")])
def test_one_thing_where_a_list_is_wanted_says_so(wrong: Any) -> None:
    with hitherto.open("memory:") as store:
        talk = store.start()
        for save in (talk.extend, store.save):
            with pytest.raises(HithertoError) as caught:
                save(wrong)
            assert "list" in f"{caught.value} {caught.value.hint}"
        assert talk.count == 0


def test_importing_the_model_loads_no_dialect() -> None:
    code = (
        "import sys, hitherto.model as m; before = [n for n in sys.modules if 'dialects' in n];"
        "m.Message.from_openai({'role': 'user', 'content': 'hi'});"
        "print(before, 'hitherto.dialects.openai_chat' in sys.modules, 'hitherto.dialects.gemini' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[] True False"
