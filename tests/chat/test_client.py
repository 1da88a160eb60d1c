"""Talking to providers: what goes over the wire, what comes back, and what is remembered of it.

Every test runs through the official SDKs, over real HTTP, against a provider on loopback that says what it is told to.
Most are run for each provider and API, and in both colours: `Talk` makes the awaited client look like the one that
waits, so that a test says its sentence once.

Requirements: A1, A2, A10.
"""

import asyncio
import base64
import dataclasses
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from hitherto import Block, Message
from hitherto.chat import AsyncClient, ChatClient, Client, Config, PersistentChatClient, Tool, _turn
from hitherto.chat import new_client as new_any_client
from hitherto.dialects import Answer
from hitherto.dialects._repair import repair
from hitherto.errors import ChatError, HithertoError, InvalidAnswer, InvalidArgument, InvalidMessage, ToolLoopLimit
from hitherto.snapshots import Snapshot

from ..support.chat_kits import (
    CLAUDE,
    COMPATIBLE,
    GEMINI,
    KEY,
    OPENAI,
    PNG,
    RESPONSES,
    Calls,
    Kit,
    Parts,
    Script,
    Seen,
    new_awaited_client,
    new_client,
    serving,
    talking,
    tool,
)
from ..support.provider import (
    Asked,
    Json,
    Reply,
    responses_text,
)
from ..support.thorough import THOROUGH

# -- what is said


def test_an_answer_is_what_the_provider_said(kit: Kit, colour: str, streamed: bool) -> None:
    with talking(kit, "An unused import, café.", colour=colour) as talk:
        assert talk.say("Why does it fail?", streamed) == "An unused import, café."
        assert [message.role for message in talk.client.messages] == ["user", "assistant"]
        assert talk.client.messages[-1].text == "An unused import, café."
        assert (talk.client.usage.input_tokens, talk.client.usage.output_tokens) == (5, 2)
        assert len(talk.server.asked) == 1


def test_pieces_come_one_by_one_and_are_the_whole(kit: Kit, colour: str) -> None:
    with talking(kit, "one two three", colour=colour) as talk:
        assert talk.stream("Count.") == ["one ", "two ", "three"]
        assert talk.client.messages[-1].text == "one two three"


def test_a_piece_arrives_before_the_next_one_is_said(kit: Kit, colour: str) -> None:
    """Streaming is streaming: the provider says the second half only when the first was read."""
    read = threading.Event()

    def reply(asked: Asked) -> Reply:
        events = kit.events(kit.body("first second"))
        last = next(n for n, event in enumerate(events) if "second" in json.dumps(event))

        def wait() -> None:
            assert read.wait(60)

        return Reply(events=[*events[:last], wait, *events[last:]])

    with talking(kit, reply, colour=colour) as talk:
        pieces: list[str] = []

        def take(piece: str) -> None:
            pieces.append(piece)
            read.set()

        if isinstance(talk.client, Client):
            for piece in talk.client.stream("Go."):
                take(piece)
        else:
            client = talk.client

            async def collect() -> None:
                async for piece in client.stream("Go."):
                    take(piece)

            assert talk.runner is not None
            talk.runner.run(collect())
        assert "".join(pieces) == "first second"


def test_the_whole_history_goes_with_every_request_and_grows_by_what_was_said(
    kit: Kit, colour: str, streamed: bool
) -> None:
    with talking(kit, "a one", "a two", "a three", colour=colour) as talk:
        for question in ("q one", "q two", "q three"):
            talk.say(question, streamed)
        bodies = talk.server.bodies
        assert kit.words(bodies[2]) == ["q one", "a one", "q two", "a two", "q three"]
        for before, after in pairwise(bodies):
            assert kit.history(after)[: len(kit.history(before))] == kit.history(before)
        assert talk.client.usage.input_tokens == 15
        assert all(body.get("model", "m-1") == "m-1" for body in bodies)
        assert all("m-1" in asked.path or kit is not GEMINI for asked in talk.server.asked)


def test_the_system_prompt_is_on_the_wire_exactly_once_and_a_changed_one_replaces_it(kit: Kit, colour: str) -> None:
    with talking(kit, "yes", colour=colour, system_prompt="Be terse.") as talk:
        talk.chat("one")
        talk.chat("two")
        talk.client.set_system_prompt("Be kind.")
        talk.chat("three")
        talk.client.set_system_prompt("")
        talk.chat("four")
        assert [kit.prompts(body) for body in talk.server.bodies] == [["Be terse."], ["Be terse."], ["Be kind."], []]
        if kit.shape == "chat":
            assert [body["messages"][0]["role"] for body in talk.server.bodies] == ["system"] * 3 + ["user"]
        assert len(talk.client.export_history()) == 8


LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")


def test_options_and_a_limit_of_tokens_go_with_every_request(kit: Kit) -> None:
    options: dict[str, object] = {"temperature": 0.5}
    if kit is GEMINI:
        options = {"generationConfig": {"temperature": 0.5, "topK": 3}}
    with talking(kit, "yes", max_tokens=77, options=options) as talk:
        talk.chat("one")
        body = talk.server.bodies[0]
        sent = body.get("generationConfig", body)
        assert sent["temperature"] == 0.5
        assert 77 in (sent.get(name) for name in LIMITS)
        assert sent.get("topK", 3) == 3


def test_a_schema_is_asked_for_beside_the_options_and_not_in_their_place() -> None:
    """Where the provider has both in one object."""
    options: dict[str, object] = {"generationConfig": {"temperature": 0.5}}
    with talking(GEMINI, ANSWER, options=options, max_tokens=77) as talk:
        talk.ask("Who?", Struct)
        sent = talk.server.bodies[0]["generationConfig"]
        assert (sent["temperature"], sent["maxOutputTokens"]) == (0.5, 77)
        assert sent["responseJsonSchema"]["type"] == "object"
    with talking(CLAUDE, ANSWER, options={"output_config": {"effort": "low"}}) as talk:
        talk.ask("Who?", Struct)
        sent = talk.server.bodies[0]["output_config"]
        assert sent["effort"] == "low"
        assert sent["format"]["type"] == "json_schema"


def test_asking_for_a_stream_asks_for_its_usage_too() -> None:
    with talking(COMPATIBLE, "yes") as talk:
        talk.stream("one")
        assert talk.server.bodies[0]["stream_options"] == {"include_usage": True}


def test_a_message_is_added_without_asking_and_goes_with_the_next_request(kit: Kit) -> None:
    with talking(kit, "fine") as talk:
        talk.client.add("context")
        talk.client.add(Message.assistant("understood"))
        assert talk.server.asked == []
        talk.chat("go")
        assert kit.words(talk.server.bodies[0]) == ["context", "understood", "go"]


def test_a_prompt_is_text_blocks_or_a_message(kit: Kit) -> None:
    with talking(kit, "fine") as talk:
        talk.chat("text")
        talk.chat(Block.text("block"))
        talk.chat(["several ", Block.text("blocks")])
        talk.chat(Message.user("message"))
        said = kit.words(talk.server.bodies[-1])
        assert said[::2] == ["text", "block", "several blocks", "message"]


@pytest.mark.parametrize(
    "prompt", ["", " \n", [], Message.user([]), Message("system", (Block.text("x"),)), 5, None, {"a": 1}]
)
def test_what_says_nothing_is_refused_and_leaves_no_trace(kit: Kit, prompt: Any) -> None:
    with talking(kit, "fine") as talk:
        talk.chat("before")
        with pytest.raises(InvalidArgument):
            talk.chat(prompt)
        assert len(talk.client.messages) == 2
        assert len(talk.server.asked) == 1


def test_half_a_character_is_refused_before_it_can_spoil_the_history(kit: Kit) -> None:
    half = "a\ud800b"
    with talking(kit, "fine") as talk:
        with pytest.raises(InvalidArgument):
            talk.chat(half)
        with pytest.raises(InvalidArgument):
            talk.client.add(half)
        with pytest.raises(InvalidArgument):
            talk.client.set_system_prompt(half)
        with pytest.raises(InvalidArgument):
            kit.config("https://h", system_prompt=half)
        with pytest.raises(InvalidArgument):
            Tool("t", half)
        assert talk.chat("still works") == "fine"
        assert len(talk.client.messages) == 2


def test_there_is_nothing_to_answer_before_something_was_said(kit: Kit, colour: str) -> None:
    with talking(kit, "fine", colour=colour) as talk:
        with pytest.raises(InvalidArgument):
            talk.retry()
        assert talk.chat("hello") == "fine"


# -- images


def test_an_image_goes_in_the_shape_that_the_provider_documents(kit: Kit, colour: str) -> None:
    with talking(kit, "A dot.", colour=colour) as talk:
        assert talk.chat(["What is this?", Block.image(PNG, "image/png")]) == "A dot."
        (entry,) = kit.history(talk.server.bodies[0])
        assert kit.image(PNG) in entry.get("parts", entry.get("content"))
        talk.chat("Sure?")
        assert kit.history(talk.server.bodies[1])[0] == entry


def test_a_large_image_goes_through(kit: Kit) -> None:
    data = PNG + bytes(range(256)) * ((50 if THOROUGH else 8) * 4096)
    with talking(kit, "Large.") as talk:
        assert talk.chat([Block.image(data, "image/png"), "What?"]) == "Large."
        (entry,) = kit.history(talk.server.bodies[0])
        assert kit.image(data) in entry.get("parts", entry.get("content"))


def test_what_a_provider_cannot_be_told_is_refused_and_not_left_out_in_silence() -> None:
    with talking(CLAUDE, "fine") as talk:
        with pytest.raises(InvalidMessage, match="claude cannot be told"):
            talk.chat(["Listen:", Block.audio(b"RIFF", "audio/wav")])
        assert talk.client.messages == []


# -- tools


def test_a_tool_is_described_called_with_its_arguments_and_its_result_sent_back(
    kit: Kit, colour: str, streamed: bool
) -> None:
    got: list[Any] = []

    def look(path: str, deep: Any = None) -> str:
        got.append((path, deep))
        return "3 files"

    arguments = {"path": "a/ü.py", "deep": {"n": [1, None]}}
    with talking(kit, Calls((("c1", "look", arguments),), "Let me see."), "Three.", colour=colour) as talk:
        talk.client.set_tools([tool(look, path={"type": "string"})])
        said = talk.say("How many?", streamed)
        assert said == ("Let me see.Three." if streamed else "Three.")
        assert got == [("a/ü.py", {"n": [1, None]})]
        first, second = talk.server.bodies
        assert '"look"' in json.dumps(first["tools"])
        assert '"looks"' in json.dumps(first["tools"])
        assert '"path": {"type": "string"}' in json.dumps(first["tools"])
        assert kit.results(second) == [[Seen(kit.call_name("c1", "look"), "3 files", False)]]
        assert kit.history(second)[: len(kit.history(first))] == kit.history(first)
        roles = [message.role for message in talk.client.messages if message.text or message.role == "tool_result"]
        assert roles == ["user", "assistant", "tool_result", "assistant"]
        assert talk.client.usage.input_tokens == 10


def test_results_of_several_calls_go_back_in_their_order_and_together_where_the_provider_wants_it(
    kit: Kit, colour: str
) -> None:
    calls = Calls((("c1", "look", {"n": 1}), ("c2", "look", {"n": 2}), ("c3", "find", {"n": 3})))
    order: list[int] = []

    def look(n: int) -> str:
        order.append(n)
        return f"saw {n}"

    with talking(kit, calls, "Done.", colour=colour) as talk:
        talk.client.set_tools([tool(look), tool(look, "find")])
        assert talk.chat("Go.") == "Done."
        assert order == [1, 2, 3]
        names = [kit.call_name(id, name) for id, name, _ in calls.calls]
        wanted = [Seen(name, f"saw {n}", False) for name, n in zip(names, (1, 2, 3), strict=True)]
        found = kit.results(talk.server.bodies[1])
        assert found == ([wanted] if kit in (CLAUDE, GEMINI) else [[one] for one in wanted])


def test_tools_may_be_called_in_several_rounds(kit: Kit, colour: str) -> None:
    answers = [Calls(((f"c{n}", "look", {"n": n}),)) for n in range(4)]
    with talking(kit, *answers, "Done.", colour=colour) as talk:
        talk.client.set_tools([tool(lambda n: n * n)])
        assert talk.chat("Go.") == "Done."
        last = kit.results(talk.server.bodies[-1])
        assert [str(seen.content) for entry in last for seen in entry] == ["0", "1", "4", "9"]


def raising(error: BaseException) -> Callable[..., object]:
    def handler(**_: object) -> object:
        raise error

    return handler


class Mute(Exception):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Something:
    """What no JSON can say."""


def endless() -> list[object]:
    found: list[object] = []
    found.append(found)
    return found


ODD_RETURNS: dict[str, tuple[Callable[..., object], str, bool]] = {
    "None": (lambda: None, "done", False),
    "empty": (lambda: "", "", False),
    "number": (lambda: 42, "42", False),
    "dict": (lambda: {"a": [1, None, "é"]}, '{"a":[1,null,"é"]}', False),
    "dataclass": (lambda: dataclasses.make_dataclass("D", ["x"])(1), '{"x":1}', False),
    "object": (Something, "Something", True),
    "bytes": (lambda: b"\x00\xff", "bytes", True),
    "surrogate": (lambda: "a\ud800b", "cannot be kept", True),
    "surrogate inside": (lambda: {"a": "\ud800"}, "dict", True),
    "endless": (endless, "list", True),
    "raises": (raising(OSError("disk on fire")), "OSError: disk on fire", True),
    "raises a surrogate": (raising(ValueError("a\ud800b")), "ValueError: a", True),
    "raises nothing to say": (raising(KeyError()), "KeyError", True),
    "raises mute": (raising(Mute()), "Mute", True),
    "raises StopIteration": (raising(StopIteration(3)), "StopIteration", True),
    "raises TimeoutError": (raising(TimeoutError("the socket")), "TimeoutError: the socket", True),
    "wrong arguments": (lambda other: other, "TypeError", True),
}


@pytest.mark.parametrize("odd", ODD_RETURNS)
def test_whatever_a_handler_does_the_model_gets_a_result_and_the_turn_goes_on(kit: Kit, colour: str, odd: str) -> None:
    handler, wanted, error = ODD_RETURNS[odd]
    with talking(kit, Calls((("c1", "look", {}),)), "Done.", colour=colour, tool_timeout_seconds=60) as talk:
        talk.client.set_tools([tool(handler)])
        assert talk.chat("Go.") == "Done."
        ((seen,),) = kit.results(talk.server.bodies[1])
        said = seen.content if isinstance(seen.content, str) else json.dumps(seen.content, separators=(",", ":"))
        assert wanted in said
        assert (wanted == said) is not error
        assert seen.error is error
        assert [m.tool_result_error for m in talk.client.messages if m.role == "tool_result"] == [error]
        assert "seconds" not in said


def test_a_huge_result_goes_through(kit: Kit) -> None:
    with talking(kit, Calls((("c1", "look", {}),)), "Done.") as talk:
        talk.client.set_tools([tool(lambda: "é" * 5_000_000)])
        assert talk.chat("Go.") == "Done."
        ((seen,),) = kit.results(talk.server.bodies[1])
        assert seen.content == "é" * 5_000_000


@pytest.mark.parametrize("count", [1, 2])
def test_an_image_that_a_tool_returns_reaches_the_model_or_the_model_is_told_that_it_did_not(
    kit: Kit, count: int
) -> None:
    """Whatever goes beside them, the results of one answer stay together where the provider wants that."""
    calls = Calls(tuple((f"c{n}", "look", {}) for n in range(count)))
    with talking(kit, calls, "Done.", "Again.") as talk:
        talk.client.set_tools([tool(lambda: [Block.text("the screen:"), Block.image(PNG, "image/png")])])
        assert talk.chat("Go.") == "Done."
        body = talk.server.bodies[1]
        found = [seen for entry in kit.results(body) for seen in entry]
        assert [seen.call for seen in found] == [kit.call_name(f"c{n}", "look") for n in range(count)]
        assert len(kit.results(body)) == (1 if kit in (CLAUDE, GEMINI) else count)
        assert all("the screen:" in json.dumps(seen.content) for seen in found)
        if kit.shape == "chat":
            assert all("left out" in seen.content for seen in found)
        else:
            encoded = base64.b64encode(PNG).decode()
            assert json.dumps(kit.history(body)).count(encoded) == count
        kept = [b for m in talk.client.messages for b in m.blocks if b.modality == "image"]
        assert [block.content for block in kept] == [PNG] * count
        talk.chat("Go on.")
        assert kit.history(talk.server.bodies[2])[: len(kit.history(body))] == kit.history(body)


def test_a_call_of_a_tool_that_is_not_there_or_has_no_handler_gets_an_error_result(kit: Kit, colour: str) -> None:
    calls = Calls((("c1", "nothing", {}), ("c2", "bare", {})))
    with talking(kit, calls, "Done.", colour=colour) as talk:
        talk.client.set_tools([Tool("bare")])
        assert talk.client.missing_handlers == ("bare",)
        assert talk.chat("Go.") == "Done."
        seen = [one for entry in kit.results(talk.server.bodies[1]) for one in entry]
        assert [one.error for one in seen] == [True, True]
        assert "no such tool" in seen[0].content
        assert "not available" in seen[1].content


@pytest.mark.parametrize("written", ['{"n": ', "[1]", '"text"', "nonsense", '{"n": 1} trailing'])
@pytest.mark.parametrize("kit", [OPENAI, RESPONSES], ids=lambda kit: kit.name)
def test_arguments_that_are_no_json_object_get_an_error_result(kit: Kit, written: str, colour: str) -> None:
    called: list[object] = []
    with talking(kit, Calls((("c1", "look", written),)), "Done.", colour=colour) as talk:
        talk.client.set_tools([tool(lambda **given: called.append(given))])
        assert talk.chat("Go.") == "Done."
        ((seen,),) = kit.results(talk.server.bodies[1])
        assert "arguments are not" in seen.content
        assert called == []
        assert written in json.dumps(kit.history(talk.server.bodies[1])).replace('\\"', '"')


@pytest.mark.parametrize("written", ["", "{}", "null"])
def test_no_arguments_are_no_arguments_however_they_are_written(written: str) -> None:
    with talking(OPENAI, Calls((("c1", "look", written),)), "Done.") as talk:
        talk.client.set_tools([tool(lambda: "called")])
        talk.chat("Go.")
        assert OPENAI.results(talk.server.bodies[1]) == [[Seen("c1", "called", False)]]


class Asynchronous:
    """Awaited, though no coroutine function."""

    async def __call__(self, n: int) -> int:
        await asyncio.sleep(0)
        return n + 1


def test_async_handlers_are_awaited_by_the_async_client(kit: Kit) -> None:
    async def look(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    calls = Calls((("c1", "look", {"n": 1}), ("c2", "find", {"n": 2})))
    with talking(kit, calls, "Done.", colour="async") as talk:
        talk.client.set_tools([tool(look), tool(Asynchronous(), "find")])
        assert talk.chat("Go.") == "Done."
        seen = [one for entry in kit.results(talk.server.bodies[1]) for one in entry]
        assert [str(one.content) for one in seen] == ["2", "3"]


def test_async_handlers_are_refused_by_the_client_that_waits(kit: Kit) -> None:
    async def look() -> int:
        return 1

    with talking(kit, Calls((("c1", "look", {}),)), "Done.") as talk:
        talk.client.set_tools([tool(look)])
        assert talk.chat("Go.") == "Done."
        ((seen,),) = kit.results(talk.server.bodies[1])
        assert "async" in seen.content
        assert seen.error


def test_a_handler_does_not_block_the_loop_of_the_async_client() -> None:
    released = threading.Event()

    with talking(CLAUDE, Calls((("c1", "look", {}),)), "Done.", colour="async") as talk:
        client = talk.client
        assert isinstance(client, AsyncClient)
        client.set_tools([tool(lambda: str(released.wait(60)))])

        async def both() -> str:
            async def release() -> None:
                released.set()

            answer, _ = await asyncio.gather(client.chat("Go."), release())
            return answer

        assert talk.runner is not None
        assert talk.runner.run(both()) == "Done."
        assert CLAUDE.results(talk.server.bodies[1]) == [[Seen("c1", "True", False)]]


@pytest.mark.parametrize("awaited", [False, True], ids=["plain handler", "async handler"])
def test_a_handler_that_hangs_is_given_up_and_holds_nothing_up(kit: Kit, colour: str, awaited: bool) -> None:
    """Also not the end of the event loop, nor that of the program: the thread is nobody's to wait for."""
    if awaited and colour == "sync":
        pytest.skip("refused at once")
    never, threads = threading.Event(), []

    def hang() -> None:
        threads.append(threading.current_thread())
        never.wait(120)

    async def hang_awaited() -> None:
        await asyncio.sleep(120)

    try:
        calls = Calls((("c1", "look", {}),))
        with talking(kit, calls, "Done.", colour=colour, tool_timeout_seconds=0.05) as talk:
            talk.client.set_tools([tool(hang_awaited if awaited else hang)])
            assert talk.chat("Go.") == "Done."
            ((seen,),) = kit.results(talk.server.bodies[1])
            assert "within 0.05 seconds" in seen.content
            assert seen.error
        assert all(thread.daemon and thread.is_alive() for thread in threads)
        assert len(threads) == (not awaited)
    finally:
        never.set()


def test_the_bound_on_rounds_is_an_error_that_keeps_everything_and_the_next_chat_goes_on(
    kit: Kit, colour: str, streamed: bool
) -> None:
    count = 0

    def answer(asked: Asked) -> Any:
        nonlocal count
        count += 1
        return "At last." if count > 3 else Calls(((f"c{count}", "look", {"n": count}),))

    with talking(kit, answer, colour=colour, max_tool_rounds=2) as talk:
        talk.client.set_tools([tool(lambda n: f"saw {n}")])
        with pytest.raises(ToolLoopLimit) as caught:
            talk.say("Go.", streamed)
        assert caught.value.rounds == 2
        assert [m.role for m in talk.client.messages] == ["user", *["assistant", "tool_result"] * 2, "assistant"]
        assert talk.say("Go on.", streamed) == "At last."
        body = talk.server.bodies[-1]
        seen = [one for entry in kit.results(body) for one in entry]
        assert [str(one.content) for one in seen[:2]] == ["saw 1", "saw 2"]
        assert "interrupted" in str(seen[2].content)
        assert kit.words(body)[-1] == "Go on."


def test_no_rounds_at_all_means_that_no_tool_is_run() -> None:
    ran: list[int] = []
    with talking(CLAUDE, Calls((("c1", "look", {}),)), max_tool_rounds=0) as talk:
        talk.client.set_tools([tool(lambda: ran.append(1))])
        with pytest.raises(ToolLoopLimit):
            talk.chat("Go.")
        assert ran == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_ctrl_c_in_a_handler_passes_and_the_next_chat_works_with_a_mended_history(
    kit: Kit, error: type[BaseException], timeout: float | None
) -> None:
    calls = Calls((("c1", "look", {"n": 1}), ("c2", "look", {"n": 2})))

    def look(n: int) -> str:
        if n == 2:
            raise error
        return "saw 1"

    with talking(kit, calls, "Going on.", tool_timeout_seconds=timeout) as talk:
        talk.client.set_tools([tool(look)])
        with pytest.raises(error):
            talk.chat("Go.")
        assert talk.chat("And now?") == "Going on."
        body = talk.server.bodies[1]
        seen = [one for entry in kit.results(body) for one in entry]
        assert seen[0].content == "saw 1"
        assert "interrupted" in str(seen[1].content)
        assert len(kit.results(body)) == (1 if kit in (CLAUDE, GEMINI) else 2)
        assert kit.words(body) == ["Go.", "And now?"]


def test_a_handler_may_not_start_another_turn_of_its_own_client() -> None:
    with talking(CLAUDE, Calls((("c1", "look", {}),)), "Done.") as talk:
        talk.client.set_tools([tool(lambda: talk.chat("inner"))])
        assert talk.chat("Go.") == "Done."
        ((seen,),) = CLAUDE.results(talk.server.bodies[1])
        assert "a turn is running" in seen.content


def test_tools_are_replaced_as_a_whole_and_wrong_ones_are_refused(kit: Kit) -> None:
    with talking(kit, "fine") as talk:
        talk.client.set_tools([tool(print, "one"), tool(print, "two")])
        for wrong in ([tool(print), tool(print)], [5], 5, None, "text", tool(print)):
            with pytest.raises(InvalidArgument):
                talk.client.set_tools(wrong)  # type: ignore[arg-type]
        assert [t.name for t in talk.client.tools] == ["one", "two"]
        talk.client.set_tools([])
        talk.chat("Go.")
        assert "tools" not in talk.server.bodies[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": 5},
        {"description": 5},
        {"parameters": 5},
        {"parameters": {"a": {1, 2}}},
        {"handler": 5},
    ],
    ids=str,
)
def test_a_tool_that_cannot_be_one_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Tool(**{"name": "t", **wrong})


# -- structured answers

SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@dataclass
class Person:
    name: str
    age: int
    tags: list[str] = field(default_factory=list)


class Struct(msgspec.Struct):
    name: str
    age: int


class Model(pydantic.BaseModel):
    name: str
    age: int


class Typed(TypedDict):
    name: str
    age: int


class Nested(msgspec.Struct):
    person: Struct


ANSWER = '{"name": "Ada", "age": 36}'


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (SCHEMA, {"name": "Ada", "age": 36}),
        (Person, Person("Ada", 36)),
        (Struct, Struct("Ada", 36)),
        (Model, Model(name="Ada", age=36)),
        (Typed, {"name": "Ada", "age": 36}),
    ],
    ids=["dict", "dataclass", "msgspec", "pydantic", "TypedDict"],
)
def test_an_answer_comes_as_its_schema_wants_it(kit: Kit, colour: str, schema: Any, wanted: object) -> None:
    with talking(kit, ANSWER, "fine", colour=colour) as talk:
        assert talk.ask("Who?", schema) == wanted
        asked = json.dumps(talk.server.bodies[0])
        assert '"age": {' in asked
        assert '"json_schema"' in asked or "responseJsonSchema" in asked
        talk.chat("And?")
        after = json.dumps(talk.server.bodies[1])
        assert "json_schema" not in after
        assert "responseJsonSchema" not in after
        assert kit.words(talk.server.bodies[1])[:2] == ["Who?", ANSWER]


def test_a_schema_within_a_schema_is_an_object_at_the_top(kit: Kit) -> None:
    with talking(kit, '{"person": ' + ANSWER + "}") as talk:
        assert talk.ask("Who?", Nested) == Nested(Struct("Ada", 36))
        body = talk.server.bodies[0]
        found = {
            "anthropic": lambda: body["output_config"]["format"]["schema"],
            "chat": lambda: body["response_format"]["json_schema"]["schema"],
            "responses": lambda: body["text"]["format"]["schema"],
            "gemini": lambda: body["generationConfig"]["responseJsonSchema"],
        }[kit.shape]()
        assert found["type"] == "object"
        assert "person" in found["properties"]


@pytest.mark.parametrize("schema", [SCHEMA, Person, Struct, Model, Typed])
@pytest.mark.parametrize(
    "answer", ["I am Ada.", '{"name": "Ada"}', "[1]", "{", '{"name": 5, "age": "x"}', "[" * 5000, " "]
)
def test_an_answer_that_does_not_fit_says_so_and_has_its_text(schema: Any, answer: str) -> None:
    if schema is SCHEMA and answer.startswith('{"name": 5'):
        pytest.skip("with a dict, the values are the provider's to check")
    with talking(OPENAI, answer, "fine") as talk:
        with pytest.raises(InvalidAnswer) as caught:
            talk.ask("Who?", schema)
        assert caught.value.text == answer
        assert "Ada" not in str(caught.value)
        assert talk.chat("Well?") == "fine"


@pytest.mark.parametrize("wrong", [5, "text", None, object])
def test_what_has_no_schema_is_refused_before_anything_is_said(wrong: Any) -> None:
    with talking(CLAUDE, ANSWER) as talk:
        with pytest.raises(InvalidArgument):
            talk.ask("Who?", wrong)
        assert talk.client.messages == []
        assert talk.server.asked == []


def test_tools_run_on_the_way_to_a_structured_answer(kit: Kit, colour: str) -> None:
    with talking(kit, Calls((("c1", "look", {}),)), ANSWER, colour=colour) as talk:
        talk.client.set_tools([tool(lambda: "found Ada")])
        assert talk.ask("Who?", Struct) == Struct("Ada", 36)
        assert all("age" in json.dumps(body) for body in talk.server.bodies)


# -- what else comes in answers

STRANGE: dict[str, tuple[Json, ...]] = {
    "anthropic": (
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "hologram", "shape": {"of": ["things", 1, None]}},
        {"type": "text", "text": "See.", "citations": None},
    ),
    "chat": (
        {"type": "hologram", "hologram": {"of": ["things", 1, None]}},
        {"type": "text", "text": "See."},
    ),
    "responses": (
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"},
        {"type": "hologram", "id": "h_1", "shape": {"of": ["things", 1, None]}},
        responses_text("See."),
    ),
    "gemini": (
        {"text": "hm", "thought": True, "thoughtSignature": "c2ln"},
        {"hologram": {"of": ["things", 1, None]}},
        {"text": "See."},
    ),
}


def test_unknown_kinds_of_content_are_kept_and_sent_again_as_they_came(kit: Kit, colour: str, streamed: bool) -> None:
    if kit.shape == "chat" and streamed:
        pytest.skip("the deltas of this API are texts")
    parts = STRANGE[kit.shape]
    with talking(kit, Parts(parts), "fine", colour=colour) as talk:
        assert talk.say("Look.", streamed) == "See."
        assert any(block.type == "hologram" for m in talk.client.messages for block in m.blocks)
        saved = talk.client.save()
        talk.client.restore(saved)
        talk.say("And?", streamed)
        sent = kit.history(talk.server.bodies[1])
        found = sent[1:-1] if kit.shape == "responses" else sent[1].get("parts", sent[1].get("content"))
        assert found == list(parts)


# -- one turn at a time, and turns that end early


def test_a_second_turn_on_the_same_client_is_told_that_one_is_running(kit: Kit) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slowly(_: Asked) -> str:
        asked.set()
        assert go_on.wait(60)
        return "slow"

    with talking(kit, slowly, "next") as talk:
        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.append(talk.chat("one")))
        thread.start()
        assert asked.wait(60)
        try:
            for second in (lambda: talk.chat("two"), lambda: talk.stream("two"), talk.retry):
                with pytest.raises(ChatError, match="a turn is running"):
                    second()
            saved = talk.client.save()
            for change in (lambda: talk.client.restore(saved), lambda: talk.client.add("x"), lambda: talk.compact("x")):
                with pytest.raises(ChatError, match="a turn is running"):
                    change()
        finally:
            go_on.set()
            thread.join(60)
        assert answers == ["slow"]
        assert [message.text for message in talk.client.messages] == ["one", "slow"]
        assert talk.chat("two") == "next"


def test_two_tasks_on_one_client_are_told_apart(kit: Kit) -> None:
    with talking(kit, "fine", colour="async") as talk:
        client = talk.client
        assert isinstance(client, AsyncClient)

        async def both() -> list[object]:
            return [*await asyncio.gather(client.chat("one"), client.chat("two"), return_exceptions=True)]

        assert talk.runner is not None
        found = talk.runner.run(both())
        assert "fine" in found
        assert any(isinstance(one, ChatError) and "a turn is running" in str(one) for one in found)
        assert talk.chat("three") == "fine"


def test_who_stops_reading_stops_the_answer_and_the_client_goes_on(kit: Kit) -> None:
    with talking(kit, "one two three", "fine") as talk:
        assert isinstance(talk.client, Client)
        for _ in talk.client.stream("Count."):
            break
        assert [message.role for message in talk.client.messages] == ["user"]
        assert talk.chat("Again?") == "fine"
        assert kit.words(talk.server.bodies[1]) == ["Count.", "Again?"]


def test_who_stops_reading_an_awaited_stream_may_go_on_at_once(kit: Kit) -> None:
    with talking(kit, "one two three", "fine", colour="async") as talk:
        client = talk.client
        assert isinstance(client, AsyncClient)

        async def stop_early() -> str:
            async for _ in client.stream("Count."):
                break
            return await client.chat("Again?")

        assert talk.runner is not None
        assert talk.runner.run(stop_early()) == "fine"
        assert kit.words(talk.server.bodies[1]) == ["Count.", "Again?"]


def test_an_awaited_stream_can_be_closed(kit: Kit) -> None:
    with talking(kit, "one two three", "fine", colour="async") as talk:
        client = talk.client
        assert isinstance(client, AsyncClient)

        async def close() -> str:
            stream = client.stream("Count.")
            assert await anext(stream) == "one "
            await stream.aclose()  # type: ignore[attr-defined]  # every stream of ours can
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
            return await client.chat("Again?")

        assert talk.runner is not None
        assert talk.runner.run(close()) == "fine"


def test_a_stream_that_nobody_begins_to_read_is_no_turn(kit: Kit) -> None:
    with talking(kit, "fine") as talk:
        assert isinstance(talk.client, Client)
        stream = talk.client.stream("never")
        assert talk.chat("now") == "fine"
        assert talk.server.bodies[0] is talk.server.bodies[-1]
        del stream
        assert [message.text for message in talk.client.messages] == ["now", "fine"]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("where", ["request", "tool"])
def test_a_task_that_is_cancelled_leaves_the_client_usable(kit: Kit, where: str, streamed: bool) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slowly(_: Asked) -> str | Calls:
        if where == "tool":
            return Calls((("c1", "look", {}),))
        asked.set()
        go_on.wait(60)
        return "too late"

    async def look() -> None:
        asked.set()
        await asyncio.sleep(60)

    with talking(kit, slowly, "fine", colour="async") as talk:
        client = talk.client
        assert isinstance(client, AsyncClient)
        client.set_tools([tool(look)])

        async def read() -> str:
            return "".join([p async for p in client.stream("one")]) if streamed else await client.chat("one")

        async def cancel() -> str:
            task = asyncio.create_task(read())
            await asyncio.to_thread(asked.wait, 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await client.chat("two")

        assert talk.runner is not None
        try:
            assert talk.runner.run(cancel()) == "fine"
        finally:
            go_on.set()
        body = talk.server.bodies[-1]
        assert kit.words(body) == ["one", "two"]
        assert len(kit.results(body)) == (where == "tool")


# -- compaction


def test_a_chat_goes_on_from_a_summary(kit: Kit, colour: str) -> None:
    with talking(kit, "long story", "In short.", "fine", colour=colour, system_prompt="Be terse.") as talk:
        talk.chat("Tell me.")
        assert talk.compact() == "In short."
        assert kit.prompts(talk.server.bodies[1]) == ["Be terse."]
        assert [message.text for message in talk.client.messages] == ["In short."]
        talk.chat("Go on.")
        assert kit.words(talk.server.bodies[2]) == ["In short.", "Go on."]
        assert talk.compact(lambda messages: f"{len(messages)} messages") == "3 messages"
        assert talk.compact("given") == "given"
        assert [message.label for message in talk.client.messages] == ["compaction"]


def test_there_is_nothing_to_sum_up_before_something_was_said(colour: str) -> None:
    with talking(CLAUDE, "x", colour=colour) as talk, pytest.raises(ChatError, match="nothing to sum up"):
        talk.compact()


# -- kinds of clients


def test_the_clients_are_chat_clients_and_can_be_saved(kit: Kit) -> None:
    with talking(kit, "x") as talk:
        assert isinstance(talk.waiting, ChatClient)
        assert isinstance(talk.waiting, PersistentChatClient)


def test_metadata_that_is_given_lies_in_the_snapshot(kit: Kit) -> None:
    with talking(kit, "x") as talk:
        _check_metadata(talk.client)


def _check_metadata(client: Client | AsyncClient) -> None:
    saved = client.save(metadata={"ticket": "1234", "team": "build"})
    assert saved.metadata == {"dialect": client.save().metadata["dialect"], "ticket": "1234", "team": "build"}
    assert Snapshot.from_json(saved.to_json()).metadata == saved.metadata
    assert client.save(metadata=saved.metadata).metadata == saved.metadata  # its own dialect may be among them
    with pytest.raises(InvalidArgument, match="dialect of this snapshot"):
        client.save(metadata={"dialect": "another"})
    for wrong in ({"count": 1}, {1: "x"}, ["ticket"], "ticket"):
        with pytest.raises(HithertoError):
            client.save(metadata=wrong)  # type: ignore[arg-type]  # that is the point


def test_claude_local_is_a_chat_client_that_cannot_be_saved() -> None:
    from hitherto.chat import ClaudeLocal

    client = new_any_client(Config(provider="claude-local", command="true"))
    assert isinstance(client, ClaudeLocal)
    assert isinstance(client, ChatClient)
    assert not isinstance(client, PersistentChatClient)
    assert not hasattr(client, "save")
    assert not hasattr(client, "restore")
    assert not hasattr(ClaudeLocal, "save")


def test_a_client_is_a_context_that_lets_go_of_its_connections(kit: Kit) -> None:
    with serving(Script(kit, ["fine"])) as server:
        with new_client(kit.config(server.url)) as client:
            assert client.chat("one") == "fine"
        assert [message.text for message in client.messages] == ["one", "fine"]

        async def awaited() -> str:
            async with new_awaited_client(kit.config(server.url)) as other:
                return await other.chat("one")

        assert asyncio.run(awaited()) == "fine"


def test_a_client_shows_neither_its_key_nor_what_was_said(kit: Kit) -> None:
    with talking(kit, "a secret answer") as talk:
        talk.chat("a secret question")
        assert "secret" not in repr(talk.client)
        assert KEY not in repr(talk.client) + repr(talk.client.config)


@pytest.mark.parametrize(
    "wrong",
    [
        {"provider": "nobody"},
        {"provider": None},
        {"model": 5},
        {"model": None},
        {"system_prompt": None},
        {"api": "smoke"},
        {"max_tool_rounds": -1},
        {"max_tool_rounds": "3"},
        {"max_tool_rounds": True},
        {"timeout_seconds": 0},
        {"timeout_seconds": -1},
        {"timeout_seconds": float("nan")},
        {"timeout_seconds": "3"},
        {"tool_timeout_seconds": 0},
        {"max_retries": -1},
        {"max_retries": "3"},
        {"max_tokens": 0},
        {"max_tokens": "3"},
        {"api_key": 5},
        {"options": 5},
    ],
    ids=str,
)
def test_a_configuration_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Config(**{"provider": "claude", **wrong})


def test_a_turn_repairs_only_what_came_after_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def counting(messages: Any, dialect: Any) -> Any:
        lengths.append(len(messages))
        return repair(messages, dialect)

    client: Any = new_any_client(Config("openai-compatible", "m", "https://127.0.0.1:9/v1", "k"))
    roles = ("user", "assistant")
    client.replace_history(client.parse_history([{"role": roles[n % 2], "content": str(n)} for n in range(100)]))
    monkeypatch.setattr(_turn, "repair", counting)
    for n in range(3):
        turn = client.turn(client._prompt_messages(f"And {n}?"))
        next(turn)
        turn.send(None)
        turn.send(Answer([Message.assistant("yes", raw={"role": "assistant", "content": "yes"})]))
        list(turn)
    client.undo()
    assert not client._mend()
    assert lengths == [100, 2, 2, 104]
    client.close()
