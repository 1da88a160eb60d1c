"""Completion: the answers to Tab, in a real shell where it is installed.

Requirements: STYLE on pipes.
"""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete

from hitherto import Key, Message
from hitherto.cli._completion import complete_ids
from hitherto.cli._main import COMMANDS
from hitherto.cli._store_options import with_place

from ..support.command import COMMAND, World

BASH = shutil.which("bash")


@click.group()
@click.option("--store")
@click.option("--workspace")
@click.option("--key")
def program(**_: object) -> None:
    """A program with a command that takes an id."""


@program.command()
@click.argument("id", shell_complete=complete_ids)
@with_place
def look(**_: object) -> None:
    """A command of that program."""


def completions(*words: str) -> dict[str, str | None]:
    """The completions of the last word, with their descriptions."""
    completer = BashComplete(program, {}, "program", "_PROGRAM_COMPLETE")
    return {item.value: item.help for item in completer.get_completions(list(words[:-1]), words[-1])}


def complete(world: World, *words: str) -> list[str]:
    """The output of `hitherto` for a completion by bash."""
    asked = {"COMP_WORDS": " ".join(("hitherto", *words)), "COMP_CWORD": str(len(words))}
    done = world.command(_HITHERTO_COMPLETE="bash_complete", **asked)
    assert (done.returncode, done.stderr) == (0, "")
    return [text.partition(",")[2] for text in done.stdout.splitlines()]


@pytest.fixture
def ids(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A store with two conversations, the newer one with two messages: ids by their names."""
    monkeypatch.setenv("HITHERTO_STORE", str(world.place))
    with world.store() as store:
        old = store.start(title="Old")
        old.append(Message.user("first"))
        new = store.start(title="New \x1b[31m" + "long " * 50)
        asked, answered = new.append(Message.user("Why?")), new.append(Message.assistant("Because\nof that."))
        return {"old": old.id, "new": new.id, "asked": asked.id, "answered": answered.id}


def test_commands_options_and_choices_are_offered(world: World) -> None:
    assert complete(world, "") == list(COMMANDS)
    assert complete(world, "co") == [name for name in COMMANDS if name.startswith("co")]
    assert complete(world, "--st") == ["--store"]
    assert complete(world, "completion", "") == ["bash", "zsh", "fish"]
    assert complete(world, "key", "r") == ["rotate"]
    assert "--days" in complete(world, "stats", "--")


def test_ids_are_offered_newest_first_with_what_they_are(ids: dict[str, str]) -> None:
    found = completions("look", "")
    assert list(found) == [ids["new"][:8], ids["old"][:8], ids["answered"], ids["asked"]]
    assert found[ids["answered"]] == "[assistant] Because of that."
    told = found[ids["new"][:8]] or ""
    assert "New ␛[31mlong" in told
    assert len(told) == 60


def test_what_is_typed_narrows_it_down(ids: dict[str, str]) -> None:
    assert list(completions("look", ids["old"][:6])) == [ids["old"][:8]]
    assert list(completions("look", ids["old"][:12])) == [ids["old"]]
    assert list(completions("look", ids["asked"][:5])) == [ids["asked"]]
    assert completions("look", "~~~") == {}


def test_the_store_that_the_command_would_use_is_asked(
    ids: dict[str, str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HITHERTO_STORE", str(world.root / "none.db"))
    assert completions("look", "") == {}
    assert len(completions("look", "--store", str(world.place), "")) == 4
    assert len(completions("--store", str(world.place), "look", "")) == 4
    assert completions("look", "--store", str(world.place), "--workspace", "other", "") == {}
    assert len(ids) == 4


def test_looking_leaves_no_trace(ids: dict[str, str], world: World) -> None:
    before = world.traces()
    assert len(completions("look", "")) == len(ids)
    assert world.traces() == before


@pytest.mark.parametrize("trouble", ["missing", "garbage", "sealed", "config", "location", "source"])
def test_trouble_means_that_nothing_is_offered_or_said(
    world: World, trouble: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HITHERTO_STORE", "redis://x" if trouble == "location" else str(world.place))
    if trouble == "garbage":
        world.place.write_bytes(b"garbage " * 1000)
    if trouble == "sealed":
        world.store(key=Key(b"k" * 32)).close()
    if trouble == "config":
        monkeypatch.setenv("HITHERTO_CONFIG", str(world.place))
    if trouble == "source":
        monkeypatch.setenv("HITHERTO_KEY", "what")
    assert completions("look", "") == {}
    assert capfd.readouterr() == ("", "")


def test_a_key_is_fetched_from_a_file_and_nobody_is_asked_for_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked = world.home / "key", world.home / "asked"
    path.write_bytes(b"k" * 32)
    path.chmod(0o600)
    with world.store(key=Key(b"k" * 32)) as store:
        store.start().append(Message.user("x"))
    monkeypatch.setenv("HITHERTO_STORE", str(world.place))
    assert len(completions("look", "--key", f"file:{path}", "")) == 2
    assert completions("look", "--key", f"command:touch {asked}", "") == {}
    assert not asked.exists()


def test_completing_loads_nothing_that_is_not_needed(world: World) -> None:
    """Many commands import `complete_ids`, so the import must cost next to nothing."""
    code = "import sys; from hitherto.cli._completion import complete_ids; print(*sorted(sys.modules))"
    loaded = world.plain(sys.executable, "-c", code).stdout.split()
    assert {"hitherto.store", "apsw", "msgspec", "click.shell_completion", "cryptography"}.isdisjoint(loaded)


def test_which_shell_is_said_or_found_out(world: World) -> None:
    done = world.command("completion", SHELL="/usr/bin/fish")
    assert done.returncode == 0
    assert "_HITHERTO_COMPLETE=fish_complete" in done.stdout
    assert ".config/fish" in done.stderr
    done = world.command("completion", "zsh", SHELL="/usr/bin/fish")
    assert done.stdout.startswith("#compdef hitherto")
    assert "~/.zshrc" in done.stderr
    for shell in ("/bin/tcsh", ""):
        done = world.command("completion", SHELL=shell)
        assert done.returncode == 2
        assert "bash, zsh, fish" in done.stderr


@pytest.fixture
def path(world: World) -> str:
    """A PATH on which `hitherto` is this one."""
    program = world.root / "bin" / "hitherto"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def run(world: World, shell: str, path: str, script: str) -> str:
    env = world.env | {"PATH": path}
    done = subprocess.run([shell, "-c", script], env=env, cwd=world.here, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_bash_completes(world: World, path: str) -> None:
    script = """
    eval "$(hitherto completion bash 2>/dev/null)"
    complete -p hitherto
    COMP_WORDS=(hitherto key st) COMP_CWORD=2
    _hitherto_completion hitherto
    echo "${COMPREPLY[@]}"
    """
    said = run(world, BASH or "", path, script).splitlines()
    assert said == ["complete -o nosort -F _hitherto_completion hitherto", "status"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_the_script(world: World, path: str) -> None:
    script = (
        'autoload -U compinit; compinit -u -D; eval "$(hitherto completion zsh 2>/dev/null)"; print $_comps[hitherto]'
    )
    assert run(world, shutil.which("zsh") or "", path, script) == "_hitherto_completion\n"


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(world: World, path: str) -> None:
    script = 'hitherto completion fish 2>/dev/null | source; complete -C "hitherto key st"'
    assert run(world, shutil.which("fish") or "", path, script).startswith("status")


def test_the_script_for_each_shell_is_what_its_parser_takes(world: World, tmp_path: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        program = shutil.which(shell)
        if program is not None:
            script = tmp_path / f"script.{shell}"
            script.write_text(world.command("completion", shell).stdout)
            assert subprocess.run([program, "-n", script], check=False).returncode == 0
