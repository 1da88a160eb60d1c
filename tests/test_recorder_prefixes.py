"""A request that begins with the bytes of an earlier one is read from there on, and kept as if all of it were read.

The same traffic is recorded twice: once as it is, and once with every body read as a whole. Both stores have to be the
same. Requirements: C10, C11.
"""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import hitherto
from hitherto import Sanitiser, Store
from hitherto.recorder import _requests
from hitherto.recorder._recorder import Place
from hitherto.recorder._sent import SentRequests

from ._thorough import examples
from ._traffic import DIALECTS, Traffic, steps

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
        def counting(*args: Any) -> Any:
            found = function(*args)
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
@settings(max_examples=examples(150), deadline=None)
def test_both_ways_keep_the_same_tree(dialect: str, todo: list[tuple[str, int]], is_clean: bool, bound: bool) -> None:
    sanitiser = Sanitiser.secrets() if is_clean else None
    if bound:
        todo = [step for step in todo if step[0] != "purge"]
    kept, ways = recorded(dialect, todo, sanitiser=sanitiser, bound=bound, whole=False)
    event(f"read in part: {min(ways['_keep_rest'], 5)}")
    assert kept == recorded(dialect, todo, sanitiser=sanitiser, bound=bound, whole=True)[0]
