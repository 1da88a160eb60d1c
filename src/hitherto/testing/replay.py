"""A pytest fixture that answers from a kept conversation in place of a provider: agents are tested without a network.

In `conftest.py`:

    from hitherto.testing.replay import replay  # noqa: F401

In a test:

    def test_my_agent(replay):
        with replay("tests/data/chats.db", "6f1c"):  # a store, and a conversation in it; without one the newest
            assert run_my_agent("Why is the build failing?") == "An unused import breaks the lint step."

Within the block the variables by which the SDKs of Anthropic, OpenAI and Google find their provider lead to a server on
127.0.0.1. A request that was not kept is an error for the agent, and fails the test with the first difference.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from .._system import local_server
from ..conversation import Conversation
from ..errors import InvalidArgument
from ..gateway.child import child_environment
from ..gateway.replaying import Replay, Replaying
from ..gateway.server import configure
from ..gateway.upstreams import parse_upstreams
from ..keys import Key
from ..opening import open as open_store

__all__ = ["Replayed", "replay", "serve_replay"]


class Replayed:
    """A provider that answers from a conversation."""

    def __init__(self, kept: Replay, environment: Mapping[str, str]) -> None:
        self._kept = kept
        self.environment = environment  # the variables that lead to it, for programs that a test starts
        self.anthropic = environment["ANTHROPIC_BASE_URL"]
        self.openai = environment["OPENAI_BASE_URL"]
        self.gemini = environment["GOOGLE_GEMINI_BASE_URL"]

    @property
    def misses(self) -> list[str]:
        """The requests so far that were not kept, and where they differ."""
        return list(self._kept.misses)


@contextmanager
def serve_replay(talk: Conversation, *, ignore: Iterable[str] = ()) -> Iterator[Replayed]:
    """Answer from a conversation until the end of the block. `ignore` has regular expressions of what may differ in a
    request."""
    kept = Replay(talk, ignore=ignore)
    listening = local_server.listen(0)
    address = f"http://{local_server.LOOPBACK}:{listening.port}"
    environment = child_environment(address, parse_upstreams(()), {})
    with listening.socket, local_server.serve_in_thread(configure(Replaying(kept)), listening):
        yield Replayed(kept, environment)


Start = Callable[..., AbstractContextManager[Replayed]]


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Start:
    """A function that answers from a conversation of a store, within a block."""

    @contextmanager
    def start(
        place: "str | Path | Conversation", id: str | None = None, *, key: Key | None = None, ignore: Iterable[str] = ()
    ) -> Iterator[Replayed]:
        if isinstance(place, Conversation):
            with _patched(place, ignore, monkeypatch) as found:
                yield found
            return
        with open_store(place, key=key, read_only=True) as store:
            talk = store.latest() if id is None else store.conversation(id)
            if talk is None:
                raise InvalidArgument("there is no conversation to replay", hint="record one first: hitherto run -- …")
            with _patched(talk, ignore, monkeypatch) as found:
                yield found

    return start


@contextmanager
def _patched(talk: Conversation, ignore: Iterable[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Replayed]:
    with serve_replay(talk, ignore=ignore) as found, monkeypatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        if any(os.environ.get(name) for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")):
            patch.setenv("NO_PROXY", "127.0.0.1,localhost")
        yield found
    if found.misses:
        pytest.fail("not kept: " + "; ".join(found.misses), pytrace=False)
