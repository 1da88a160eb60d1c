"""The configuration of clients: hitherto as one of their MCP servers, and a skill that says when to call it.

A plan holds the files as they are and as they will be, so that the difference can be shown before anything is written.
A file is changed at one place, keeps its comments, its order and its mode, and is replaced in one step. A file that
cannot be parsed, before or after the change, is never touched.
"""

import difflib
import json
import os
import stat
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from .._system import own_files
from ..errors import HithertoError
from . import json_text

NAME: Final = "hitherto"
SKILL: Final = "hitherto-recall"
CLIENTS: Final = ("claude", "codex", "gemini")

_LARGEST = 64 << 20  # bytes of a configuration file
_TABLE = f"mcp_servers.{NAME}"


class CannotConfigure(HithertoError):
    """A client's configuration cannot be changed. It was left as it is."""


class FileChange(Struct, frozen=True):
    """A file as it is (None: it is not there) and as it will be (None: it goes)."""

    path: str
    before: str | None
    after: str | None

    def difference(self) -> str:
        """Return the change as a unified difference; empty if there is none."""
        before, after = ((text or "").splitlines(keepends=True) for text in (self.before, self.after))
        lines = difflib.unified_diff(before, after, self.path, self.path)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def plan(
    client: str, command: Sequence[str], *, remove: bool, home: Path, environment: Mapping[str, str]
) -> list[FileChange]:
    """Return the changes that put hitherto into a client's configuration, or take it out."""
    folder, config = _places(client, home, environment)
    change = _change_toml if config.suffix == ".toml" else _change_json
    skill = folder / "skills" / SKILL / "SKILL.md"
    found = [_change(config, lambda text: change(text, command, remove=remove)), _plan_skill(skill, remove=remove)]
    return [one for one in found if one.before != one.after]


def apply(changes: Sequence[FileChange]) -> None:
    """Write the changes. A file that was changed since the plan was made raises, before any is written."""
    for change in changes:
        if _read(Path(change.path)) != change.before:
            raise CannotConfigure(f"{change.path} was changed meanwhile", hint="run the command again")
    for change in changes:
        try:
            _write(change)
        except OSError as error:
            raise CannotConfigure(f"{change.path} cannot be written: {error.strerror}") from error


def _places(client: str, home: Path, environment: Mapping[str, str]) -> tuple[Path, Path]:
    """Return a client's folder, and its configuration file."""
    if client == "claude":
        own = environment.get("CLAUDE_CONFIG_DIR")
        return (Path(own), Path(own) / ".claude.json") if own else (home / ".claude", home / ".claude.json")
    if client == "codex":
        folder = Path(environment.get("CODEX_HOME") or home / ".codex")
        return folder, folder / "config.toml"
    folder = Path(environment.get("GEMINI_CLI_HOME") or home) / ".gemini"
    return folder, folder / "settings.json"


def _change(path: Path, change: Callable[[str], str]) -> FileChange:
    before = _read(path)
    try:
        after = change(before or "")
    except (ValueError, RecursionError) as error:
        raise CannotConfigure(
            f"{path} cannot be parsed, so it was not touched: {error}", hint="mend it, or add hitherto mcp by hand"
        ) from None
    return FileChange(str(path), before, after or None)


def _read(path: Path) -> str | None:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise CannotConfigure(f"{path} is not a file")
        if path.stat().st_size > _LARGEST:
            raise CannotConfigure(f"{path} is too large for a configuration")
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise CannotConfigure(f"{path} is not UTF-8, so it was not touched") from None
    except OSError as error:
        raise CannotConfigure(f"{path} cannot be read: {error.strerror}") from error


def _write(change: FileChange) -> None:
    """Replace a file in one step. A link stays a link, and the mode stays."""
    path = os.path.realpath(change.path)
    if change.after is None:
        os.unlink(change.path)
        folder = Path(change.path).parent
        if folder.name == SKILL and not any(folder.iterdir()):
            folder.rmdir()
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    mode = None if change.before is None else stat.S_IMODE(os.stat(path).st_mode)
    own_files.replace_with(path, change.after.encode())
    if mode is not None:
        os.chmod(path, mode)


# -- the formats


def _change_json(text: str, command: Sequence[str], *, remove: bool) -> str:
    """Return the JSON of Claude Code or Gemini CLI with our entry, or without it."""
    path = ("mcpServers", NAME)
    changed = json_text.take(text, path) if remove else json_text.put(text, path, _entry(command))
    if changed.strip() in ("", "{}") and remove:
        return text if changed == text else ""
    json_text.check(changed)
    return changed


def _entry(command: Sequence[str]) -> dict[str, object]:
    return {"command": command[0], "args": [*command[1:]]}


def _change_toml(text: str, command: Sequence[str], *, remove: bool) -> str:
    """Return the TOML of Codex with our table, or without it."""
    before = tomllib.loads(text)
    if not isinstance(before.get("mcp_servers", {}), dict):
        raise ValueError("mcp_servers is not a table")
    changed = _without_table(text)
    wanted = {name: table for name, table in before.get("mcp_servers", {}).items() if name != NAME}
    if not remove:
        wanted[NAME] = entry = _entry(command)
        lines = [
            f"[{_TABLE}]",
            *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()),
            "",
        ]
        gap = ["", *([] if changed.endswith("\n") else [""])] if changed else []
        changed += ("\r\n" if "\r\n" in text else "\n").join([*gap, *lines])
    after = tomllib.loads(changed)
    if after.pop("mcp_servers", {}) != wanted or after != {key: before[key] for key in before if key != "mcp_servers"}:
        raise ValueError(f"{NAME} does not stand in a table of its own")
    return changed


def _without_table(text: str) -> str:
    """Return a TOML text without our table and those below it. Comments in these stay."""
    kept: list[str] = []
    ours = False
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if bare.startswith("["):
            name = bare.lstrip("[").partition("]")[0].replace(" ", "").replace('"', "")
            was, ours = ours, name == _TABLE or name.startswith(f"{_TABLE}.")
            if ours and not was and kept and not kept[-1].strip():
                kept.pop()
        if not ours or not bare or bare.startswith("#"):
            kept.append(line)
    return "".join(kept)


# -- the skill


def _plan_skill(path: Path, *, remove: bool) -> FileChange:
    before, ours = _read(path), skill_text()
    if remove:
        return FileChange(str(path), before, None if before == ours else before)
    return FileChange(str(path), before, ours)


def skill_text() -> str:
    """Return the skill: when to ask, and how."""
    return (Path(__file__).parent / "SKILL.md").read_text("utf-8")
