"""The configuration of clients: one entry comes and goes, everything else stays, and a broken file is never touched.

Requirements: G2.
"""

import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hitherto.recall import clients
from hitherto.recall.json_text import put, take

COMMAND = ["/usr/bin/hitherto", "mcp"]
PATH = ("mcpServers", "hitherto")
JSON = (
    "",
    "{}\n",
    "{ }",
    '{"a": 1}',
    '{\n    "a": [1, {"b": "}"}],\n    "c": "\\" // no comment"\n}\n',
    '{"mcpServers": {"other": {"command": "x"}}, "z": null}',
    '{\n  // a note\n  "theme": "dark", /* another */\n  "mcpServers": {\n    "other": {}, // mine\n  },\n}\n',
    '{\r\n\t"a": true // last\r\n}\r\n',
    '\ufeff{"a": "ü\\u00fc"}',
)
TOML = (
    "",
    "model = 'gpt-5' # mine\n",
    "# a note\nmodel = 'gpt-5'\n\n[mcp_servers.other]\ncommand = 'x'\nargs = [\n  'y', # why\n]\n",
    "a = 1",
    "[a]\r\nb = 1\r\n",
)
FILES = {"claude": ".claude.json", "codex": ".codex/config.toml", "gemini": ".gemini/settings.json"}


def install(home: Path, client: str, *, remove: bool = False) -> list[clients.FileChange]:
    changes = clients.plan(client, COMMAND, remove=remove, home=home, environment={})
    clients.apply(changes)
    return changes


def without_notes(text: str) -> str:
    lines = [line.split(" //")[0] if '"c"' not in line else line for line in text.lstrip("\ufeff").splitlines()]
    kept = "\n".join(line for line in lines if not line.strip().startswith("//")).replace("/* another */", "")
    return kept.replace(",\n  }", "\n  }").replace(",\n}", "\n}").replace("},\n}", "}\n}")


@pytest.mark.parametrize("text", JSON)
def test_an_entry_of_json_comes_and_goes_and_the_rest_stays(text: str) -> None:
    changed = put(text, PATH, {"command": "x", "args": ["1"]})
    read = json.loads(without_notes(changed))
    assert read["mcpServers"]["hitherto"] == {"command": "x", "args": ["1"]}
    for note in ("// a note", "/* another */", "// mine", "// last", "\r\n", "\ufeff"):
        assert changed.count(note) >= text.count(note)
    assert put(changed, PATH, {"command": "x", "args": ["1"]}) == changed
    assert json.loads(without_notes(put(changed, PATH, 7)))["mcpServers"]["hitherto"] == 7
    assert take(changed, PATH) == (text or "{}\n").replace("{ }", "{}")
    assert take(text, PATH) == text


@pytest.mark.parametrize("client", FILES)
def test_a_client_is_configured_and_put_back(tmp_path: Path, client: str) -> None:
    for number, text in enumerate(TOML if client == "codex" else JSON):
        home = tmp_path / str(number)
        file = home / FILES[client]
        if text:
            file.parent.mkdir(parents=True)
            file.write_bytes(text.encode())
            file.chmod(0o640)
        assert install(home, client)
        written = file.read_bytes().decode()
        skill = clients.plan(client, COMMAND, remove=True, home=home, environment={})[-1].path
        assert "description:" in Path(skill).read_text()
        if client == "codex":
            assert tomllib.loads(written)["mcp_servers"]["hitherto"] == {"command": COMMAND[0], "args": ["mcp"]}
        assert install(home, client) == []
        if text:
            assert stat.S_IMODE(file.stat().st_mode) == 0o640
        install(home, client, remove=True)
        assert not Path(skill).exists()
        if text.strip() in ("", "{}", "{ }"):
            assert not file.exists()
        else:
            assert file.read_bytes().decode().rstrip("\n") == text.rstrip("\n")
        assert install(home, client, remove=True) == []


@pytest.mark.parametrize(
    ("client", "text"),
    [
        *((client, text) for client in ("claude", "gemini") for text in (
            b"{", b"[]", b'{"mcpServers": []}', b'{"mcpServers": {}, "mcpServers": {}}', b'{"a": 1} x', b"\xff\xfe{}",
            b"{'a': 1}", b'{"a": }', b"/* open", b"[" * 100_000,
        )),
        *(("codex", text) for text in (
            b"[", b"a = ", b"\xff", b"mcp_servers = { hitherto = { command = 'x' } }\n",
            b"[mcp_servers]\nhitherto = { command = 'x' }\n", b"mcp_servers = 3\n",
        )),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_parsed_is_not_touched(tmp_path: Path, client: str, text: bytes) -> None:
    file = tmp_path / FILES[client]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text)
    with pytest.raises(clients.CannotConfigure):
        install(tmp_path, client)
    assert file.read_bytes() == text
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name]


def test_a_file_that_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / ".claude.json"
    file.write_text("{}")
    changes = clients.plan("claude", COMMAND, remove=False, home=tmp_path, environment={})
    file.write_text('{"new": 1}')
    with pytest.raises(clients.CannotConfigure, match="changed meanwhile"):
        clients.apply(changes)
    assert file.read_text() == '{"new": 1}'


def test_a_link_stays_a_link_and_a_skill_of_ones_own_stays(tmp_path: Path) -> None:
    (tmp_path / "dotfiles.json").write_text("{}")
    (tmp_path / ".claude.json").symlink_to(tmp_path / "dotfiles.json")
    install(tmp_path, "claude")
    assert (tmp_path / ".claude.json").is_symlink()
    assert "hitherto" in (tmp_path / "dotfiles.json").read_text()
    skill = tmp_path / ".claude/skills/hitherto-recall/SKILL.md"
    skill.write_text("mine")
    install(tmp_path, "claude", remove=True)
    assert skill.read_text() == "mine"


def test_variables_of_the_clients_name_the_place(tmp_path: Path) -> None:
    for client, variable, name in (
        ("claude", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("codex", "CODEX_HOME", "config.toml"),
    ):
        there = clients.plan(client, COMMAND, remove=False, home=tmp_path, environment={variable: str(tmp_path / "x")})
        assert there[0].path == str(tmp_path / "x" / name)


def run(home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    names = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME")
    environment = {key: value for key, value in os.environ.items() if key not in names}
    environment |= {"HOME": str(home), "HITHERTO_STORE": str(home / "c.db")}
    command = [sys.executable, "-m", "hitherto", "install", *arguments]
    return subprocess.run(command, env=environment, cwd=home, text=True, capture_output=True, input="", check=False)


def test_the_command_shows_the_difference_and_asks(tmp_path: Path) -> None:
    file = tmp_path / ".gemini/settings.json"
    file.parent.mkdir()
    file.write_text('{\n  "theme": "dark" // mine\n}\n')
    done = run(tmp_path, "gemini")
    assert done.returncode == 2
    assert '+  "mcpServers": {' in done.stdout
    assert "--yes" in done.stderr
    assert run(tmp_path, "gemini", "--dry-run").returncode == 0
    assert file.read_text() == '{\n  "theme": "dark" // mine\n}\n'
    assert run(tmp_path, "gemini", "--yes", "--all").returncode == 0
    written = json.loads(file.read_text().replace("// mine", ""))["mcpServers"]["hitherto"]
    assert written["args"][-4:] == ["--store", str(tmp_path / "c.db"), "mcp", "--all"]
    assert "installed already" in run(tmp_path, "gemini", "--yes", "--all").stderr
    assert run(tmp_path, "gemini", "--yes", "--uninstall").returncode == 0
    assert file.read_text() == '{\n  "theme": "dark" // mine\n}\n'
    file.write_text("{")
    broken = run(tmp_path, "gemini", "--yes")
    assert broken.returncode == 1
    assert "not touched" in broken.stderr
