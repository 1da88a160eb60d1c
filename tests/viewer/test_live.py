"""What another process writes appears; an idle sealed store is locked. Requirement: H1."""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import hitherto
from hitherto import Key, Message, Store
from hitherto.viewer.access import Access

from ..support.serving import PATIENCE, Served, served
from .asking import Client
from .test_changes import send

WRITER = """
import sys, hitherto
with hitherto.open(sys.argv[1]) as store:
    store.conversation(sys.argv[2]).append(hitherto.Message.user("from afar"))
"""


@contextmanager
def listening(viewer: Served, path: str) -> Iterator[http.client.HTTPResponse]:
    with closing(http.client.HTTPConnection(urlsplit(viewer.address).netloc, timeout=PATIENCE)) as asking:
        asking.request("GET", viewer.door.removeprefix(viewer.address))
        cookie = (asking.getresponse().getheader("Set-Cookie") or "").split(";")[0]
    with closing(http.client.HTTPConnection(urlsplit(viewer.address).netloc, timeout=PATIENCE)) as asking:
        asking.request("GET", path, headers={"Cookie": cookie})
        with asking.getresponse() as stream:
            yield stream


def next_event(stream: http.client.HTTPResponse) -> tuple[str, object]:
    kind = ""
    while True:
        line = stream.readline().decode().strip()
        if line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            return kind, json.loads(line[6:])


def test_what_another_process_writes_is_told(store: Store, tmp_path: Path) -> None:
    talk, quiet = store.start(), store.start()
    talk.append(Message.user("x"))
    with served(store) as viewer, listening(viewer, f"/events?conversation={talk.id}") as stream:
        assert stream.getheader("content-type", "").startswith("text/event-stream")
        assert stream.readline() == b"retry: 2000\n"
        time.sleep(1.2)  # the first look only marks the place: a change before it is no news
        quiet.append(Message.user("not for this page"))
        place = store.engine.backend.info.location
        subprocess.run([sys.executable, "-c", WRITER, place, talk.id], check=True)
        assert next_event(stream) == ("changed", [talk.id])


def test_a_page_of_a_store_that_is_only_read_hears_what_changed_and_nothing_else(tmp_path: Path) -> None:
    """Such a store has no feed of changes."""
    with hitherto.open(tmp_path / "x.db") as writer:
        talk = writer.start()
        talk.append(Message.user("x"))
        with (
            hitherto.open(tmp_path / "x.db", read_only=True) as reader,
            served(reader) as viewer,
            listening(viewer, "/events") as stream,
        ):
            heard: list[tuple[str, object]] = []
            thread = threading.Thread(target=lambda: heard.append(next_event(stream)))
            thread.start()
            time.sleep(3)  # two looks at least, which would both say that everything changed
            assert heard == []
            talk.append(Message.user("y"))
            thread.join(PATIENCE)
            assert heard == [("changed", ["*"])]


def test_a_new_result_joins_the_window_that_ends_with_its_call(store: Store, client: Client) -> None:
    talk = store.start()
    talk.append(Message.assistant(hitherto.Block.tool_call("c", "ls", {})))
    leaf = client.get(f"/c/{talk.id}.json").json()["leaf"]
    talk.append(Message.tool_result("c", "one.py"))
    part = client.get(f"/c/{talk.id}/m/{leaf}/window?from=1&count=100")
    assert part.headers["x-length"] == "2"
    assert 'data-start="0"' in part.text
    assert "one.py" in part.text


@pytest.fixture
def key() -> Key:
    return Key(b"k" * 32)


def test_an_idle_sealed_store_is_locked_and_asks_for_its_key_again(tmp_path: Path, key: Key) -> None:
    place, fetched = tmp_path / "sealed.db", []
    with hitherto.open(place, key=key) as store:
        talk = store.start(title="Between us")
        talk.append(Message.user("secret words"))

    def open_store() -> Store:
        fetched.append(1)
        return hitherto.open(place, key=key, maintenance=False)

    access = Access(open_store, idle_seconds=0.4)
    try:
        client = Client(None, access=access)
        assert "Between us" in client.get("/").text
        deadline = time.monotonic() + PATIENCE
        while access.peek() is not None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        locked = client.get(f"/c/{talk.id}")
        assert locked.status == 423
        assert "Between us" not in locked.text
        assert client.get("/index.json").status == 423
        assert client.ask("POST", "/unlock", b"secret=guess", sec_fetch_site="same-origin").status == 403
        assert len(fetched) == 1
        assert send(client, "/", "/unlock").status == 303
        assert len(fetched) == 2
        assert "secret words" in client.get(f"/c/{talk.id}").text
    finally:
        access.close()
    assert access.peek() is None


def test_a_plain_store_and_one_in_use_are_not_locked(store: Store, tmp_path: Path, key: Key) -> None:
    plain = Access(lambda: store, idle_seconds=0.01)
    sealed = Access(lambda: hitherto.open(tmp_path / "s.db", key=key), idle_seconds=0.6)
    try:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            assert sealed.view is not None
            time.sleep(0.02)
        assert plain.peek() is not None
    finally:
        sealed.close()


def test_a_key_that_is_gone_leaves_it_locked(tmp_path: Path, key: Key) -> None:
    given = [key]
    hitherto.open(tmp_path / "s.db", key=key).close()
    access = Access(lambda: hitherto.open(tmp_path / "s.db", key=given[0], maintenance=False), idle_seconds=1000)
    client = Client(None, access=access)
    access.lock()
    given[0] = Key(b"x" * 32)
    assert send(client, "/", "/unlock").status == 423
    assert client.get("/").status == 423
    given[0] = key
    send(client, "/", "/unlock")
    assert client.get("/").status == 200
    access.close()
