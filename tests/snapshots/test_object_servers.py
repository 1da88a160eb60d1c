"""Object stores that are real, and servers that are not what they say: they deny, stall, lie, and lose answers.

What every bucket must do is in `test_buckets.py`, which runs on S3 and Azure as well. Google Cloud Storage is not
exercised: there is no server of its kind here.

Requirements: A5, and "bad input" of snapshots.
"""

import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hitherto.errors import (
    CannotOpen,
    Conflict,
    Denied,
    HithertoError,
    InvalidArgument,
    StorageError,
    Unavailable,
)
from hitherto.snapshots._bucket import Bucket
from hitherto.snapshots._objects import bucket_at, bucket_on

from ..support.cloud import (
    ACCOUNT_KEY,
    PAGE,
    Answer,
    Azurite,
    Moto,
    Scripted,
    said,
    scripted,
)
from ..support.patience import SOON

NAME = "thing.json"
MOST = 1000
SECRETS = (
    "AKIA-known-to-nobody",
    "a-secret-of-amazon",
    "a-token-of-amazon",
    "X-Amz",
    "Signature",
    "127.0.0.1",
    "boom!",
)


def adopt_row(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def pointed_at(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA-known-to-nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-amazon")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-token-of-amazon")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def everything(bucket: Bucket) -> Iterator[tuple[str, HithertoError | None]]:
    """Each thing that can be done, and what came of it. What is not an error of ours ends the test."""
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: bucket.get(NAME, MOST),
        "begin": lambda: bucket.get(NAME, 3, whole=False),
        "put": lambda: bucket.put(NAME, b"123"),
        "create": lambda: bucket.put(NAME, b"123", None),
        "update": lambda: bucket.put(NAME, b"123", "tag"),
        "remove": lambda: bucket.remove(NAME),
        "list": lambda: list(bucket.things()),
    }
    for name, call in calls.items():
        try:
            call()
        except HithertoError as error:
            yield name, error
        else:
            yield name, None


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and all that hang on to it."""
    yield error
    for other in (error.__cause__, error.__context__):
        if other is not None:
            yield from chain(other)


def assert_silent(error: BaseException) -> None:
    for one in chain(error):
        assert isinstance(one, HithertoError)
        for secret in SECRETS:
            assert secret not in f"{one} {one!r} {one.hint} {vars(one)}"


# -- real servers


def test_a_bucket_that_does_not_exist_is_not_an_empty_one(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    adopt_row(monkeypatch, moto.environment)
    for doing, error in everything(bucket_at("s3://nobody-made-this/x", timeout_seconds=20, retries=0)):
        assert isinstance(error, CannotOpen), doing
        assert "make the bucket" in str(error.hint)


def test_a_container_that_does_not_exist_is_not_an_empty_one(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    adopt_row(monkeypatch, azurite.environment)
    for doing, error in everything(bucket_at("az://nobody-made-this/x", timeout_seconds=20, retries=0)):
        assert isinstance(error, CannotOpen), doing


def test_a_wrong_key_is_denied_and_not_told(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    adopt_row(monkeypatch, azurite.environment)
    url = azurite.make()
    wrong = ACCOUNT_KEY[4:8] + ACCOUNT_KEY[:4] + ACCOUNT_KEY[8:]
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", wrong)
    for doing, error in everything(bucket_at(url, timeout_seconds=20, retries=0)):
        assert isinstance(error, Denied), doing
        for one in chain(error):
            assert wrong[:12] not in str(one)
            assert "SharedKey" not in str(one)


def test_things_are_where_other_programs_look_for_them(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore
    from obstore.store import S3Store

    adopt_row(monkeypatch, moto.environment)
    url = moto.make()
    bucket_at(url + "/team/snapshots/").put("media/x", b"1")
    store = S3Store(url.removeprefix("s3://"), client_options={"allow_http": True})
    assert obstore.get(store, "team/snapshots/media/x").bytes() == b"1"


def test_two_prefixes_do_not_see_each_other(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    adopt_row(monkeypatch, moto.environment)
    url = moto.make()
    bucket_at(url + "/a").put(NAME, b"1")
    bucket_at(url + "/ab").put(NAME, b"2")
    assert [thing.size for thing in bucket_at(url + "/a").things()] == [1]
    assert list(bucket_at(url).things()) == []
    assert bucket_at(url + "/a").remove(NAME)
    assert [thing.name for thing in bucket_at(url + "/ab").things()] == [NAME]


def test_more_things_than_fit_on_a_page_are_listed(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    adopt_row(monkeypatch, moto.environment)
    bucket = bucket_at(moto.make() + "/x")
    for number in range(2 * PAGE + 1):
        bucket.put(f"{number}", b"")
    assert {thing.name for thing in bucket.things()} == {str(number) for number in range(2 * PAGE + 1)}


def test_a_store_that_was_made_elsewhere_is_taken(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    from obstore.store import S3Store

    name = moto.make().removeprefix("s3://")
    store = S3Store(
        name,
        endpoint=moto.address,
        access_key_id="AKIA-known-to-nobody",
        secret_access_key="a-secret-of-amazon",
        region="us-east-1",
        client_options={"allow_http": True},
    )
    bucket = bucket_on(store, "some/prefix")
    tag = bucket.put(NAME, b"1", None)
    with pytest.raises(Conflict):
        bucket.put(NAME, b"1", None)  # the same bytes, and yet not ours
    bucket.put(NAME, b"2", tag)
    assert [thing.name for thing in bucket.things()] == [NAME]
    assert "secret" not in bucket.where + repr(bucket)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    from obstore.store import LocalStore

    for wrong in (object(), "s3://bucket", LocalStore(str(tmp_path))):
        with pytest.raises(InvalidArgument):
            bucket_on(wrong)


# -- addresses


WRONG = ["s3://AKIA-known-to-nobody:a-secret-of-amazon@bucket/x", "s3://bucket/x?X-Amz-Signature=a-secret-of-amazon"]
WRONG += ["s3://bucket#a-secret-of-amazon", "az://a-secret-of-amazon@container", "file:///x?a-secret-of-amazon"]
WRONG += [
    "http://a-secret-of-amazon/x",
    "s3://a-secret-of-amazon:80/",
    "s3://[a-secret-of-amazon",
    "a-secret-of-amazon",
]
WRONG += ["s3://bucket/../a-secret-of-amazon", "s3://bucket/a//a-secret-of-amazon", "s3://bu\ncket/a-secret-of-amazon"]
WRONG += [
    "a-secret-of-amazon",
    "",
    "s3://",
    "s3:///x",
    "file://host/a-secret-of-amazon",
    "memory://a-secret-of-amazon",
    "s3://bücket/x",
]


@pytest.mark.parametrize("url", WRONG)
def test_an_address_that_is_refused_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        bucket_at(url)
    assert_silent(caught.value)


def test_an_endpoint_that_is_none_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("a-secret-of-amazon", "http://user:a-secret-of-amazon@host", "ftp://a-secret-of-amazon"):
        pointed_at(monkeypatch, wrong)
        with pytest.raises(CannotOpen, match="AWS_ENDPOINT_URL") as caught:
            bucket_at("s3://bucket")
        assert_silent(caught.value)


def test_what_the_environment_does_not_say_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("AZURE_"):
            monkeypatch.delenv(name)
    with pytest.raises(CannotOpen) as caught:
        bucket_at("az://container")
    assert "AZURE_STORAGE_ACCOUNT_NAME" in str(caught.value.hint)


def test_without_leave_nothing_is_sent_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(lambda *_: said("200 OK")) as server:
        pointed_at(monkeypatch, server.address)
        monkeypatch.delenv("AWS_ALLOW_HTTP")
        for doing, error in everything(bucket_at("s3://bucket", timeout_seconds=5, retries=0)):
            assert isinstance(error, StorageError), doing
            assert_silent(error)
        assert server.requests == []


# -- servers that are not what they say

TAG = 'ETag: "tag"\r\nLast-Modified: Mon, 05 Jan 2026 10:00:00 GMT\r\n'


def always(answer: bytes) -> Answer:
    return lambda *_: answer


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
def test_a_server_that_denies(monkeypatch: pytest.MonkeyPatch, status: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with scripted(always(said(status, b"<Error><Code>boom!</Code></Error>"))) as server:
        pointed_at(monkeypatch, server.address)
        for doing, error in everything(bucket_at("s3://bucket/x", timeout_seconds=5, retries=2)):
            assert isinstance(error, Denied), doing
            assert "s3://bucket/x" in str(error)
            assert status[:3] in str(error)
            assert_silent(error)
        assert len(server.requests) == 7  # nothing was tried again
    assert not any(secret in caplog.text for secret in SECRETS)


def test_a_server_that_cannot_now_is_asked_again_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(always(said("503 Slow Down", b"boom!"))) as server:
        pointed_at(monkeypatch, server.address)
        for doing, error in everything(bucket_at("s3://bucket/x", timeout_seconds=5, retries=1)):
            assert isinstance(error, Unavailable), doing
            assert "503" in str(error)
            assert_silent(error)
        assert len(server.requests) == 14


def test_a_server_that_recovers_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [said("500 Oops"), said("200 OK", b"abc", headers=TAG)]
    with scripted(lambda *_: answers.pop(0)) as server:
        pointed_at(monkeypatch, server.address)
        found = bucket_at("s3://bucket/x", timeout_seconds=5, retries=1).get(NAME, MOST)
        assert found is not None
        assert (found.data, found.tag) == (b"abc", "tag")


def test_a_server_that_says_nothing_is_waited_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(lambda *_: None) as server:
        pointed_at(monkeypatch, server.address)
        bucket = bucket_at("s3://bucket/x", timeout_seconds=0.1, retries=0)
        start = time.monotonic()
        for doing, error in everything(bucket):
            assert isinstance(error, Unavailable), doing
            assert_silent(error)
        assert time.monotonic() - start < SOON  # seven times a tenth of a second


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    pointed_at(monkeypatch, f"http://127.0.0.1:{port}")
    for doing, error in everything(bucket_at("s3://bucket/x", timeout_seconds=5, retries=0)):
        assert isinstance(error, Unavailable), doing
        assert_silent(error)


RANGE = "Content-Range: bytes {}\r\n" + TAG
LIES = {
    "garbage": b"\0\1\2 garbage\r\n\r\n",
    "nothing": b"",
    "a body that ends too early": said("200 OK", b"abc", headers=TAG, length=9),
    "no length": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc",
    "a login page": said("200 OK", b"<html>log in</html>", headers="Content-Type: text/html\r\n"),
    "a redirect to nowhere": said("301 Moved", b"boom!"),
    "a part that is another": said("206 Partial", b"abc", headers=RANGE.format("5-7/100")),
    "a part that is too short": said("206 Partial", b"a", headers=RANGE.format("0-2/100")),
    "a part of nothing": said("206 Partial", b"abc", headers=RANGE.format("0-2/1")),
    "a teapot": said("418 Teapot", b"boom!"),
    "a huge number": said("200 OK", b"", headers=TAG, length=10**30),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_lies_is_not_believed(monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    with scripted(always(LIES[lie])) as server:
        pointed_at(monkeypatch, server.address)
        bucket = bucket_at("s3://bucket/x", timeout_seconds=2, retries=0)
        outcomes = dict(everything(bucket))
        for error in outcomes.values():
            if error is not None:
                assert_silent(error)
        # A whole that has the length that was announced is believed; who reads it finds that it is no snapshot.
        believed = {"get"} if lie == "a login page" or "a part" in lie else set()
        for doing in {"get", "begin", "list"} - believed:
            assert isinstance(outcomes[doing], HithertoError), (lie, doing)


def test_a_listing_of_other_names_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = "<Contents><Key>{}</Key><LastModified>2026-01-05T10:00:00.000Z</LastModified><Size>{}</Size></Contents>"
    keys = ["x/good", "x/", "x/deep/er", "elsewhere", "xy", "x/../../etc/passwd"]
    body = f"<ListBucketResult>{''.join(entry.format(key, 7) for key in keys)}</ListBucketResult>"
    with scripted(always(said("200 OK", body.encode()))) as server:
        pointed_at(monkeypatch, server.address)
        try:
            found = [thing.name for thing in bucket_at("s3://bucket/x", timeout_seconds=2, retries=0).things()]
        except StorageError:
            found = []
        assert set(found) <= {"good"}


# -- answers that are lost


class Forgetful:
    """Passes everything on to a real server, and loses the answers to the first puts on a condition."""

    def __init__(self, real: str, losing: int) -> None:
        host, port = real.removeprefix("http://").split(":")
        self._real = (host, int(port))
        self._losing = losing
        self.meanwhile: Callable[[], object] = lambda: None  # what happens when an answer is lost

    def __call__(self, request: bytes, _: socket.socket) -> bytes | None:
        answer = self._pass_on(request)
        if self._losing and re.search(rb"(?i)\r\nif-(none-)?match:", request):
            self._losing -= 1
            self.meanwhile()
            return b""
        return answer

    def _pass_on(self, request: bytes) -> bytes:
        head, _, body = request.partition(b"\r\n\r\n")
        with socket.create_connection(self._real, timeout=20) as connection:
            connection.sendall(head + b"\r\nConnection: close\r\n\r\n" + body)
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
            return b"".join(parts)


def test_a_put_whose_answer_was_lost_finds_its_own_write(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    url = moto.make() + "/x"
    with scripted(Forgetful(moto.address, losing=1)) as server:
        pointed_at(monkeypatch, server.address)
        bucket = bucket_at(url, timeout_seconds=20, retries=2)
        tag = bucket.put(NAME, b"mine", None)
        server.answer = Forgetful(moto.address, losing=1)
        newer = bucket.put(NAME, b"mine again", tag)
        found = bucket.get(NAME, MOST)
        assert found is not None
        assert (found.data, found.tag) == (b"mine again", newer)


def test_a_put_whose_answer_was_lost_does_not_take_anothers_write_for_its_own(
    moto: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = moto.make() + "/x"
    forgetful = Forgetful(moto.address, losing=1)
    adopt_row(monkeypatch, moto.environment)
    somebody = bucket_at(url)
    forgetful.meanwhile = lambda: somebody.put(NAME, b"theirs")
    with scripted(forgetful) as server:
        pointed_at(monkeypatch, server.address)
        bucket = bucket_at(url, timeout_seconds=20, retries=2)
        with pytest.raises(Conflict):
            bucket.put(NAME, b"mine", None)
        found = bucket.get(NAME, MOST)
        assert found is not None
        assert found.data == b"theirs"


def test_an_answer_that_is_lost_is_not_an_answer(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: who does not ask again is told that it is unknown, not that there is a conflict."""
    with scripted(Forgetful(moto.address, losing=9)) as server:
        pointed_at(monkeypatch, server.address)
        with pytest.raises(Unavailable):
            bucket_at(moto.make() + "/x", timeout_seconds=20, retries=0).put(NAME, b"mine", None)


def test_the_same_bytes_of_somebody_else_are_a_conflict(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    adopt_row(monkeypatch, moto.environment)
    url = moto.make()
    bucket_at(url).put(NAME, b"same", None)
    with pytest.raises(Conflict):
        bucket_at(url).put(NAME, b"same", None)


# -- forks

FORKING = """
import os, sys
from hitherto.errors import HithertoError
from hitherto.snapshots._objects import bucket_at

bucket = bucket_at(sys.argv[1], timeout_seconds=5, retries=0)
if sys.argv[2] == "used":
    bucket.put("parent", b"1")
child = os.fork()
if child == 0:
    try:
        answer = bucket.put("child", b"1") and "kept"
    except HithertoError as error:
        answer = type(error).__name__
    print(answer, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(bucket.put("parent", b"2") and "kept", flush=True)
"""


@pytest.mark.parametrize(("before", "answers"), [("used", ["Closed", "kept"]), ("unused", ["kept", "kept"])])
def test_a_child_never_waits_for_threads_that_it_does_not_have(moto: Moto, before: str, answers: list[str]) -> None:
    command = [sys.executable, "-c", FORKING, moto.make() + "/x", before]
    environment = os.environ | moto.environment
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=environment)
    assert ran.stdout.split() == answers


# -- the servers themselves


def test_a_server_leaves_nothing_behind() -> None:
    server = Moto()
    process = server._process.pid
    assert server.folder.exists()
    server.stop()
    assert not server.folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_scripted_server_ends_with_its_threads() -> None:
    before = threading.active_count()
    server = Scripted(lambda *_: None)
    with socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2]))) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while not server.requests:
            time.sleep(0.001)
        server.stop()
    assert threading.active_count() == before
