"""What Gemini says is kept as it was said, read as messages, and sent again exactly so (A10, B1 to B3, C2, C3).

The data is written here; recorded traffic is read if it is at hand.
"""

import base64
import copy
import json
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
from hitherto.dialects.gemini import Gemini
from hitherto.errors import HithertoError, InvalidMessage
from hitherto.model import Block, Message, Setup, Usage, check

from ..support.thorough import examples

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpora" / "provider_payloads" / "gemini"
RECORDED = sorted(CORPUS.glob("*.json"))
DIALECT: Dialect = Gemini()
PNG = b"\x89PNG\r\n\x1a\n\xff\xfe\xfb\xef\xbe"  # its base64 has letters that differ between the two alphabets

Raw = dict[str, Any]


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def user(*parts: Raw) -> Raw:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Raw) -> Raw:
    return {"role": "model", "parts": list(parts)}


def response(name: str, outcome: object, **more: object) -> Raw:
    return {"functionResponse": {"name": name, "response": outcome, **more}}


def call(name: str, **arguments: object) -> Raw:
    return {"functionCall": {"name": name, "args": arguments}}


def only(part: Raw) -> Block:
    """The one block that a part of the model is read as."""
    (block,) = DIALECT.parse(model(part)).blocks
    return block


# -- reading one entry


@pytest.mark.parametrize(
    ("raw", "role"), [("user", "user"), ("model", "assistant"), ("system", "system"), (None, "user")]
)
def test_roles_are_read_as_ours(raw: object, role: str) -> None:
    message = DIALECT.parse({"role": raw, "parts": [{"text": "Why?"}]})
    assert (message.role, message.text) == (role, "Why?")


def test_thoughts_and_signatures_are_kept_apart_from_text() -> None:
    message = DIALECT.parse(
        model(
            {"text": "Hm.", "thought": True},
            {"text": "Yes.", "thoughtSignature": "c2ln"},
            {"text": "", "thoughtSignature": "bW9yZQ=="},
            {"thoughtSignature": "YmFyZQ=="},
        )
    )
    assert message.text == "Yes."
    assert message.blocks == (
        Block.thinking("Hm."),
        Block.text("Yes.", signature="c2ln"),
        Block.text("", signature="bW9yZQ=="),
        Block.thinking("", signature="YmFyZQ=="),
    )


@pytest.mark.parametrize(
    ("camel", "snake"),
    [
        (
            {"functionCall": {"name": "read", "args": {"file_path": 1}}, "thoughtSignature": "c2ln"},
            {"function_call": {"name": "read", "args": {"file_path": 1}}, "thought_signature": "c2ln"},
        ),
        (
            {"inlineData": {"mimeType": "image/png", "data": base64_of(PNG)}},
            {"inline_data": {"mime_type": "image/png", "data": base64_of(PNG)}},
        ),
        (
            {"fileData": {"mimeType": "video/mp4", "fileUri": "https://example.org/v"}},
            {"file_data": {"mime_type": "video/mp4", "file_uri": "https://example.org/v"}},
        ),
        (
            {"executableCode": {"language": "PYTHON", "code": "1"}},
            {"executable_code": {"language": "PYTHON", "code": "1"}},
        ),
        ({"functionResponse": {"name": "a", "response": {}}}, {"function_response": {"name": "a", "response": {}}}),
    ],
)
def test_both_ways_to_write_names_read_the_same_and_are_alike(camel: Raw, snake: Raw) -> None:
    one, other = DIALECT.parse(model(camel)), DIALECT.parse(model(snake))
    assert (one.role, one.blocks) == (other.role, other.blocks)
    assert other.raw == model(snake)
    assert DIALECT.likeness(model(camel)) == DIALECT.likeness(model(snake))


@pytest.mark.parametrize(
    "data", [base64_of(PNG), base64.urlsafe_b64encode(PNG).decode(), base64.urlsafe_b64encode(PNG).decode().rstrip("=")]
)
def test_inline_data_are_bytes_in_either_alphabet(data: str) -> None:
    part = {"inlineData": {"mimeType": "image/png", "data": data}}
    assert only(part) == Block.image(PNG, "image/png")
    usual = {"inlineData": {"mimeType": "image/png", "data": base64_of(PNG)}}
    assert DIALECT.likeness(model(part)) == DIALECT.likeness(model(usual))


@pytest.mark.parametrize(
    ("mime_type", "modality"),
    [("audio/wav", "audio"), ("video/mp4", "video"), ("application/pdf", "text"), ("text/plain", "text")],
)
def test_modality_follows_the_mime_type(mime_type: str, modality: str) -> None:
    block = only({"inlineData": {"mimeType": mime_type, "data": "eA=="}})
    assert block == Block("content", b"x", modality, mime_type)


def test_an_address_is_not_a_word() -> None:
    message = DIALECT.parse(user({"fileData": {"mimeType": "video/mp4", "fileUri": "https://example.org/v"}}))
    assert message.text == ""
    assert message.blocks == (
        Block("fileData", "https://example.org/v", "video", "video/mp4", extra={"source": "url"}),
    )


def test_an_image_that_was_only_thought_of_is_a_thought() -> None:
    assert only({"inlineData": {"mimeType": "image/png", "data": "eA=="}, "thought": True}).type == "thinking"


def test_only_calls_that_are_ours_wait_for_an_answer() -> None:
    message = DIALECT.parse(
        model(
            {"executableCode": {"language": "PYTHON", "code": "1", "id": "h0"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
            {"toolCall": {"toolType": "FILE_SEARCH", "id": "t0"}, "thoughtSignature": "c2ln"},
            call("read", path="a"),
        )
    )
    assert [(b.id, b.tool_name, b.arguments) for b in calls(message)] == [("read#0", "read", {"path": "a"})]
    assert [b.type for b in message.blocks] == ["tool_call", "codeExecutionResult", "tool_call", "tool_call"]
    assert [b.tool_name for b in message.blocks] == ["executableCode", None, "FILE_SEARCH", "read"]


@pytest.mark.parametrize(
    "part",
    [
        {"inlineData": {"mimeType": "image/png", "data": "!!!"}},
        {"inlineData": None, "brandNew": {"a": 1}},
        {"functionCall": {"args": {}}},
        {"functionCall": {"name": "a", "args": [1]}},
        {"functionCall": 5},
        {"text": 5},
        {"content": "run me"},
        {"tool_call": 5},
        {},
    ],
)
def test_a_part_that_is_not_known_is_kept_as_json(part: Raw) -> None:
    message = DIALECT.parse(model(part))
    kept = json.loads(str(message.blocks[0].content))
    assert DIALECT.likeness(model(kept)) == DIALECT.likeness(model(part))
    assert (message.text, list(calls(message))) == ("", [])


@pytest.mark.parametrize(
    "raw", [None, [], "x", {}, {"role": 5}, {"parts": 5}, {"parts": [5]}, {"role": "a\x00", "parts": []}]
)
def test_what_is_no_content_is_refused(raw: Any) -> None:
    with pytest.raises(InvalidMessage):
        DIALECT.parse(raw)


# -- calls and results


def test_calls_without_id_are_numbered_by_name_and_results_follow_in_order() -> None:
    asked = DIALECT.parse(model(call("read", path="a"), call("list"), call("read", path="b")))
    given_back = DIALECT.parse(
        user(response("read", {"result": "A"}), response("read", {"result": "B"}), response("list", {"result": "L"}))
    )
    assert [b.id for b in asked.blocks] == ["read#0", "list#0", "read#1"]
    assert [(b.id, b.content) for b in given_back.blocks] == [("read#0", "A"), ("read#1", "B"), ("list#0", "L")]
    assert given_back.role == "tool_result"


def test_results_in_entries_of_their_own_are_counted_on_within_a_request() -> None:
    turn = [
        model(call("read", path="a"), call("read", path="b")),
        user(response("read", {"result": "A"})),
        user(response("read", {"result": "B"})),
    ]
    messages = DIALECT.parse_request({"contents": [*turn, *turn]}).messages
    assert [[b.id for b in message.blocks] for message in messages] == [
        ["read#0", "read#1"],
        ["read#0"],
        ["read#1"],
    ] * 2


def test_the_signature_of_a_call_can_be_read_on_its_block() -> None:
    for part in (call("read"), {"toolCall": {"toolType": "FILE_SEARCH"}}):
        assert (only({**part, "thoughtSignature": "c2ln"}).extra or {})["signature"] == "c2ln"


def test_an_id_that_is_there_is_used() -> None:
    asked = DIALECT.parse(model({"functionCall": {"name": "read", "id": "c1", "args": {}}}))
    told = DIALECT.parse({"role": "function", "parts": [response("read", {"output": {"n": 1}}, id="c1")]})
    assert [b.id for b in asked.blocks] == [b.id for b in told.blocks] == ["c1"]
    assert (told.role, told.text, told.blocks[0].mime_type) == ("tool_result", '{"n":1}', "application/json")


def test_an_error_is_told_apart() -> None:
    message = DIALECT.parse(user(response("a", {"error": "no"}), response("b", {"error": "no", "result": "yes"})))
    assert message.tool_result_error
    assert [(b.extra or {}).get("error") for b in message.blocks] == [True, None]
    assert not DIALECT.parse(user(response("b", {"result": "yes"}))).tool_result_error


def test_media_of_a_result_carry_the_id_of_its_call() -> None:
    media = [{"inlineData": {"mimeType": "image/png", "data": base64_of(PNG)}}]
    message = DIALECT.parse(user(response("look", {"result": "see"}, parts=media)))
    assert [(b.id, b.content) for b in message.blocks] == [("look#0", "see"), ("look#0", PNG)]


def test_results_among_words_stay_the_users() -> None:
    message = DIALECT.parse(user(response("read", {"result": "A"}), {"text": "and now?"}))
    assert (message.role, message.text) == ("user", "and now?")
    assert (message.blocks[0].type, message.blocks[0].id, message.blocks[0].content) == ("tool_result", "read#0", "A")


# -- requests


@pytest.mark.parametrize("name", ["systemInstruction", "system_instruction"])
def test_a_request_says_prompt_tools_and_history(name: str) -> None:
    tools: list[Raw] = [{"functionDeclarations": [{"name": "read"}]}, {"googleSearch": {}}]
    body = {
        name: {"role": "user", "parts": [{"text": "Be brief."}]},
        "tools": tools,
        "contents": [user({"text": "Hi"})],
    }
    heard = DIALECT.parse_request(body)
    assert heard.setup == Setup(system_prompt="Be brief.", tools=tuple(tools), raw=body[name])
    assert DIALECT.request([], heard.setup, {})["systemInstruction"] == body[name]
    changed = msgspec.structs.replace(heard.setup, system_prompt="Else.")
    assert DIALECT.request([], changed, {})["systemInstruction"] == {"parts": [{"text": "Else."}]}
    assert [m.text for m in heard.messages] == ["Hi"]
    assert DIALECT.request([], heard.setup, {})["tools"] == tools


@pytest.mark.parametrize("contents", [user({"text": "Hi"}), [user({"text": "Hi"})], "Hi"])
def test_one_content_need_not_stand_in_a_list(contents: object) -> None:
    assert [m.text for m in DIALECT.parse_request({"contents": contents}).messages] == ["Hi"]


def test_an_instruction_with_more_than_one_text_is_kept_as_it_came_and_sent_so() -> None:
    instruction = {"parts": [{"text": "A"}, {"text": "B"}]}
    setup = DIALECT.parse_request({"systemInstruction": instruction, "contents": []}).setup
    assert (setup.system_prompt, setup.raw) == ("A\n\nB", instruction)
    assert DIALECT.request([], setup, {})["systemInstruction"] == instruction


@pytest.mark.parametrize(
    "body", [None, {"contents": 5}, {"contents": [5]}, {"systemInstruction": 5, "contents": []}, {"tools": 5}]
)
def test_what_is_no_request_is_refused(body: Any) -> None:
    with pytest.raises(InvalidMessage):
        DIALECT.parse_request(body)


def test_the_system_prompt_is_in_a_request_once_and_not_in_the_history() -> None:
    tool: Raw = {"name": "read", "description": "d", "parameters": {"type": "object"}}
    setup = Setup(model="gemini", system_prompt="Be brief.", tools=(tool, {"googleSearch": {}}))
    body = DIALECT.request(DIALECT.history([Message.user("Hi")]), setup, {"cachedContent": "c"})
    declared = {"name": "read", "description": "d", "parametersJsonSchema": {"type": "object"}}
    assert body == {
        "model": "gemini",
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [user({"text": "Hi"})],
        "tools": [{"functionDeclarations": [declared]}, {"googleSearch": {}}],
        "cachedContent": "c",
    }


def test_a_schema_is_asked_for_beside_other_settings() -> None:
    asked = DIALECT.schema_options({"type": "object"})
    config = {"responseMimeType": "application/json", "responseJsonSchema": {"type": "object"}}
    assert asked == {"generationConfig": config}
    body = DIALECT.request([], Setup(), {"generationConfig": {"temperature": 0}})
    assert DIALECT.request([], Setup(), asked)["generationConfig"] == config
    assert body["generationConfig"] == {"temperature": 0}
    assert DIALECT.request([], Setup(), {}).keys() == {"model", "contents"}


def test_calls_that_nobody_signed_are_excused_where_signatures_are_asked_for() -> None:
    def turn() -> list[Raw]:
        return [user({"text": "Go"}), model({"text": "I go."}, call("a"), call("b")), user(response("a", {}))]

    history = [*turn(), *turn(), model({**call("c"), "thoughtSignature": "c2ln"})]
    before = copy.deepcopy(history)
    sent: Any = DIALECT.request(history, Setup(model="models/gemini-3-pro"), {})["contents"]
    excused = {**call("a"), "thoughtSignature": "skip_thought_signature_validator"}
    assert sent == [*before[:4], model({"text": "I go."}, excused, call("b")), *before[5:]]
    assert history == before
    assert DIALECT.request(history, Setup(model="gemini-2.5-flash"), {})["contents"] == before


# -- answers

USAGE = {
    "promptTokenCount": 100,
    "toolUsePromptTokenCount": 10,
    "cachedContentTokenCount": 40,
    "candidatesTokenCount": 7,
    "thoughtsTokenCount": 3,
    "totalTokenCount": 120,
}


def body_of(parts: list[Raw], **more: object) -> Raw:
    candidate = {"content": model(*parts), "finishReason": "STOP", "index": 0} | more
    return {"candidates": [candidate], "usageMetadata": USAGE, "modelVersion": "gemini", "responseId": "r1"}


def test_an_answer_is_one_message_whose_raw_goes_into_the_next_request() -> None:
    parts: list[Raw] = [{"text": "Hm", "thought": True}, {"text": "Yes.", "thoughtSignature": "c2ln"}]
    answer = DIALECT.answer(body_of(parts, groundingMetadata={"webSearchQueries": ["x"]}))
    (message,) = answer.messages
    assert (message.role, message.raw, message.text) == ("assistant", model(*parts), "Yes.")
    grounding = {"webSearchQueries": ["x"]}
    assert message.extra == {"finishReason": "STOP", "groundingMetadata": grounding, "model": "gemini"}
    assert (answer.id, answer.complete, answer.others) == ("r1", True, ())


def test_tokens_count_thoughts_as_said_and_tools_as_read() -> None:
    (message,) = DIALECT.answer(body_of([{"text": "Yes."}])).messages
    assert message.usage == Usage(110, 10, 40, 0, 3)


def test_a_content_without_role_is_the_models() -> None:
    body = {"candidates": [{"content": {"parts": [{"text": "Yes."}]}}]}
    before = copy.deepcopy(body)
    assert DIALECT.answer(body).messages[0].raw == {"parts": [{"text": "Yes."}], "role": "model"}
    assert body == before


def test_further_candidates_are_given_aside() -> None:
    body = {"candidates": [{"content": model({"text": t})} for t in ("one", "two")] + [{"finishReason": "SAFETY"}]}
    answer = DIALECT.answer(body)
    assert ([m.text for m in answer.messages], [[m.text for m in o] for o in answer.others]) == (["one"], [["two"]])


@pytest.mark.parametrize(
    "body",
    [
        {"promptFeedback": {"blockReason": "SAFETY"}},
        {"candidates": []},
        {"candidates": [{"content": {"role": "model"}}]},
    ],
)
def test_what_was_blocked_has_no_message(body: Raw) -> None:
    assert DIALECT.answer(body).messages == []


@pytest.mark.parametrize("content", [{}, {"content": {"role": "model"}}, {"content": {"parts": []}}])
def test_an_answer_without_parts_is_kept_with_its_usage_and_is_not_sent_again(content: Raw) -> None:
    candidate = {**content, "finishReason": "MAX_TOKENS", "index": 0}
    body = {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 5, "thoughtsTokenCount": 9}}
    for answer in (DIALECT.answer(body), assembled([body])):
        (message,) = answer.messages
        assert (message.role, message.blocks, message.usage) == ("assistant", (), Usage(5, 9, reasoning_tokens=9))
        assert message.extra == {"finishReason": "MAX_TOKENS"}
        assert (answer.complete, DIALECT.history(answer.messages)) == (True, [])


@pytest.mark.parametrize("body", [{"error": {"code": 429}}, {}, {"candidates": 5}, {"candidates": [{"content": 5}]}])
def test_an_error_is_no_answer(body: Raw) -> None:
    with pytest.raises(InvalidMessage):
        DIALECT.answer(body)


def test_the_sdk_would_lose_what_it_does_not_know_so_the_body_is_read() -> None:
    genai, http = pytest.importorskip("google.genai"), pytest.importorskip("httpx2")
    body = body_of([{"text": "Yes.", "brandNew": {"a": 1}, "thoughtSignature": "c2ln"}])
    wire = http.Client(transport=http.MockTransport(lambda _: http.Response(200, json=body)))
    with genai.Client(api_key="none", http_options=genai.types.HttpOptions(httpx_client=wire)) as client:
        content = client.models.generate_content(model="gemini", contents="Hi").candidates[0].content
    dumped = content.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert dumped == {"role": "model", "parts": [{"text": "Yes.", "thoughtSignature": "c2ln"}]}
    assert DIALECT.answer(body).messages[0].raw == body["candidates"][0]["content"] != dumped


# -- streams


def pieces(text: str, sizes: Iterator[int]) -> Iterator[str]:
    while text:
        size = next(sizes)
        yield text[:size]
        text = text[size:]


def forever(sizes: list[int]) -> Iterator[int]:
    while True:
        yield from sizes


def chunks_of(body: Raw, sizes: Iterator[int]) -> Iterator[Raw]:
    """The stream in which the API would have given this answer: plain text in pieces, everything else whole."""
    (candidate,) = body["candidates"]
    for part in candidate["content"]["parts"]:
        plain = part.keys() <= {"text", "thought"} and part.get("text")
        split = [{**part, "text": piece} for piece in pieces(part["text"], sizes)] if plain else [part]
        for piece in split:
            yield {"candidates": [{"content": model(piece), "index": 0}], "usageMetadata": {"promptTokenCount": 1}}
    yield body | {"candidates": [{**candidate, "content": model({"text": ""})}]}


def assembled(chunks: list[Raw]) -> Answer:
    assembly = DIALECT.assembly()
    for chunk in chunks:
        assembly.feed(chunk)
    return assembly.answer()


FULL: list[Raw] = [
    {"text": "Let me see.", "thought": True},
    {"text": "I read 📖 now."},
    {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "Y29kZQ=="},
    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
    {"text": "Signed.", "thoughtSignature": "c2ln"},
    {"text": "", "thoughtSignature": "ZW1wdHk="},
    {**call("read", file_path="a.py"), "thoughtSignature": "Y2FsbA=="},
    call("now"),
]


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_stream_becomes_the_answer_that_the_api_gives_without_streaming(size: int) -> None:
    body = body_of(FULL)
    assert assembled(list(chunks_of(body, forever([size])))) == DIALECT.answer(body)


def test_feed_gives_the_words_as_they_come_and_no_thoughts() -> None:
    assembly = DIALECT.assembly()
    words = [assembly.feed(chunk) for chunk in chunks_of(body_of(FULL), forever([3]))]
    assert "".join(words) == assembly.answer().messages[0].text == "I read 📖 now.Signed."


def test_signatures_stay_where_they_were() -> None:
    signed: list[Raw] = [
        {"text": "a", "thoughtSignature": "YQ=="},
        {"text": "b"},
        {"text": "", "thoughtSignature": "Yg=="},
    ]
    (message,) = assembled([{"candidates": [{"content": model(part)}]} for part in signed]).messages
    assert message.raw == model(*signed)


def test_a_stream_without_a_reason_to_end_is_incomplete() -> None:
    chunks = list(chunks_of(body_of([{"text": "Hello"}]), forever([2])))
    assert assembled(chunks).complete
    answer = assembled(chunks[:-2])
    assert (answer.complete, answer.messages[0].raw) == (False, model({"text": "Hell"}))


def test_what_later_chunks_say_about_the_answer_replaces_what_earlier_ones_said() -> None:
    first = {"content": model({"text": "a"}), "groundingMetadata": {"a": 1}, "urlContextMetadata": {"u": 1}}
    last = {"groundingMetadata": {"a": 2}, "urlContextMetadata": {}, "finishReason": "STOP"}
    answer = assembled([{"candidates": [first]}, {"candidates": [last], "usageMetadata": USAGE}])
    (message,) = answer.messages
    assert message.extra == {"groundingMetadata": {"a": 2}, "urlContextMetadata": {"u": 1}, "finishReason": "STOP"}
    assert message.usage == Usage(110, 10, 40, 0, 3)


def test_candidates_that_arrive_side_by_side_are_kept_apart() -> None:
    def chunk(index: int, text: str, **more: object) -> Raw:
        return {"candidates": [{"content": model({"text": text}), "index": index, **more}]}

    chunks = [chunk(0, "a"), chunk(1, "x"), chunk(0, "b", finishReason="STOP"), chunk(1, "y")]
    assembly = DIALECT.assembly()
    assert [assembly.feed(c) for c in chunks] == ["a", "", "b", ""]
    answer = assembly.answer()
    assert ([m.text for m in answer.messages], [[m.text for m in o] for o in answer.others]) == (["ab"], [["xy"]])
    assert not answer.complete


def test_a_prompt_that_is_blocked_is_a_complete_answer_without_message() -> None:
    answer = assembled([{"promptFeedback": {"blockReason": "SAFETY"}}])
    assert (answer.messages, answer.complete) == ([], True)
    nothing = assembled([])
    assert (nothing.messages, nothing.complete) == ([], False)


# -- likeness


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (model({"text": "Hello"}), model({"text": "Hel"}, {"text": "lo"})),
        (model({"text": "Hello"}, {"text": ""}), model({"text": "Hello", "thought": False})),
        (model({"text": "Hi", "thought": None}), {"parts": [{"text": "Hi"}], "role": "model"}),
        (user({"text": "Hi"}), {"parts": [{"text": "Hi"}]}),
        (model({"functionCall": {"name": "now"}}), model(call("now"))),
        (model({"text": "", "thoughtSignature": "+/8="}), model({"text": "", "thought_signature": "-_8"})),
        (
            model({"text": "a"}, {"text": "b", "thoughtSignature": "YQ=="}),
            model({"text": "ab", "thoughtSignature": "YQ=="}),
        ),
        (model({"text": "a", "thoughtSignature": "YQ=="}), model({"text": "a"})),
        (model({"text": "hm", "thought": True}, {"text": "a"}), model({"text": "a"})),
        (model(call("now")), model({"functionCall": {"name": "now", "args": {}, "id": "made-up"}})),
        (model({"functionCall": {"name": "now", "id": "given"}}), model(call("now"))),
        (user(response("now", {})), user({"functionResponse": {"name": "now", "response": {}, "id": "made-up"}})),
        (model(call("now", n=1.0)), model(call("now", n=1))),
    ],
)
def test_the_same_thing_written_in_two_ways_is_alike(one: Raw, other: Raw) -> None:
    assert DIALECT.likeness(one).fits(DIALECT.likeness(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (model({"text": "Hi"}), user({"text": "Hi"})),
        (model({"text": "Hi"}), model({"text": "Hi", "thought": True})),
        (model({"text": "a", "thoughtSignature": "YQ=="}), model({"text": "a", "thoughtSignature": "Yg=="})),
        (
            model({"functionCall": {"name": "now", "id": "a"}}),
            model({"functionCall": {"name": "now", "id": "b"}}),
        ),
        (model(call("read"), {"text": "a"}), model({"text": "a"}, call("read"))),
        (model({"executableCode": {"code": "1"}}), model({"executableCode": {"code": "2"}})),
        (model(call("read", file_path=1)), model(call("read", filePath=1))),
        (model(call("read", path=None)), model(call("read"))),
        (user(response("a", {"result": ""})), user(response("a", {}))),
    ],
)
def test_what_differs_is_not_alike(one: Raw, other: Raw) -> None:
    assert not DIALECT.likeness(one).fits(DIALECT.likeness(other))


def test_an_answer_that_the_sdk_parsed_and_sends_back_is_alike() -> None:
    types = pytest.importorskip("google.genai.types")
    (message,) = DIALECT.answer(body_of(FULL)).messages
    parsed = types.Content.model_validate(copy.deepcopy(message.raw))
    assert parsed.model_dump(mode="json") != message.raw
    for sent in (
        parsed.model_dump(mode="json"),
        parsed.model_dump(mode="json", by_alias=True, exclude_none=True),
        parsed.model_dump(mode="json", exclude_unset=True),
    ):
        assert DIALECT.likeness(sent).fits(DIALECT.likeness(model(*FULL)))


# -- writing


def test_a_history_is_a_deep_copy_of_the_raws() -> None:
    raws = [user({"odd": [1]}), model({"text": "Hi"})]
    before = copy.deepcopy(raws)
    messages = [DIALECT.parse(raw) for raw in raws]
    history: Any = DIALECT.history(messages)
    assert history == before
    history[0]["parts"][0]["odd"].append(2)
    assert [message.raw for message in messages] == before


def test_long_values_that_were_left_in_the_store_are_read() -> None:
    def lazy(text: str) -> Attachment:
        return Attachment(len(text), lambda: iter([text.encode()]), text=True)

    def parts(value: Any) -> Raw:
        signed = {"text": value("long"), "thoughtSignature": value("c2ln")}
        return model(signed, {"inlineData": {"mimeType": "image/png", "data": value(base64_of(PNG))}})

    message = DIALECT.parse(parts(lazy))
    assert message.blocks == (Block.text("long", signature="c2ln"), Block.image(PNG, "image/png"))
    assert DIALECT.history([message]) == [parts(str)]
    assert DIALECT.likeness(parts(lazy)) == DIALECT.likeness(parts(str))


def test_results_that_belong_together_become_one_entry_and_their_media_follow() -> None:
    shown = Message.tool_result("look#0", [Block.text("see"), Block.image(PNG, "image/png")])
    later = Message("tool_result", [Block("content", "b", id="look#1")], extra={"joined": True})
    history = DIALECT.history([DIALECT.parse(model(call("look"), call("look"))), shown, later])
    assert history[1:] == [
        user(response("look", {"result": "see"}), response("look", {"result": "b"})),
        user({"inlineData": {"mimeType": "image/png", "data": base64_of(PNG)}}),
    ]


def test_what_another_provider_said_is_built_and_results_find_the_names_of_their_calls() -> None:
    messages = [
        Message.assistant(
            [Block.thinking("Hm"), Block.tool_call("toolu_1", "read", '{"path": "a"}')],
            raw={"role": "assistant", "content": []},
            extra={"dialect": "anthropic"},
        ),
        Message.tool_result("toolu_1", "12 files"),
    ]
    assert DIALECT.history(messages) == [
        model({"functionCall": {"id": "toolu_1", "name": "read", "args": {"path": "a"}}}),
        user({"functionResponse": {"id": "toolu_1", "name": "read", "response": {"result": "12 files"}}}),
    ]


def test_a_message_is_built_with_its_media() -> None:
    lazy = Attachment(1, lambda: iter([b"x"]))
    blocks = [Block.text("Look:"), Block.image(PNG, "image/png"), Block.video(lazy, "video/mp4"), Block.text("")]
    built = DIALECT.build(Message.user(blocks))
    parts: list[Raw] = [
        {"text": "Look:"},
        {"inlineData": {"mimeType": "image/png", "data": base64_of(PNG)}},
        {"inlineData": {"mimeType": "video/mp4", "data": "eA=="}},
    ]
    assert (built.raws, built.losses) == ([user(*parts)], [])


def test_what_cannot_be_said_is_named() -> None:
    blocks = [Block.thinking("Hm"), Block.tool_call("s", "search", {}, server=True), Block("web_search_result", "{}")]
    built = DIALECT.build(Message.assistant(blocks))
    assert built.raws == []
    assert built.losses == [
        "a thought is left out",
        "a call that the provider ran itself is left out",
        "web_search_result is left out",
    ]
    assert DIALECT.build(Message("event", [Block.text("x")])).raws == []


@pytest.mark.parametrize(
    ("id", "extra", "name", "sent", "losses"),
    [
        ("read#0", None, "read", {}, 0),
        ("c1", {"name": "read"}, "read", {"id": "c1"}, 0),
        ("c1", None, "unknown", {"id": "c1"}, 1),
    ],
)
def test_a_result_needs_the_name_of_its_call(id: str, extra: Raw | None, name: str, sent: Raw, losses: int) -> None:
    built = DIALECT.build(Message("tool_result", [Block("content", "x", id=id, extra=extra)]))
    assert built.raws == [user({"functionResponse": {**sent, "name": name, "response": {"result": "x"}}})]
    assert len(built.losses) == losses


def test_results_are_built_with_json_and_errors() -> None:
    value = Block("content", '{"n": 1}', mime_type="application/json", id="a#0")
    assert DIALECT.build(Message("tool_result", [value])).raws == [user(response("a", {"result": {"n": 1}}))]
    failed = DIALECT.build(Message.tool_result("a#0", "no", error=True))
    assert failed.raws == [user(response("a", {"error": "no"}))]


@pytest.mark.parametrize(
    ("arguments", "args", "losses"),
    [({"a": 1}, {"a": 1}, 0), ('{"a": 1}', {"a": 1}, 0), ("", {}, 0), ("{", {"arguments": "{"}, 1)],
)
def test_arguments_become_an_object(arguments: object, args: Raw, losses: int) -> None:
    built = DIALECT.build(Message.assistant(Block.tool_call("read#0", "read", arguments)))
    assert built.raws == [model({"functionCall": {"name": "read", "args": args}})]
    assert len(built.losses) == losses


def test_the_sdk_puts_a_history_on_the_wire_that_is_alike() -> None:
    genai, http = pytest.importorskip("google.genai"), pytest.importorskip("httpx2")
    arrived: list[Any] = []

    def answer(request: Any) -> Any:
        arrived.append(json.loads(request.content))
        return http.Response(200, json=body_of(FULL))

    told = Message.tool_result("read#0", [Block.text("x"), Block.image(PNG, "image/png")])
    history = DIALECT.history([Message.user("Hi"), *DIALECT.answer(body_of(FULL)).messages, told])
    wire = http.Client(transport=http.MockTransport(answer))
    with genai.Client(api_key="none", http_options=genai.types.HttpOptions(httpx_client=wire)) as client:
        client.models.generate_content(model="gemini", contents=history)
    sent = arrived[0]["contents"]
    assert sent != history  # it writes base64 in the other alphabet
    assert [DIALECT.likeness(raw) for raw in sent] == [DIALECT.likeness(raw) for raw in history]


# -- anything at all

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | texts
anything = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))
objects = st.dictionaries(texts, anything, max_size=3)
names = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
signatures = st.binary(min_size=1, max_size=8).map(base64_of)

plain_parts = st.fixed_dictionaries({"text": texts}, optional={"thought": st.just(True)})
blobs = st.fixed_dictionaries({"mimeType": st.just("image/png"), "data": signatures})
call_parts = st.fixed_dictionaries(
    {"functionCall": st.fixed_dictionaries({"name": names, "args": objects}, optional={"id": names})},
    optional={"thoughtSignature": signatures},
)
result_parts = st.builds(response, names, objects)
said_parts = st.one_of(
    plain_parts,
    call_parts,
    st.fixed_dictionaries({"text": texts, "thoughtSignature": signatures}),
    st.fixed_dictionaries({"toolCall": objects, "thoughtSignature": signatures}),
    st.fixed_dictionaries({"brandNew": objects}),
)
user_parts = plain_parts | result_parts | st.fixed_dictionaries({"inlineData": blobs})
raws = st.one_of(
    st.lists(user_parts, max_size=4).map(lambda parts: user(*parts)),
    st.lists(result_parts, min_size=1, max_size=3).map(lambda parts: user(*parts)),
    st.lists(said_parts, max_size=4).map(lambda parts: model(*parts)),
)


@given(st.lists(raws, max_size=5))
def test_any_history_comes_back_equal(history: list[Raw]) -> None:
    before = copy.deepcopy(history)
    messages = DIALECT.parse_request({"contents": history}).messages
    for message in messages:
        check(message)
    assert DIALECT.history(messages) == before == history


@given(st.lists(said_parts, min_size=1, max_size=4), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_any_chunking_of_any_answer_becomes_the_answer(parts: list[Raw], sizes: list[int]) -> None:
    body = body_of(parts)
    (whole,) = DIALECT.answer(body).messages
    answer = assembled(list(chunks_of(body, forever(sizes))))
    likeness = DIALECT.likeness(model(*parts))
    sent = [DIALECT.likeness(raw) for raw in DIALECT.history(answer.messages)]
    assert sent == [likeness] or (not sent and likeness.is_silent)
    for message in answer.messages:
        assert (message.text, message.usage, message.extra) == (whole.text, whole.usage, whole.extra)
        assert [b.id for b in calls(message)] == [b.id for b in calls(whole)]


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
    with suppress(HithertoError):  # a role that is none
        assembly.answer()


@given(anything)
def test_nothing_but_our_errors_comes_of_anything(value: object) -> None:
    survive(value)
    for name in ("parts", "contents", "systemInstruction", "tools", "candidates", "usageMetadata", "promptFeedback"):
        survive({name: value})


REQUEST: Raw = {
    "systemInstruction": {"parts": [{"text": "A"}]},
    "tools": [{"googleSearch": {}}],
    "contents": [user(response("a", {"result": 1}, id="x", parts=[{"inlineData": {"data": "eA=="}}])), model(*FULL)],
}


@settings(max_examples=examples(300))
@given(st.lists(st.integers(0, 9), max_size=6), anything)
def test_nothing_but_our_errors_comes_of_what_is_almost_right(path: list[int], new: object) -> None:
    survive(touched(body_of(FULL), path, new))
    survive(touched(REQUEST, path, new))
    survive(touched(model(*FULL), path, new))
    survive(touched(REQUEST["contents"][0], path, new))


# -- recorded traffic


@pytest.mark.skipif(not RECORDED, reason="the recorded payloads are not here")
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem[-40:])
def test_recorded_traffic_is_kept_whole(path: Path) -> None:
    recorded = json.loads(path.read_text())
    body = {"contents": recorded["request_messages"], "systemInstruction": recorded["request_system"]}
    heard = DIALECT.parse_request(body | recorded["request_other"])
    for message in heard.messages:
        check(message)
    assert DIALECT.history(heard.messages) == recorded["request_messages"]
    assert DIALECT.history([DIALECT.parse(raw) for raw in recorded["request_messages"]]) == recorded["request_messages"]
    if recorded["streamed"]:
        check_stream([event["data"] for event in recorded["response_stream_events"]])
    else:
        (message,) = DIALECT.answer(recorded["response"]).messages
        check(message)
        assert message.raw == recorded["response"]["candidates"][0]["content"]
        again = assembled(list(chunks_of(recorded["response"], forever([7])))).messages
        assert [DIALECT.likeness(raw) for raw in DIALECT.history(again)] == [
            DIALECT.likeness(DIALECT.history([message])[0])
        ]


def check_stream(chunks: list[Raw]) -> None:
    answer = assembled(chunks)
    parts = [part for chunk in chunks for part in chunk["candidates"][0].get("content", {}).get("parts", [])]
    text = "".join(part.get("text", "") for part in parts if not part.get("thought"))
    (message,) = answer.messages
    check(message)
    assert (answer.complete, message.text) == (True, text)
    raw: Any = message.raw
    signed = [part for part in parts if "thoughtSignature" in part]
    assert [part for part in raw["parts"] if "thoughtSignature" in part] == signed


@pytest.mark.skipif(not RECORDED, reason="the recorded payloads are not here")
def test_a_recorded_answer_that_was_sent_back_is_alike() -> None:
    first, second = (json.loads(next(CORPUS.glob(f"*test_code_execution__{n}__*")).read_text()) for n in (0, 1))
    (message,) = DIALECT.answer(first["response"]).messages
    sent = second["request_messages"][1]
    assert sent != message.raw
    assert DIALECT.history([message]) != [sent]
    assert DIALECT.likeness(sent) == DIALECT.likeness(first["response"]["candidates"][0]["content"])
