"""A thread that broke off can be sent again: every call has its result, every result its call, and no more is changed.

What a provider accepts is written down here once more, in its own words, and any thread is held against it.

Requirements: B2, and that a conversation can go on from wherever it ended.
"""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hitherto import Block, Message
from hitherto.dialects import Dialect, calls, dialect
from hitherto.dialects._repair import INTERRUPTED, count_settled, repair
from hitherto.model import Saved, check
from hitherto.reports import Repair

from ..support.patience import cpu_seconds
from ..support.thorough import examples

NAMES = ("anthropic", "gemini", "openai-chat", "openai-responses")
CHAT = dialect("openai-chat")
RESPONSES = dialect("openai-responses")
ANTHROPIC = dialect("anthropic")


@pytest.fixture(params=NAMES)
def any_dialect(request: pytest.FixtureRequest) -> Dialect:
    return dialect(request.param)


def asks(*ids: str) -> Message:
    return Message.assistant([Block.text("I look."), *(Block.tool_call(id, f"tool_{id}", {}) for id in ids)])


def result(id: str, content: str = "42") -> Message:
    return Message.tool_result(id, content)


def kinds(notes: list[Repair]) -> list[str]:
    return [note.kind for note in notes]


def test_a_thread_that_needs_nothing_is_given_back_as_it_is(any_dialect: Dialect) -> None:
    thread = [Message.user("hi"), asks("a", "b"), result("a"), result("b"), Message.assistant("done"), asks("a")]
    thread += [result("a"), Message.user("thanks")]
    repaired = repair(thread, any_dialect)
    assert repaired.notes == []
    assert all(one is other for one, other in zip(repaired.messages, thread, strict=True))


def test_an_empty_thread_needs_nothing(any_dialect: Dialect) -> None:
    assert repair([], any_dialect).messages == []


def test_a_call_without_a_result_gets_one_that_says_so(any_dialect: Dialect) -> None:
    thread = [Message.user("hi"), asks("a"), Message.user("are you there?")]
    repaired = repair(thread, any_dialect)
    made = repaired.messages[2]
    assert [message.role for message in repaired.messages] == ["user", "assistant", "tool_result", "user"]
    assert (made.text, made.tool_result_error, made.label) == (INTERRUPTED, True, None)
    assert [block.id for block in made.blocks] == ["a"]
    assert made.extra == {"synthetic": True, "dialect": any_dialect.name}
    assert [made.raw] == any_dialect.build(made).raws
    assert "tool_a" in str(repaired.notes[0])
    assert repaired.notes == [Repair("missing-result", "a", "tool_a", None)]
    check(made)


def test_a_missing_result_comes_after_those_that_are_there(any_dialect: Dialect) -> None:
    thread = [asks("a", "b", "c"), result("b"), Message.user("go on")]
    repaired = repair(thread, any_dialect)
    assert [[block.id for block in message.blocks if block.id] for message in repaired.messages[1:4]] == [
        ["b"],
        ["a"],
        ["c"],
    ]
    assert repaired.messages[1] is thread[1]
    assert repaired.messages[4] is thread[2]


def test_where_results_share_an_entry_the_made_up_ones_join_it() -> None:
    thread = [Message.user("hi"), asks("a", "b"), result("a")]
    entries = ANTHROPIC.history(repair(thread, ANTHROPIC).messages)
    assert [entry["role"] for entry in entries] == ["user", "assistant", "user"]
    content = entries[2]["content"]
    assert isinstance(content, list)
    assert [part["tool_use_id"] for part in content] == ["a", "b"]
    assert content[1]["is_error"] is True
    first = repair([asks("a", "b")], ANTHROPIC).messages
    assert [(message.extra or {}).get("joined") for message in first[1:]] == [None, True]


def test_gemini_is_told_the_name_of_the_tool() -> None:
    gemini = dialect("gemini")
    entries = gemini.history(repair([asks("a")], gemini).messages)
    parts = entries[1]["parts"]
    assert isinstance(parts, list)
    assert parts[0]["functionResponse"]["name"] == "tool_a"


def test_a_result_without_a_call_is_left_out(any_dialect: Dialect) -> None:
    saved = Saved("tool_result", (Block("content", "42", id="x"),), id="k3b9xa")
    thread = [saved, Message.user("hi"), asks("a"), result("a"), result("y")]
    repaired = repair(thread, any_dialect)
    assert repaired.messages == thread[1:4]
    assert repaired.notes == [
        Repair("orphan-result", "x", None, "k3b9xa"),
        Repair("orphan-result", "y", None, None),
    ]


def test_a_second_result_for_one_call_is_left_out(any_dialect: Dialect) -> None:
    thread = [asks("a"), result("a", "first"), result("a", "second"), Message.user("hi"), result("a", "third")]
    repaired = repair(thread, any_dialect)
    assert repaired.messages == [thread[0], thread[1], thread[3]]
    assert repaired.notes == [Repair("duplicate-result", "a", "tool_a", None)] * 2


def test_the_same_id_may_be_used_again_by_a_later_answer(any_dialect: Dialect) -> None:
    thread = [asks("0"), result("0"), Message.user("again"), asks("0"), Message.user("and?")]
    repaired = repair(thread, any_dialect)
    assert kinds(repaired.notes) == ["missing-result"]
    assert repaired.messages[4].text == INTERRUPTED


@pytest.mark.parametrize("name", ["anthropic", "gemini", "openai-chat"])
def test_a_result_that_came_late_is_moved_to_its_call(name: str) -> None:
    thread = [asks("a"), Message.user("still there?"), result("a", "slow"), Message.user("ah")]
    repaired = repair(thread, dialect(name))
    assert [message.text for message in repaired.messages] == ["I look.", "slow", "still there?", "ah"]
    assert kinds(repaired.notes) == ["late-result"]


def test_openais_responses_take_a_late_result_where_it_is() -> None:
    thread = [asks("a"), Message.user("still there?"), result("a", "slow")]
    repaired = repair(thread, RESPONSES)
    assert (repaired.messages, repaired.notes) == (thread, [])


def test_an_event_for_our_readers_does_not_come_between_a_call_and_its_result(any_dialect: Dialect) -> None:
    event = Message("event", (Block.text("renamed"),))
    thread = [asks("a", "b"), event, result("a"), event, result("b")]
    repaired = repair(thread, any_dialect)
    assert (repaired.messages, repaired.notes) == (thread, [])


def test_a_system_message_between_a_call_and_its_result_has_to_wait() -> None:
    raw: dict[str, object] = {"role": "system", "content": "It is late."}
    repaired = repair([asks("a"), CHAT.parse(raw), result("a")], CHAT)
    assert [message.role for message in repaired.messages] == ["assistant", "tool_result", "event"]


def test_in_openais_chat_an_answer_is_one_message() -> None:
    thread = [asks("a"), Message.assistant("never mind"), Message.user("hm")]
    repaired = repair(thread, CHAT)
    assert [message.role for message in repaired.messages] == ["assistant", "tool_result", "assistant", "user"]


def test_a_call_that_the_provider_runs_itself_needs_no_result(any_dialect: Dialect) -> None:
    thread = [Message.assistant(Block.tool_call("s", "web_search", {}, server=True)), Message.user("hi")]
    assert repair(thread, any_dialect).notes == []


def anthropic_user(*content: dict[str, object]) -> Message:
    return ANTHROPIC.parse({"role": "user", "content": list(content)})


def anthropic_result(id: str) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": id, "content": f"result of {id}"}


WORDS: dict[str, object] = {"type": "text", "text": "and now?"}


def test_results_among_a_users_words_count_and_missing_ones_come_before_them() -> None:
    mixed = anthropic_user(anthropic_result("a"), WORDS)
    assert mixed.role == "user"
    repaired = repair([asks("a", "b"), mixed], ANTHROPIC)
    assert [message.role for message in repaired.messages] == ["assistant", "tool_result", "user"]
    assert repaired.messages[2] is mixed
    assert kinds(repaired.notes) == ["missing-result"]


def test_a_result_without_a_call_among_a_users_words_is_taken_out_of_them() -> None:
    mixed = anthropic_user(anthropic_result("gone"), WORDS)
    repaired = repair([mixed], ANTHROPIC)
    (message,) = repaired.messages
    assert (message.role, message.text) == ("user", "and now?")
    assert ANTHROPIC.history([message]) == [{"role": "user", "content": "and now?"}]
    assert kinds(repaired.notes) == ["orphan-result"]


def test_one_of_several_results_in_an_entry_is_left_out_and_the_others_stay() -> None:
    both = anthropic_user(anthropic_result("a"), anthropic_result("gone"))
    repaired = repair([asks("a"), both], ANTHROPIC)
    (entry,) = ANTHROPIC.history(repaired.messages[1:])
    content = entry["content"]
    assert isinstance(content, list)
    assert [part["tool_use_id"] for part in content] == ["a"]


def test_a_late_result_among_a_users_words_is_taken_from_there() -> None:
    mixed = anthropic_user(anthropic_result("a"), WORDS)
    repaired = repair([asks("a"), Message.user("wait"), mixed], ANTHROPIC)
    assert [message.text for message in repaired.messages] == ["I look.", "result of a", "wait", "and now?"]
    assert repair(repaired.messages, ANTHROPIC).notes == []


# -- OpenAI's responses


def thought(id: str) -> Message:
    return RESPONSES.parse({"type": "reasoning", "id": id, "summary": [], "encrypted_content": "gAAA"})


def test_a_thought_stays_with_the_call_that_followed_it() -> None:
    function = RESPONSES.parse({"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"})
    thread = [Message.user("hi"), thought("rs_1"), function]
    repaired = repair(thread, RESPONSES)
    assert repaired.messages[:3] == thread
    entries = RESPONSES.history(repaired.messages)
    assert [entry.get("type") for entry in entries] == [None, "reasoning", "function_call", "function_call_output"]


def test_a_thought_that_nothing_followed_is_left_out() -> None:
    event = Message("event", (Block.text("renamed"),))
    said = Message.assistant("hello")
    thread = [thought("rs_1"), Message.user("hi"), thought("rs_2"), said, thought("rs_3"), event, thought("rs_4")]
    repaired = repair(thread, RESPONSES)
    assert repaired.messages == [thread[1], thread[2], said, event]
    assert kinds(repaired.notes) == ["lone-thought"] * 3


def test_the_interrupted_call_of_a_custom_tool_gets_a_result_of_its_kind() -> None:
    call = RESPONSES.parse({"type": "custom_tool_call", "call_id": "a", "name": "python", "input": "1"})
    assert RESPONSES.history(repair([call], RESPONSES).messages)[1]["type"] == "custom_tool_call_output"


def test_a_call_of_a_computer_cannot_be_answered_so_it_is_left_out_with_its_thought() -> None:
    call = RESPONSES.parse({"type": "computer_call", "call_id": "a", "action": {"type": "click"}})
    thread = [Message.user("hi"), thought("rs_1"), call, Message.user("stop")]
    repaired = repair(thread, RESPONSES)
    assert repaired.messages == [thread[0], thread[3]]
    assert kinds(repaired.notes) == ["unanswerable-call", "lone-thought"]


@pytest.mark.parametrize("named", [{"call_id": "c"}, {"id": "lsh_1"}])
def test_the_result_of_a_local_shell_names_its_call_in_either_way(named: dict[str, object]) -> None:
    call = RESPONSES.parse({"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "action": {}})
    output = RESPONSES.parse({"type": "local_shell_call_output", "output": "ok", **named})
    assert repair([call, output], RESPONSES).notes == []


def test_the_output_of_a_shell_of_theirs_is_not_taken_for_an_orphan() -> None:
    place = {"type": "container_reference", "container_id": "x"}
    call = RESPONSES.parse({"type": "shell_call", "call_id": "c", "action": {}, "environment": place})
    output = RESPONSES.parse({"type": "shell_call_output", "call_id": "c", "output": []})
    assert repair([call, output], RESPONSES).notes == []


# -- any thread

IDS = st.sampled_from(["a", "b", "c"])
THREADS = st.lists(
    st.one_of(
        st.just(Message.user("hi")),
        st.just(Message.assistant("well")),
        st.just(Message("event", (Block.text("renamed"),))),
        st.lists(IDS, min_size=1, max_size=3).map(lambda ids: asks(*ids)),
        IDS.map(result),
        st.lists(IDS, min_size=1, max_size=2).map(
            lambda ids: Message("user", (*(Block("tool_result", "42", id=id) for id in ids), Block.text("so?")))
        ),
        st.lists(IDS, min_size=2, max_size=3).map(
            lambda ids: Message("tool_result", tuple(Block("content", "42", id=id) for id in ids))
        ),
    ),
    max_size=9,
)


def answered(message: Message) -> list[str]:
    is_result = message.role == "tool_result"
    found = [block.id or "" for block in message.blocks if is_result or block.type == "tool_result"]
    return list(dict.fromkeys(found))


def accepts(messages: list[Message], name: str) -> bool:
    """What a provider checks: the results directly after an answer are those that it asks for, one for each."""
    waiting: list[str] = []
    for message in messages:
        if message.role == "event":
            continue
        results = answered(message)
        if any(id not in waiting for id in results):
            return False
        for id in results:
            waiting.remove(id)
        asked = [block.id or "" for block in calls(message)] if message.role == "assistant" else []
        together = message.role == "assistant" and name != "openai-chat"
        if waiting and not results and not together and name != "openai-responses":
            return False
        waiting += asked
    return not waiting


@settings(max_examples=examples(300), deadline=None)
@given(THREADS, st.sampled_from(NAMES))
def test_any_thread_is_accepted_after_its_repair(thread: list[Message], name: str) -> None:
    before = copy.deepcopy(thread)
    repaired = repair(thread, dialect(name))
    assert thread == before
    assert accepts(repaired.messages, name)
    assert accepts(thread, name) or repaired.notes


@settings(max_examples=examples(300), deadline=None)
@given(THREADS, st.sampled_from(NAMES))
def test_a_repaired_thread_needs_no_repair(thread: list[Message], name: str) -> None:
    once = repair(thread, dialect(name))
    twice = repair(once.messages, dialect(name))
    assert twice.notes == []
    assert all(one is other for one, other in zip(once.messages, twice.messages, strict=True))


@settings(max_examples=examples(200), deadline=None)
@given(THREADS, st.sampled_from(NAMES))
def test_what_people_and_models_said_is_never_lost(thread: list[Message], name: str) -> None:
    repaired = repair(thread, dialect(name))
    for role in ("user", "assistant", "event"):
        before = [message.text for message in thread if message.role == role]
        assert [message.text for message in repaired.messages if message.role == role] == before


@settings(max_examples=examples(300), deadline=None)
@given(THREADS, THREADS, st.sampled_from(NAMES))
def test_after_a_settled_part_the_rest_needs_repair_or_nothing_does(
    before: list[Message], after: list[Message], name: str
) -> None:
    clean = repair(before, dialect(name)).messages
    thread = [*clean, *after]
    rest = repair(thread[count_settled(clean, dialect(name)) :], dialect(name))
    assert rest.notes or not repair(thread, dialect(name)).notes


def test_a_call_is_not_settled_before_its_result() -> None:
    assert count_settled([Message.user("hi"), asks("a")], CHAT) == 0
    assert count_settled([Message.user("hi"), asks("a"), result("a")], CHAT) == 0
    assert count_settled([Message.user("hi"), asks("a"), result("a"), Message.assistant("42"), asks("b")], CHAT) == 4
    thought = RESPONSES.parse({"type": "reasoning", "summary": []})
    assert count_settled([Message.user("hi"), thought], RESPONSES) == 0


def test_a_long_thread_is_repaired_in_time_that_grows_with_its_length() -> None:
    thread = [asks(str(number)) for number in range(20_000)]

    def mend() -> None:
        assert len(repair(thread, RESPONSES).notes) == 20_000

    assert cpu_seconds(mend, 1) < 20


def test_a_repair_is_told_in_one_harmless_line() -> None:
    told = str(Repair("late-result", "a\x1b[31m\n", "read", "k3b9xa"))
    assert told.startswith("a tool result came later than it must: it is sent right after its call (read, call a")
    assert told.isprintable()
