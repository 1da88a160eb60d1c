"""Compare, and write the table into docs/comparison.md: python -m benchmarks.alternatives [--write]

`make alternatives` installs the environments and calls this.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from . import die

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "comparison.md"
SIDES = {
    "with_hitherto": ".venv",
    "with_llm": ".tools/programs/python",
    "with_openai_agents": ".tools/adapters/openai-agents",
    "with_langgraph": ".tools/adapters/langgraph",
}
MARK = "An-unusual-word-to-look-for"
TURNS = 50
KILLED = -9


class Side:
    """A program, each of whose functions runs in a process of its own."""

    def __init__(self, module: str, environment: str) -> None:
        self._module, self._python = module, str(ROOT / environment / "bin" / "python")

    def start(self, function: str, *arguments: object) -> "subprocess.Popen[str]":
        order = [self._python, "-m", "benchmarks.alternatives", "--run", self._module, function, json.dumps(arguments)]
        places = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        quiet = {"PYTHONPATH": places, "LANGSMITH_TRACING": "false"}
        return subprocess.Popen(
            order, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **quiet}, cwd=ROOT
        )

    def run(self, function: str, *arguments: object, expect: int = 0) -> str:
        process = self.start(function, *arguments)
        out, error = process.communicate()
        if process.returncode != expect:
            raise RuntimeError(f"{self._module}.{function}: exit code {process.returncode}\n{error}")
        return out

    def has(self, function: str) -> bool:
        return self.run("has", function).strip() == "True"


def question_kept(side: Side, folder: str) -> str:
    side.run("ask", folder, MARK, "die", expect=KILLED)
    return kept(side, folder)


def answer_kept(side: Side, folder: str) -> str:
    side.run("ask_with_tool", folder, f'{{"at": "{MARK}"}}', "die", expect=KILLED)
    return kept(side, folder)


def kept(side: Side, folder: str) -> str:
    return "kept" if MARK in side.run("read", folder) else "lost"


def left_after_deleting(side: Side, folder: str) -> str:
    if not side.has("erase"):
        return "no command deletes"
    side.run("ask", folder, MARK, "answer", TURNS)
    side.run("erase", folder)
    if MARK in side.run("read", folder):
        raise RuntimeError("deleting has not deleted")
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    found = sum(path.read_bytes().count(MARK.encode()) for path in files)
    return f"{found} times" if found else "nowhere"


def kept_of_two_processes(side: Side, folder: str) -> str:
    """Of the turns that two processes make in one conversation at the same time."""
    side.run("ask", folder, "first", "answer")
    processes = [side.start("ask", folder, f"{MARK}-{who}", "answer", TURNS) for who in "ab"]
    ends = [process.communicate()[1] for process in processes]
    read = side.run("read", folder)
    there = sum(f"{MARK}-{who} {number}" in re.split(r"['\"]", read) for who in "ab" for number in range(TURNS))
    failed = sum(process.returncode != 0 for process in processes)
    if failed:
        print(*(end[-300:] for end in ends), file=sys.stderr)
    return f"{there} of {2 * TURNS}" + (f", and {failed} of the two failed" if failed else "")


def another_key(side: Side, folder: str) -> str:
    if not side.has("ask_sealed"):
        return "no encryption"
    side.run("ask_sealed", folder, MARK)
    process = side.start("read_with_another_key", folder)
    out, error = process.communicate()
    if process.returncode:
        name = re.findall(r"^(?:\w+\.)*(\w+)(?:: |$)", error, re.MULTILINE)
        return f"an error, `{next(one for one in reversed(name) if one[0].isupper())}`"
    return "the text" if MARK in out else f"no error: `{out.strip()[:20]}`"


def size(side: Side, folder: str) -> str:
    """Of a conversation of many turns, closed."""
    turns = 4 * TURNS
    side.run("ask", folder, MARK, "x" * 500, turns)
    content = turns * (len(MARK) + 1 + 3 + 500)
    taken = sum(path.stat().st_blocks * 512 for path in Path(folder).rglob("*") if path.name != "chats.db-ballast")
    return f"{taken / content:.1f}"


ROWS: dict[str, Callable[[Side, str], str]] = {
    "killed while the model thinks: the question is": question_kept,
    "killed while a tool runs: the answer that called it is": answer_kept,
    "deleted: the text is still in the files": left_after_deleting,
    "two processes in one conversation: turns that are there afterwards": kept_of_two_processes,
    "opened with another key": another_key,
    "bytes on disk for each byte said, at 200 turns": size,
}


def measure() -> str:
    sides = [Side(module, environment) for module, environment in SIDES.items()]
    table = [["", *(side.run("name").strip() for side in sides)], ["---"] * (len(sides) + 1)]
    for title, row in ROWS.items():
        cells = [title]
        for side in sides:
            with tempfile.TemporaryDirectory(prefix="alternatives-", dir=ROOT) as folder:
                cells.append(row(side, folder))
        table.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table)


def run_one(module: str, function: str, given: str) -> None:
    """In the process of a side. The answers of a model are named: `die`, or a text."""
    side: Any = import_module(f"benchmarks.alternatives.{module}")
    arguments = json.loads(given)
    if function == "name":
        print(side.NAME)
    elif function == "has":
        print(hasattr(side, arguments[0]))
    elif function in ("ask", "ask_with_tool"):
        folder, text, answer, *more = arguments
        getattr(side, function)(folder, text, die if answer == "die" else lambda: answer, *more)
    else:
        print(getattr(side, function)(*arguments))


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        run_one(*sys.argv[2:])
        return
    table = measure()
    print(table)
    if "--write" in sys.argv:
        day = f"{datetime.now(UTC):%-d %B %Y}"
        between = f"<!-- measured: begin -->\nMeasured on {day}.\n\n{table}\n<!-- measured: end -->"
        page = re.sub(
            r"<!-- measured: begin -->.*<!-- measured: end -->", lambda _: between, PAGE.read_text(), flags=re.DOTALL
        )
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
