"""Conversations for the viewer to show: a coding agent at work, one with many forks, a long one, and a hostile one."""

# ruff: noqa: E501  # what people and models say has long lines

import struct
import zlib

import hitherto
from hitherto import Block, Conversation, Message, Store
from hitherto.model import Saved, Usage

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)><iframe src='https://evil.example'></iframe>"
    "[click](javascript:alert(4)) [data](data:text/html;base64,PHNjcmlwdD4=) ![p](https://evil.example/p.png) "
    "<a href='javascript:alert(5)'>x</a> \"onmouseover=\"alert(6) '><b>\u202egnp.exe {{7*7}} </textarea></style>"
)


HOSTILE_MARKDOWN = """\
[tab](java\tscript:alert(20)) [entity](&#106;avascript:alert(21)) [case](JaVaScRiPt:alert(22)) [vb](vbscript:alert(23))
[scheme](//evil.example/x) <javascript:alert(24)> [file](file:///etc/passwd) [blob](blob:https://evil.example/1) [ref][evil]
[title](https://evil.example "x\\" onmouseover=alert(25)") ![i](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9YWxlcnQoMSkvPg==)
![p](https://evil.example/p.png) [![nested](https://evil.example/n.png)](https://evil.example/) https://evil.example/"onx="

[evil]: javascript:alert(26) "x"

```js" onload="alert(27)
</code></pre><script>alert(28)</script>
```

| <svg onload=alert(29)> | `</code><script>alert(30)</script>` |
|:-:|---|
| <style>*{background:url(https://evil.example/c.png)}</style> | <link rel=stylesheet href=https://evil.example/s.css> |

<!-- --><math><mi//xlink:href="data:x,<script>alert(31)</script>"> &lt;script&gt;alert(32)&lt;/script&gt; \u2066a\u202eb
<meta http-equiv=refresh content="0;url=https://evil.example/"><base href=https://evil.example/><form action=//evil.example>
"""
HOSTILE_ARGUMENTS: tuple[dict[str, object], ...] = (
    {"command": [HOSTILE, "-c", HOSTILE], "description": HOSTILE},
    {"file_path": HOSTILE, "old_string": HOSTILE, "new_string": f"{HOSTILE}\n</pre><script>alert(40)</script>"},
    {"file_path": HOSTILE, "content": HOSTILE, "offset": HOSTILE, "limit": -1},
    {"todos": [{"content": HOSTILE, "status": HOSTILE}, {HOSTILE: HOSTILE}, HOSTILE]},
    {"pattern": HOSTILE, "path": HOSTILE, HOSTILE[:40]: [HOSTILE, {"x": HOSTILE}]},
    {"url": "javascript:alert(41)", "query": HOSTILE, "prompt": HOSTILE},
)
HOSTILE_DATA = (
    "data:image/svg+xml;base64,PHN2ZyB4bWxucz0naHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmcnIG9ubG9hZD0nYWxlcnQoNTApJy8+",
    "data:text/html;base64,PHNjcmlwdD5hbGVydCg1MSk8L3NjcmlwdD4=",
    "data:image/png;base64,PHNjcmlwdD5hbGVydCg1Mik8L3NjcmlwdD4=",
    "data:image/png,<script>alert(53)</script>",
    "javascript:alert(54)",
)


def png(width: int = 640, height: int = 360) -> bytes:
    """Return a picture: a gradient with a grid."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(
        b"\0"
        + b"".join(
            bytes(
                (235, 235, 230) if x % 40 == 0 or y % 40 == 0 else (30 + x * 90 // width, 106 + y * 60 // height, 110)
            )
            for x in range(width)
        )
        for y in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


ANSWER = """\
The build fails because `ruff` finds an unused import in `src/app/routes.py`. The import came in with the last commit and nothing uses it any more.

## What happens

1. `make lint` runs **ruff** over the tree.
2. It stops at the first module with a finding, so *mypy* never runs.
3. The job is red, although all 214 tests pass.

```python
from collections.abc import Iterator
from pathlib import Path
import json  # unused since a3f9c1


def routes(folder: Path) -> Iterator[str]:
    \"\"\"Yield every route that a module in this folder registers.\"\"\"
    for path in sorted(folder.glob("*.py")):
        if path.stem.startswith("_"):  # private modules register nothing
            continue
        yield f"/{path.stem.replace('_', '-')}"
```

| check | before | after | seconds |
|---|---:|---:|---:|
| ruff | 1 | 0 | 0.4 |
| mypy | – | 0 | 8.1 |
| tests | 214 | 214 | 31.7 |

> A finding in a generated file is no reason to switch the rule off: exclude the file.

The rule is described at https://docs.astral.sh/ruff/rules/unused-import/. Shall I remove the import, or do you want to keep it for the `--json` flag?
"""


def coding(store: Store) -> Conversation:
    """A coding agent: calls of every kind, thoughts, a picture, a sub-agent, a fork, and a compaction."""
    talk = store.start(
        title="Why does the build fail?",
        system_prompt="You are a careful engineer. Read before you write.",
        provider="claude",
        model="claude-sonnet-4-5",
        project="/home/ada/src/harbour",
    )
    talk.append(Message.user("<system-reminder>\nThe working directory is /home/ada/src/harbour.\n</system-reminder>"))
    talk.append(
        Message.user(
            "The build fails since this morning and I **cannot** see why. `make lint` is red, the tests are "
            "green.\n\n```\nsrc/app/routes.py:3:8: F401 `json` imported but unused\n```"
        )
    )
    talk.append(
        Message.assistant(
            [
                Block.thinking(
                    "The error names the file. I should look at it before I say anything, and at what changed."
                ),
                Block.text("I will look at the file and at the last commits."),
                Block.tool_call(
                    "c1",
                    "Bash",
                    {
                        "command": "git log --oneline -5 && make lint",
                        "description": "See the last commits and the findings",
                    },
                ),
                Block.tool_call(
                    "c2", "Read", {"file_path": "/home/ada/src/harbour/src/app/routes.py", "offset": 1, "limit": 40}
                ),
            ],
            usage=Usage(2140, 310, 1800),
        )
    )
    talk.append(
        Message.tool_result(
            "c1",
            "a3f9c1d routes: read them from the folder\n91be002 tests: fewer sleeps\n"
            "src/app/routes.py:3:8: F401 `json` imported but unused\nmake: *** [lint] Error 1",
            error=True,
        )
    )
    talk.append(Message.tool_result("c2", "\n".join(f"{n:>4}  line {n} of the file" for n in range(1, 420))))
    asked = talk.append(Message.assistant(ANSWER, usage=Usage(3900, 520, 3100)))
    other = talk.fork(at=asked.id)
    other.append(Message.user("Keep it for now, and silence the rule on that line instead."))
    other.append(
        Message.assistant(
            "I would rather not: the next reader takes it for a mistake. But here it is:\n\n```python\nimport json  # noqa: F401\n```"
        )
    )
    third = talk.fork(at=asked.id)
    third.append(Message.user("What would you do about the generated file?"))
    third.append(Message.assistant("Exclude it in `pyproject.toml`."))
    talk.append(Message.user("Remove it, and run everything."))
    call = talk.append(
        Message.assistant(
            [
                Block.tool_call(
                    "c3",
                    "Edit",
                    {
                        "file_path": "src/app/routes.py",
                        "old_string": "from pathlib import Path\nimport json\n",
                        "new_string": "from pathlib import Path\n",
                    },
                ),
                Block.tool_call(
                    "c4",
                    "TodoWrite",
                    {
                        "todos": [
                            {"content": "Remove the import", "status": "completed"},
                            {"content": "Run the linter", "status": "in_progress"},
                            {"content": "Run the tests", "status": "pending"},
                        ]
                    },
                ),
                Block.tool_call("c5", "Grep", {"pattern": "import json", "path": "src"}),
                Block.tool_call(
                    "c6",
                    "Task",
                    {"description": "Look for other unused imports", "prompt": "Read every module below src."},
                ),
            ]
        )
    )
    agent = talk.subagent("searcher", "run-1", call=call.id)
    agent.append(Message.user("Read every module below src, and list imports that nothing uses."))
    agent.append(Message.assistant("There are none but `json` in routes.py."))
    for number, text in (
        ("c3", "Edited."),
        ("c4", "Noted."),
        ("c5", "No matches."),
        ("c6", "None but json in routes.py."),
    ):
        talk.append(Message.tool_result(number, text))
    talk.append(
        Message.assistant(
            [
                Block.text("Done: the linter is quiet. Here is how long the steps take now."),
                Block.image(png(), "image/png"),
            ]
        )
    )
    main = store.conversation(talk.id)
    main.compact("So far: the unused import is gone, the linter is quiet, 214 tests pass. Open: the generated file.")
    main.append(Message.user("Now the generated file, please."))
    main.append(Message.assistant("It is excluded, and the configuration says why.", usage=Usage(900, 40)))
    return main


def forked(
    store: Store, forks: int = 30, messages: int = 500, title: str = "Thirty ways to begin a novel"
) -> Conversation:
    """A conversation with many forks, some of them inside others."""
    talk = store.start(title=title, model="gpt-5", provider="openai")
    each = max(2, messages // (forks + 1) // 2 * 2)
    saved = talk.extend([_turn(0, n) for n in range(each)])
    pool = [message.id for message in saved if message.role == "assistant"]
    for fork in range(1, forks + 1):
        at = pool[(fork * 7) % len(pool)]
        more = talk.fork(at=at).extend([_turn(fork, n) for n in range(each)])
        pool += [message.id for message in more if message.role == "assistant"][: each // 3]
    return store.conversation(talk.id)


def _turn(branch: int, number: int) -> Message:
    if number % 2 == 0:
        return Message.user(f"Attempt {branch}.{number // 2}: begin with the harbour at dawn, and let nobody speak.")
    return Message.assistant(
        f"The cranes stood still. Attempt {branch}, paragraph {number // 2}: the water was the colour of slate, "
        "and the first ferry had not come.",
        usage=Usage(120, 60),
    )


def long(store: Store, messages: int = 10_000) -> Conversation:
    """A long conversation with code and tables in it."""
    talk = store.start(title="A long year", model="gpt-5")
    for start in range(0, messages, 1000):
        talk.extend(
            [
                Message.user(f"question {n}: what about zebra{n}?")
                if n % 2 == 0
                else Message.assistant(
                    f"answer {n}: **bold** words and `code`.\n\n```python\nprint({n})\n```\n\n- one\n- two\n"
                )
                for n in range(start, min(messages, start + 1000))
            ]
        )
    return talk


def hostile(store: Store) -> Conversation:
    """Everything that a person can set says something evil."""
    talk = store.start(
        title=HOSTILE,
        model=HOSTILE[:200],
        provider="x",
        system_prompt=HOSTILE,
        project="/evil/<b>/",
        metadata={HOSTILE[:60]: HOSTILE},
    )
    talk.append(
        Message.user(
            [Block.text(HOSTILE), Block("content", "https://evil.example/pixel.png", "image", "image/png")],
            label=HOSTILE[:60],
        )
    )
    talk.append(
        Message.assistant(
            [
                Block.text(HOSTILE),
                Block.thinking(HOSTILE),
                Block.tool_call("x", HOSTILE[:100], {HOSTILE[:50]: HOSTILE, "command": HOSTILE}),
                Block.image(b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(8)'/>", "image/svg+xml"),
                Block.image(b"<html><script>alert(9)</script>", "image/png"),
                Block("content", b"<script>alert(10)</script>", "text", "text/html"),
                Block.audio(b"<script>alert(11)</script>", 'audio/mpeg; x="</script>'),
                Block(HOSTILE[:60], HOSTILE),
                Block.text("x" * 100_000),
            ]
        )
    )
    talk.append(Message.tool_result("x", HOSTILE))
    talk.append(Message(HOSTILE[:60], (Block.text(HOSTILE),)))
    talk.append(Message.assistant("a\u0000b \ud7ff end"))
    calls = [Block.tool_call(f"{HOSTILE[:30]}{n}", HOSTILE[:80], given) for n, given in enumerate(HOSTILE_ARGUMENTS)]
    call = talk.append(
        Message.assistant(
            [Block.text(HOSTILE_MARKDOWN), *calls],
            extra={"model": HOSTILE[:80], "imported": {"id": HOSTILE, "format": HOSTILE[:80]}},
            usage=Usage(7, 3),
        )
    )
    talk.append(Message.tool_result(calls[0].id or "", HOSTILE, error=True, label=HOSTILE[:50]))
    for n, address in enumerate(HOSTILE_DATA, 1):
        result = Block("content", address, "image", HOSTILE[:40], calls[n].id)
        talk.append(Message("tool_result", (result,)))
    agent = talk.subagent(HOSTILE[:40].replace(":", " "), "run", call=call.id)
    agent.append(Message.user(HOSTILE))
    side = talk.fork(at=call.id)
    side.append(Message.user(HOSTILE, label=HOSTILE[:50]))
    main = store.conversation(talk.id)
    main.compact(HOSTILE)
    main.append(Message.user(HOSTILE))
    return main


def with_media(store: Store, talk: Conversation) -> list[Saved]:
    """The messages of a conversation, on all branches, that hold binary content or an address of it."""
    found = store.messages(conversation=talk.id, newest_first=False)
    return [one for one in found if any(isinstance(b.content, bytes) or b.modality != "text" for b in one.blocks)]


def everything(path: str, **how: object) -> None:
    """Write a store with all of them."""
    with hitherto.open(path, **how) as store:  # type: ignore[arg-type]  # a key
        hostile(store)
        long(store, 2_000)
        forked(store)
        coding(store)
