"""Reading ahead: the same as reading one by one, but several at once, and never much further than is asked for."""

import threading
import time
from collections.abc import Iterator

import pytest

from hitherto._copying import row_pages
from hitherto._copying.row_pages import ahead
from hitherto.backends.memory import MemoryBackend

NEAR = MemoryBackend()


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_pages, "_is_far", lambda _: True)


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("hitherto-ahead")]


@pytest.mark.usefixtures("far")
def test_everything_comes_in_its_order_whichever_is_ready_first() -> None:
    def work(n: int) -> int:
        time.sleep(0.002 if n % 3 else 0)
        return n * n

    assert list(ahead(work, range(100), NEAR)) == [(n, n * n) for n in range(100)]
    assert not readers()


@pytest.mark.usefixtures("far")
def test_several_are_at_it_at_once() -> None:
    together = threading.Barrier(8, timeout=20)
    assert len(list(ahead(lambda _: together.wait(), range(16), NEAR))) == 16


def test_what_is_near_is_read_by_who_asks() -> None:
    me = threading.current_thread()
    assert {thread for _, thread in ahead(lambda _: threading.current_thread(), range(20), NEAR)} == {me}


@pytest.mark.usefixtures("far")
def test_nothing_is_read_far_beyond_what_was_asked_for() -> None:
    asked: list[int] = []

    def things() -> Iterator[int]:
        for n in range(1000):
            asked.append(n)
            yield n

    for n, _ in ahead(lambda n: n, things(), NEAR):
        assert len(asked) <= n + 2 * row_pages._THREADS + 1
        if n == 50:
            break


@pytest.mark.usefixtures("far")
def test_what_goes_wrong_is_heard_in_its_place_and_ends_it() -> None:
    done: list[int] = []

    def work(n: int) -> int:
        if n == 20:
            raise ValueError(n)
        done.append(n)
        return n

    heard: list[int] = []
    with pytest.raises(ValueError, match="20"):
        heard.extend(n for n, _ in ahead(work, range(1000), NEAR))
    assert heard == list(range(20))
    assert len(done) < 60
    assert not readers()


@pytest.mark.usefixtures("far")
def test_who_stops_listening_leaves_nobody_reading() -> None:
    reading = ahead(lambda n: n, range(1000), NEAR)
    next(reading)
    assert readers()
    del reading
    assert not readers()
