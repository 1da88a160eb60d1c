"""Makes `format-1.db.gz`, the kept file of format 1: run once, when the format is released, and never again."""

import gzip
import itertools
import sys
import tempfile
from pathlib import Path

import hitherto
from hitherto import Block, Message, Store
from hitherto.model import Usage


def talk_about(store: Store) -> None:
    talk = store.start(title="Kept", system_prompt="Be terse.", provider="openai", model="gpt-5", project="/p")
    for n in range(20):
        talk.append(Message.user(f"question {n} \0 🎉"))
        talk.append(Message.assistant(f"answer {n}", usage=Usage(n, 2 * n), raw={"id": f"msg_{n}"}))
    fork = talk.fork(at=talk.thread()[9])
    fork.append(Message.user([Block.text("see"), Block.image(bytes(range(256)), "image/png")], label="picture"))
    fork.append(Message.assistant(Block.tool_call("call_1", "read", {"path": "a.py"})))
    fork.append(Message.tool_result("call_1", "no such file", error=True, key="result-1"))
    talk.subagent("review", "r1").append(Message.user("look at this"))
    talk.follow().compact("The gist.")
    talk.configure(system_prompt="Be verbose.")
    talk.append(Message.user("and now?"))
    store.ensure("user-42", title="By key", metadata={"a": "b"}).append(Message.user("hello"))
    gone = store.start()
    gone.append(Message.user("gone"))
    store.purge(gone, reason="user-requested")


def main(target: Path) -> None:
    ticks = itertools.count(1_700_000_000_000_000, 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with hitherto.open(path, clock=lambda: next(ticks)) as store:
            talk_about(store)
        target.write_bytes(gzip.compress(path.read_bytes(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
