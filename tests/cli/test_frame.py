"""The frame of all commands: the choice of the store, the configuration file, exit codes, and output on a terminal.

Requirements: C13, C16, and STYLE on the command line.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import apsw
import click
import pytest

import hitherto
from hitherto import Key, Message, errors
from hitherto._system import config_file, terminal_text
from hitherto.cli import _exit_codes, _hints, _main, _output, _search, _store_options, _terminal

from ..support.command import COMMAND, Open, World


def make_conversation(world: World, title: str = "Failing build", **how: object) -> tuple[str, str]:
    """Make a conversation of two messages; its id, and that of the answer."""
    with world.store(**how) as store:
        talk = store.start(title=title, project=str(world.here))
        talk.append(Message.user("Why does it fail?"))
        return talk.id, talk.append(Message.assistant("An unused import.")).id


# -- which store


def test_an_option_goes_before_the_environment_a_folder_and_the_configuration(world: World) -> None:
    config = world.root / "config.toml"
    config.write_text(f'store = "{world.root}/configured.db"\n')
    env = {"HITHERTO_CONFIG": str(config)}
    del world.env["HITHERTO_STORE"]

    def where(*given: str, **more: str) -> tuple[str, str]:
        done = json.loads(world.command(*given, "where", "--json", **env, **more).stdout)
        return Path(done["store"]).name, done["found"]

    assert where() == ("configured.db", "the configuration file")
    (world.here / ".hitherto").mkdir()
    assert where() == ("hitherto.db", "a .hitherto folder")
    assert where(HITHERTO_STORE=str(world.root / "named.db")) == ("named.db", "HITHERTO_STORE")
    assert where("--store", str(world.root / "given.db"), HITHERTO_STORE="x") == ("given.db", "--store")


def test_without_anything_it_is_the_users_data_directory(world: World) -> None:
    del world.env["HITHERTO_STORE"]
    found = json.loads(world.command("where", "--json").stdout)
    assert found["found"] == "the user's data directory"
    assert found["store"] == str(world.home / "data" / "hitherto" / "hitherto.db")
    assert found["exists"] is False
    assert not (world.home / "data").exists()


def test_the_store_may_be_named_before_the_command_or_after_it(world: World) -> None:
    make_conversation(world)
    place, world.env["HITHERTO_STORE"] = world.env["HITHERTO_STORE"], "/nowhere/at/all.db"
    for arguments in (("--store", place, "verify"), ("verify", "--store", place)):
        assert world.command(*arguments).returncode == 0
    assert world.command("--store", "/nowhere/else.db", "verify", "--store", place).returncode == 0


def test_a_workspace_is_named_by_option_environment_or_configuration(world: World) -> None:
    make_conversation(world, workspace="acme")
    config = world.root / "config.toml"
    config.write_text('workspace = "acme"\n')
    for arguments, env in ((("--workspace", "acme"), {}), ((), {"HITHERTO_WORKSPACE": "acme"}),
                           ((), {"HITHERTO_CONFIG": str(config)})):  # fmt: skip
        assert json.loads(world.command("verify", "--json", *arguments, **env).stdout)["messages"] == 2
    done = world.command("verify", "--workspace", "other")
    assert done.returncode == 4
    assert "other" in done.stderr


@pytest.mark.parametrize("command", [("verify",), ("search", "x"), ("rename", "@", "x"), ("conversation", "list")])
def test_a_store_that_is_not_there_is_an_error_and_is_not_made(world: World, command: tuple[str, ...]) -> None:
    done = world.command(*command)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: there is no store at {world.place}\nhint: ")
    assert done.stdout == ""
    assert not world.place.exists()


def test_a_store_that_is_none_is_an_error(world: World) -> None:
    world.place.write_text("not a database at all" * 100)
    done = world.command("verify")
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert world.place.read_text() == "not a database at all" * 100


def test_a_newer_store_is_an_error_that_says_so(world: World) -> None:
    make_conversation(world)
    connection = apsw.Connection(str(world.place))
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    done = world.command("verify")
    assert done.returncode == 1
    assert "upgrade hitherto" in done.stderr


def test_a_sealed_store_takes_its_key_from_where_it_is(world: World) -> None:
    key = Key.generate()
    key.to_file(world.root / "key")
    Key.generate().to_file(world.root / "other")
    make_conversation(world, key=key)
    config = world.root / "config.toml"
    config.write_text(f'key = "file:{world.root}/key"\n')
    file = f"file:{world.root}/key"
    for arguments, env in (
        (("--key", file), {}),
        (("--key", f"command:cat {world.root}/key"), {}),
        ((), {"HITHERTO_KEY": file}),
        ((), {"HITHERTO_CONFIG": str(config)}),
    ):
        assert world.command("verify", *arguments, **env).returncode == 0
    before = world.traces()
    for arguments in ((), ("--key", f"file:{world.root}/other"), ("--key", f"file:{world.root}/none")):
        done = world.command("verify", *arguments)
        assert done.returncode == 6
        assert re.match(r"error: .*\nhint: .*\n$", done.stderr)
    assert world.traces() == before
    assert world.command("verify", "--key", str(key._text())).returncode == 2


def test_the_key_itself_on_the_command_line_is_refused_and_not_repeated(world: World) -> None:
    secret = Key.generate()._text()
    done = world.command("verify", "--key", secret)
    assert done.returncode == 2
    assert secret not in done.stderr


def test_a_store_that_is_damaged_is_an_exit_code_of_its_own(world: World) -> None:
    make_conversation(world)
    with world.store() as store:
        assert store.verify().ok
    connection = apsw.Connection(str(world.place))
    connection.execute("UPDATE message SET body = zeroblob(length(body))")
    connection.close()
    done = world.command("verify")
    assert done.returncode == 7
    assert "problem " in done.stdout
    found = json.loads(world.command("verify", "--json").stdout)
    assert found["ok"] is False
    assert {"what", "conversation", "message"} == set(found["problems"][0])


def test_a_store_that_others_write_to_for_too_long_is_busy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    make_conversation(world)
    connection = apsw.Connection(str(world.place))
    connection.execute("BEGIN IMMEDIATE")
    try:
        monkeypatch.setattr(
            _store_options.Place, "open", lambda self: hitherto.open(self.location, timeout_seconds=0.1)
        )
        monkeypatch.setenv("HITHERTO_STORE", str(world.place))
        assert _main.run(["rename", "@", "x", "--store", str(world.place)]) in (4, 9)
        with world.store(read_only=True) as store:
            id = store.conversations().items[0].id
        assert _main.run(["rename", id, "x"]) == 9
        assert world.command("verify").returncode == 0  # who only reads does not wait
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def test_looking_leaves_no_trace(world: World) -> None:
    make_conversation(world)
    before = world.traces()
    for command in (("verify",), ("where",), ("quarantine", "list"), ("conversation", "list"), ("log",), ("branches",)):
        assert world.command(*command).returncode == 0
    assert world.traces() == before


def test_what_a_killed_process_left_is_read_though_it_has_to_be_mended_first(world: World) -> None:
    killed = (
        "import os, signal, sys, hitherto; from hitherto import Message\n"
        "store = hitherto.open(sys.argv[1], maintenance=False)\n"
        "store.start(title='Left').append(Message.user('still here'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    process = subprocess.run([sys.executable, "-c", killed, world.place], check=False, env=world.env)
    assert process.returncode == -signal.SIGKILL
    Path(f"{world.place}-shm").unlink()  # as after the power went, too: what is in the WAL can be read by mending only
    with pytest.raises(errors.CannotOpen):
        world.store(read_only=True)
    done = world.command("conversation", "list")
    assert (done.returncode, "still here" in done.stdout) == (0, True)


def test_a_read_only_folder_can_be_looked_at_and_searched(world: World) -> None:
    """Root may write everywhere, so the command gives that up."""
    make_conversation(world)
    humble = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may write everywhere, and cannot give it up here")
        humble = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    world.place.chmod(0o400)
    world.place.parent.chmod(0o500)
    try:
        for command, code in ((("verify",), 0), (("conversation", "list"), 0), (("search", "import"), 0),
                              (("purge", "@", "--dry-run"), 0), (("export", "--all"), 0), (("stats",), 0),
                              (("rename", "@", "x"), 1), (("purge", "@", "--yes"), 1)):  # fmt: skip
            done = world.plain(*humble, *COMMAND, *command)
            assert done.returncode == code, (command, done)
        assert sorted(os.listdir(world.place.parent)) == ["chats.db", "chats.db-ballast"]
    finally:
        world.place.parent.chmod(0o700)


# -- the configuration


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("store = 3\n", "store must be a text"),
        ("stroe = 'x'\n", "unknown name 'stroe'"),
        ("store = \n", "cannot be read: Invalid value (at line 1"),
        ("[store]\npath = 'x'\n", "store must be a text"),
        ("\xff", "cannot be read"),
        ("#" * 200_000, "too long"),
    ],
)
def test_a_configuration_that_says_nonsense_is_an_error(world: World, text: str, wrong: str) -> None:
    config = world.root / "config.toml"
    config.write_bytes(text.encode("latin-1"))
    done = world.command("where", HITHERTO_CONFIG=str(config))
    assert done.returncode == 1
    assert wrong in done.stderr
    assert str(config) in done.stderr


def test_a_configuration_that_is_named_and_not_there_is_an_error(world: World) -> None:
    done = world.command("where", HITHERTO_CONFIG="/nowhere/config.toml")
    assert (done.returncode, done.stdout) == (1, "")


def test_the_configuration_is_where_the_user_keeps_such_files(world: World) -> None:
    folder = world.home / "config" / "hitherto"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('workspace = "mine"\n')
    done = json.loads(world.command("where", "--json", XDG_CONFIG_HOME=str(world.home / "config")).stdout)
    assert (done["workspace"], done["config"]) == ("mine", str(folder / "config.toml"))


def test_every_name_of_the_configuration_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for name in config_file.NAMES:
        assert f"| `{name}` |" in page, name


# -- init


def test_init_makes_a_store_for_this_folder_and_the_ones_below(world: World) -> None:
    del world.env["HITHERTO_STORE"]
    done = world.command("init")
    assert done.returncode == 0
    made = Path(done.stdout.strip())
    assert made == world.here / ".hitherto" / "hitherto.db"
    assert (made.parent.stat().st_mode & 0o777, made.stat().st_mode & 0o777) == (0o700, 0o600)
    assert (made.parent / ".gitignore").read_text() == "*\n"
    world.here = world.here / "below"
    world.here.mkdir()
    assert world.command("where").stdout.strip() == str(made)
    world.here = world.here.parent
    again = world.command("init")
    assert again.returncode == 1
    assert "already exists" in again.stderr


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "directory", "file"])
def test_init_leaves_alone_what_lies_where_it_would_write(world: World, kind: str) -> None:
    folder = world.here / ".hitherto"
    folder.mkdir()
    ignore, precious = folder / ".gitignore", world.here / "precious"
    precious.write_text("mine")
    if kind == "pipe":
        os.mkfifo(ignore)
    elif kind == "directory":
        ignore.mkdir()
    elif kind == "file":
        ignore.write_text("mine")
    else:
        ignore.symlink_to(precious if kind == "link" else world.here / "nothing")
    before = os.lstat(ignore)
    done = world.command("init")
    assert done.returncode == 0, done.stderr
    assert (os.lstat(ignore).st_ino, os.lstat(ignore).st_size) == (before.st_ino, before.st_size)
    assert precious.read_text() == "mine"
    assert not (world.here / "nothing").exists()


def test_a_configuration_that_is_a_pipe_stops_nobody(world: World) -> None:
    os.mkfifo(world.here / "config.toml")
    done = world.command("log", HITHERTO_CONFIG=str(world.here / "config.toml"))
    assert done.returncode != 0
    assert "is not a file" in done.stderr


def test_init_with_a_key_makes_a_sealed_store(world: World) -> None:
    del world.env["HITHERTO_STORE"]
    Key.generate().to_file(world.root / "key")
    done = world.command("init", "--key", f"file:{world.root}/key")
    assert "sealed" in done.stderr
    with pytest.raises(errors.KeyUnavailable):
        hitherto.open(done.stdout.strip())


# -- errors, and what is shown


def test_every_kind_of_error_has_the_exit_code_that_is_documented() -> None:
    cases = {
        errors.NotFound("message", ["x"]): 4,
        errors.Ambiguous("x", ["xy", "xz"]): 4,
        errors.Held("x"): 5,
        errors.KeyUnavailable("x"): 6,
        errors.NotSealed("x"): 6,
        errors.Damaged("x"): 7,
        errors.PartialImport("x", None): 8,  # the report does not matter here
        errors.Busy("x"): 9,
        errors.CannotOpen("x"): 1,
        errors.InvalidArgument("x"): 2,
        errors.StorageFull("x"): 1,
    }
    assert {error: _exit_codes.exit_code_of(error) for error in cases} == cases
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for code in {*cases.values(), 0, 3, 130}:
        assert f"| {code} |" in page, code


def test_hints_on_the_command_line_name_commands_not_code() -> None:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HithertoError)
    ]
    for kind in kinds:
        hint = _hints.kind_hint(kind)
        for code in ("store.", "client.", "Config(", "hitherto.open", "talk.", "error.report", "max_attachment", "()"):
            assert code not in (hint or ""), (kind, hint)


def test_an_unknown_command_is_a_usage_error(world: World) -> None:
    done = world.command("frobnicate")
    assert done.returncode == 2
    assert done.stderr == "error: No such command 'frobnicate'.\nhint: hitherto --help shows how\n"


def test_ids_that_are_unknown_hostile_or_fit_several_are_said_to_be(world: World) -> None:
    make_conversation(world)
    with world.store() as store:
        for n in range(40):
            store.start(title=str(n))
        ids = [info.id for info in store.conversations(limit=100).items]
    first = max((id[0] for id in ids), key=[id[0] for id in ids].count)
    for id in (
        "zzzzzz",
        "00000000-0000-4000-8000-000000000000",
        "../../etc",
        "\x1b[31m",
        "@~999",
        "",
        "x" * 5000,
        first,
    ):
        done = world.command("rename", id, "x")
        assert done.returncode == 4, (id, done)
        assert done.stderr.startswith("error: ")
        assert "\x1b" not in done.stderr
        assert len(done.stderr) < 1000


def test_the_newest_conversations_of_this_folder_are_called_at(world: World) -> None:
    first, _ = make_conversation(world, "first")
    second, _ = make_conversation(world, "second")
    with world.store() as store:
        store.start(title="elsewhere", project="/elsewhere").append(Message.user("hi"))
    world.command("rename", "@", "newest")
    world.command("rename", "@~1", "before")
    with world.store() as store:
        assert (store.conversation(second).title, store.conversation(first).title) == ("newest", "before")


def test_json_never_holds_a_character_that_does_something_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(map(chr, terminal_text.SIGNS.keys() - set(range(0xD800, 0xE000)))) + 'é漢"\\'
    _output.print_json({"text": text})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"text": text}
    assert not set(map(chr, terminal_text.SIGNS)) & set(shown.rstrip("\n"))
    assert "é漢" in shown


def test_long_output_goes_through_the_pager_on_a_terminal_and_nowhere_else(world: World, terminal: Open) -> None:
    with world.store() as store:
        talk = store.start(project=str(world.here))
        talk.extend([Message.user(f"line {n}") for n in range(50)])
    pager = "sed s/^/paged:/"
    shown = terminal(command=[*COMMAND, "search", "line", "--limit", "50"], size=(80, 20), HITHERTO_PAGER=pager)
    assert shown.end() == 0
    assert shown.shown.count("paged:") == 100
    short = terminal(command=[*COMMAND, "search", "line", "--limit", "2"], size=(80, 20), HITHERTO_PAGER=pager)
    assert short.end() == 0
    assert "paged:" not in short.shown
    assert "paged:" not in world.command("search", "line", HITHERTO_PAGER=pager).stdout


def test_a_pager_that_is_left_early_is_no_error(world: World, terminal: Open) -> None:
    with world.store() as store:
        store.start(project=str(world.here)).extend([Message.user(f"line {n} " + "x" * 2000) for n in range(200)])
    arguments = [*COMMAND, "search", "line", "--limit", "200"]
    shown = terminal(command=arguments, size=(80, 20), HITHERTO_PAGER="true")
    assert shown.end() == 0
    shown = terminal(command=arguments, size=(80, 20), HITHERTO_PAGER="/nowhere/pager")
    assert shown.end() == 0
    assert "the pager cannot be run" in shown.shown
    assert "line 0" in shown.shown.replace("\x1b[1;33m", "").replace("\x1b[0m", "")


def test_a_closed_pipe_is_no_error(world: World) -> None:
    with world.store() as store:
        store.start(project=str(world.here)).extend([Message.user(f"line {n} " + "x" * 2000) for n in range(500)])
    command = f"{sys.executable} -m hitherto search line --limit 500"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -1"],
        capture_output=True, env=world.env, cwd=world.here, check=False,
    )  # fmt: skip
    assert done.stderr == b""
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1


def test_colours_are_for_terminals_that_want_them(world: World, terminal: Open) -> None:
    make_conversation(world)
    command = [*COMMAND, "search", "import"]
    for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        shown = terminal(command=command, size=(80, 50), **env)
        assert shown.end() == 0
        assert ("\x1b[" in shown.shown) == coloured
    assert "\x1b" not in world.command("search", "import").stdout


def test_every_command_that_asks_takes_the_short_answer() -> None:
    def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None
            yield f"{path} {name}", found
            if isinstance(found, click.Group):
                yield from commands(found, f"{path} {name}")

    asking = {
        path: option.opts
        for path, command in commands(_main.hitherto, "hitherto")
        for option in command.params
        if "--yes" in option.opts
    }
    assert len(asking) >= 8
    assert {path for path, opts in asking.items() if "-y" not in opts} == set()


def test_what_cannot_be_undone_is_asked_for_on_a_terminal(world: World, terminal: Open) -> None:
    id, _ = make_conversation(world)
    shown = terminal(command=[*COMMAND, "purge", "@"])
    shown.read("[y/N]")
    shown.press("n\n")
    assert shown.end() == 130
    with world.store(read_only=True) as store:
        assert store.conversation(id).count == 2
    shown = terminal(command=[*COMMAND, "purge", "@"])
    shown.read("[y/N]")
    shown.press("y\n")
    assert shown.end() == 0
    assert world.command("purge", id, "--yes").returncode == 4


# -- start-up


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), ("conversation", "list"), ("search", "--help"), ("where",)]
)
def test_what_is_not_needed_is_not_loaded(world: World, arguments: tuple[str, ...]) -> None:
    make_conversation(world)
    code = (
        "import sys, hitherto.cli\n"
        f"try: hitherto.cli.main({list(arguments)!r})\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    done = world.plain(sys.executable, "-c", code)
    loaded = set(done.stderr.split())
    heavy = {"openai", "anthropic", "google.genai", "httpx", "rich", "prompt_toolkit", "obstore", "keyring", "asyncio",
             "subprocess", "cryptography.hazmat.primitives.ciphers", "hitherto.chat", "hitherto.recorder"}  # fmt: skip
    assert "click" in loaded  # the control: what is needed is seen
    assert not loaded & heavy
    if arguments in (("--help",), ("--version",)):
        assert not loaded & {"apsw", "msgspec", "hitherto.store", "tomllib", "platformdirs"}


# -- what was found by looking for it


def test_a_workspace_that_was_misspelt_is_not_made(world: World) -> None:
    _, message = make_conversation(world)
    for command in (("search", "import"), ("hold", message), ("purge", "@", "--dry-run"), ("retention", "set", "30"),
                    ("conversation", "delete", message, "--yes"), ("fork", "@"), ("key", "status")):  # fmt: skip
        done = world.command(*command, "--workspace", "typo")
        assert done.returncode == 4, (command, done)
        assert "typo" in done.stderr
    connection = apsw.Connection(str(world.place))
    assert connection.execute("SELECT name FROM workspace").fetchall() == [("default",)]
    connection.close()


def test_a_search_goes_without_what_it_cannot_keep(world: World) -> None:
    make_conversation(world)
    connection = apsw.Connection(str(world.place))
    connection.execute("BEGIN IMMEDIATE")
    try:
        done = world.command("search", "unused")
    finally:
        connection.execute("ROLLBACK")
        connection.close()
    assert done.returncode == 0
    assert "An unused import." in done.stdout


def test_a_word_that_is_to_be_left_out_is_no_option(world: World) -> None:
    make_conversation(world)
    assert world.command("search", "unused", "-elephant").returncode == 0
    assert world.command("search", "unused", "-import").returncode == 3
    assert world.command("search", "unused", "--limt", "3").returncode == 2


def test_a_snippet_fits_on_the_line_and_shows_what_was_found(world: World) -> None:
    with world.store() as store:
        store.start().append(Message.user("x" * 50 + " 漢字 needle " + "y" * 90))
    for columns in ("20", "40", "80"):
        found = world.command("search", "needle", COLUMNS=columns).stdout.splitlines()[1]
        assert "needle" in found
        assert _terminal.columns(found) <= int(columns)


def test_names_that_are_no_text_do_not_break_json(world: World) -> None:
    name = os.fsdecode(b"caf\xe9.db")
    for command in (("where", "--json"), ("doctor", "--json")):
        done = world.command(*command, "--store", name)
        assert json.loads(done.stdout), done


def test_a_pager_that_cannot_be_understood_is_said_to_be(world: World, terminal: Open) -> None:
    with world.store() as store:
        store.start().extend([Message.user(f"line {n}") for n in range(30)])
    shown = terminal(command=[*COMMAND, "search", "line"], size=(80, 10), HITHERTO_PAGER='less "')
    assert shown.end() == 0
    assert "the pager cannot be run" in shown.shown


def test_a_folder_that_is_gone_is_said_to_be(world: World) -> None:
    del world.env["HITHERTO_STORE"]
    gone = world.here / "gone"
    gone.mkdir()
    done = world.plain("sh", "-c", f"cd {gone}; rmdir {gone}; exec {' '.join(COMMAND)} init")
    assert done.returncode == 1
    assert "the folder you are in is gone" in done.stderr


def test_an_import_of_nothing_makes_no_store(world: World) -> None:
    assert world.command("import", "nowhere.jsonl").returncode == 1
    assert world.command("import", "nowhere.jsonl", "--format", "nonsense").returncode != 0
    assert not world.place.exists()


def test_a_command_that_was_mistyped_is_guessed(world: World) -> None:
    assert "Did you mean 'log'" in world.command("lgo").stderr.replace("'logout' or ", "")
    assert "Did you mean" not in world.command("xyzzy").stderr


def test_the_folders_below_a_store_of_their_own_are_one_project(world: World) -> None:
    del world.env["HITHERTO_STORE"]
    world.command("init")
    world.run("one")
    below = world.here / "below"
    below.mkdir()
    world.here = below
    assert "continuing" in world.run("two").stderr


def test_what_is_quoted_in_an_error_stays_on_its_line(world: World) -> None:
    done = world.command("verify", "--store", "x\nerror: another\nhint: false")
    assert done.stderr.count("\n") == 2


def test_a_configuration_that_never_ends_is_refused(world: World) -> None:
    os.mkfifo(world.root / "config")
    done = world.command("where", HITHERTO_CONFIG=str(world.root / "config"))
    assert done.returncode == 1
    assert "is not a file" in done.stderr
    (world.root / "other").write_text('key = "secret"\n')
    done = world.command("where", HITHERTO_CONFIG=str(world.root / "other"))
    assert (done.returncode, "other: a key is named by" in done.stderr) == (1, True)
    assert "secret" not in done.stderr


def test_the_titles_of_conversations_are_listed_newest_first(world: World) -> None:
    first, _ = make_conversation(world, "first \x1b[31m")
    second, _ = make_conversation(world, "second")
    world.command("hold", first)
    lines = world.command("list").stdout.splitlines()
    assert [line[:8] for line in lines] == [second[:8], first[:8]]
    assert lines[1].endswith("2 messages    first ␛[31m (held)")


def test_a_long_list_is_looked_at_from_its_end(world: World, terminal: Open) -> None:
    make_conversation(world)
    (world.root / "less").write_text('#!/bin/sh\ncat >/dev/null; echo "given: $*"\n')
    (world.root / "less").chmod(0o755)
    shown = terminal(command=[*COMMAND, "conversation", "list"], size=(80, 3), PAGER=str(world.root / "less"))
    assert shown.end() == 0
    assert "given: +G" in shown.shown


def test_chat_makes_a_workspace_only_when_somebody_can_be_asked(world: World) -> None:
    make_conversation(world)
    typo = ("--workspace", "typo", "chat", "--provider", "claude", "--model", "x", "hi")
    assert world.command(*typo).returncode == 1  # there is no key
    assert world.command("--workspace", "typo", "conversation", "list").returncode == 4
    done = world.run("--workspace", "meant", "hi")
    assert (done.returncode, "a new workspace: meant" in done.stderr) == (0, True)
    assert "a new workspace" not in world.run("--workspace", "meant", "hi").stderr


def test_whoever_leaves_by_ctrl_c_is_told_how_to_come_back(world: World, terminal: Open) -> None:
    make_conversation(world)
    shown = terminal("--convert")
    shown.read("> ")
    assert shown.interrupt() == 130
    assert "kept: hitherto chat -c" in shown.shown


@pytest.mark.parametrize(
    ("snippet", "spans", "room", "shown"),
    [
        ("x" * 30, [(29, 30)], 30, "x" * 30),
        ("a needle", [(2, 8)], 30, "a needle"),
        ("漢" * 50 + "needle", [(50, 56)], 40, "…漢漢漢漢漢needle"),
        ("needle" + "y" * 50, [(0, 6)], 10, "needleyyy…"),
        ("no span at all", [], 8, "no span…"),
    ],
)
def test_a_snippet_is_cut_around_what_was_found(
    snippet: str, spans: list[tuple[int, int]], room: int, shown: str
) -> None:
    hit = hitherto.reports.Hit("m", "c", "user", datetime.now(UTC), snippet, tuple(spans), 0.0)
    assert _search._mark_snippet(hit, room) == shown
