"""The configuration file: a few lines of TOML with default values for options.

    store = "~/chats.db"
    key = "keyring:hitherto"
    provider = "claude"
    model = "claude-sonnet-4-5"

It lies in the user's own configuration folder, and there is no other. A file in a project could come from a stranger
and name a command to run. Options and environment variables override the file. An unknown name in it is an error and
never ignored.
"""

import os
from collections.abc import Mapping

from .. import _own_files
from ..errors import CannotOpen, HithertoError

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
        data = _own_files.read_start(where, _LARGEST + 1, _own_files.TO_READ_THROUGH_LINKS)
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


def _check(found: Mapping[str, object], where: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in found.items():
        if name not in NAMES:
            raise BadConfig(f"{where} has the unknown name {name!r:.40}", hint=f"known are {', '.join(NAMES)}")
        if not isinstance(value, str):
            raise BadConfig(f"{where}: {name} must be a text", hint=f'{name} = "…"')
        settings[name] = value
    return settings
