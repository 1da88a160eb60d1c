"""What was left of an interruption: a question that nobody answered, and what had come of its answer.

What is said about it is what is found in the store, not what was meant to be there: a press of Ctrl+C may have come
before the question was kept, and after the answer was.
"""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ._prompt import Asking, choice
from ._terminal import line, moment, say, width

if TYPE_CHECKING:
    from .._engine.recovery import Partial
    from ..conversation import Conversation
    from ..model import Message
    from ..recorder import Resumed
    from ._session import Session

_STILL_SECONDS = 2.0  # while an answer comes, what there is of it is kept about every second
_LOOK_SECONDS = 0.1
_WHOLE = "stopped. The answer was complete"


def unanswered(messages: "list[Message]") -> "Message | None":
    """What was said last, if nobody has answered. Events are not said by anybody."""
    last = next((message for message in reversed(messages) if message.role != "event"), None)
    return last if last is not None and last.role in ("user", "tool_result") else None


def partials(talk: "Conversation | None") -> "list[Partial]":
    """What had come of answers to what was said last."""
    if talk is None:
        return []
    asked = unanswered([*talk.thread(attachments="lazy")])
    places = {talk.at, getattr(asked, "id", talk.at)}
    return [partial for partial in talk.partials() if partial.parent in places]


# -- saying it


def say_left(resumed: "Resumed | None") -> None:
    """In a pipe nobody can be asked: what was recovered is said, and stays."""
    if resumed is None or resumed.interrupted is None:
        return
    words = "the last question was not answered"
    for partial in resumed.partials[:1]:
        at = "" if partial.at is None else f" at {moment(partial.at)}"
        words += f"; {len(partial.text)} characters of an answer had come{at}, and were recovered"
    say(f"{words}: hitherto chat -c {resumed.interrupted.id} offers to ask it again")


def say_stopped(session: "Session", before: str | None, *, asking: bool) -> None:
    """Ctrl+C: what became of the question, and of what had come. `before` is where we stood."""
    talk = session.talk()
    if session.store is None:
        say("stopped; /retry asks again" if unanswered(session.messages) else "stopped")
    elif asking and (talk is None or talk.at == before):
        say("stopped. The question was not kept: the Up key brings it back")
    elif partials(talk):
        say("stopped. The question and what came of the answer are kept: /accept takes it for the answer, "
            "/retry asks again, /discard lets go of it")  # fmt: skip
    elif talk is not None and unanswered([*talk.thread(attachments="lazy")]):
        answered = session.messages and not unanswered(session.messages)
        held = f"{_WHOLE}, and is kept as soon as it can be"
        say(held if answered else "stopped. The question is kept: /retry asks again")
    else:
        say(f"{_WHOLE}, and is kept" if asking else "stopped")


# -- settling it


def offer(session: "Session", asking: Asking) -> None:
    """Show what was interrupted, and ask what is to become of it."""
    resumed = session.resumed
    if resumed is None or resumed.interrupted is None:
        return
    say(f"not answered: {line(resumed.interrupted.text, max(20, width() - 14))}")
    readable = [partial for partial in resumed.partials if partial.problem is None]
    if readable and _is_coming(session, readable[0]):
        say("its answer is on its way in another terminal: /fork @ goes on from it when it is there")
    elif readable:
        say(f"of the answer this had come:\n{readable[0].text}")
        words = ("accept", "retry", "discard", "leave")
        chosen = choice(asking, "[a]ccept it as the answer, [r]etry, [d]iscard it, [l]eave it: ", words)
        if chosen != "leave":
            session.turn(f"/{chosen}")
    elif choice(asking, "ask again? [y]es, [n]o: ", ("yes", "no")) == "yes":
        session.turn("/retry")


def _is_coming(session: "Session", partial: "Partial") -> bool:
    """Does somebody else hear this answer in this moment? What is young enough is looked at until it is not: whoever is
    still there keeps more of it, or the whole answer."""
    talk = session.talk()
    if talk is None or partial.at is None:
        return False
    until = time.monotonic() + min(_STILL_SECONDS, _STILL_SECONDS - (datetime.now(UTC) - partial.at).total_seconds())
    while time.monotonic() < until:
        if partial not in talk.refresh().partials():
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def settle(session: "Session", *, accept: bool) -> None:
    """Take what came of an answer for the answer, or let go of it."""
    session.flush()
    talk = session.talk()
    found = partials(talk)
    if talk is None or not found:
        say("there is no interrupted answer")
        return
    if accept and talk.at != found[0].parent:  # an event stands between
        talk = talk.fork(at=found[0].parent)
    if accept:
        talk.accept(found[0])
    for partial in found[1:] if accept else found:
        talk.discard(partial)
    session.resume(talk, same_system=True)
    say("accepted" if accept else "discarded")
