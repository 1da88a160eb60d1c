"""The configuration file: a few lines of TOML with default values for options.

    store = "~/chats.db"
    key = "keyring:hitherto"
    provider = "claude"
    model = "claude-sonnet-4-5"

It lies in the user's own configuration folder, and there is no other. A file in a project could come from a stranger
and name a command to run. Options and environment variables override the file. An unknown name in it is an error and
never ignored.

Most of it is for the command line. `store` is for programs, too: `hitherto.open()` without an argument and the commands
use the same store.

`change` replaces one line, and keeps the others with their comments.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches

from ..errors import CannotOpen, HithertoError
from . import own_files

NAMES = {  # each allowed name, with its meaning
    "store": "the store, if neither an option nor a .hitherto folder names one",
    "workspace": "the workspace in the store",
    "key": "where the key comes from: file:PATH, command:WORDS, keyring:SERVICE or credential:NAME",
    "sanitise": "the sanitiser for everything that is written: secrets, personal, everything or off",
    "provider": "the provider that `chat` uses",
    "model": "the model's name",
    "system": "the system prompt of new conversations",
    "base_url": "the provider's address, if it is not the usual one",
    "model_path": "the GGUF file of the local model",
    "pager": 'the program that long output is shown with; "" for none',
}
_LARGEST = 100_000  # bytes


class BadConfig(HithertoError):
    """The configuration file cannot be used."""


def path(environment: Mapping[str, str] | None = None) -> str:
    """Return the path of the file, whether it exists or not."""
    environment = os.environ if environment is None else environment
    named = environment.get("HITHERTO_CONFIG")
    if named:
        return os.path.expanduser(named)
    import platformdirs  # noqa: PLC0415  # HITHERTO_CONFIG makes it unnecessary

    return os.path.join(platformdirs.user_config_dir("hitherto", appauthor=False), "config.toml")


def load(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the file's settings. Return an empty dict if there is no file at its usual place."""
    environment = os.environ if environment is None else environment
    where = path(environment)
    try:
        data = own_files.read_start(where, _LARGEST + 1, own_files.TO_READ_THROUGH_LINKS)
        import tomllib  # noqa: PLC0415  # most users have no such file

        if len(data) > _LARGEST:
            raise BadConfig(f"{where} is too long for a configuration file")
        found = tomllib.loads(data.decode())
    except CannotOpen:
        raise BadConfig(f"{where} is not a file") from None
    except FileNotFoundError:
        if environment.get("HITHERTO_CONFIG"):
            raise BadConfig(f"there is no {where}", hint="HITHERTO_CONFIG names it") from None
        return {}
    except (OSError, ValueError) as error:  # a TOMLDecodeError names line and column
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadConfig(
            f"{where} cannot be read: {reason}", hint='a line is a name and a text: provider = "claude"'
        ) from None
    return _check(found, where)


def check_name(name: str) -> None:
    """Raise BadConfig if there is no setting of this name."""
    if name in NAMES:
        return
    if "key" in name and name != "key":
        raise BadConfig(f"{name!r:.40} is not a setting", hint="hitherto login NAME keeps the key of a provider")
    if "insecure" in name:
        hint = "http to a server on this machine needs no permission, and elsewhere there is none"
        raise BadConfig(f"{name!r:.40} is never a setting", hint=hint)
    raise BadConfig(f"there is no setting {name!r:.40}", hint=_say_known(name))


def _say_known(name: str) -> str:
    near = get_close_matches(name.lower(), NAMES, n=1)
    return f"{f'did you mean {near[0]}? K' if near else 'k'}nown are {', '.join(NAMES)}"


def change(name: str, value: str | None) -> None:
    """Set one value, or remove it with None. All other lines stay as they are. The file is private, and is replaced as
    a whole."""
    check_name(name)
    where = os.path.realpath(path())
    try:
        text = own_files.read_start(where, _LARGEST + 1).decode()
        before = load()
    except FileNotFoundError:
        text, before = "", {}
    except (OSError, ValueError) as error:
        raise BadConfig(f"{where} cannot be read: {error}") from None
    wanted = {**before, name: value} if value is not None else {n: v for n, v in before.items() if n != name}
    changed = _change_line(text, name, value)
    import tomllib  # noqa: PLC0415  # as above

    with suppress(ValueError):
        if tomllib.loads(changed) == wanted:
            _replace(where, changed)
            return
    raise BadConfig(f"{name} is not on a line of its own in {where}", hint="change it there with an editor")


def _change_line(text: str, name: str, value: str | None) -> str:
    """Return the text with one assignment changed, added or removed."""
    line = re.compile(rf"""^([ \t]*{name}[ \t]*=[ \t]*)("(?:[^"\\\n]|\\.)*"|'[^'\n]*')(.*(?:\n|\Z))""", re.MULTILINE)
    written = "" if value is None else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if line.search(text):
        return line.sub(lambda m: "" if value is None else f"{m[1]}{written}{m[3]}", text, count=1)
    if value is None:
        return text
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{name} = {written}\n"


def _replace(where: str, text: str) -> None:
    try:
        os.makedirs(os.path.dirname(where), mode=0o700, exist_ok=True)
        own_files.replace_with(where, text.encode())
    except OSError as error:
        hint = "check that the folder is yours, and that there is space"
        raise BadConfig(f"{where} cannot be written: {error.strerror}", hint=hint) from None


def _check(found: Mapping[str, object], where: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in found.items():
        if name not in NAMES:
            raise BadConfig(f"{where} has the unknown name {name!r:.40}", hint=_say_known(name))
        if not isinstance(value, str):
            raise BadConfig(f"{where}: {name} must be a text", hint=f'{name} = "…"')
        settings[name] = value
    return settings
