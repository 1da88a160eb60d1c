"""The dialogue of `hitherto chat`: one question from the command line, or questions at a prompt until the user leaves.

A line at the prompt is a slash command (`_slash_commands`) or a question, which the session asks.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from .. import errors
from ._exit_codes import INTERRUPTED
from ._hints import WordedError, hint_at_prompt, hint_for_question
from ._ids import here
from ._prompt import open_prompt
from ._question import Question, build_question
from ._session import Session
from ._slash_commands import COMMANDS, SLASH, run_command
from ._terminal import print_error, say
from ._unanswered import offer_interrupted, report_interrupted, report_stopped

if TYPE_CHECKING:
    from ..model import Block, Message

_LEAVING = ("exit", "quit")  # as in other programs; a line that says more is a question
_REMEMBERED = 200  # questions that the arrow keys bring back


class Dialogue:
    """Runs a session with the user. `files` go before the first question; `names` are their names."""

    def __init__(self, session: Session, files: "Sequence[str | Block]" = (), names: Sequence[str] = ()) -> None:
        self._session = session
        self._files = files
        self._names = names

    # -- one question

    def ask_once(self, asked: Question) -> int:
        """Ask one question and show its answer. Return the exit code."""
        session = self._session
        session.report_resumed()
        report_interrupted(session.resume_report)
        before = session.at
        try:
            session.ask(asked)
        except KeyboardInterrupt:
            self._report_interrupt(before)
            return INTERRUPTED
        except errors.HithertoError as error:
            raise WordedError(error, hint_for_question(error, is_kept=session.at != before)) from error
        finally:
            session.flush()
        return 0

    def _report_interrupt(self, before: str | None) -> None:
        at = self._session.at
        if self._session.store is None:
            say("stopped")
        else:
            kept = f"hitherto chat -c {at} shows what is kept"
            say(f"stopped; {'the question was not kept' if at == before else kept}")

    # -- the prompt

    def run(self) -> int:
        """Read and take turns until the user leaves. Return the exit code."""
        session = self._session
        session.report_resumed()
        prompt = open_prompt(tuple(COMMANDS), self._earlier_questions())
        try:
            command = offer_interrupted(session, prompt)
            if command is not None:
                self.take_turn(command)
            self._greet()
            while True:
                self.take_turn(prompt.read())
        except EOFError:
            say("")
            code = 0
        except KeyboardInterrupt:
            code = INTERRUPTED
        finally:
            session.flush()
        with suppress(errors.NotFound):  # the conversation was purged meanwhile
            self._report_kept()
        return code

    def _greet(self) -> None:
        kept = "" if self._session.store is not None else "; nothing is kept"
        say(f"/help shows the commands, Ctrl+D leaves{kept}")
        if self._names:
            say(f"with your first question: {', '.join(self._names)}")

    def _report_kept(self) -> None:
        """Print the command that continues from the session's position."""
        talk = self._session.talk()
        if talk is None:
            return
        talk.refresh()
        name = talk.id[:8] if talk.at in (None, talk.head) else talk.at
        end = " goes on with it" if talk.at is None and talk.head is not None else " goes on from here"
        say(f"kept: hitherto chat -c {name}{end}")

    def _earlier_questions(self) -> list[str]:
        """Return the questions for the arrow keys: of this thread, or else of the folder's newest conversation."""
        store = self._session.store
        messages: Sequence[Message] = self._session.messages
        project = here()
        if not messages and store is not None and project is not None:
            last = store.latest(project=project)
            messages = [] if last is None else last.thread(attachments="lazy")
        texts = [message.text for message in messages if message.role == "user"]
        return [text for text in texts[-_REMEMBERED:] if text.strip()]

    def take_turn(self, text: str) -> None:
        """Run the command or ask the question that was typed. Errors are printed, so that the prompt comes back."""
        command = SLASH.fullmatch(text.rstrip())
        before = None
        try:
            before = self._session.at
            if command is not None:
                run_command(self._session, command[1], command[2] or "")
            elif text.strip() in _LEAVING:
                raise EOFError
            elif text.strip():
                self._ask(text)
        except KeyboardInterrupt:
            report_stopped(self._session, before, asking=command is None)
        except errors.HithertoError as error:
            print_error(str(error), hint_at_prompt(error))

    def _ask(self, text: str) -> None:
        """Ask a question that was typed. The first one takes the files along."""
        session = self._session
        files, self._files = self._files, ()
        before = session.at, len(session.messages)
        try:
            session.ask(build_question(text, text, files))
        except BaseException:
            if (session.at, len(session.messages)) == before:  # the question was not asked: keep its files
                self._files = files
            raise
