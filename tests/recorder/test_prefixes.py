"""A request that begins with the bytes of an earlier one is read from there on, and kept as if all of it were read.

The same traffic is recorded twice: once as it is, and once with every body read as a whole. Both stores have to be the
same. Requirements: C10, C11.
"""

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import hitherto
from hitherto import Sanitiser, Store
from hitherto.model import Setup
from hitherto.recorder import _requests
from hitherto.recorder._body import Body, locate, read_extension
from hitherto.recorder._history_match import Tree
from hitherto.recorder._recorded_conversation import Place
from hitherto.recorder._sent_requests import SentRequest, SentRequests

from ..support.thorough import examples
from ..support.traffic import DIALECTS, Traffic, steps

Json = Any


def content(store: Store) -> list[Json]:
    """All that a store has, without what differs from one store to the next."""
    return sorted((_conversation(store, info) for info in store.conversations().items), key=repr)


def _conversation(store: Store, info: Any) -> Json:
    talk = store.conversation(info.id)
    saved = list(store.messages(conversation=talk, newest_first=False))
    names = {message.id: message.seq for message in saved}
    labels: dict[str | None, int] = {}
    found = []
    for message in saved:
        told = msgspec.to_builtins(message, builtin_types=(bytes,))
        for name in ("id", "conversation", "created_us", "parent", "link", "label"):
            told.pop(name, None)
        if message.privacy is not None:
            told["privacy"].pop("hashes")  # each store has a key of its own
        places = [names.get(id or "") for id in (message.parent, message.link)]
        label = labels.setdefault(message.label, len(labels))
        found.append((places, label, repr(told), repr(talk.fork(at=message.id).setup)))
    return names.get(talk.head or ""), found


class Ways:
    """How many requests were kept in which way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count: Counter[str] = Counter()
        for name in ("_keep_whole", "_keep_rest"):
            monkeypatch.setattr(_requests, name, self._counting(name, getattr(_requests, name)))

    def _counting(self, name: str, function: Any) -> Any:
        def counting(*args: Any, **more: Any) -> Any:
            found = function(*args, **more)
            self.count[name] += isinstance(found, Place)
            return found

        return counting


def recorded(
    dialect: str, todo: list[tuple[str, int]], *, sanitiser: Sanitiser | None, bound: bool, whole: bool
) -> tuple[list[Json], Counter[str]]:
    with pytest.MonkeyPatch.context() as patch, hitherto.open("memory:", sanitiser=sanitiser) as store:
        ways = Ways(patch)
        if whole:
            patch.setattr(SentRequests, "find", lambda *_: None)
        traffic = Traffic(store, dialect, **({"conversation": store.ensure("bound")} if bound else {}))
        try:
            for step, n in todo:
                traffic.do(step, n)
            return content(store), ways.count
        finally:
            traffic.close()


@pytest.mark.parametrize("dialect", DIALECTS)
@given(steps, st.booleans(), st.booleans())
@settings(max_examples=examples(45), deadline=None)
def test_both_ways_keep_the_same_tree(dialect: str, todo: list[tuple[str, int]], is_clean: bool, bound: bool) -> None:
    sanitiser = Sanitiser.secrets() if is_clean else None
    if bound:
        todo = [step for step in todo if step[0] != "purge"]
    kept, ways = recorded(dialect, todo, sanitiser=sanitiser, bound=bound, whole=False)
    event(f"read in part: {min(ways['_keep_rest'], 5)}")
    assert kept == recorded(dialect, todo, sanitiser=sanitiser, bound=bound, whole=True)[0]


def test_a_history_of_one_answer_after_the_other_is_read_once() -> None:
    """A control of the test above: what it compares are two ways."""
    for dialect in DIALECTS:
        todo = [("ask", 0), ("tool", 1), ("thought", 0), ("ask", 1), ("tool", 5), ("model", 1), ("ask", 0)]
        _, ways = recorded(dialect, todo, sanitiser=None, bound=False, whole=False)
        assert ways == {"_keep_whole": 1, "_keep_rest": 7}, dialect


def test_without_a_look_at_other_conversations_the_ways_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    todo = [("twins", 0), ("ask", 0)]
    assert not differs(todo)
    monkeypatch.setattr(Tree, "has_exchange", lambda *_: False)
    assert differs(todo)


def test_without_a_look_at_the_tree_a_history_is_followed_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    todo = [("ask", 8), ("delete", 1), ("ask", 1)]
    assert not differs(todo)
    monkeypatch.setattr(Tree, "is_current", lambda *_: True)
    with pytest.raises(KeyError):
        differs(todo)


def differs(todo: list[tuple[str, int]]) -> bool:
    kept, whole = (recorded("anthropic", todo, sanitiser=None, bound=False, whole=way)[0] for way in (False, True))
    return kept != whole


# -- bodies

ENTRIES: st.SearchStrategy[list[Json]] = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=8) | st.just([{"messages": [{}]}])}
    ),
    max_size=4,
)
OTHERS = st.dictionaries(st.sampled_from(["model", "tools", "a", "\n"]), ENTRIES | st.text(max_size=5), max_size=3)
FORMS: list[Json] = [{}, {"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": False}]


def written(before: Json, entries: Json, after: Json, form: Json) -> bytes:
    after = {name: value for name, value in after.items() if name not in before}
    return json.dumps({**before, "messages": entries, **after}, **form).encode()


@settings(max_examples=examples(300), deadline=None)
@given(ENTRIES, ENTRIES, OTHERS, OTHERS, OTHERS, st.sampled_from(FORMS))
def test_a_grown_body_says_what_all_of_it_says(
    old: Json, new: Json, before: Json, after: Json, later: Json, form: Json
) -> None:
    first = locate(written(before, old, after, form), "messages")
    assert (first is None) == (not old)
    data = written(before, old + new, later, form)
    if first is None or not first.begins(data):
        return
    found = read_extension(first, data)
    assert (found is None) == (not new)
    if found is not None:
        assert found.entries == new
        assert found.body == locate(data, "messages")
        assert found.body.without_entries() | {"messages": old + new} == json.loads(data)


@settings(max_examples=examples(300), deadline=None)
@given(ENTRIES.filter(bool), ENTRIES.filter(bool), st.data())
def test_a_body_that_is_no_json_or_says_it_twice_is_not_grown(old: Json, new: Json, data: st.DataObject) -> None:
    first = locate(written({}, old, {"model": "m"}, {}), "messages")
    assert first is not None
    body = written({}, old + new, {"model": "m"}, {})
    cut = data.draw(st.integers(first.end, len(body)))
    put = data.draw(st.sampled_from([b"", b"]", b"}", b",", b'"', b"{", b',"messages":[{}]', b"\xff", b"1"]))
    changed = body[:cut] + put + body[data.draw(st.integers(cut, len(body))) :]
    found = read_extension(first, changed) if first.begins(changed) else None
    if found is not None and is_readable(found.body):
        assert json.loads(changed)["messages"] == old + found.entries


def is_readable(body: Body) -> bool:
    """The fields behind the history are read when they are not those of the earlier body."""
    try:
        body.without_entries()
    except ValueError:
        return False
    return True


def test_a_list_of_the_same_bytes_elsewhere_is_not_taken_for_the_history() -> None:
    twin = [{"role": "user", "content": "hi"}]
    for body in ({"tools": twin, "messages": twin}, {"tools": json.dumps(twin), "messages": twin}):
        data = json.dumps(body).encode()
        found = locate(data, "messages")
        assert found is None or (data[: found.start] + data[found.end :]).count(b"hi") == 1


def test_requests_are_held_within_bounds() -> None:
    sent = SentRequests(max_requests=3, max_bytes=1000)
    for n in range(10):
        sent.add(a_request(n, 10))
    assert [sent.find(a_request(n, 10).body.data + b"}") is not None for n in range(10)] == [False] * 7 + [True] * 3
    sent.add(a_request(99, 900))
    assert [n for n in range(10) if sent.find(a_request(n, 10).body.data + b"}")] == [9]
    sent.add(a_request(100, 2000))
    assert sent.find(a_request(100, 2000).body.data + b"}") is None


def a_request(n: int, size: int) -> SentRequest:
    body = locate(json.dumps({"messages": [{"n": n, "content": "x" * size}]}).encode(), "messages")
    assert body is not None
    nowhere: Any = None
    return SentRequest(body, [], Setup(), None, nowhere, nowhere)


def test_a_purged_conversation_leaves_no_body_behind() -> None:
    with hitherto.open("memory:") as store:
        traffic = Traffic(store, "openai-chat")
        try:
            traffic.do("ask", 0)
            [info] = store.conversations().items
            store.purge(info.id, reason="user-requested")
            traffic.do("ask", 1)
            assert len(store.conversations().items) == 1
            [recorder] = hitherto.recording(traffic.client)._all()
            assert [one.recorded.talk.id for one in recorder.sent._requests] != [info.id]
        finally:
            traffic.close()
        assert not recorder.sent._requests
