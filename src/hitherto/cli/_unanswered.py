"""Interrupted answers: report them, offer them, accept or discard them.

Each report describes the store's content, not the intention. Ctrl+C may come before the question was written, or after
the answer was.
"""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ._prompt import Prompt, ask_choice
from ._session import Session, find_partials, find_unanswered
from ._terminal import line, moment, say, width

if TYPE_CHECKING:
    from ..recorder import Resumed
    from ..reports import Partial

_STILL_SECONDS = 2.0  # the recorder writes a partial answer about every second while the answer arrives
_LOOK_SECONDS = 0.1
_WHOLE = "stopped. The answer was complete"


# -- reporting


def report_interrupted(resumed: "Resumed | None") -> None:
    """Report an interrupted answer without offering it: in a pipe there is no user to ask."""
    if resumed is None or resumed.interrupted is None:
        return
    words = "the last question was not answered"
    for partial in resumed.partials[:1]:
        at = "" if partial.at is None else f" at {moment(partial.at)}"
        words += f"; {len(partial.text)} characters of an answer had come{at}, and were recovered"
    say(f"{words}: hitherto chat -c {resumed.interrupted.id} offers to ask it again")


def report_stopped(session: Session, before: str | None, *, asking: bool) -> None:
    """After Ctrl+C, report whether the question and the partial answer were kept.

    `before` is the session's position before the question."""
    talk = session.talk()
    if session.store is None:
        say("stopped; /retry asks again" if find_unanswered(session.messages) else "stopped")
    elif asking and (talk is None or talk.at == before):
        say("stopped. The question was not kept: the Up key brings it back")
    elif find_partials(talk):
        say("stopped. The question and the partial answer are kept: /accept accepts it as the answer, "
            "/retry asks again, /discard drops it")  # fmt: skip
    elif talk is not None and find_unanswered([*talk.thread(attachments="lazy")]):
        answered = session.messages and not find_unanswered(session.messages)
        pending = f"{_WHOLE}, and is kept as soon as it can be"
        say(pending if answered else "stopped. The question is kept: /retry asks again")
    else:
        say(f"{_WHOLE}, and is kept" if asking else "stopped")


# -- offering and settling


def offer_interrupted(session: Session, prompt: Prompt) -> str | None:
    """Show the interrupted answer and ask what to do with it. Return the slash command to run; None for nothing."""
    resumed = session.resume_report
    if resumed is None or resumed.interrupted is None:
        return None
    say(f"not answered: {line(resumed.interrupted.text, max(20, width() - 14))}")
    readable = [partial for partial in resumed.partials if partial.problem is None]
    if readable and _is_arriving(session, readable[0]):
        say("its answer is on its way in another terminal: /fork @ goes on from it when it is there")
        return None
    if readable:
        say(f"this part of the answer was kept:\n{readable[0].text}")
        words = ("accept", "retry", "discard", "leave")
        chosen = ask_choice(prompt, "[a]ccept it as the answer, [r]etry, [d]iscard it, [l]eave it: ", words)
        return None if chosen == "leave" else f"/{chosen}"
    return "/retry" if ask_choice(prompt, "ask again? [y]es, [n]o: ", ("yes", "no")) == "yes" else None


def _is_arriving(session: Session, partial: "Partial") -> bool:
    """Return True if another process is receiving this answer now.

    Such a process replaces the partial about every second, or writes the whole answer. So a young partial is watched
    until it changes or grows old."""
    talk = session.talk()
    if talk is None or partial.at is None:
        return False
    until = time.monotonic() + min(_STILL_SECONDS, _STILL_SECONDS - (datetime.now(UTC) - partial.at).total_seconds())
    while time.monotonic() < until:
        if partial not in talk.refresh().partials():
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def settle(session: Session, *, accept: bool) -> None:
    """Accept the partial answer as the answer, or discard it."""
    session.flush()
    talk = session.talk()
    found = find_partials(talk)
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
