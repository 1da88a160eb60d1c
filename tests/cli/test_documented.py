"""Every command is documented: it has a section that names each of its options, and a transcript that is run."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from hitherto import Message, erasures, formats
from hitherto.cli import _main

from ..support.command import World
from ..support.transcripts import steps

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "commands.md").read_text()
CHAT = (DOCS / "cli.md").read_text()
EVERYWHERE = {"--store", "--workspace", "--key", "--utc", "--help", "-h"}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words."""
    context = click.Context(_main.hitherto)
    for name in _main.COMMANDS:
        command = _main.hitherto.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group):
            yield name, command
            continue
        seen: set[int] = set()
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            if id(found) not in seen and not found.hidden:
                seen.add(id(found))
                yield f"{name} {below}", found


def section(name: str) -> str:
    """The documentation of a command: from its heading to the next heading of its level."""
    page = re.sub(r"^```.*?^```$", "", CHAT if name == "chat" else PAGE, flags=re.MULTILINE | re.DOTALL)
    found = re.search(rf"^(##+) `hitherto {name}`$", page, re.MULTILINE)
    assert found is not None, f"there is no section on hitherto {name}"
    rest = page[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_section_that_names_every_option(name: str) -> None:
    said = section(name)
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            for option in {*parameter.opts, *parameter.secondary_opts} - EVERYWHERE:
                assert re.search(rf"`{option}[` ]", said), f"hitherto {name} {option} is not documented"


def test_every_command_is_shown_with_what_it_prints() -> None:
    typed = [step.typed for step in steps(PAGE)]
    names = {name: name for name in COMMANDS}
    names |= {name: f"(conversation|convo|conv) {name.split()[1]}" for name in COMMANDS if "conversation" in name}
    for name, words in names.items():
        if name != "show":  # the same as conversation print
            assert any(re.search(rf"hitherto {words}\b", line) for line in typed), f"hitherto {name} is not shown"


def test_every_command_says_what_it_does() -> None:
    for name, command in COMMANDS.items():
        assert command.help, name
        assert command.get_short_help_str(200).endswith((".", "?", ")")), (name, command.get_short_help_str(200))
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (name, parameter.name)


JSON = {  # what is typed for each command that has --json, in a folder with one conversation of two branches
    "where": (),
    "list": (),
    "config get": (),
    "conversation list": (),
    "conversation print": (),
    "show": (),
    "log": (),
    "branches": (),
    "compare": ("@", "{first}"),
    "fork": ("@",),
    "search": ("why",),
    "import": ("said.jsonl",),
    "backup": ("copy.db",),
    "restore": ("kept.db", "--replace", "--yes"),
    "copy": ("{store}", "elsewhere.db"),
    "continue": ("--in", "claude"),
    "rescue": ("--dry-run",),
    "usage": (),
    "stats": (),
    "verify": (),
    "doctor": (),
    "purge": ("@", "--yes"),
    "erasures list": (),
    "erasures keep": ("ledger",),
    "erasures replay": ("ledger", "--yes"),
    "retention show": (),
    "retention run": ("--days", "7", "--yes"),
    "quarantine list": (),
    "quarantine purge": ("--yes",),
    "key status": (),
}


def fields(value: object) -> set[str]:
    """The names of an object's fields, and of the fields of objects in its lists."""
    if isinstance(value, list):
        return {name for one in value[:1] for name in fields(one)}
    if not isinstance(value, dict):
        return set()
    below = {name for key, one in value.items() if key not in OPEN for name in fields(one)}
    return set(value) | below if set(value) - ROLES else set()


OPEN = {"left", "right", "extra", "usage", "renamed", "ids", "roles"}  # told in words, or of others
ROLES = {"user", "assistant", "tool_result", "event"}


@pytest.mark.parametrize("name", JSON)
def test_every_field_of_the_json_is_documented(name: str, world: World) -> None:
    with world.store() as store:
        talk = store.start(title="Failing build", project=str(world.here))
        first = talk.extend([Message.user("Why?"), Message.assistant("Because.")])[0]
        talk.fork(first.id).append(Message.assistant("It depends."))
        formats.save(store, world.here / "said.jsonl")
        store.backup(world.here / "kept.db")
        store.purge(store.start().id, reason="user-requested")
        erasures.keep(store, world.here / "ledger")
    given = [word.format(first=first.id, store=world.place) for word in JSON[name]]
    done = world.command(*name.split(), *given, "--json")
    assert done.returncode == 0, done.stderr
    said = section(name) if name != "show" else section("conversation print")
    if name == "log":
        said += section("conversation print")
    for line in done.stdout.splitlines():
        for field in fields(json.loads(line)):
            assert f"`{field}`" in said, f"hitherto {name} --json: {field} is not documented"


def test_every_command_with_json_is_looked_at() -> None:
    has = {name for name, command in COMMANDS.items() if any("--json" in p.opts for p in command.params)}
    assert has == set(JSON)
