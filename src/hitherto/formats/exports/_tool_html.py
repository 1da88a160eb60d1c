"""Shows a tool call and its result as HTML: a command, a change of a file, a search or a list of tasks as what it is.

The kind of a call follows from its arguments, not from its name: every agent has tools of its own names, and most of
them agree on `command`, `old_string` or `pattern`. A call of no known kind is shown as its JSON. Nothing is left out:
arguments that a view does not show are listed below it.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from difflib import SequenceMatcher
from typing import NamedTuple

from ...model import Block
from ._markup import EMPTY, Markup, join, tag
from ._sections import call_in, pretty, text_in

__all__ = ["Cut", "View", "long_text", "view_of"]

_MAX_DIFF_LINES = 2_000
_GIST = 160  # characters of a summary
_MARKS = {"completed": "☑", "done": "☑", "in_progress": "◐"}


class Cut(NamedTuple):
    """How much of a long text a page holds, and where the rest is to be had."""

    lines: int = 200
    characters: int = 32_000
    rest: Callable[[], str] | None = None  # the address of the whole; None: the rest is on the page, folded


class View(NamedTuple):
    """A call, ready to be shown."""

    kind: str
    gist: str  # what it is about, on one line
    body: Markup


def view_of(block: Block, cut: Cut) -> View:
    """Return the view of a tool call."""
    given = _arguments(block)
    if not isinstance(given, dict):
        return View("other", "", code(call_in(block)[1], cut))
    for kind, make in _KINDS:
        found = make(given, cut)
        if found is not None:
            gist, body, shown = found
            others = {name: value for name, value in given.items() if name not in shown and value not in (None, "")}
            rest = tag("p", f"{', '.join(f'{n}: {pretty(v)}' for n, v in others.items())}", class_="note")
            return View(kind, _one_line(gist), join(body, rest if others else EMPTY))
    gist = next((value for value in given.values() if isinstance(value, str)), "")
    return View("other", _one_line(gist), code(pretty(given), cut) if given else EMPTY)


def _arguments(block: Block) -> object:
    given = block.arguments
    if isinstance(given, str):
        with suppress(ValueError, RecursionError):
            return json.loads(given)
    return given


def _one_line(text: str) -> str:
    text = " ".join(text[: 4 * _GIST].split())
    return text if len(text) <= _GIST else f"{text[:_GIST]}…"


# -- kinds: each takes the arguments and returns a summary, a body and the names of the arguments that these show; or
# None if the call is of another kind

_Found = tuple[str, Markup, set[str]]


def _text(given: dict[str, object], *names: str) -> tuple[str, str] | None:
    """Return the first of these arguments that is text, with its name."""
    return next(((name, value) for name in names if isinstance(value := given.get(name), str)), None)


def _shell(given: dict[str, object], cut: Cut) -> _Found | None:
    name = next((name for name in ("command", "cmd") if name in given), None)
    if name is None or ("old_str" in given or "path" in given):
        return None
    value = given[name]
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        words = [word for word in value if isinstance(word, str)]
        is_wrapped = len(words) == 3 and words[1] in ("-c", "-lc")
        value = words[2] if is_wrapped else " ".join(words)
    if not isinstance(value, str):
        return None
    said = _text(given, "description")
    return said[1] if said else value, code(value, cut, "shell"), {name, "description"}


def _change(given: dict[str, object], _: Cut) -> _Found | None:
    path = _text(given, "file_path", "path", "filename")
    edits = given.get("edits") if isinstance(given.get("edits"), list) else [given]
    shown: list[Markup] = []
    used: set[str] = {"edits"}
    for edit in edits if isinstance(edits, list) else []:
        if not isinstance(edit, dict):
            return None
        old = _text(edit, "old_string", "old_str", "old_text", "oldText")
        new = _text(edit, "new_string", "new_str", "new_text", "newText")
        if old is None or new is None:
            return None
        used |= {old[0], new[0]}
        shown.append(difference(old[1], new[1]))
    if not shown:
        return None
    return path[1] if path else "", join(*shown), used | ({path[0]} if path else set())


def _patch(given: dict[str, object], cut: Cut) -> _Found | None:
    found = _text(given, "input", "patch", "diff")
    if found is None or not found[1].lstrip().startswith(("*** Begin Patch", "--- ", "diff --git")):
        return None
    files = [line.split(":", 1)[1].strip() for line in found[1].splitlines() if line.startswith("*** ") and ":" in line]
    return ", ".join(files), patch(found[1], cut), {found[0]}


def _write(given: dict[str, object], cut: Cut) -> _Found | None:
    path, content = _text(given, "file_path", "path", "filename"), _text(given, "content", "file_text", "contents")
    if path is None or content is None:
        return None
    return path[1], code(content[1], cut), {path[0], content[0]}


def _search(given: dict[str, object], _: Cut) -> _Found | None:
    found = _text(given, "pattern", "query", "q", "url")
    if found is None:
        return None
    where = _text(given, "path", "glob", "include", "prompt")
    return f"{found[1]}{f' in {where[1]}' if where and where[0] != 'prompt' else ''}", EMPTY, {found[0]}


def _read(given: dict[str, object], _: Cut) -> _Found | None:
    found = _text(given, "file_path", "path", "filename", "absolute_path", "notebook_path")
    if found is None:
        return None
    start, count = given.get("offset"), given.get("limit")
    lines = f", {count} lines" if isinstance(count, int) else ""
    where = f" from line {start}{lines}" if isinstance(start, int) else lines
    return f"{found[1]}{where}", EMPTY, {found[0], "offset", "limit"}


def _tasks(given: dict[str, object], _: Cut) -> _Found | None:
    name = next((name for name in ("todos", "plan", "todo_list") if isinstance(given.get(name), list)), None)
    items = given.get(name) if name else None
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        return None
    rows, done = [], 0
    for item in items:
        said = _text(item, "content", "step", "text", "title", "description")
        if said is None:
            return None
        status = str(item.get("status", ""))
        done += status in ("completed", "done")
        mark = tag("span", _MARKS.get(status, "☐"), title=status or None)
        rows.append(tag("li", mark, " ", said[1], class_="done" if status in ("completed", "done") else None))
    return f"{done} of {len(rows)} done", tag("ul", *rows, class_="tasks"), {name or ""}


def _agent(given: dict[str, object], cut: Cut) -> _Found | None:
    prompt, said = _text(given, "prompt"), _text(given, "description")
    if prompt is None or said is None:
        return None
    return said[1], code(prompt[1], cut), {"prompt", "description"}


_KINDS: tuple[tuple[str, Callable[[dict[str, object], Cut], _Found | None]], ...] = (
    ("shell", _shell),
    ("change", _change),
    ("change", _patch),
    ("write", _write),
    ("tasks", _tasks),
    ("agent", _agent),
    ("search", _search),
    ("read", _read),
)


# -- texts


def code(text: str, cut: Cut, kind: str | None = None) -> Markup:
    """Return a text as it is, in a box."""
    return tag("div", long_text(text, cut), class_=f"code {kind}" if kind else "code")


def long_text(text: str, cut: Cut) -> Markup:
    """Return a text as it is; of a long one the beginning, with the rest folded or at its own address."""
    end = _end(text, cut)
    shown = tag("pre", text[:end], dir="auto", tabindex="0")
    if end >= len(text):
        return shown
    label = f"Show all {text.count(chr(10)) + 1:,} lines"
    if cut.rest is not None:
        return join(shown, tag("a", label, class_="rest", href=cut.rest()))
    rest = tag("pre", text[end:].removeprefix("\n"), dir="auto", tabindex="0")
    return join(shown, tag("details", tag("summary", label), rest, class_="rest"))


def _end(text: str, cut: Cut) -> int:
    """Return where a long text is cut: at the end of a line, or in a line that is too long."""
    end = -1
    for _ in range(cut.lines):
        end = text.find("\n", end + 1)
        if end < 0:
            end = len(text)
            break
        if end > cut.characters:
            break
    if end <= cut.characters:
        return end
    return max(text.rfind("\n", 0, cut.characters), 0) or cut.characters


def difference(old: str, new: str) -> Markup:
    """Return the lines that a change takes out and puts in, with those that it leaves between them."""
    before, after = old.splitlines(), new.splitlines()
    if len(before) + len(after) > _MAX_DIFF_LINES:
        return _lines([*(("-", line) for line in before), *(("+", line) for line in after)])
    return _lines(list(_compare(before, after)))


def _compare(before: list[str], after: list[str]) -> Iterator[tuple[str, str]]:
    for what, i, j, k, m in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if what == "equal":
            yield from ((" ", line) for line in before[i:j])
        else:
            yield from (("-", line) for line in before[i:j])
            yield from (("+", line) for line in after[k:m])


def patch(text: str, cut: Cut) -> Markup:
    """Return a patch with its lines in colour."""
    if _end(text, cut) < len(text):
        return code(text, cut)
    rows = []
    for line in text.splitlines():
        is_head = line.startswith(("***", "@@", "diff ", "--- ", "+++ "))
        rows.append(("@", line) if is_head else (line[:1], line[1:]) if line[:1] in "+-" and line else (" ", line))
    return _lines(rows)


def _lines(rows: list[tuple[str, str]]) -> Markup:
    names = {"+": "ins", "-": "del", "@": "b"}
    shown = [
        tag(names[sign], f"{'' if sign == '@' else sign}{line}\n") if sign in names else join(f" {line}\n")
        for sign, line in rows
    ]
    return tag("div", tag("pre", *shown, dir="ltr", tabindex="0"), class_="code diff")


def result_text(block: Block) -> str | None:
    """Return the text of a result, JSON indented."""
    text = text_in(block)
    if text is not None and block.mime_type == "application/json":
        with suppress(ValueError, RecursionError):
            return pretty(json.loads(text))
    return text
