"""An hour of typical use, in one go: a real model on this machine, real processes, and a terminal.

Everything is done with the command line alone, in the order of a user: begin, ask, look back, try another way, be
interrupted, take it all elsewhere, seal it, and in the end destroy it.
"""

import json
import os
import signal

import pytest

from ..support.command import COMMAND, Open, Terminal, World


def _stop_answer(terminal: Open) -> tuple[Terminal, int]:
    """Stop an answer half way at the terminal; the conversation, and the place after the next prompt. The model's
    answer is sometimes so short that it is complete before it can be stopped."""
    for _ in range(8):
        one = terminal(command=[*COMMAND, "chat", "-n"])
        at = one.read("> ")
        one.press("Tell me a long story about a lighthouse, with many words.\r")
        at = one.read(" ", one.read("\x1b[?2004l", one.read("words.", at)))  # the first word of the answer
        one.press("\x03")
        if one.shows("stopped", "kept: ", after=at) == "stopped":
            return one, one.read("> ", at)
        one.end()
    raise AssertionError("the model never said enough to be stopped")


def test_an_hour_at_the_command_line(world: World, terminal: Open) -> None:
    pytest.importorskip("xllamacpp")
    del world.env["HITHERTO_STORE"]
    world.env["NO_COLOR"] = "1"

    def ok(*given: str, said: str = "", code: int = 0) -> str:
        done = world.command(*given, said=said)
        assert done.returncode == code, (given, done.stdout, done.stderr)
        return done.stdout

    def lines(*given: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in ok(*given, "--json").splitlines()]

    # A store for this folder, and the first questions: one by word, one by pipe, one about a file.
    ok("verify", code=1)
    place = ok("init").strip()
    assert ok("where").strip() == place
    assert ok("chat", "Say hello in five words.").strip()
    assert ok("chat", "What was that?", said="print('hello')\n").strip()
    (world.here / "notes.txt").write_text("The meeting is on Tuesday.\n")
    assert ok("chat", "-f", "notes.txt", "When is the meeting?").strip()
    thread = lines("show")
    assert [message["role"] for message in thread] == ["user", "assistant"] * 3
    assert "The meeting is on Tuesday." in str(thread[4]["text"])

    # Look back, give it a name, find it again.
    ok("rename", "@", "Tuesday")
    ok("label", str(thread[1]["id"]), "greeting")
    assert ok("conversation", "list").count("[USER]") == 3
    assert "greeting" in ok("log")
    assert str(thread[4]["id"]) in ok("search", "meeting", "tuesday")
    ok("search", "zebra", code=3)

    # Try another way, from the first answer on.
    begun = ok("fork", str(thread[1]["id"]), "--label", "again").strip()
    assert ok("chat", "Say it in French.").strip()
    head = lines("log")[0]["id"]
    assert {branch["id"] for branch in lines("branches")} == {head, thread[5]["id"]}
    assert begun in ok("conversation", "ls")
    assert str(head) in ok("log", "--graph")
    compared = json.loads(ok("compare", str(thread[5]["id"]), str(head), "--json"))
    assert (compared["shared"], compared["fork"]) == (2, thread[1]["id"])
    assert [len(compared[side]["messages"]) for side in ("left", "right")] == [4, 2]
    before = ok("stats", "--json")
    assert ok("chat", "-G", "Forget this.").strip()
    assert json.loads(ok("stats", "--json"))["messages"] == json.loads(before)["messages"]

    # At the terminal: an answer that is stopped, a title, a copy, and the power that goes out.
    one, at = _stop_answer(terminal)
    one.press("/title Counting\r")
    at = one.read("> ", one.read("\n", at))
    one.press("/save counting.jsonl\r")
    at = one.read("counting.jsonl", one.read("counting.jsonl", at))
    one.press("/quit\r")
    assert one.end() == 0
    assert (world.here / "counting.jsonl").exists()
    assert lines("conversation", "list")[0]["title"] == "Counting"
    gone = terminal(command=[*COMMAND, "chat", "-n", "Write a very long story about a lighthouse."], forked=True)
    gone.read("the")
    os.kill(gone.process.pid, signal.SIGKILL)
    gone.process.wait(60)
    after = world.command("chat", "Go on.")
    assert after.returncode == 0
    assert "not answered" in after.stderr or "recovered" in after.stderr

    # Out, and in elsewhere; again adds nothing.
    for format in ("markdown", "html", "openai", "snapshot"):
        assert len(ok("export", "@", "--format", format)) > 100
    ok("export", "--all", "-o", "all.jsonl")
    ok("export", "--all", "-o", "all.cpeconvo")
    ok("import", "all.jsonl", "--dry-run", "--store", "other.db")
    assert not (world.here / "other.db").exists()
    ok("import", "all.jsonl", "--store", "other.db")
    assert ok("import", "all.jsonl", "--store", "other.db") == ""
    ok("export", "--all", "-o", "again.jsonl", "--store", "other.db")
    assert (world.here / "again.jsonl").read_bytes() == (world.here / "all.jsonl").read_bytes()
    ok("import", "all.cpeconvo", "--store", "third.db")
    ok("copy", place, "copied.db")

    # Care: a backup, a seal, another key, a hold, and an end.
    ok("backup", "backup.db")
    assert json.loads(ok("verify", "--json"))["ok"]
    assert json.loads(ok("doctor", "--json"))["ok"]
    ok("key", "new", "file:secret.key")
    ok("key", "seal", "--to", "file:secret.key", "--yes")
    ok("conversation", "list", code=6)
    ok("key", "new", "file:newer.key")
    ok("key", "rotate", "--key", "file:secret.key", "--to", "file:newer.key", "--yes")
    ok("verify", "--key", "file:secret.key", code=6)
    world.env["HITHERTO_KEY"] = "file:newer.key"
    assert "meeting" in ok("search", "meeting")
    ok("retention", "set", "90")
    ok("retention", "run", "--dry-run")
    ok("hold", "@")
    ok("purge", "@", "--yes", code=5)
    ok("release", "@")
    ok("purge", "@", "--yes")
    ok("verify")
    del world.env["HITHERTO_KEY"]
    ok("restore", "backup.db", code=1)
    ok("restore", "backup.db", "--replace", "--yes", code=1)  # what was purged since stands in a store that is locked
    ok("restore", "backup.db", "--replace", "--yes", "--even-purged")
    assert "Counting" in json.dumps(lines("conversation", "list"))
    ok("quarantine", "list")
    assert "complete" in ok("completion", "bash")
