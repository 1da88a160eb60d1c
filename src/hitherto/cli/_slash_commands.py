"""The commands of a conversation: a slash, a word, and an optional argument.

A line that begins with a slash and a word is never sent to the model. A user who wants to send such a line begins it
with a space.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import errors
from ._ids import find_conversation
from ._session import TITLE_LENGTH, Session
from ._terminal import line, say, width
from ._unanswered import settle

if TYPE_CHECKING:
    from ..conversation import Conversation
    from ..model import Message

COMMANDS = {
    "/model": "NAME: use another model; without a name, print the present one",
    "/system": 'TEXT: use another system prompt, "" for none; without a text, print the present one',
    "/title": "TEXT: set the title; without a text, print it",
    "/fork": "ID: go on from that message, on a branch; without an id, list the messages",
    "/undo": "take the last question back, with its answer",
    "/retry": "ask an unanswered question again",
    "/accept": "accept an interrupted answer as it is",
    "/discard": "drop an interrupted answer",
    "/search": "WORDS: messages of all conversations with these words, or the nearest; /fork goes on from one",
    "/save": "FILE: write the conversation to a new file; its name determines the format",
    "/new": "begin a new conversation",
    "/help": "these commands",
    "/quit": "leave; so does /exit",
    "/exit": "",  # described with /quit
}
SLASH = re.compile(r"(/\w+)(?:\s+(.*))?", re.DOTALL)
_SAY_IT = "a line that begins with a space is no command"
_NOTHING = '""'
_HITS = 10


def run_command(session: Session, word: str, rest: str) -> None:
    """Run a command with its argument."""
    rest = _strip_quotes(rest)
    if word not in COMMANDS:
        say(f"there is no command {line(word, 40)}: /help shows them; {_SAY_IT}")
    elif word in _WITH_ARGUMENT:
        _WITH_ARGUMENT[word](session, rest)
    elif rest:
        say(f"{word} takes nothing more; {_SAY_IT}")
    else:
        _WITHOUT_ARGUMENT[word](session)


def _strip_quotes(text: str) -> str:
    """Remove the quotes around a whole argument, typed out of habit. Two quotes alone mean "none" and stay."""
    text = text.strip()
    quote = text[:1]
    whole = len(text) > 2 and quote in ("'", '"') and text.endswith(quote) and quote not in text[1:-1]
    return text[1:-1] if whole else text


def say_which(talk: "Conversation", words: str) -> None:
    """Say which conversation is continued, and from where."""
    words = f"{words} {talk.id[:8]}" if talk.at == talk.head else f"{words} {talk.id[:8]} from message {talk.at}"
    say(line(f"{words}: {talk.title}" if talk.title else words, width()))


# -- settings


def _model(session: Session, name: str) -> None:
    if not name:
        say(f"{session.client.provider}: {session.client.model or 'a model of its own choice'}")
        return
    client = session.own()
    if client.provider == "local":
        raise errors.Unsupported("the local model is a file", hint="leave, and give another one with --model-path")
    if name == _NOTHING:
        raise errors.InvalidArgument("a model has a name", hint="/model alone says which one it is")
    talk = session.talk()
    config = replace(client.config, model=name)
    if talk is not None:
        talk.configure(model=name)
    client.config = config
    say(f"from here on: {line(name, 60)}")


def _system(session: Session, text: str) -> None:
    client = session.own()
    if not text:
        say(client.system_prompt or "there is no system prompt")
        return
    prompt = "" if text == _NOTHING else text
    talk, before = session.talk(), client.system_prompt
    client.set_system_prompt(prompt)  # raises if it cannot be sent
    try:
        if talk is not None:
            talk.configure(system_prompt=prompt)
    except BaseException:
        client.set_system_prompt(before)
        raise
    say("from here on, with this system prompt" if prompt else "from here on, without a system prompt")


def _title(session: Session, title: str) -> None:
    from ..model import encodable  # noqa: PLC0415  # help needs none

    talk = session.talk()
    if session.store is None:
        say("nothing is kept, so there is no title")
    elif not title:
        say((session.title if talk is None else talk.title) or "there is no title")
    elif not encodable(title):
        raise errors.InvalidArgument("the title holds half a character, which cannot be kept", hint="say it without")
    else:
        given = "" if title == _NOTHING else title
        if talk is not None:
            talk.rename(given)
        session.title, session.undone = given, ""
        say(f"titled: {line(session.title, max(20, width() - 8))}")


# -- position


def _fork(session: Session, id: str) -> None:
    talk = session.talk()
    if session.store is None:
        say("nothing is kept, so there is nothing to go back to; /undo takes the last question back")
    elif id:
        _go_to(session, find_conversation(session.store, id))
    elif talk is None:
        say("nothing was said yet; /fork with an id goes on from a message of another conversation")
    else:
        for message in talk.thread(attachments="lazy"):
            say(line(f"{message.id}  {message.role}: {message.text}", width()))
        say("/fork with one of these ids goes on from there")


def _search(session: Session, words: str) -> None:
    from ._search import describe_hits  # noqa: PLC0415  # rare

    if session.store is None:
        say("nothing is kept, so there is nothing to search")
    elif not words:
        say("/search takes the words to look for, or a question")
    else:
        for text in describe_hits(session.store, session.store.search(words, limit=_HITS, mode="auto")):
            say(text)


def _go_to(session: Session, found: "Conversation") -> None:
    """Continue from a message, of this conversation or of another one."""
    talk, model = session.talk(), session.client.model
    if talk is not None and talk.id == found.id:
        session.resume(found)
    else:
        session.go_to(found)
    session.report_resumed()
    say_which(session.talk() or found, "from here on")
    if session.client.model != model:
        say(f"with its model: {line(session.client.model, 60)}")


def _undo(session: Session) -> None:
    client = session.own()
    session.flush()
    talk = session.talk()
    if talk is None:
        gone: Sequence[Message] = client.undo()
    else:
        gone = talk.undo()
        session.resume(talk, same_system=True)  # only the messages are taken back
        title = line(gone[0].text, TITLE_LENGTH)
        session.undone = title if talk.at is None and talk.title == title else ""
    say(f"taken back: {line(gone[0].text, max(20, width() - 12))}")


def _new(session: Session) -> None:
    from ..model import Setup  # noqa: PLC0415  # help needs none

    client = session.own()
    session.flush()
    client.listen(None)
    client.set_tools(())
    client.set_system_prompt(session.terms.beginning)
    client.resume([], Setup(), convert=False)
    session.title = session.undone = ""
    say("a new conversation begins with your next question")


# -- the rest


def _save(session: Session, path: str) -> None:
    from .. import formats  # noqa: PLC0415  # help needs none

    talk = session.talk()
    if session.store is None:
        say("nothing is kept, and no file is written: without -G a conversation can be saved")
    elif talk is None:
        say("there is nothing to save yet")
    elif not path:
        say("to which file? /save talk.jsonl")
    else:
        formats.save(talk, path)
        say(f"saved: {path}")


def _help(_: Session) -> None:
    import textwrap  # noqa: PLC0415  # only this command needs it

    for name, what in COMMANDS.items():
        if what:
            say(textwrap.fill(f"{name:10}{what}", width(), subsequent_indent=" " * 10))


def _leave(_: Session) -> None:
    raise EOFError


_WITH_ARGUMENT: dict[str, Callable[[Session, str], None]] = {
    "/model": _model,
    "/system": _system,
    "/title": _title,
    "/fork": _fork,
    "/search": _search,
    "/save": _save,
}
_WITHOUT_ARGUMENT: dict[str, Callable[[Session], None]] = {
    "/undo": _undo,
    "/retry": lambda session: session.retry(),
    "/accept": lambda session: settle(session, accept=True),
    "/discard": lambda session: settle(session, accept=False),
    "/new": _new,
    "/help": _help,
    "/quit": _leave,
    "/exit": _leave,
}
