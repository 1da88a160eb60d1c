"""A checkpointer for LangGraph, beneath a stand-in for LangGraph where that is not installed.

`make test-frameworks ADAPTERS=langgraph` runs LangGraph's conformance kit and its tests of graphs.
"""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import hitherto
from hitherto import Conversation, Key, Store
from hitherto.adapters._opening import import_framework
from hitherto.errors import (
    AlreadyExists,
    Busy,
    Closed,
    Damaged,
    Held,
    HithertoError,
    InvalidArgument,
    MissingExtra,
    NotFound,
    ReadOnly,
    StorageFull,
)
from hitherto.formats.importers._langchain_messages import to_message

from ..support.databases import new_database
from .standins import langgraph as standin
from .standins.langgraph import Message

if TYPE_CHECKING:
    from hitherto.adapters.langgraph import Saver

Config = dict[str, Any]
ODD = "a/b\0c\ud800 %"
LONG = "x" * 5_000


@pytest.fixture(autouse=True)
def framework(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    standin.install(monkeypatch)
    from hitherto.adapters import langgraph  # with the stand-in in place

    return langgraph


@pytest.fixture(params=["sqlite", "sealed", "memory", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "postgres":
        opened = hitherto.open(new_database().url())
    elif request.param == "memory":
        opened = hitherto.open("memory:")
    else:
        opened = hitherto.open(tmp_path / "c.db", key=Key.generate() if request.param == "sealed" else None)
    with opened:
        yield opened


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Store]:
    with hitherto.open(tmp_path / "c.db") as opened:
        yield opened


def saver_of(store: Store, **how: Any) -> "Saver":
    from hitherto.adapters.langgraph import Saver  # with the stand-in in place

    return Saver(store, **how)


def human(text: str, **fields: Any) -> Message:
    return Message("human", text, **fields)


def ai(text: object, **fields: Any) -> Message:
    return Message("ai", text, **fields)


class Graph:
    """Checkpoints of a thread, as LangGraph makes them: each one has the last one as its parent."""

    _numbers = count(1)

    def __init__(self, saver: "Saver", thread: object = "t", namespace: str = "") -> None:
        self.saver, self.versions = saver, dict[str, str]()
        self.config: Config = {"configurable": {"thread_id": thread, "checkpoint_ns": namespace}}

    def put(self, changed: dict[str, Any], same: dict[str, Any] | None = None, **metadata: object) -> Config:
        new = {name: self.saver.get_next_version(self.versions.get(name), None) for name in changed}
        self.versions = {**self.versions, **new}
        checkpoint = {
            "v": 4,
            "id": f"{next(self._numbers):08}",
            "ts": "now",
            "channel_values": {**(same or {}), **changed},
            "channel_versions": dict(self.versions),
            "versions_seen": {},
            "updated_channels": list(changed),
        }
        self.config = self.saver.put(self.config, checkpoint, metadata, new)
        return self.config

    def values(self, config: Config | None = None) -> Any:
        found = self.saver.get_tuple(config or self.config)
        assert found is not None
        return found.checkpoint["channel_values"]


def texts(store: Store, thread: str = "t") -> list[str]:
    talk = store.find(thread, kind="langgraph")
    assert talk is not None
    return [message.text for message in talk.thread()]


def count_of(store: Store, thread: str = "t") -> int:
    talk = store.find(thread, kind="langgraph")
    assert talk is not None
    return talk.count


def items_of(store: Store, prefix: str = "", thread: str = "t") -> list[str]:
    talk = store.find(thread, kind="langgraph")
    assert talk is not None
    return [item.name for item in talk.items.scan(prefix)]


# -- checkpoints


def test_what_is_put_comes_back_equal_and_in_another_process_too(store: Store) -> None:
    saver = saver_of(store)
    values = {
        "messages": [human("Why?"), ai("Because.")],
        "n": 1,
        "deep": {"a": [b"x", {1, 2}, None]},
        "long": "z" * 999,
    }
    config = Graph(saver).put(values, step=3, run_id="r")
    for other in (saver, saver_of(store)):
        found = other.get_tuple(config)
        assert found.checkpoint["channel_values"] == values
        assert found.metadata == {"step": 3, "run_id": "r"}
        assert (found.config, found.parent_config, found.pending_writes) == (config, None, [])
        assert other.get_tuple({"configurable": {"thread_id": "t"}}).config == config
    assert saver.get_tuple({"configurable": {"thread_id": "nobody"}}) is None


def test_messages_are_messages_of_the_conversation(store: Store) -> None:
    call = {"name": "read", "args": {"path": "a.py"}, "id": "call_1"}
    said = [
        human("Why does the build fail?"),
        ai("", tool_calls=[call], usage_metadata={"input_tokens": 7, "output_tokens": 2}),
        Message("tool", "an unused import", tool_call_id="call_1", status="error"),
        ai([{"type": "text", "text": "An unused "}, "import."]),
    ]
    Graph(saver_of(store)).put({"messages": said})
    talk = store.find("t", kind="langgraph")
    assert talk is not None
    question, calling, result, answer = talk.thread()
    assert (question.role, question.text) == ("user", "Why does the build fail?")
    assert (calling.role, calling.blocks[0].tool_name, calling.blocks[0].arguments) == (
        "assistant",
        "read",
        call["args"],
    )
    assert calling.usage is not None
    assert (calling.usage.input_tokens, calling.usage.output_tokens) == (7, 2)
    assert (result.role, result.blocks[0].id, result.tool_result_error) == ("tool_result", "call_1", True)
    assert answer.text == "An unused import."
    assert [hit.conversation for hit in store.search("unused import")][:1] == [talk.id]
    assert [info.key for info in store.conversations(kind="langgraph").items] == ["t"]
    assert store.conversations().items == []


def test_a_list_costs_what_is_new_in_it(plain: Store) -> None:
    saver, said = saver_of(plain), list[Message]()
    graph = Graph(saver)
    sizes = []
    for number in range(40):
        said = [*said, human(f"question {number}"), ai("an answer " * 50)]
        graph.put({"messages": said}, step=number)
        talk = plain.find("t", kind="langgraph")
        assert talk is not None
        sizes.append(plain.conversations(kind="langgraph").items[0].size)
        assert talk.count == 2 * (number + 1)
    assert sizes[39] - sizes[29] < 1.2 * (sizes[19] - sizes[9])
    assert graph.values()["messages"] == said


def test_a_message_that_is_changed_in_place_is_stored_as_it_is_now(store: Store) -> None:
    graph = Graph(saver_of(store))
    said = [human("Why?"), ai("Because.")]
    first = graph.put({"messages": said})
    vars(said[1])["additional_kwargs"]["seen"] = True
    graph.put({"messages": [*said, human("And?")]})
    assert vars(graph.values()["messages"][1])["additional_kwargs"] == {"seen": True}
    assert vars(graph.values(first)["messages"][1])["additional_kwargs"] == {}


def test_edits_cuts_and_forks_come_back_as_they_were(store: Store) -> None:
    saver = saver_of(store)
    graph = Graph(saver)
    a, b, c, d = human("a"), ai("b"), human("c"), ai("d")
    states = [
        [a, b],
        [a, b, c, d],
        [a, ai("edited"), c, d],
        [c, d],
        [c, d, human("e")],
        [d],
        [],
        [human("new")],
        [a, b],
    ]
    configs = [graph.put({"messages": state}) for state in states]
    graph.config = configs[0]
    configs.append(graph.put({"messages": [a, b, human("fork")]}))
    for other in (saver, saver_of(store)):
        found = [other.get_tuple(config).checkpoint["channel_values"]["messages"] for config in configs]
        assert found == [*states, [a, b, human("fork", id=vars(found[-1][2])["id"])]]
    assert texts(store) == ["a", "b", "fork"]


def test_a_cut_list_stores_nothing_twice(plain: Store) -> None:
    graph = Graph(saver_of(plain))
    said = [human(str(number)) for number in range(30)]
    for end in range(10, 30):
        graph.put({"messages": said[end - 10 : end]})
    assert count_of(plain) == 29
    assert graph.values()["messages"] == said[19:29]


def test_a_subgraph_begins_with_what_its_graph_has_said_and_stays_off_the_main_flow(store: Store) -> None:
    saver = saver_of(store)
    said = [human("Ask the reviewer."), ai("I do.")]
    graph, inner = Graph(saver), Graph(saver, namespace="reviewer:0b7a")
    graph.put({"messages": said})
    reviewed = [*said, ai("It is fine.", name="reviewer")]
    inner.put({"messages": reviewed})
    assert count_of(store) == 3
    assert texts(store) == ["Ask the reviewer.", "I do."]
    graph.put({"messages": reviewed})
    assert texts(store) == ["Ask the reviewer.", "I do.", "It is fine."]
    assert inner.values()["messages"] == reviewed
    listed = [
        found.config["configurable"]["checkpoint_ns"] for found in saver.list({"configurable": {"thread_id": "t"}})
    ]
    assert listed == ["", "reviewer:0b7a", ""]


def test_lists_of_several_channels_are_kept_apart(store: Store) -> None:
    graph = Graph(saver_of(store))
    values = {"notes": [human("n1")], "messages": [human("m1"), ai("m2")], "more": [ai("o1")]}
    graph.put(values)
    graph.put({"notes": [*values["notes"], ai("n2")]}, same=values)
    assert graph.values() == {**values, "notes": [*values["notes"], graph.values()["notes"][1]]}
    assert texts(store) == ["m1", "m2"]


def test_a_value_is_stored_once_for_all_its_checkpoints(store: Store) -> None:
    graph = Graph(saver_of(store))
    graph.put({"plan": "p" * 2_000, "n": 0})
    for number in range(5):
        graph.put({"n": number}, same={"plan": "p" * 2_000})
    assert len(items_of(store, "v/")) == 1
    assert graph.values() == {"plan": "p" * 2_000, "n": 4}


def test_writes_come_back_in_the_order_in_which_they_are_applied(store: Store) -> None:
    saver = saver_of(store)
    config = Graph(saver).put({"n": 1})
    saver.put_writes(config, [("b", 1), ("__error__", "first")], "task-1", "~path 2")
    saver.put_writes(config, [("a", 2)], "task-2", "~path 1")
    saver.put_writes(config, [("b", "not again"), ("__error__", "second"), ("c", "z" * 5_000)], "task-1", "~path 2")
    found = saver.get_tuple(config).pending_writes
    assert found == [
        ("task-2", "a", 2),
        ("task-1", "__error__", "second"),
        ("task-1", "b", 1),
        ("task-1", "c", "z" * 5_000),
    ]


def test_versions_rise_and_no_two_branches_have_the_same() -> None:
    saver = saver_of(hitherto.open("memory:"))
    for first in (None, 7, "00000000000000000000000000000009.0.1234"):
        found: list[Any] = [first]
        for _ in range(30):
            found.append(saver.get_next_version(found[-1], None))
        assert found[2:] == sorted(found[2:])
        assert not isinstance(first, str) or first < found[1]
    assert saver.get_next_version(None, None) != saver.get_next_version(None, None)


def test_a_listing_has_filters_a_limit_and_a_place_to_begin_before(store: Store) -> None:
    saver = saver_of(store)
    graph, other = Graph(saver), Graph(saver, "u")
    configs = [graph.put({"n": number}, kind="odd" if number % 2 else "even") for number in range(5)]
    last = other.put({"n": 9})
    assert [found.config for found in saver.list(None)] == [last, *reversed(configs)]
    asked = {"configurable": {"thread_id": "t"}}
    assert [found.config for found in saver.list(asked, filter={"kind": "even"}, limit=2)] == [configs[4], configs[2]]
    assert [found.config for found in saver.list(asked, before=configs[2])] == [configs[1], configs[0]]
    assert list(saver.list(asked, limit=0)) == list(saver.list({"configurable": {"thread_id": "nobody"}})) == []


def test_a_delta_channel_is_rebuilt_from_its_newest_value_and_the_writes_since(store: Store) -> None:
    saver = saver_of(store)
    graph = Graph(saver)
    said = [human("a")]
    graph.put({"log": standin.DeltaSnapshot(said), "n": 0})
    configs = []
    for number in range(3):
        saver.put_writes(graph.config, [("log", number), ("n", 1)], f"task-{number}")
        graph.versions["log"] = f"{number + 2:010}.x"
        configs.append(graph.put({"n": number}, counters_since_delta_snapshot={"log": (1, 1)}))
    found = saver.get_delta_channel_history(config=graph.config, channels=["log", "n"])
    assert found["log"] == {"seed": standin.DeltaSnapshot(said), "writes": [(f"task-{n}", "log", n) for n in range(3)]}
    assert found["n"]["seed"] == 1
    saver.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, _empty("00000000"), {}, {})
    saver.prune(["t"])
    assert saver.get_delta_channel_history(config=graph.config, channels=["log"])["log"] == found["log"]
    assert len(items_of(store, "k/")) == 4


def _empty(id: str) -> dict[str, Any]:
    return {"v": 4, "id": id, "ts": "", "channel_values": {}, "channel_versions": {}, "versions_seen": {}}


# -- threads


def test_deleting_a_thread_leaves_nothing_of_it(store: Store) -> None:
    saver = saver_of(store)
    Graph(saver).put({"messages": [human("secret")]})
    saver.delete_thread("t")
    saver.delete_thread("nobody")
    assert saver.get_tuple({"configurable": {"thread_id": "t"}}) is None
    assert store.find("t", kind="langgraph") is None
    assert list(store.search("secret")) == []


def test_a_copy_is_a_thread_of_its_own(store: Store) -> None:
    saver = saver_of(store)
    graph = Graph(saver)
    said = [human("a"), ai("b")]
    graph.put({"messages": said, "plan": "p" * 2_000})
    saver.put_writes(graph.config, [("n", 1)], "task")
    for target in ("u", LONG):
        saver.copy_thread("t", target)
        found = saver.get_tuple({"configurable": {"thread_id": target}})
        assert found.config["configurable"]["thread_id"] == target
        assert found.checkpoint["channel_values"] == {"messages": said, "plan": "p" * 2_000}
        assert found.pending_writes == [("task", "n", 1)]
    saver.delete_thread("t")
    assert saver.get_tuple({"configurable": {"thread_id": "u"}}).checkpoint["channel_values"]["messages"] == said
    with pytest.raises(NotFound):
        saver.copy_thread("t", "v")
    with pytest.raises(AlreadyExists):
        saver.copy_thread("u", LONG)


def test_pruning_keeps_the_latest_and_erases_what_no_other_needs(store: Store) -> None:
    saver = saver_of(store)
    graph = Graph(saver)
    said = [human("a"), ai("b"), human("c")]
    graph.put({"messages": [*said[:2], human("an edited secret")], "plan": "an old secret" * 50})
    saver.put_writes(graph.config, [("n", "a written secret" * 50)], "task")
    inner = Graph(saver, namespace="reviewer:1")
    inner.put({"n": 1}, parents={"": graph.config["configurable"]["checkpoint_id"]})
    graph.put({"messages": said, "plan": "new" * 200})
    saver.put_writes(graph.config, [("n", 2)], "task")
    saver.prune(["t", "nobody"])
    found = list(saver.list({"configurable": {"thread_id": "t"}}))
    assert [one.config for one in found] == [graph.config]
    assert (found[0].parent_config, found[0].pending_writes) == (None, [("task", "n", 2)])
    assert found[0].checkpoint["channel_values"] == {"messages": said, "plan": "new" * 200}
    assert texts(store) == ["a", "b", "c"]
    assert (count_of(store), len(items_of(store, "v/")), len(items_of(store, "w/"))) == (3, 1, 1)
    graph.put({"messages": [*said, ai("d")]})
    assert len(graph.values()["messages"]) == 4
    saver.prune(["t"], strategy="delete")
    assert store.find("t", kind="langgraph") is None
    with pytest.raises(InvalidArgument):
        saver.prune(["t"], strategy="keep_some")
    with pytest.raises(InvalidArgument):
        saver.prune("t")


def test_runs_are_deleted_in_all_threads(store: Store) -> None:
    saver = saver_of(store)
    one, two = Graph(saver), Graph(saver, "u")
    one.put({"messages": [human("a")]}, run_id="keep")
    kept = one.config
    one.put({"messages": [human("a"), ai("gone")]}, run_id="r")
    two.put({"messages": [human("gone, too")]}, run_id="r")
    saver.delete_for_runs(["r"])
    saver.delete_for_runs([])
    assert [found.config for found in saver.list(None)] == [kept]
    assert count_of(store) == 1
    assert store.find("u", kind="langgraph") is None


def test_a_thread_on_hold_is_kept_whole(plain: Store) -> None:
    saver = saver_of(plain)
    graph = Graph(saver)
    graph.put({"n": 1})
    graph.put({"n": 2})
    talk = plain.find("t", kind="langgraph")
    assert talk is not None
    talk.hold()
    with pytest.raises(Held):
        saver.prune(["t"])
    with pytest.raises(Held):
        saver.delete_thread("t")
    graph.put({"n": 3})
    assert len(list(saver.list(None))) == 3


# -- odd values, ids and states of the store


def test_any_thread_id_is_a_thread_of_its_own(store: Store) -> None:
    saver = saver_of(store)
    threads: list[object] = [LONG, LONG + "y", "a/b", "a%2Fb", "sha256:00", 7, "ünï", "nul\0", " "]
    for number, thread in enumerate(threads):
        Graph(saver, thread).put({"n": number})
    for number, thread in enumerate(threads):
        found = saver.get_tuple({"configurable": {"thread_id": thread}})
        assert found.checkpoint["channel_values"] == {"n": number}
    listed = {found.config["configurable"]["thread_id"] for found in saver.list(None)}
    assert listed == {str(thread) for thread in threads}
    for asked in ({"thread_id": ""}, {}, {"thread_id": None}):
        with pytest.raises(InvalidArgument):
            saver.get_tuple({"configurable": asked})


def test_any_namespace_task_and_channel_can_be_kept(store: Store) -> None:
    saver = saver_of(store)
    namespaces = ["", "/", "a/b:1|c:2", "nul\0", "deep:" * 400, "%"]
    configs = []
    for number, namespace in enumerate(namespaces):
        graph = Graph(saver, namespace=namespace)
        configs.append(graph.put({"n/\0": number, "messages": [human(str(number))]}))
        saver.put_writes(configs[-1], [("c\0/", number)], "task/\0" * 100)
    for number, config in enumerate(configs):
        found = saver.get_tuple(config)
        assert found.checkpoint["channel_values"]["n/\0"] == number
        assert found.pending_writes == [("task/\0" * 100, "c\0/", number)]
        assert [
            one.config for one in saver.list({"configurable": {**config["configurable"], "checkpoint_id": None}})
        ] == [config]


def test_a_chat_with_the_same_name_is_not_touched(store: Store) -> None:
    talk = store.ensure("t")
    talk.append(hitherto.Message.user("mine"))
    saver = saver_of(store)
    assert saver.get_tuple({"configurable": {"thread_id": "t"}}) is None
    Graph(saver).put({"messages": [human("theirs")]})
    saver.delete_thread("t")
    assert [message.text for message in talk.refresh().thread()] == ["mine"]


def test_a_huge_value_is_kept(plain: Store) -> None:
    saver = saver_of(plain)
    graph = Graph(saver)
    huge = bytes(range(256)) * 50_000
    said = [human("x" * 3_000_000) for _ in range(5)]
    graph.put({"blob": huge, "messages": said})
    saver.put_writes(graph.config, [("blob", huge)], "task")
    for other in (saver, saver_of(plain)):
        found = other.get_tuple(graph.config)
        assert found.checkpoint["channel_values"] == {"blob": huge, "messages": said}
        assert found.pending_writes == [("task", "blob", huge)]


def test_what_cannot_be_serialised_is_refused_and_leaves_nothing(store: Store) -> None:
    graph = Graph(saver_of(store))
    with pytest.raises(TypeError, match="cannot be serialised"):
        graph.put({"messages": [human("a")], "f": print})
    assert store.find("t", kind="langgraph") is None or items_of(store) == []


def test_what_cannot_be_read_is_an_error_and_never_none(store: Store) -> None:
    saver = saver_of(store)
    config = Graph(saver).put({"messages": [human("a")], "plan": "p" * 2_000})
    talk = store.find("t", kind="langgraph")
    assert talk is not None
    name = items_of(store, "v/")[0]
    value = talk.items[name]
    del talk.items[name]
    with pytest.raises(NotFound):
        saver_of(store).get_tuple(config)
    talk.items[name] = value
    record = items_of(store, "k/")[0]
    talk.items[record] = b"\xc1" + talk.items[record]
    with pytest.raises(Damaged):
        saver_of(store).get_tuple(config)
    with pytest.raises(Damaged):
        list(saver_of(store).list(None))


def test_a_lost_message_is_an_error(store: Store) -> None:
    config = Graph(saver_of(store)).put({"messages": [human("a"), ai("b")]})
    talk = store.find("t", kind="langgraph")
    assert talk is not None
    talk.pop()
    with pytest.raises(Damaged, match="missing"):
        saver_of(store).get_tuple(config)


def test_an_encrypting_serialiser_leaves_nothing_to_read(plain: Store) -> None:
    saver = saver_of(plain, serde=standin.EncryptedSerializer())
    graph = Graph(saver)
    graph.put({"messages": [human("a secret")]})
    assert vars(graph.values()["messages"][0])["content"] == "a secret"
    assert count_of(plain) == 0
    assert list(plain.search("secret")) == []


def test_a_store_that_cleans_is_refused_because_bytes_cannot_be_cleaned() -> None:
    store = hitherto.open("memory:", sanitiser=hitherto.Sanitiser.secrets())
    with store, pytest.raises(InvalidArgument, match="sanitiser"):
        saver_of(store)


def test_a_saver_used_after_close_says_so(tmp_path: Path) -> None:
    with saver_of(hitherto.open(tmp_path / "c.db")) as saver:
        graph = Graph(saver)
        graph.put({"n": 1})
    for call in (lambda: graph.put({"n": 2}), lambda: saver.get_tuple(graph.config), lambda: list(saver.list(None))):
        with pytest.raises(Closed):
            call()


def test_errors_carry_the_hint_of_the_store(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    with hitherto.open(path) as store:
        Graph(saver_of(store)).put({"n": 1})
    with hitherto.open(path, read_only=True) as store:
        saver = saver_of(store)
        assert Graph(saver).values() == {"n": 1}
        with pytest.raises(ReadOnly) as caught:
            Graph(saver).put({"n": 2})
        assert any("hint:" in note for note in caught.value.__notes__)


def test_a_put_that_is_too_much_leaves_nothing_half_written(store: Store) -> None:
    saver = saver_of(store)
    graph = Graph(saver)
    said = [human("a")]
    config = graph.put({"messages": said})
    before = items_of(store)
    store.set_quota(store.used_bytes + 1_000)
    with pytest.raises(StorageFull) as caught:
        graph.put({"messages": [*said, ai("b" * 2_000)], "plan": "p" * 2_000})
    assert isinstance(caught.value, HithertoError)
    assert (items_of(store), texts(store)) == (before, ["a"])
    store.set_quota(None)
    graph.config = config
    graph.put({"messages": [*said, ai("b" * 2_000)]})
    assert len(graph.values()["messages"]) == 2


@pytest.mark.parametrize("kind", ["sqlite", "sealed", "postgres"])
def test_a_busy_store_is_an_error_with_a_hint_and_nothing_is_half_written(kind: str, tmp_path: Path) -> None:
    if kind == "postgres":
        database = new_database()
        place, connection = database.url(), database.admin()
        lock = "BEGIN; SELECT 1 FROM hitherto.conversation FOR UPDATE"
    else:
        place, lock = os.fspath(tmp_path / "c.db"), "BEGIN IMMEDIATE"
    key = Key.generate() if kind == "sealed" else None
    with hitherto.open(place, key=key, maintenance=False, timeout_seconds=0.2) as store:
        saver = saver_of(store)
        graph = Graph(saver)
        said = [human("a")]
        config = graph.put({"messages": said, "plan": "p" * 2_000})
        before = items_of(store)
        with connection if kind == "postgres" else closing(apsw.Connection(place)) as other:
            other.execute(lock)
            with pytest.raises(Busy) as put:
                graph.put({"messages": [*said, ai("b")], "plan": "q" * 2_000})
            with pytest.raises(Busy) as put_writes:
                saver.put_writes(config, [("n", 1), ("plan", "q" * 2_000)], "task")
            other.execute("ROLLBACK")
        for caught in (put, put_writes):
            assert any("hint:" in note and "timeout_seconds" in note for note in caught.value.__notes__)
        assert (items_of(store), texts(store)) == (before, ["a"])
        assert saver.get_tuple(config).pending_writes == []
        saver.put_writes(config, [("n", 1)], "task")
        graph.put({"messages": [*said, ai("b")], "plan": "q" * 2_000})
        assert graph.values()["plan"] == "q" * 2_000
        assert texts(store) == ["a", "b"]
        assert store.verify().ok


def test_a_put_of_several_parts_that_becomes_busy_in_between_shows_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.db"
    begin = Conversation.batch
    said = {"notes": [human("n1")], "messages": [human("m1")]}
    more = {"notes": [*said["notes"], ai("n2")], "messages": [*said["messages"], ai("m2")], "plan": "p" * 5_000_000}
    with (
        hitherto.open(path, maintenance=False, timeout_seconds=0.2) as store,
        closing(apsw.Connection(os.fspath(path))) as other,
    ):
        saver = saver_of(store)
        graph = Graph(saver)
        config = graph.put(said)

        def busy(talk: Conversation) -> Any:
            other.execute("BEGIN IMMEDIATE")
            return begin(talk)

        with monkeypatch.context() as patch:
            patch.setattr(Conversation, "batch", busy)
            with pytest.raises(Busy):
                graph.put(more)
        other.execute("ROLLBACK")
        assert items_of(store, "v/"), "a part was written before"
        assert len(items_of(store, "k/")) == 1
        for reader in (saver, saver_of(store)):
            assert Graph(reader).values(config) == said
            assert len(list(reader.list(None))) == 1
        graph.put(more)
        assert graph.values()["plan"] == more["plan"]
        assert len(graph.values()["notes"]) == len(graph.values()["messages"]) == 2
        saver.prune(["t"])
        assert len(items_of(store, "v/")) == 2, "the parts of one value: those that never counted are gone"
        assert count_of(store) == 4
        assert store.verify().ok


def test_a_thread_that_another_process_deleted_begins_anew(store: Store) -> None:
    saver, other = saver_of(store), saver_of(store)
    graph = Graph(saver)
    said = [human("a"), ai("b")]
    graph.put({"messages": said})
    other.delete_thread("t")
    graph.put({"messages": [*said, human("c")]})
    assert len(graph.values()["messages"]) == 3


# -- threads, loops


def test_threads_put_at_once_and_lose_nothing(plain: Store) -> None:
    saver = saver_of(plain)
    said = [human("a"), ai("b")]
    found: list[Config] = []

    def run(number: int) -> None:
        graph, own = Graph(saver), list(said)
        for step in range(5):
            own = [*own, human(f"{number} {step}")]
            config = graph.put({"messages": own})
            saver.put_writes(config, [("n", step)], f"task {number}")
            found.append(config)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == len(list(saver.list(None))) == 20
    assert count_of(plain) == 22
    assert all(len(saver.get_tuple(config).pending_writes) == 1 for config in found)


def test_event_loops_come_and_go(store: Store) -> None:
    saver = saver_of(store)
    graph = Graph(saver)
    config = graph.put({"n": 1}, run_id="r")

    async def look() -> Any:
        return await saver.aget_tuple(config)

    async def write() -> None:
        await saver.aput_writes(config, [("n", 2)], "task")
        checkpoint = {**_empty("99999999"), "channel_values": {"n": 3}, "channel_versions": {"n": "1"}}
        await saver.aput(config, checkpoint, {}, {"n": "1"})

    async def rest() -> list[Any]:
        found = [one async for one in saver.alist(None, limit=1)]
        assert await saver.aget_delta_channel_history(config=found[0].config, channels=["n"])
        await saver.acopy_thread("t", "u")
        await saver.aprune(["u"])
        await saver.adelete_for_runs(["r"])
        await saver.adelete_thread("u")
        return found

    assert asyncio.run(look()).pending_writes == []
    asyncio.run(write())
    assert asyncio.run(look()).pending_writes == [("task", "n", 2)]
    assert [one.config["configurable"]["checkpoint_id"] for one in asyncio.run(rest())] == ["99999999"]
    assert [one.config["configurable"]["thread_id"] for one in saver.list(None)] == ["t"]


def test_it_takes_an_async_store_and_a_location(tmp_path: Path, framework: ModuleType) -> None:
    async def run() -> Config:
        async with hitherto.open_async(tmp_path / "c.db") as opened:
            return Graph(framework.Saver(opened)).put({"n": 1})

    config = asyncio.run(run())
    with framework.Saver(tmp_path / "c.db") as saver:
        assert saver.get_tuple(config).checkpoint["channel_values"] == {"n": 1}
        assert saver.with_allowlist(()).get_tuple(config).config == config
    with pytest.raises(InvalidArgument):
        framework.Saver(7)


# -- messages, and the framework itself


@pytest.mark.parametrize(
    ("fields", "role", "blocks"),
    [
        ({"type": "human", "content": "a"}, "user", [("content", "a")]),
        ({"type": "AIMessageChunk", "content": "a"}, "assistant", [("content", "a")]),
        ({"type": "system", "content": "a"}, "event", [("content", "a")]),
        ({"type": "chat", "role": "user", "content": "a"}, "user", [("content", "a")]),
        ({"type": "human", "content": "half \ud800"}, "user", [("content", "half ?")]),
        ({"type": "ai", "content": [{"type": "thinking", "thinking": "t"}]}, "assistant", [("thinking", "t")]),
        ({"type": "ai", "content": [{"type": "tool_use", "id": "c"}]}, "assistant", []),
        ({"type": "human", "content": [{"type": "odd"}, 7]}, "user", [("metadata", "odd")]),
        (
            {"type": "human", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
            "user",
            [("content", b"\0\0\0")],
        ),
        (
            {"type": "human", "content": [{"type": "image", "base64": "AAAA", "mime_type": "image/png"}]},
            "user",
            [("content", b"\0\0\0")],
        ),
        ({"type": "human", "content": [{"type": "image", "url": "https://x"}]}, "user", [("metadata", "image")]),
        (
            {"type": "human", "content": [{"type": "image", "base64": "?", "mime_type": "image/png"}]},
            "user",
            [("metadata", "image")],
        ),
        ({"type": "tool", "content": "", "tool_call_id": "c"}, "tool_result", [("content", "")]),
        ({}, "event", []),
        ({"type": 7, "content": 7, "tool_calls": 7, "usage_metadata": 7}, "event", []),
    ],
)
def test_messages_of_all_kinds_have_blocks_to_read(fields: dict[str, Any], role: str, blocks: list[Any]) -> None:
    message = to_message(fields, "key", ["msgpack", b""])
    assert (message.role, [(block.type, block.content) for block in message.blocks]) == (role, blocks)
    with hitherto.open("memory:") as store:
        assert store.start().append(message).raw == ["msgpack", b""]


def test_a_framework_that_is_missing_or_too_old_says_what_to_install() -> None:
    order = [sys.executable, "-c", "import hitherto.adapters.langgraph"]
    done = subprocess.run(order, capture_output=True, text=True, check=False)
    if done.returncode:
        assert "pip install 'hitherto[langgraph]'" in done.stderr
    with pytest.raises(MissingExtra) as caught:
        import_framework("pytest", "pytest", "langgraph", ">=4.3", "raises", "no_such_name")
    assert "no_such_name" in str(caught.value.__notes__)
