"""`hitherto config`: settings without an editor. Each test uses the user's own file in a home of its own."""

import json
import os
import stat
from pathlib import Path

import pytest

import hitherto
from hitherto._system import config_file

from ..support.command import World


@pytest.fixture
def config(world: World) -> Path:
    """The configuration file of this world; it is not there yet."""
    path = world.root / "config" / "config.toml"
    world.env["HITHERTO_CONFIG"] = str(path)
    return path


def test_a_setting_is_made_read_and_removed_without_an_editor(world: World, config: Path) -> None:
    assert world.command("config", "path").stdout.strip() == str(config)
    assert world.command("config", "set", "model", "gpt-5").returncode == 0
    assert world.command("config", "get", "model").stdout == "gpt-5\n"
    assert stat.S_IMODE(os.stat(config).st_mode) == 0o600
    assert json.loads(world.command("config", "get", "--json").stdout)["model"] == "gpt-5"
    assert world.command("config", "unset", "model").returncode == 0
    done = world.command("config", "get", "model")
    assert (done.returncode, done.stdout) == (3, "")
    assert os.listdir(config.parent) == ["config.toml"]  # nothing unfinished is left behind


def test_comments_and_other_lines_survive_a_change(world: World, config: Path) -> None:
    config.parent.mkdir()
    config.write_text("# mine\nmodel = 'old' # the usual\n\nsystem = \"Be terse.\"\n")
    value = 'a "quoted" \\ é \x7f'
    assert world.command("config", "set", "model", value).returncode == 0
    text = config.read_text()
    assert text.startswith("# mine\nmodel = ")
    assert text.endswith(' # the usual\n\nsystem = "Be terse."\n')
    assert config_file.load({"HITHERTO_CONFIG": str(config)}) == {"model": value, "system": "Be terse."}


def test_a_value_on_several_lines_is_left_to_an_editor(world: World, config: Path) -> None:
    config.parent.mkdir()
    config.write_text('system = """Be\nterse."""\n')
    before = config.read_bytes()
    done = world.command("config", "set", "system", "x")
    assert done.returncode == 1
    assert "editor" in done.stderr
    assert config.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("modle", "x", "did you mean model?"),
        ("provider", "opnai", "did you mean openai?"),
        ("sanitise", "secret", "did you mean secrets?"),
        ("api_key", "sk-secret-1", "hitherto login NAME"),
        ("allow_insecure", "true", "needs no permission"),
        ("base_url", "http://10.0.0.1/v1?sk-secret-1", "https"),
        ("key", "sk-secret-1", "file:PATH"),
        ("model", "", "hitherto config unset model"),
    ],
)
def test_a_wrong_name_or_value_is_refused_with_a_hint_and_writes_nothing(
    world: World, config: Path, name: str, value: str, said: str
) -> None:
    done = world.command("config", "set", name, value)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "sk-secret" not in done.stderr
    assert not config.exists()


def test_what_may_be_a_secret_is_not_printed(world: World, config: Path) -> None:
    config.parent.mkdir()
    config.write_text('key = "sk-secret-1"\nstore = "postgresql://ada:secret-2@db/x"\n')
    for given in ((), ("--json",), ("key",)):
        done = world.command("config", "get", *given)
        assert "secret-" not in done.stdout + done.stderr
    assert "postgresql://db/x" in world.command("config", "get", "store").stdout


def test_a_program_and_the_commands_use_the_store_of_the_configuration(
    world: World, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del world.env["HITHERTO_STORE"]
    place = str(world.root / "usual.db")
    assert world.command("config", "set", "store", place).returncode == 0
    monkeypatch.chdir(world.here)
    monkeypatch.delenv("HITHERTO_STORE", raising=False)
    monkeypatch.setenv("HITHERTO_CONFIG", str(config))
    with hitherto.open() as store:
        store.start(title="from Python")
    assert world.command("where").stdout.strip() == place
    assert "from Python" in world.command("conversation", "list", "--json").stdout
