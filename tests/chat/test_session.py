"""Saving, restoring, exporting and going on: what is on the wire afterwards is what it would have been.

Requirements: A3, A4, B1, B2, B3, A10.
"""

import copy
import functools
import json
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hitherto import Block, Message
from hitherto.chat import Client, Config, Session, Tool
from hitherto.chat import new_client as client_of
from hitherto.errors import InvalidArgument, InvalidMessage, NewerFormat, ProviderMismatch
from hitherto.snapshots import Snapshot

from ..support.chat_kits import (
    CLAUDE,
    COMPATIBLE,
    KEY,
    KITS,
    OPENAI,
    PNG,
    RESPONSES,
    Calls,
    Kit,
    Script,
    Seen,
    Talk,
    new_client,
    serving,
    talking,
    tool,
)
from ..support.provider import Asked, Json
from ..support.thorough import THOROUGH

LENGTHS = (0, 1, 17, 18, 201, *((40, 500) if THOROUGH else ()))


def varied(asked: Asked, kit: Kit) -> str | Calls:
    """An answer that depends on what was asked: tools in every third turn, several in every sixth."""
    words, results = kit.words(asked.body), kit.results(asked.body)
    history = kit.history(asked.body)
    turn = sum(1 for word in words if word.startswith("question"))
    just_ran = bool(results) and history[-1] in [e for e in history if list(kit._results(e)) or "inlineData" in str(e)]
    if turn % 3 == 2 and not just_ran and words[-1].startswith("question"):
        count = 2 if turn % 6 == 5 else 1
        return Calls(tuple((f"c{turn}_{n}", "look", {"n": n}) for n in range(count)), f"looking {turn}")
    return f"answer {turn}"


def conversation(talk: Talk, turns: int) -> None:
    """Some turns, with tools and images in them."""
    talk.client.set_tools([tool(lambda n: {"seen": n}, n={"type": "integer"})])
    for turn in range(1, turns + 1):
        image = [Block.image(PNG, "image/png")] if turn % 4 == 0 else []
        talk.chat([f"question {turn}", *image])


@functools.cache
def twelve_turns(kit: Kit) -> str:
    """A history that a client made by itself, as JSON."""
    with talking(kit, lambda asked: varied(asked, kit)) as talk:
        conversation(talk, 12)
        return json.dumps(talk.client.export_history())


def grown(kit: Kit, length: int) -> list[Json]:
    """A history of that many entries which a client made by itself, tools and images in it, cut where a turn ends."""
    turns = twelve_turns(kit)
    found: list[Json] = []
    number = 0
    while len(found) < length:
        number += 1
        found += json.loads(re.sub(r'c(\d+_\d+)"', rf'c{number}x\1"', turns))  # ids of calls of its own
    found = copy.deepcopy(found[:length])
    if found and kit is RESPONSES and found[-1].get("type") == "reasoning":
        found.pop()
    return found


def complete(kit: Kit, history: list[Json]) -> list[Json]:
    """The history without calls at its end that have no result yet: answered in plain words instead."""
    client = new_client(kit.config("https://unused", base_url="https://unused", allow_insecure_base_url=False))
    while True:
        try:
            client.parse_history(history)
        except InvalidMessage:
            history = history[:-1]
        else:
            return history


# -- a session that was put back is the same on the wire


@pytest.mark.parametrize("length", LENGTHS)
def test_the_next_turn_is_the_same_on_the_wire_as_if_the_session_had_got_there_by_itself(kit: Kit, length: int) -> None:
    """B2. The one session grows from a shorter history by turns of its own, the other gets all of it at once."""
    history = complete(kit, grown(kit, length))
    assert length - len(history) <= 3
    with serving(Script(kit, [lambda asked: varied(asked, kit)])) as server:
        config = kit.config(server.url, system_prompt="Be terse.")
        organic = Session(new_client(config), history)
        organic.client.set_tools([tool(lambda n: {"seen": n}, n={"type": "integer"})])
        for text in ("question 1", "question 2", "question 3"):
            organic.send([text, Block.image(PNG, "image/png")])
        exported = organic.export_history()
        assert exported[: len(history)] == history
        assert len(exported) >= len(history) + 6

        again = Session(new_client(config), json.loads(json.dumps(exported)))
        again.client.set_tools([tool(lambda n: {"seen": n}, n={"type": "integer"})])
        count = len(server.asked)
        organic.send("question last")
        first = server.bodies[count:]
        again.send("question last")
        assert server.bodies[count + len(first) :] == first
        assert [kit.prompts(body) for body in first] == [["Be terse."]] * len(first)
        assert kit.history(first[0])[: len(exported)] == exported
        assert again.export_history() == organic.export_history()
        assert [m.role for m in again.messages[: len(history)]] == [m.role for m in organic.messages[: len(history)]]
        organic.client.close()
        again.client.close()


def test_also_a_session_that_grew_by_a_hundred_turns_of_its_own(kit: Kit) -> None:
    with serving(Script(kit, [lambda asked: varied(asked, kit)])) as server:
        talk = Talk(kit.config(server.url, system_prompt="Be terse."), "sync", server)
        conversation(talk, 100 if kit is CLAUDE else 20)
        again = Talk(talk.client.config, "sync", server)
        again.client.set_tools(talk.client.tools)
        session = Session(again.waiting, talk.client.export_history())
        server.asked.clear()
        talk.chat("question last")
        first = server.bodies
        server.asked.clear()
        session.send("question last")
        assert server.bodies == first
        assert server.bodies[0] != {}
        talk.close()
        again.close()


def test_a_session_can_be_put_back_many_times_over(kit: Kit) -> None:
    """Each leg is a client of its own, as if each ran in another process."""
    with serving(Script(kit, [lambda asked: varied(asked, kit)])) as server:
        history: list[Json] = []
        for turn in range(1, 13):
            with new_client(kit.config(server.url, system_prompt="Be terse.")) as client:
                session = Session(client, history)
                client.set_tools([tool(lambda n: {"seen": n}, n={"type": "integer"})])
                session.send(
                    [f"question {turn}", Block.image(PNG, "image/png")] if turn % 4 == 0 else f"question {turn}"
                )
                history = json.loads(json.dumps(session.export_history()))
        bodies = server.bodies
    with talking(kit, lambda asked: varied(asked, kit), system_prompt="Be terse.") as talk:
        conversation(talk, 12)
        assert talk.server.bodies == bodies
        assert talk.client.export_history() == history


def test_a_session_after_compaction_is_the_same_on_the_wire(kit: Kit) -> None:
    with talking(kit, "fine", system_prompt="Be terse.") as talk:
        talk.chat("one")
        talk.compact("In short: one.")
        talk.chat("two")
        with new_client(talk.client.config) as client:
            session = Session(client, talk.client.export_history())
            session.send("three")
        talk.chat("three")
        assert talk.server.bodies[-1] == talk.server.bodies[-2]
        assert kit.words(talk.server.bodies[-1]) == ["In short: one.", "two", "fine", "three"]
        assert kit.prompts(talk.server.bodies[-1]) == ["Be terse."]


def test_a_session_streams_and_shows_its_messages(kit: Kit) -> None:
    with talking(kit, "one two") as talk:
        session = Session(talk.waiting)
        assert list(session.stream("Count.")) == ["one ", "two"]
        assert [message.text for message in session.messages] == ["Count.", "one two"]


# -- what is refused as a history


def half(kit: Kit) -> list[Json]:
    """A call without its result."""
    with talking(kit, Calls((("c1", "look", {"n": 1}),)), max_tool_rounds=0) as talk:
        talk.client.set_tools([tool(print)])
        with pytest.raises(Exception, match="still calls"):
            talk.chat("Go.")
        return talk.client.export_history()


def test_half_a_tool_pair_is_refused_or_mended_if_that_is_wanted(kit: Kit) -> None:
    history = half(kit)
    with talking(kit, "fine") as talk:
        with pytest.raises(InvalidMessage, match="no result") as caught:
            Session(talk.waiting, history)
        assert caught.value.hint
        assert talk.client.messages == []
        session = Session(talk.waiting, history, repair=True)
        assert session.send("And?") == "fine"
        ((seen,),) = kit.results(talk.server.bodies[0])
        assert "interrupted" in str(seen.content)


def test_a_result_without_its_call_is_refused(kit: Kit) -> None:
    with talking(kit, Calls((("c1", "look", {"n": 1}),)), "Done.") as talk:
        talk.client.set_tools([tool(lambda n: n)])
        talk.chat("Go.")
        history = talk.client.export_history()
        at = next(n for n, entry in enumerate(history) if list(kit._results(entry)))
        with new_client(talk.client.config) as client, pytest.raises(InvalidMessage, match="answered no call"):
            Session(client, [history[0], *history[at:]])


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_message_in_a_history_is_refused_with_what_to_do(kit: Kit, role: str) -> None:
    with talking(kit, "fine", system_prompt="Be terse.") as talk:
        talk.chat("one")
        before = talk.client.export_history()
        wrong: list[Json] = [{"role": role, "content": "Be someone else.", "parts": [{"text": "x"}]}, *before]
        with pytest.raises(InvalidMessage, match="system prompt") as caught:
            Session(talk.waiting, wrong)
        assert "set_system_prompt" in (caught.value.hint or "")
        assert "someone" not in str(caught.value)
        assert talk.client.export_history() == before
        talk.chat("two")
        assert kit.prompts(talk.server.bodies[-1]) == ["Be terse."]


def deep(levels: int) -> Json:
    found: Json = "x"
    for _ in range(levels):
        found = {"a": found}
    return found


NO_HISTORIES: dict[str, Any] = {
    "a number": 5,
    "a text": "text",
    "bytes": b"x",
    "a message": {"role": "user"},
    "numbers": [5],
    "nothing": [None],
    "texts": ["text"],
    "lists": [[]],
    "empty": [{}],
    "no role": [{"role": 5}],
    "a set": [{"role": "user", "x": {1}}],
    "too deep": [{"role": "user", "content": deep(3000), "parts": [deep(3000)]}],
    "no name": [{"role": "user", 5: "x"}],
}


@pytest.mark.parametrize("wrong", NO_HISTORIES)
def test_what_is_no_history_is_refused_by_an_error_of_ours(kit: Kit, wrong: str) -> None:
    with talking(kit, "fine") as talk:
        with pytest.raises(InvalidArgument):
            Session(talk.waiting, NO_HISTORIES[wrong])
        assert talk.client.messages == []
        assert talk.chat("hello") == "fine"


def test_a_session_needs_a_client_that_keeps_its_history() -> None:
    with pytest.raises(InvalidArgument):
        Session("client")  # type: ignore[arg-type]  # that is the point


# -- deep copies


def poison(value: Json) -> None:
    """Change everything, however deep."""
    if isinstance(value, dict):
        for item in list(value.values()):
            poison(item)
        value.clear()
        value["poison"] = True
    elif isinstance(value, list):
        for item in value:
            poison(item)
        value.append("poison")


def test_nothing_that_comes_out_or_goes_in_is_shared(kit: Kit) -> None:
    with talking(kit, lambda asked: varied(asked, kit)) as talk:
        conversation(talk, 6)
        clean = json.dumps(talk.client.export_history())
        out = talk.client.export_history()
        assert json.dumps(out) == clean
        poison(out)
        assert json.dumps(talk.client.export_history()) == clean

        given = json.loads(clean)
        with new_client(talk.client.config) as client:
            session = Session(client, given)
            poison(given)
            assert json.dumps(session.export_history()) == clean

        snapshot = talk.client.save()
        poison(snapshot.messages)
        poison(snapshot.tools)
        assert json.dumps(snapshot.messages) == clean
        server = talk.server
        talk.chat("question 7")
        before = json.dumps(talk.client.export_history())
        for body in server.bodies:
            poison(body)
        assert json.dumps(talk.client.export_history()) == before


def test_an_export_is_complete(kit: Kit) -> None:
    """Text, calls, results, images; the system prompt is elsewhere."""
    with talking(kit, lambda asked: varied(asked, kit), system_prompt="PROMPT") as talk:
        conversation(talk, 6)
        text = json.dumps(talk.client.export_history())
        wanted = ["question 6", "answer 6", "looking 2", '"look"', "seen", json.dumps(kit.image(PNG))]
        assert [word for word in wanted if word not in text] == []
        assert "PROMPT" not in text


# -- threads


@pytest.fixture
def switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("kit", [CLAUDE], ids=lambda kit: kit.name)
def test_ten_thousand_exports_in_eight_threads_while_turns_run_are_whole_and_never_go_back(
    kit: Kit, switching: None
) -> None:
    """B1. Each export is a beginning of the history as it is in the end, and later ones are never shorter."""
    exports, threads = 10_000, 8
    with talking(kit, lambda asked: varied(asked, kit)) as talk:
        talk.client.set_tools([tool(lambda n: {"seen": n})])
        seen: list[list[list[Json]]] = [[] for _ in range(threads)]
        taken, turn, moved = [0] * threads, 0, threading.Condition()
        errors: list[BaseException] = []

        def export(number: int) -> None:
            try:
                for count in range(exports // threads):
                    with moved:  # so that there are exports in each of ten turns
                        while turn <= count // 125:
                            assert moved.wait(60)
                    found = talk.client.export_history()
                    last = seen[number][-1] if seen[number] else []
                    assert found[: len(last)][:-1] == last[:-1]
                    if found != last:
                        seen[number].append(found)
                    taken[number] += 1
            except BaseException as error:  # noqa: BLE001  # it is shown below
                errors.append(error)

        workers = [threading.Thread(target=export, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            with moved:
                turn += 1
                moved.notify_all()
            talk.chat(f"question {turn}")
            while sum(taken) < 1_000 * turn - 500 and any(worker.is_alive() for worker in workers):
                workers[0].join(0.001)  # half of a turn's exports are left for the next one, so that both run at once
        for worker in workers:
            worker.join(60)
        assert errors == []
        assert sum(taken) == exports
        final = talk.client.export_history()
        lengths = set()
        for exported in seen:
            assert [len(one) for one in exported] == sorted(len(one) for one in exported)
            for one in exported:
                lengths.add(len(one))
                assert one == final[: len(one)] or one[:-1] == final[: len(one) - 1]
        assert turn >= 10
        assert len(lengths) > 5


def test_a_save_while_a_turn_runs_can_be_restored(kit: Kit) -> None:
    """Also between a call and its result: the other client is told that the result is not known."""
    saved: list[Snapshot] = []
    with talking(kit, Calls((("c1", "look", {}),)), "Done.", "fine") as talk:
        talk.client.set_tools([tool(lambda: saved.append(talk.client.save()))])
        talk.chat("Go.")
        with new_client(talk.client.config) as client:
            restored = client.restore(saved[0])
            assert [repair.kind for repair in restored.repairs] == ["missing-result"]
            assert client.chat("And?") == "fine"
        ((seen,),) = kit.results(talk.server.bodies[-1])
        assert "interrupted" in str(seen.content)


# -- snapshots


def test_a_restored_client_sends_what_the_saved_one_would_have_sent(kit: Kit, colour: str) -> None:
    with talking(kit, lambda asked: varied(asked, kit), colour=colour, system_prompt="Be terse.") as talk:
        conversation(talk, 12)
        snapshot = Snapshot.from_json(talk.client.save().to_json())
        other = Talk(kit.config(talk.server.url, system_prompt="Another.", model="m-1"), colour, talk.server)
        other.client.set_tools(talk.client.tools)
        other.client.add("forgotten")
        restored = other.client.restore(snapshot)
        assert (restored.missing_handlers, restored.repairs, restored.losses) == ((), (), ())
        talk.server.asked.clear()
        talk.chat("question 13")
        other.chat("question 13")
        first, second = talk.server.bodies
        assert first == second
        assert kit.prompts(second) == ["Be terse."]
        assert "forgotten" not in json.dumps(second)
        assert other.client.export_history() == talk.client.export_history()
        other.close()


def test_a_snapshot_says_what_it_is_of_and_holds_no_key(kit: Kit) -> None:
    with talking(kit, "fine", system_prompt="Be terse.") as talk:
        talk.client.set_tools([tool(print, path={"type": "string"})])
        talk.chat("one")
        first, second = talk.client.save(), talk.client.save()
        assert first.id != second.id
        assert (first.provider, first.model, first.system_prompt) == (kit.provider, "m-1", "Be terse.")
        assert first.messages == talk.client.export_history()
        parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
        assert first.tools == [{"name": "look", "description": "looks", "parameters": parameters}]
        for shown in (first.to_json().decode(), repr(first), repr(first.metadata)):
            assert KEY not in shown


def test_the_client_keeps_its_own_model(kit: Kit) -> None:
    with talking(kit, "fine", model="m-old") as talk:
        talk.chat("one")
        snapshot = talk.client.save()
        assert snapshot.model == "m-old"
        with new_client(kit.config(talk.server.url, model="m-new")) as client:
            client.restore(snapshot)
            client.chat("two")
            assert client.model == "m-new"
            assert client.save().model == "m-new"
        asked = talk.server.asked[-1]
        assert "m-new" in asked.path + str(asked.body.get("model"))


def test_an_empty_system_prompt_clears_the_old_one(kit: Kit) -> None:
    with talking(kit, "fine") as talk:
        talk.chat("one")
        snapshot = talk.client.save()
        with new_client(kit.config(talk.server.url, system_prompt="An old one.")) as client:
            client.restore(snapshot)
            client.chat("two")
            assert client.system_prompt == ""
        assert kit.prompts(talk.server.bodies[-1]) == []


@pytest.mark.parametrize("ours", KITS, ids=lambda kit: f"into {kit.name}")
@pytest.mark.parametrize("theirs", KITS, ids=lambda kit: f"from {kit.name}")
def test_a_snapshot_of_another_provider_is_refused_and_both_are_named(ours: Kit, theirs: Kit) -> None:
    fits = ours.shape == theirs.shape
    with talking(theirs, "fine", system_prompt="Theirs.") as talk, talking(ours, "fine") as mine:
        talk.chat("one")
        mine.chat("before")
        snapshot = talk.client.save()
        before = mine.client.export_history()
        if fits:
            mine.client.restore(snapshot)
            mine.chat("two")
            assert ours.words(mine.server.bodies[-1]) == ["one", "fine", "two"]
            assert ours.prompts(mine.server.bodies[-1]) == ["Theirs."]
            return
        with pytest.raises(ProviderMismatch) as caught:
            mine.client.restore(snapshot)
        names = {caught.value.expected, caught.value.found}
        assert len(names) == 2
        assert all(name in str(caught.value) for name in names)
        assert mine.client.export_history() == before
        assert mine.client.system_prompt == ""


def written(provider: str, messages: list[Json], system_prompt: str = "") -> Snapshot:
    """A snapshot as other programs write it: without our metadata."""
    return Snapshot.new(provider, "m", system_prompt, messages, [])


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("kit", [OPENAI, COMPATIBLE], ids=lambda kit: kit.name)
@pytest.mark.parametrize("form", ["text", "parts"])
def test_a_system_message_at_the_head_of_a_snapshot_is_lifted(kit: Kit, role: str, form: str) -> None:
    content: Json = "Be terse." if form == "text" else [{"type": "text", "text": "Be terse."}]
    messages = [{"role": role, "content": content}, {"role": "user", "content": "hi"}]
    with talking(kit, "fine", system_prompt="Mine.") as talk:
        talk.client.restore(written("openai", messages))
        assert talk.client.system_prompt == "Be terse."
        assert talk.client.export_history() == [{"role": "user", "content": "hi"}]
        assert talk.retry() == "fine"
        assert kit.prompts(talk.server.bodies[0]) == ["Be terse."]
        assert talk.client.save().messages == talk.client.export_history()


def test_the_prompt_of_the_snapshot_itself_outranks_one_among_its_messages() -> None:
    messages = [{"role": "system", "content": "Old."}, {"role": "user", "content": "hi"}]
    with talking(OPENAI, "fine") as talk:
        talk.client.restore(written("openai", messages, "New."))
        talk.retry()
        assert OPENAI.prompts(talk.server.bodies[0]) == ["New."]


def test_tools_of_a_snapshot_without_a_handler_are_reported_and_a_call_gets_an_error_result(
    kit: Kit, colour: str
) -> None:
    with talking(kit, "fine") as talk:
        talk.client.set_tools([tool(print, "one"), tool(print, "two")])
        talk.chat("hello")
        snapshot = talk.client.save()
    calls = Calls((("c1", "one", {}), ("c2", "two", {})))
    with talking(kit, calls, "Done.", colour=colour) as talk:
        talk.client.set_tools([tool(lambda: "mine", "two")])
        restored = talk.client.restore(snapshot)
        assert restored.missing_handlers == ("one",)
        assert talk.chat("Go.") == "Done."
        first, second = (seen for entry in kit.results(talk.server.bodies[1]) for seen in entry)
        assert first.error
        assert "not available" in first.content
        assert second == Seen(kit.call_name("c2", "two"), "mine", False)
        assert '"one"' in json.dumps(talk.server.bodies[0]["tools"])
        talk.client.set_tools([tool(print, "one"), tool(print, "two")])
        assert talk.client.missing_handlers == ()


@pytest.mark.parametrize("wrong", [None, 5, "text", {}, b"{}"])
def test_what_is_no_snapshot_is_refused(wrong: Any) -> None:
    with talking(CLAUDE, "fine") as talk, pytest.raises(InvalidArgument):
        talk.client.restore(wrong)


def test_a_snapshot_of_a_newer_hitherto_is_refused() -> None:
    with talking(CLAUDE, "fine") as talk:
        talk.chat("one")
        newer = talk.client.save().to_json().replace(b'"version": 1', b'"version": 2')
        with pytest.raises(NewerFormat):
            Snapshot.from_json(newer)


def test_a_snapshot_whose_messages_are_not_this_providers_changes_nothing(kit: Kit) -> None:
    with talking(kit, "fine", system_prompt="Mine.") as talk:
        talk.chat("one")
        before = talk.client.export_history()
        for messages in ([{"nonsense": 1}], [{"role": "user", "content": 5, "parts": 5, "type": 5}]):
            with pytest.raises(InvalidMessage):
                talk.client.restore(written(kit.provider, messages, "Theirs."))
        assert talk.client.export_history() == before
        assert talk.client.system_prompt == "Mine."


def test_a_long_history_is_restored_with_every_tool_and_image(kit: Kit) -> None:
    history = complete(kit, grown(kit, 300))
    with talking(kit, "fine") as talk:
        restored = talk.client.restore(written(kit.provider, history))
        assert restored.repairs == ()
        talk.chat("last")
        assert kit.history(talk.server.bodies[0])[:-1] == history


# -- the examples of the manual


def test_the_example_of_the_manual_runs(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is written there, but for the address: a plain one has to be allowed in code, so that the environment's
    variables alone would not do."""
    from hitherto.chat import PersistentChatClient, new_client

    def read(path: str) -> str:
        return f"contents of {path}"

    answers = (Calls((("c1", "read", {"path": "a.py"}),)), "The import.", "It is unused.")
    with serving(Script(kit, answers)) as server:
        given = kit.config(server.url, system_prompt="Be terse.")
        client = new_client(given)
        client.set_tools([Tool(name="read", description="…", parameters={"type": "object"}, handler=read)])
        print(client.chat("What fails?"))
        for piece in client.stream("And why?"):
            print(piece, end="")
        assert isinstance(client, PersistentChatClient)
        snapshot = client.save()
        client.restore(snapshot)
        client.close()
        assert capsys.readouterr().out == "The import.\nIt is unused."
        assert "contents of a.py" in json.dumps(kit.results(server.bodies[1])[0][0].content)


def test_a_client_is_made_from_no_more_than_the_manual_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    client = new_client(Config(provider="claude", model="claude-sonnet-4-5", system_prompt="Be terse."))
    assert client.save().messages == []
    assert Message.user("x").text == "x"
    client.close()


@pytest.mark.parametrize("entry", [{"role": "wizard", "content": "x", "parts": []}, {"role": "user"}])
def test_what_is_no_message_of_this_provider_is_refused(entry: dict[str, object]) -> None:
    for provider in ("claude", "gemini"):
        client = client_of(Config(provider, "m", api_key="k"))
        assert isinstance(client, Client)
        with client, pytest.raises(InvalidMessage):
            Session(client, [entry])
    gemini = client_of(Config("gemini", "m", api_key="k"))
    assert isinstance(gemini, Client)
    with gemini, pytest.raises(InvalidMessage):
        Session(gemini, [{"role": "user", "content": "hello"}])
