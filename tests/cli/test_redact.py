"""`hitherto export --redact`: files to hand to somebody. Requirement: H1."""

import json

import pytest

from hitherto import Block, Message
from hitherto.records import Records

from ..support.command import World

TOKEN = "ghp_" + "x7Kq2mZt9LbV4wRj8NcPs3YdHf6GaQ1eUo5T"
MAIL = "ada.lovelace@analytical.org"
SECRETS = (TOKEN, MAIL, "very-private-folder")


@pytest.fixture
def talk(world: World) -> str:
    with world.store() as store:
        talk = store.start(title=f"For {MAIL}", system_prompt=f"Use {TOKEN}.", project="/home/very-private-folder")
        asked = talk.append(Message.user(f"I am {MAIL}, fine weather", key="very-private-folder"))
        talk.append(Message.assistant(Block.tool_call("c1", "look", {"token": TOKEN})))
        talk.append(Message.tool_result("c1", f"token={TOKEN}"))
        talk.fork(at=asked.id).append(Message.assistant("another branch"))
        return talk.id


@pytest.mark.parametrize("format", ["html", "markdown", "jsonl"])
def test_a_redacted_file_holds_no_secret(world: World, talk: str, format: str) -> None:
    redacted = world.command("export", talk, "--format", format, "--redact")
    assert redacted.returncode == 0, redacted.stderr
    assert "fine weather" in redacted.stdout
    assert "another branch" in redacted.stdout
    assert [one for one in SECRETS if one in redacted.stdout] == []
    plain = world.command("export", talk, "--format", format).stdout
    assert TOKEN in plain  # the control
    assert MAIL in plain
    everything = world.command("export", "--all", "--format", format, "--redact").stdout
    assert everything == redacted.stdout


def test_the_thread_to_a_message_is_redacted_into_a_new_file(world: World, talk: str) -> None:
    with world.store() as store:
        asked = store.conversation(talk).thread()[0].id
    file = world.here / "share.html"
    done = world.command("export", asked, "--redact", "-o", "share.html")
    assert done.returncode == 0, done.stderr
    page = file.read_text()
    assert "fine weather" in page
    assert "another branch" not in page
    assert [one for one in SECRETS if one in page] == []
    again = world.command("export", asked, "--redact", "-o", "share.html")
    assert again.returncode != 0
    assert file.read_text() == page  # nothing is overwritten


def test_redacted_lines_are_imported_again(world: World, talk: str) -> None:
    world.command("export", talk, "--redact", "-o", "share.jsonl")
    done = world.command("import", "share.jsonl", "--store", "other.db", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["messages"] == 4


def test_a_format_that_cannot_be_redacted_is_refused(world: World, talk: str) -> None:
    done = world.command("export", talk, "--format", "snapshot", "--redact")
    assert done.returncode == 2
    assert "--redact is for html, jsonl, markdown" in done.stderr
    assert done.stdout == ""


def test_what_must_not_leave_does_not_leave_redacted(world: World) -> None:
    with world.store() as store:
        Records(store).create(messages=[], privacy={"exportable": False})
    done = world.command("export", "--all", "--redact", "--format", "html")
    assert done.returncode != 0
    assert done.stdout == ""
