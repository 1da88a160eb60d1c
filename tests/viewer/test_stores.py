"""Every kind of store behind the pages, and stores that go wrong while a page is open. Requirement: H1."""

import http.client
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import apsw
import pytest

import hitherto
from hitherto import Key, Message, NotFound, ReadOnly, Store
from hitherto.viewer.access import Access

from ..support import scenes
from ..support.serving import PATIENCE, served
from .asking import Client

KEY = Key(b"k" * 32)


def test_the_list_says_when_the_store_was_found_sound(opened: tuple[Store, Store]) -> None:
    writer, reader = opened
    client = Client(reader)
    assert "not verified yet" in client.get("/").text
    assert writer.verify().ok
    assert client.get("/index.json").json()["store"]["verified_at"] is None  # looking alone writes nothing
    before = datetime.now(UTC)
    assert writer.verify(note=True).ok
    found = client.get("/index.json").json()["store"]
    assert before - timedelta(seconds=1) < datetime.fromisoformat(found["verified_at"]) <= datetime.now(UTC)
    assert found["sealed"] == (writer.key_id is not None)
    assert found["read_only"] == (reader.read_only is not None)
    page = client.get("/").text
    assert "verified <time" in page
    assert ("a sealed store" in page) == found["sealed"]
    if reader.read_only:
        with pytest.raises(ReadOnly):
            reader.verify(note=True)


def test_a_store_with_problems_keeps_no_time(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "x.db") as store:
        store.start().append(Message.user("x"))
    with closing(apsw.Connection(str(tmp_path / "x.db"))) as connection:
        connection.execute("UPDATE conversation SET count = count + 1 WHERE kind = 'chat'")
    with hitherto.open(tmp_path / "x.db", maintenance=False) as store:
        assert not store.verify(note=True).ok
        assert Client(store).get("/index.json").json()["store"]["verified_at"] is None


def test_every_kind_of_store_is_shown(opened: tuple[Store, Store]) -> None:
    writer, reader = opened
    talk = writer.latest() or scenes.coding(writer)
    client = Client(reader)
    assert "Why does the build fail?" in client.get("/").text
    page = client.get(f"/c/{talk.id}").text
    assert "unused import" in page
    assert "Summed up here" in page
    found = client.get("/search.json?q=generated").json()
    assert found["hits"]
    assert client.get(f"/c/{talk.id}/m/{found['hits'][0]['message']}").status == 200
    assert len(client.get(f"/c/{talk.id}/map.json").json()["rows"]) == 6
    leaf = client.get(f"/c/{talk.id}.json").json()["leaf"]
    assert client.get(f"/c/{talk.id}/m/{leaf}/find.json?q=json").json()["ids"]
    assert client.get(f"/c/{talk.id}/usage.json").json()["tree"]["answers"] == 3
    assert client.get("/retention.json").json()["total"] == 1
    assert client.get(f"/c/{talk.id}/export/file?redact=1").status == 200
    image = next(m for m in talk.thread(full=True) if any(b.modality == "image" for b in m.blocks))
    place = next(n for n, b in enumerate(image.blocks) if b.modality == "image")
    assert client.get(f"/c/{talk.id}/m/{image.id}/media/{place}").body == scenes.png()
    said = writer.conversation(talk.id).append(Message.user("said meanwhile"))
    assert "said meanwhile" in client.get(f"/c/{talk.id}/m/{said.id}").text  # the tree that was remembered is not used
    writer.purge(talk.id, reason="user-requested")
    assert client.get(f"/c/{talk.id}").status == 404
    assert "Why does the build fail?" not in client.get("/").text


def test_a_key_that_was_rotated_while_a_page_is_open(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "s.db", key=KEY) as writer, hitherto.open(tmp_path / "s.db", key=KEY) as reader:
        talk = writer.start(title="Between us")
        talk.append(Message.user("secret words"))
        client = Client(reader)
        assert "secret words" in client.get(f"/c/{talk.id}").text
        writer.rotate(Key(b"n" * 32))
        shown = client.get(f"/c/{talk.id}")
        assert shown.status in (200, 423)
        assert client.get("/").status in (200, 423)


def test_what_cannot_be_read_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with hitherto.open(path, key=KEY, maintenance=False) as store:
        talk = store.start(title="Damaged")
        saved = [talk.append(Message.user(f"number {n}.")) for n in range(3)]
        with closing(apsw.Connection(str(path))) as raw:
            table = next(name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE name LIKE 'message%'"))
            number = store.engine.message_ids.number(saved[1].id)
            columns = [row[1] for row in raw.execute(f"PRAGMA table_info({table})")]
            key = next(name for name in ("number", "id") if name in columns)
            raw.execute(f"UPDATE {table} SET body = zeroblob(length(body)) WHERE {key} = ?", (number,))
    with hitherto.open(path, key=KEY, maintenance=False) as store:
        page = Client(store).get(f"/c/{talk.id}")
        assert page.status == 200
        assert "number 0." in page.text
        assert "number 2." in page.text
        assert "This cannot be read as it was written" in page.text


def test_hints_of_a_page_name_no_functions_of_the_library(store: Store, client: Client) -> None:
    store.start().append(Message.user("x"))
    assert "store." in (NotFound.hint or "")  # the control: it is what a program reads
    for path in ("/c/unknown", "/c/unknown.json"):
        answer = client.get(path)
        assert answer.status == 404
        assert "store." not in answer.text
        assert "the list has everything that is here" in answer.text


def test_a_store_that_is_gone_is_an_error_with_a_hint_and_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with hitherto.open(path) as store:
        talk = store.start()
        talk.append(Message.user("x"))
        client = Client(store)
        store.close()
        for where in ("/", f"/c/{talk.id}", "/index.json", "/search?q=x", "/retention"):
            answer = client.get(where)
            assert answer.status == 503
            assert "Traceback" not in answer.text


def test_a_file_that_is_gone_or_replaced_is_not_shown_any_more(tmp_path: Path) -> None:
    """Who has a file open can read it after it was deleted: the page must not."""
    path, other = tmp_path / "chats.db", tmp_path / "other.db"
    with hitherto.open(path) as store:
        store.start(title="was here").append(Message.user("x"))
        store.backup(tmp_path / "kept.db")
    with hitherto.open(other) as store:
        store.start(title="is here now").append(Message.user("y"))
    access = Access(lambda: hitherto.open(path, create=False, maintenance=False))
    client = Client(None, access=access)
    try:
        assert "was here" in client.get("/").text
        path.unlink()
        for where in ("/", "/index.json", "/search?q=x"):
            answer = client.get(where)
            assert answer.status == 503
            assert "was here" not in answer.text
            assert "Unlock" not in answer.text
        other.rename(path)
        assert "is here now" in client.get("/").text
        (tmp_path / "kept.db").rename(path)
        assert "was here" in client.get("/").text
    finally:
        access.close()


@pytest.mark.parametrize(
    "path",
    [
        "/c/%00", "/c/" + "x" * 5000, "/c/..%2f..%2fetc", "/c/@", "/?cursor=%ff", "/?kind=%00", "/?kind=" + "k" * 5000,
        "/?project=%00", "/search?q=%22", "/search?q=" + "a+" * 3000, "/search?q=x&role=%00",
        "/search?q=x&offset=99999999",
        "/search?q=x&offset=99999999999999", "/usage?days=0", "/usage?days=-1", "/usage?days=99999999", "/?label=%00",
        "/?label=" + "l" * 100_000, "/static/a/b", "/c/a/m/b/media/99999999999999999999", "//", "/\u00e9",
    ],
)  # fmt: skip
def test_odd_addresses_are_answered_and_never_break(store: Store, client: Client, path: str) -> None:
    store.start().append(Message.user("x"))
    answer = client.get(path)
    assert answer.status < 500
    assert "Traceback" not in answer.text


def test_odd_places_in_a_conversation_are_answered(store: Store, client: Client) -> None:
    talk = scenes.coding(store)
    head = talk.head
    for rest in (
        "?from=99999", "?from=-1", "?count=0", "?count=100000", "/map?at=nothing", "/compare", "/compare?left=a&right=",
        f"/compare?left={head}&right={head}", f"/m/{head}/text?block=99", f"/m/{head}/media/0",
        f"/m/{head}/window?from=9",
        f"/m/{head}/find.json", "/export?at=nothing", "/export/file?at=nothing", f"/m/{head}x", "/usage.json?at=x",
    ):  # fmt: skip
        assert client.get(f"/c/{talk.id}{rest}").status < 500, rest
    empty = store.start()
    for rest in ("", ".json", "/map", "/usage.json", "/export", "/export/file"):
        assert client.get(f"/c/{empty.id}{rest}").status == 200, rest


def test_a_thousand_requests_at_once_and_a_body_without_end(store: Store) -> None:
    """Each is answered, if with 503; what is not let in costs nothing; and afterwards all is as before."""
    talk = scenes.long(store, 200)
    with served(store) as viewer:
        where = urlsplit(viewer.address)
        with closing(http.client.HTTPConnection(where.netloc, timeout=PATIENCE)) as asking:
            asking.request("GET", viewer.door.removeprefix(viewer.address))
            cookie = (asking.getresponse().getheader("Set-Cookie") or "").split(";")[0]
        seen: list[int] = []

        def ask(path: str, **headers: str) -> int:
            with closing(http.client.HTTPConnection(where.netloc, timeout=PATIENCE)) as one:
                one.request("GET", path, headers=headers)
                answer = one.getresponse()
                answer.read()
                return answer.status

        def many() -> None:
            for _ in range(25):
                try:
                    seen.append(ask(f"/c/{talk.id}", Cookie=cookie))
                except OSError:  # the queue of the system was full
                    seen.append(0)

        threads = [threading.Thread(target=many) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(seen) <= {0, 200, 503}
        assert 200 in seen
        with closing(http.client.HTTPConnection(where.netloc, timeout=PATIENCE)) as one:
            one.putrequest("POST", "/unlock")
            for name, value in (
                ("Cookie", cookie),
                ("Sec-Fetch-Site", "same-origin"),
                ("Transfer-Encoding", "chunked"),
            ):
                one.putheader(name, value)
            one.endheaders()
            sent = 0
            try:
                while sent < 1 << 30:
                    one.send(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                    sent += 65536
            except OSError:
                pass
            assert sent < 64 << 20  # it was cut off
        assert ask(f"/c/{talk.id}", Cookie=cookie) == 200
