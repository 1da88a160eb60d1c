"""Items beyond the contract: quota, limits, the sanitiser, retention, files, other processes, and a kill (E2)."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from datetime import timedelta
from pathlib import Path

import pytest

import hitherto
from hitherto import Message, RetentionPolicy, Sanitiser, formats
from hitherto.errors import Closed, ConversationFull, Held, NotClean, ReadOnly, StorageFull
from hitherto.model import to_datetime

SECRET = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"


def python(code: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_items_count_for_the_quota_and_for_the_limit_of_a_conversation() -> None:
    with hitherto.open("memory:", max_conversation_bytes=3_000) as store:
        talk = store.ensure("t")
        talk.items["a"] = b"x" * 2_000
        with pytest.raises(ConversationFull):
            talk.items["b"] = b"x" * 2_000
        store.set_quota(2_500)
        with pytest.raises(StorageFull):
            store.ensure("other").items["b"] = b"x" * 1_000
        store.engine.quota._may_count = time.monotonic() + 60  # as if counting had taken three seconds
        del talk.items["a"]
        store.ensure("other").items["b"] = b"x" * 1_000
        assert store.used_bytes == 1_000


def test_text_in_items_is_cleaned_and_names_with_secrets_are_refused() -> None:
    with hitherto.open("memory:", sanitiser=Sanitiser.secrets()) as store:
        items = store.ensure("t").items
        items.put("text", f"token={SECRET}".encode(), text=True)
        assert SECRET.encode() not in items["text"]
        items.put("bytes", SECRET.encode())  # nobody said that it is text
        assert items["bytes"] == SECRET.encode()
        with pytest.raises(NotClean):
            items.put(f"name/{SECRET}", b"")
        with pytest.raises(hitherto.errors.InvalidArgument):
            items.put("text", b"\xff", text=True)


def test_retention_reaches_conversations_of_every_kind_and_no_items_of_the_workspace() -> None:
    with hitherto.open("memory:") as store:
        thread = store.ensure("t", kind="jobs")
        thread.items["state"] = b"1"
        store.items["theme"] = b"dark"
        now = to_datetime(store.engine.clock()) + timedelta(days=31)
        assert store.sweep(RetentionPolicy(days=30), now=now).purged_count == 1
        assert store.find("t", kind="jobs") is None
        assert store.items["theme"] == b"dark"


def test_writing_an_item_is_activity() -> None:
    ticks = iter(range(1_700_000_000_000_000, 1_800_000_000_000_000, 1_000_000))
    with hitherto.open("memory:", clock=lambda: next(ticks)) as store:
        talk = store.ensure("t")
        before = talk.active_at
        talk.items["state"] = b"1"
        assert talk.refresh().active_at > before
        talk.append(Message.user("hi"))
        assert store.verify().ok


def test_a_hold_refuses_to_clear_and_to_pop() -> None:
    with hitherto.open("memory:") as store:
        talk = store.ensure("t")
        talk.append(Message.user("hi"))
        talk.hold()
        with pytest.raises(Held):
            talk.clear()
        with pytest.raises(Held):
            talk.pop()
        assert [m.text for m in talk.thread()] == ["hi"]


def test_a_closed_store_and_one_that_is_read_only_say_so(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    with hitherto.open(path) as store:
        talk = store.ensure("t")
        talk.items["state"] = b"1"
    for call in (lambda: talk.items["state"], lambda: talk.items.put("state", b"2"), lambda: list(talk.items.scan())):
        with pytest.raises(Closed):
            call()
    with hitherto.open(path, read_only=True) as store:
        items = store.ensure("t").items
        assert items["state"] == b"1"
        with pytest.raises(ReadOnly):
            items["state"] = b"2"


def test_our_own_format_and_a_backup_carry_items_and_kinds(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "a.db") as store:
        thread = store.ensure("t", kind="jobs")
        thread.append(Message.user("hi"))
        thread.items["state"], thread.items["b\x00/é"] = b"\x00\xff", b""
        store.items["theme"] = b"dark"
        formats.save([thread], tmp_path / "t.jsonl")
        store.backup(tmp_path / "b.db")
    with hitherto.open(tmp_path / "b.db") as store:
        assert store.items["theme"] == b"dark"
        assert store.verify().ok
    with hitherto.open("memory:") as store:
        formats.load(tmp_path / "t.jsonl", store)
        found = store.find("t", kind="jobs")
        assert found is not None
        assert {item.name: item.value for item in found.items.scan()} == {"state": b"\x00\xff", "b\x00/é": b""}
        found.items["state"] = b"newer"
        del found.items["b\x00/é"]
        formats.load(tmp_path / "t.jsonl", store)  # what is missing comes, what is there stays
        assert {item.name: item.value for item in found.items.scan()} == {"state": b"newer", "b\x00/é": b""}
        assert store.verify().ok


def test_processes_that_compare_and_swap_lose_no_count(tmp_path: Path) -> None:
    code = """
        import sys, hitherto
        with hitherto.open(sys.argv[1]) as store:
            items = store.ensure("t").items
            for _ in range(25):
                while True:
                    seen = items.get("count")
                    try:
                        items.put("count", b"%d" % (int(seen.value) + 1), expect=seen.revision)
                        break
                    except hitherto.Conflict:
                        continue
    """
    path = tmp_path / "c.db"
    with hitherto.open(path) as store:
        store.ensure("t").items["count"] = b"0"
    processes = [python(code, path) for _ in range(3)]
    assert [process.communicate() and process.returncode for process in processes] == [0, 0, 0]
    with hitherto.open(path) as store:
        assert store.ensure("t").items["count"] == b"75"


def test_a_killed_process_leaves_whole_batches(tmp_path: Path) -> None:
    """Each batch has a message and the number of messages: after a kill at any moment the two agree."""
    code = """
        import sys, hitherto
        from hitherto import Message
        store = hitherto.open(sys.argv[1])
        talk = store.ensure("t")
        for n in range(1, 1_000_000):
            with talk.batch() as batch:
                batch.append(Message.user(str(n)))
                batch.items["count"] = b"%d" % n
            print(n, flush=True)
    """
    path = tmp_path / "c.db"
    process = python(code, path)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 30:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with hitherto.open(path) as store:
        talk = store.ensure("t")
        said = [m.text for m in talk.thread()]
        assert len(said) >= 30
        assert said[-1].encode() == talk.items["count"]
        assert store.verify().ok
