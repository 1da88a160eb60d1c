"""`hitherto chat`: a conversation in the terminal, or one question in a pipe.

Without more it goes on with the newest conversation of this folder. Only answers are written to standard output; which
conversation it is, what was mended and what was left of an interruption is said on standard error.

Ctrl+C stops an answer, not the conversation. What was said is kept before the model is asked, and what had come of the
answer is kept beside it. So that this is true whenever the key is pressed, a press waits for what is being written in
that moment.

With `-G` nothing is kept: no store is opened, or it is opened to be read only, and no file is written by us.
"""

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING

import click

from .. import errors
from ._screen import Output, complain, is_terminal, line, say, width

if TYPE_CHECKING:
    from .._recovery import Partial
    from ..chat import ClaudeLocal, Client
    from ..conversation import Conversation
    from ..recorder import Resumed
    from ..store import Store

PROVIDERS = ("claude", "openai", "openai-compatible", "gemini", "claude-local", "local")  # a test compares them
_NAMELESS = ("local", "claude-local", "openai-compatible")  # providers that have a model of their own choice
INTERRUPTED = 130  # the exit code
_TITLE = 60  # characters
_LONGEST_LOCAL = 256  # tokens of the small model that comes with us: it does not always find an end
_PROMPT = "> "
_SLASH = re.compile(r"/\w+")
_COMMANDS = {
    "/quit": "leave",
    "/retry": "ask again what was not answered",
    "/accept": "take what came of an interrupted answer for the answer",
    "/discard": "let go of it",
    "/undo": "take the last question back, with its answer",
    "/help": "these commands",
}


@dataclass(frozen=True)
class Options:
    """What the command was given."""

    prompt: tuple[str, ...]
    continued: str | None
    new: bool
    incognito: bool
    convert: bool
    provider: str  # empty: the conversation's, or the one on this machine
    model: str | None
    system: str | None
    base_url: str | None
    allow_insecure: bool
    model_path: str | None
    store: str | None
    workspace: str


@click.command(short_help="Talk to a language model; the conversation is kept.")
@click.argument("prompt", nargs=-1)
@click.option("-c", "--continue", "continued", metavar="ID", help="Go on with a conversation, or from a message.")
@click.option("-n", "--new", is_flag=True, help="Begin a new conversation.")
@click.option("-G", "--incognito", is_flag=True, help="Keep nothing: no file is written.")
@click.option("--convert", is_flag=True, help="Go on with a conversation of another provider, as far as it goes.")
@click.option(
    "--provider", type=click.Choice(PROVIDERS), envvar="HITHERTO_PROVIDER", show_envvar=True,
    help="Whom to talk to.  [default: the conversation's, else local]",
)  # fmt: skip
@click.option("--model", envvar="HITHERTO_MODEL", show_envvar=True, help="The model's name.")
@click.option("--system", metavar="TEXT", help="The system prompt, from here on.")
@click.option("--base-url", metavar="URL", help="Where the provider is, if not at its usual address.")
@click.option("--allow-insecure", is_flag=True, help="Allow http:// in --base-url, to this machine only.")
@click.option("--model-path", metavar="FILE", help="The GGUF file of the local model.")
@click.option("--store", metavar="PATH", help="The store, in place of the usual one.")
@click.option("--workspace", default="default", show_default=True, help="The workspace in the store.")
def chat(**given: object) -> int:
    """Talk to a language model. The conversation is kept, and the next call in this folder goes on with it.

    With PROMPT, or something on standard input, one question is answered. Otherwise it is a conversation: /help shows
    its commands, Ctrl+C stops an answer, Ctrl+D leaves.
    """
    options = Options(**given | {"provider": given["provider"] or ""})  # type: ignore[arg-type]  # click has checked them
    _check(options)
    _say_warnings()
    with ExitStack() as stack:
        return _chat(options, stack)


def _check(options: Options) -> None:
    if options.new and options.continued is not None:
        raise click.UsageError("--new and --continue exclude each other")
    if options.allow_insecure and options.base_url is None:
        raise click.UsageError("--allow-insecure is about --base-url, which is not given")
    if options.allow_insecure and not _stays_here(options.base_url or ""):
        raise click.UsageError("--allow-insecure is for this machine only: 127.0.0.1, ::1 or localhost")


def _stays_here(url: str) -> bool:
    """Does a URL need no permission, or lead to this machine?"""
    from ipaddress import ip_address  # noqa: PLC0415  # only this needs them
    from urllib.parse import urlsplit  # noqa: PLC0415

    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        return parts.scheme == "https" or host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _say_warnings() -> None:
    """What the library warns of is said as everything else is."""
    import logging  # noqa: PLC0415  # help needs none

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(f"warning: {record.getMessage()}")

    log = logging.getLogger("hitherto")
    log.addHandler(Said(logging.WARNING))
    log.propagate = False


def _chat(options: Options, stack: ExitStack) -> int:
    store = _store(options, stack)
    talk = _found(options, store)
    options = replace(options, provider=options.provider or _provider_of(talk))
    if talk is not None and options.provider == "claude-local" and options.continued is None:
        talk = None  # what is said is kept, and cannot be put back into the program
    prompt = _piped(options.prompt)
    if talk is not None:
        _say_which(talk, options)
    client = _client(options, talk)
    stack.callback(client.close)
    session = Session(client, None if options.incognito else store, talk, options)
    return session.once(prompt) if prompt is not None else session.converse()


# -- where, with whom, about what


def _store(options: Options, stack: ExitStack) -> "Store | None":
    from ..opening import open as open_store  # noqa: PLC0415  # help needs none

    if options.incognito and options.continued is None:
        return None
    store = open_store(options.store, workspace=options.workspace, read_only=options.incognito)
    return stack.enter_context(store)


def _found(options: Options, store: "Store | None") -> "Conversation | None":
    """The conversation to go on with."""
    if store is None or options.new:
        return None
    if options.continued is not None:
        try:
            return store.conversation(options.continued)
        except errors.NotFound as error:
            error.hint = "-c takes the id of a conversation or of a message, or the beginning of one"
            raise
    here = _here()
    return None if here is None else store.latest(project=here)


def _provider_of(talk: "Conversation | None") -> str:
    """Who the conversation is held with; the model on this machine, if it is a new one."""
    return talk.provider if talk is not None and talk.provider in PROVIDERS else "local"


def _here() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # the folder is gone
        return None


def _piped(words: tuple[str, ...]) -> str | None:
    """What is asked on the command line, or in a pipe, or in both; None if somebody sits at a terminal and has asked
    nothing yet."""
    asked = " ".join(words)
    if is_terminal(sys.stdin):
        if words and not asked.strip():
            raise click.UsageError("there is nothing in the prompt")
        return asked or None
    try:
        piped = "" if sys.stdin is None else sys.stdin.buffer.read().decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise click.UsageError("what comes on standard input is not UTF-8 text") from None
    parts = [part for part in (piped, asked) if part.strip()]
    if not parts:
        raise click.UsageError("nothing was asked: there is no prompt, and nothing on standard input")
    return "\n\n".join(parts)


def _say_which(talk: "Conversation", options: Options) -> None:
    """Say which conversation is gone on with."""
    words = "reading" if options.incognito else "continuing"
    if options.continued is None:
        words = f"{words} {talk.id[:8]} (-n begins a new conversation)"
    else:
        words = f"{words} {talk.id[:8]} from message {talk.at}" if talk.at != talk.head else f"{words} {talk.id[:8]}"
    say(line(f"{words}: {talk.title}" if talk.title else words, width()))


def _client(options: Options, talk: "Conversation | None") -> "Client | ClaudeLocal":
    from ..chat import Config, new_client  # noqa: PLC0415  # loads the provider's SDK

    model = options.model
    if model is None and talk is not None and talk.provider == options.provider:
        model = talk.model
    if not model and options.provider not in _NAMELESS:
        raise click.UsageError(f"which model of {options.provider}? Give --model, or set HITHERTO_MODEL")
    if options.provider == "local":
        say("starting the local model…")
    return new_client(
        Config(
            provider=options.provider,
            model=model or "",
            base_url=options.base_url,
            system_prompt=options.system or "",
            allow_insecure_base_url=options.allow_insecure,
            model_path=options.model_path,
            max_tokens=_LONGEST_LOCAL if options.provider == "local" and options.model_path is None else None,
        )
    )


# -- talking


class Session:
    """One run of the command: a client, and the conversation it goes on with."""

    def __init__(
        self, client: "Client | ClaudeLocal", store: "Store | None", talk: "Conversation | None", options: Options
    ) -> None:
        self._client = client
        self._store = store
        self._options = options
        self._output = Output()
        self._recorded = False
        if talk is not None:
            self._resume(talk)
            if options.system is not None:
                self._own().set_system_prompt(options.system)

    def _own(self) -> "Client":
        """The client, where it must be one whose history is ours."""
        from ..chat import Client  # noqa: PLC0415  # help needs none

        if not isinstance(self._client, Client):
            raise errors.Unsupported("claude-local cannot go on with a conversation: it keeps its own", hint="drop -c")
        return self._client

    def _resume(self, talk: "Conversation") -> None:
        from ..recorder import resume  # noqa: PLC0415  # help needs none

        client, convert = self._own(), self._options.convert
        try:
            if self._store is None:
                client.resume(talk.thread(), talk.setup, convert=convert)
            else:
                resume(client, self._store, talk, convert=convert)
                self._recorded = True
        except errors.ProviderMismatch as error:
            found = talk.provider or error.found
            hint = f"--provider {found} goes on as it is; --convert tells {client.provider} what it can be told; "
            hint += "-n begins a new conversation"
            what = "conversation"
            raise errors.ProviderMismatch(expected=client.provider, found=found, what=what, hint=hint) from None

    @property
    def _resumed(self) -> "Resumed | None":
        from ..recorder import recording  # noqa: PLC0415  # help needs none

        found = recording(self._client)
        return None if found is None else found.resumed

    def _talk(self) -> "Conversation | None":
        """The conversation where it stands now."""
        from ..recorder import recording  # noqa: PLC0415  # help needs none

        found = recording(self._client)
        return None if found is None else found.conversation

    def once(self, prompt: str) -> int:
        """One question, and its answer."""
        self._say_resumed()
        resumed = self._resumed
        if resumed is not None and resumed.interrupted is not None:
            say("the last question was not answered: hitherto chat, without a prompt, offers to ask it again")
        try:
            self._answer(prompt)
        except KeyboardInterrupt:
            say("stopped; hitherto chat, without a prompt, shows what is kept" if self._recorded else "stopped")
            return INTERRUPTED
        except errors.ChatError as error:
            if self._recorded and error.hint and "client.retry()" in error.hint:
                error.hint = "the question is kept: hitherto chat, without a prompt, offers to ask it again"
            if self._recorded and error.hint and "client.undo()" in error.hint:
                error.hint = (
                    "the request itself was refused, and the question is kept: hitherto chat, without a prompt, "
                )
                error.hint += "and /undo takes it back; -n begins a new conversation"
            raise
        finally:
            self._flush()
        return 0

    def converse(self) -> int:
        """Question after question, until somebody leaves."""
        with suppress(ImportError):
            import readline  # noqa: F401, PLC0415  # editing and history for input(), where there is such a thing
        self._say_resumed()
        try:
            self._offer()
            while True:
                self._turn(_read(_PROMPT))
        except EOFError:
            say("")
        finally:
            self._flush()
        talk = self._talk()
        if talk is not None:
            say(f"kept: hitherto chat -c {talk.id[:8]} goes on from here")
        return 0

    def _turn(self, text: str) -> None:
        """What was typed, done. What goes wrong is said, and the prompt comes back."""
        word = text.strip()
        try:
            if word == "/quit":
                raise EOFError
            if word in _COMMANDS:
                self._command(word)
            elif _SLASH.fullmatch(word):
                say(f"there is no command {line(word, 40)}: /help shows them")
            elif word:
                self._answer(text)
        except KeyboardInterrupt:
            self._say_stopped()
        except errors.HithertoError as error:
            hint = error.hint and error.hint.replace("client.retry()", "/retry").replace("client.undo()", "/undo")
            complain(str(error), hint)

    def _command(self, word: str) -> None:
        if word == "/help":
            for name, what in _COMMANDS.items():
                say(f"{name:10}{what}")
        elif word == "/retry":
            self._retry()
        elif word == "/undo":
            gone = self._own().undo()
            say(f"taken back: {line(gone[0].text, max(20, width() - 12))}")
        else:
            self._settle(accept=word == "/accept")

    # -- answers

    def _answer(self, prompt: str) -> None:
        if self._store is not None and not self._recorded:
            from ..recorder import record  # noqa: PLC0415  # help needs none

            record(self._client, self._store, title=line(prompt, _TITLE), project=_here())
            self._recorded = True
        self._show(lambda: self._client.stream(prompt))

    def _retry(self) -> None:
        """Ask again what stands there. What had come of the answer before is gone when there is another."""
        client = self._own()
        if not client.messages or client.messages[-1].role not in ("user", "tool_result"):
            say("there is nothing to ask again: the last question was answered")
            return
        talk = self._talk()
        before = [] if talk is None else talk.partials()
        self._show(client.stream_retry)
        for partial in before:
            if talk is not None and partial.parent == talk.at:
                talk.discard(partial)

    def _show(self, begin: Callable[[], Iterator[str]]) -> None:
        """An answer, as it comes."""
        with Stoppable() as stoppable:
            pieces = begin()
            try:
                with closing(pieces):  # type: ignore[type-var]  # a generator
                    for piece in pieces:
                        self._output.write(piece)
                        stoppable.check()
            finally:
                self._finish()

    def _finish(self) -> None:
        with suppress(BrokenPipeError):  # if that is what ended it, it is known
            self._output.finish()

    def _flush(self) -> None:
        """What could not be written so far is tried once more; the error, if it still cannot be."""
        from ..recorder import recording  # noqa: PLC0415  # help needs none

        found = recording(self._client)
        if found is not None and found.pending:
            found.flush()

    # -- what was left of an interruption

    def _say_resumed(self) -> None:
        resumed = self._resumed
        if resumed is None:
            return
        for repair in resumed.repairs:
            say(f"mended: {repair}")
        for loss in resumed.losses:
            say(f"lost in conversion: {loss}")
        if resumed.missing_handlers:
            say(f"tools that nobody can run here: {', '.join(resumed.missing_handlers)}")

    def _say_stopped(self) -> None:
        if not self._recorded:
            say("stopped; /retry asks again")
        elif self._partials():
            say("stopped. The question and what came of the answer are kept: /accept takes it for the answer, "
                "/retry asks again, /discard lets go of it")  # fmt: skip
        else:
            say("stopped. The question is kept: /retry asks again")

    def _partials(self) -> "list[Partial]":
        talk = self._talk()
        return [] if talk is None else [partial for partial in talk.partials() if partial.parent == talk.at]

    def _offer(self) -> None:
        """Show what was interrupted, and ask what is to become of it."""
        resumed = self._resumed
        if resumed is None or resumed.interrupted is None:
            return
        say(f"not answered: {line(resumed.interrupted.text, max(20, width() - 14))}")
        readable = [partial for partial in resumed.partials if partial.problem is None]
        if not readable:
            if _choice("ask again? [y]es, [n]o: ", "yn") == "y":
                self._turn("/retry")
            return
        say(f"of the answer this had come:\n{readable[0].text}")
        chosen = _choice("[a]ccept it as the answer, [r]etry, [d]iscard it, [l]eave it: ", "ardl")
        if chosen != "l":
            self._turn({"a": "/accept", "r": "/retry", "d": "/discard"}[chosen])

    def _settle(self, *, accept: bool) -> None:
        """Take what came of an answer for the answer, or let go of it."""
        talk = self._talk()
        partials = self._partials()
        if talk is None or not partials:
            say("there is no interrupted answer")
            return
        if accept:
            talk.accept(partials[0])
        for partial in partials[1:] if accept else partials:
            talk.discard(partial)
        self._resume(talk)
        say("accepted" if accept else "discarded")


def _read(prompt: str) -> str:
    """A line that somebody types. The prompt goes to the terminal, never into a file."""
    if is_terminal(sys.stdout):
        return input(prompt)
    say(prompt, end="")
    text = sys.stdin.readline()
    if not text:
        raise EOFError
    return text.rstrip("\n")


def _choice(prompt: str, letters: str) -> str:
    """One of these letters."""
    while True:
        answer = _read(prompt).strip().lower().removeprefix("/")
        if answer[:1] and answer[:1] in letters:
            return answer[0]
        say(f"one of {', '.join(letters)}; Ctrl+D leaves")


class Stoppable:
    """Ctrl+C while an answer comes: it stops the answer, but not what is being written.

    A press in such a moment is repeated a little later; a second one is meant, and is not made to wait.
    """

    _PAUSE_SECONDS = 0.02

    def __init__(self) -> None:
        self._pressed = False
        self._repeated = False
        self._timer: threading.Timer | None = None

    def __enter__(self) -> "Stoppable":
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        try:  # a press that waits was meant for the answer, and must not reach what comes after it
            if self._timer is not None:
                self._timer.cancel()
                self._timer.join()
        except KeyboardInterrupt:
            self._pressed = True
        finally:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Stop now, if that was wanted before."""
        if self._pressed:
            raise KeyboardInterrupt

    def _press(self, _number: int, frame: FrameType | None) -> None:
        meant = self._pressed and not self._repeated
        self._pressed, self._repeated = True, False
        if meant or not _is_writing(frame):
            raise KeyboardInterrupt
        self._timer = threading.Timer(self._PAUSE_SECONDS, self._repeat)
        self._timer.daemon = True
        self._timer.start()

    def _repeat(self) -> None:
        self._repeated = True
        main = threading.main_thread().ident
        if main is not None and hasattr(signal, "pthread_kill"):
            signal.pthread_kill(main, signal.SIGINT)


def _is_writing(frame: FrameType | None) -> bool:
    """Is the recorder at work in what was interrupted?"""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("hitherto.recorder"):
            return True
        frame = frame.f_back
    return False
