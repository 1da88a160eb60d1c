"""The hints of the command line: they name commands and options, never code.

The library's hints carry codes, by which the command line words them for its users.

Requirements: C10, C11, and STYLE on the command line.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

import pytest

import hitherto
from hitherto import errors
from hitherto.cli._hints import AT_PROMPT, HINTS, KEPT, NOT_KEPT, hint_at_prompt, hint_of

from ..support.command import COMMAND, World

SOURCE = Path(hitherto.__file__).parent
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HithertoError)]
CODE = re.compile(r"\w\(\w*[)…=]|=…|=True|\bclient\b|Config|api_key|(?<!-)model_path|timeout_seconds")
# Only a program can cause these.
FOR_PROGRAMS = re.compile(
    r"Config\(provider|Records\(|own client|set the tools|set_system_prompt|page\.|store\.|Message\.|cursor"
    r"|export_history|load\(|resume\(|recursive=|on_conflict|hitherto\.open|Key\(|FileStore\("
)


@cache
def trees() -> dict[Path, ast.Module]:
    """The library's modules, without the command line and the test kit."""
    paths = (path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in ("cli", "testing"))
    return {path: ast.parse(path.read_text()) for path in paths}


def codes() -> set[str]:
    """The codes of all hints in the library."""
    calls = [node for tree in trees().values() for node in ast.walk(tree) if is_hint(node)]
    return {text_of(call.args[0]) for call in calls}


def is_hint(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Hint"


def hints_without_code() -> Iterator[str]:
    """The other hints of the modules that a command can meet."""
    for path, tree in trees().items():
        name = str(path.relative_to(SOURCE))
        if name.startswith(("chat/", "backends/", "formats/")) or name in ("keys.py", "opening.py"):
            yield from filter(None, map(text_of, hint_values(tree)))


def hint_values(tree: ast.Module) -> Iterator[ast.expr | None]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "hint":
            yield node.value
        elif isinstance(node, ast.FunctionDef) and node.name == "_hint":
            yield from (inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("hint", "_INSTALL", "_LOOK", "_UNLOADABLE", "_ANOTHER") or name.endswith("_HINT"):
                yield node.value


def text_of(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    return ""


def test_a_hint_that_names_code_has_a_code_of_its_own() -> None:
    hints = set(hints_without_code())
    assert len(hints) > 50
    assert [text for text in hints if CODE.search(text) and not FOR_PROGRAMS.search(text)] == []


def test_the_command_line_words_each_hint_that_has_a_code() -> None:
    assert len(codes()) > 30
    special = {*AT_PROMPT, *KEPT, *NOT_KEPT}
    assert codes() <= {*HINTS, *special}
    for table in (AT_PROMPT, KEPT, NOT_KEPT):
        assert special <= {*HINTS, *table}


def test_each_wording_belongs_to_an_error() -> None:
    assert {*HINTS, *AT_PROMPT, *KEPT, *NOT_KEPT} <= codes() | {kind.code for kind in KINDS}


def test_no_hint_on_the_command_line_is_for_those_who_write_code() -> None:
    for table in (HINTS, AT_PROMPT, KEPT, NOT_KEPT):
        assert [text for text in table.values() if CODE.search(text)] == []


def test_the_values_of_a_hint_are_filled_in() -> None:
    hint = errors.Hint("no-api-key", "set {variable}, or give Config(api_key=…)", variable="A_KEY", provider="openai")
    error = errors.ChatError("there is no key", hint=hint)
    assert error.hint == "set A_KEY, or give Config(api_key=…)"
    assert hint_of(error) == "set A_KEY in the environment, or keep the key: hitherto login openai"


def test_a_hint_of_its_own_comes_before_the_one_of_its_kind() -> None:
    """The control: without one, the kind's is taken, as the command line words it."""
    assert hint_of(errors.NotFound("message", ["x"], hint="look elsewhere")) == "look elsewhere"
    assert hint_of(errors.NotFound("message", ["x"])) == HINTS["not-found"]


def test_a_key_that_is_missing_is_explained_in_words_of_the_command_line(world: World) -> None:
    done = world.plain(*COMMAND, "chat", "--provider", "openai", "--model", "m", "x", forked=True)
    assert done.returncode == 1
    assert re.search(
        r"hint: set OPENAI_API_KEY in the environment, or keep the key: hitherto login openai\n", done.stderr
    ), done.stderr


@pytest.mark.parametrize("kind", [errors.Busy, errors.KeyUnavailable, errors.NotFound, errors.Damaged])
def test_what_all_errors_of_a_kind_advise_is_said_at_the_prompt_as_elsewhere(kind: type[Any]) -> None:
    error = kind("message", ["x"]) if kind is errors.NotFound else kind("x")
    hint = hint_at_prompt(error)
    assert hint
    assert hint != error.hint
