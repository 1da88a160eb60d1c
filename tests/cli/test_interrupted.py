"""Ctrl+C at any moment, busy stores, other terminals, and the offers at the next start. Each message matches the
store's content.

Requirements: C10, C11.
"""

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

import hitherto
from hitherto import Message
from hitherto._engine import recovery
from hitherto.chat import Config, new_client
from hitherto.chat._turn import Turns
from hitherto.cli import _unanswered
from hitherto.cli._dialogue import Dialogue
from hitherto.cli._prompt import Lines
from hitherto.cli._question import build_question
from hitherto.cli._session import Session, Terms
from hitherto.cli._unanswered import offer_interrupted
from hitherto.recorder._recorded_conversation import RecordedConversation
from hitherto.recorder._recorder import Recorder

from ..support.command import COMMAND, PATIENCE, Open, World
from .test_session import Talk, sent_texts


@pytest.fixture
def session(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session in this process, so that a press can come at a chosen moment."""
    monkeypatch.chdir(world.here)
    config = Config(
        provider="openai-compatible", model="m", base_url=world.service.url, allow_insecure_base_url=True
    )  # fmt: skip
    with world.store() as store, closing(new_client(config)) as client:
        yield Session(client, store, None, Terms())


@contextmanager
def busy(world: World) -> Iterator[None]:
    """Hold the write lock."""
    with closing(sqlite3.connect(world.place, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def stored_texts(session: Session) -> list[str]:
    talk = session.talk()
    return [] if talk is None else [message.text for message in talk.thread()]


def press_during(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, times: int = 1) -> None:
    """Press Ctrl+C when this method is called."""
    original: Callable[..., Any] = getattr(owner, name)

    def press(*args: Any, **kwargs: Any) -> Any:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, press)


# -- Ctrl+C


def test_control_c_after_the_last_piece_waits_until_the_answer_is_kept(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        press_during(patch, Turns, "_take_answer")
        Dialogue(session).take_turn("story")
    assert stored_texts(session) == ["story", "Good morning."]
    Dialogue(session).take_turn("then?")
    assert stored_texts(session) == ["story", "Good morning.", "then?", "Good morning."]


def test_an_answer_whose_keeping_was_interrupted_is_kept_later(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Dialogue(session).take_turn("one")
    with monkeypatch.context() as patch:
        original = RecordedConversation.write

        def write(self: RecordedConversation, place: Any, messages: Any, *given: Any, **how: Any) -> Any:
            if messages[0].role == "assistant":
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)  # which is meant
            return original(self, place, messages, *given, **how)

        patch.setattr(RecordedConversation, "write", write)
        Dialogue(session).take_turn("two")
    assert stored_texts(session) == ["one", "Good morning.", "two"]
    assert "stopped. The answer was complete, and is kept as soon as it can be" in capsys.readouterr().err
    session.flush()
    assert stored_texts(session) == ["one", "Good morning.", "two", "Good morning."]


def test_a_question_that_could_not_be_kept_is_not_said_to_be(world: World, terminal: Open) -> None:
    talk = Talk(terminal())
    talk.say("one")
    with busy(world):
        talk.shell.press("two\r")
        talk.at = talk.shell.read("two", talk.at)
        talk.shell.wait_for_work()  # a press before that is one for the editor
        while "stopped" not in talk.shell.shown[talk.at :]:  # the second press is meant, and does not wait
            talk.shell.press("\x03")
            deadline = time.monotonic() + 0.3
            while "stopped" not in talk.shell.shown[talk.at :] and time.monotonic() < deadline:
                assert talk.shell._more(deadline)
        talk.at = talk.shell.read("The question was not kept: the Up key brings it back", talk.at)
        talk.at = talk.shell.read("> ", talk.at)
    talk.shell.press("\x1b[A")
    talk.at = talk.shell.read("two", talk.at)
    talk.say("")
    assert sent_texts(world) == ["one", "Good morning.", "two"]
    talk.leave()
    assert [text for _, text in world.thread()] == ["one", "Good morning.", "two", "Good morning."]


def test_one_question_that_could_not_be_kept_is_not_said_to_be(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    press_during(monkeypatch, Recorder, "ask", times=2)
    assert Dialogue(session).ask_once(build_question("one", "one")) == 130
    assert "stopped; the question was not kept" in capsys.readouterr().err
    assert stored_texts(session) == []


def test_a_press_right_behind_enter_does_not_leave(world: World, terminal: Open) -> None:
    talk = Talk(terminal())
    talk.shell.press("one\r\x03")
    talk.at = talk.shell.read("> ", talk.shell.read("Good morning.", talk.at))
    talk.say("two")
    talk.leave()


def test_control_c_before_there_is_a_command_is_no_traceback(world: World) -> None:
    script = "import signal, sys; sys.meta_path.insert(0, type('P', (), {'find_spec': staticmethod("
    script += "lambda name, *_: signal.raise_signal(signal.SIGINT) if name == 'hitherto.cli._main' else None)})); "
    script += "from hitherto.cli import main; main(['--version'])"
    done = world.plain(COMMAND[0], "-c", script)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_title_given_after_a_question_that_failed_counts(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    Dialogue(session).take_turn("half \udcff")
    Dialogue(session).take_turn("/title half \udcff")
    assert capsys.readouterr().err.count("error: ") == 2
    Dialogue(session).take_turn("/title My own")
    Dialogue(session).take_turn("whole")
    talk = session.talk()
    assert talk is not None
    assert (talk.title, stored_texts(session)) == ("My own", ["whole", "Good morning."])


# -- somebody else


def test_two_chats_in_one_conversation_do_not_mix(world: World, terminal: Open) -> None:
    world.run("one")
    first, second = Talk(terminal()), Talk(terminal())
    second.say("theirs")
    first.say("/fork", "goes on from there")
    assert "theirs" not in first.shell.plain
    first.say("mine", "went on elsewhere meanwhile")
    assert sent_texts(world) == ["one", "Good morning.", "mine"]
    second.say("/system Be kind.", "with this system prompt")
    second.say("/undo", "taken back: theirs")
    second.leave()
    first.say("more")
    assert sent_texts(world) == ["one", "Good morning.", "mine", "Good morning.", "more"]
    first.leave()


class Asked(Lines):
    """A prompt whose user changes nothing."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def answer(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return "leave"


@pytest.mark.parametrize("coming", [True, False])
def test_an_answer_that_comes_in_another_terminal_is_not_offered(
    world: World,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    coming: bool,
) -> None:
    """The control is a partial answer whose writer is gone since a moment."""
    leave_partial(world, at=None)
    assert session.store is not None
    talk = session.store.latest()
    assert talk is not None
    session.resume(talk)
    monkeypatch.setattr(_unanswered, "_STILL_SECONDS", PATIENCE if coming else 0.05)
    if coming:
        monkeypatch.setattr(time, "sleep", lambda _: talk.discard(talk.partials()[0]))
    somebody = Asked()
    offer_interrupted(session, somebody)
    assert len(somebody.prompts) == (0 if coming else 1)
    assert ("on its way in another terminal" in capsys.readouterr().err) is coming


# -- what is offered


def leave_partial(world: World, *events: Message, at: int | None = 10**15) -> str:
    """Make an unanswered question with a partial answer."""
    with world.store() as store:
        talk = store.start(provider="openai-compatible", model="m", project=str(world.here), title="t")
        asked = talk.append(Message.user("story"))
        key = recovery.new_key(store.engine.message_ids.number(asked.id))
        recovery.keep(talk.state, key, [Message.assistant("The beginning")], at=at)
        for event in events:
            talk.append(event)
        return asked.id


@pytest.mark.parametrize("chosen", ["accept", "retry"])
def test_a_question_that_an_event_follows_is_offered_too(world: World, terminal: Open, chosen: str) -> None:
    """C11."""
    leave_partial(world, Message("event", (hitherto.Block.text("noted"),)))
    shell = terminal()
    at = shell.read("[a]ccept", shell.read("not answered: story"))
    shell.press("/accept\r" if chosen == "accept" else "retry\r")
    shell.read("> ", shell.read("accepted" if chosen == "accept" else "Good morning.", at))
    shell.press("\x04")
    assert shell.end() == 0
    answers = [text for role, text in world.thread() if role == "assistant"]
    assert answers == ["The beginning" if chosen == "accept" else "Good morning."]
    assert world.partials() == []


def test_a_sentence_is_no_choice(world: World, terminal: Open) -> None:
    leave_partial(world)
    shell = terminal()
    at = shell.read("[a]ccept")
    shell.press("do you remember me?\r")
    at = shell.read("[a]ccept", shell.read("one of accept, retry, discard, leave", at))
    shell.press("/quit\r")
    assert shell.end() == 0
    assert world.partials() == ["The beginning"]


def test_a_new_system_prompt_survives_what_is_chosen(world: World, terminal: Open) -> None:
    leave_partial(world)
    shell = terminal("--system", "Be kind.")
    at = shell.read("[a]ccept")
    shell.press("d\r")
    at = shell.read("> ", shell.read("discarded", at))
    shell.press("again\r")
    shell.read("> ", shell.read("Good morning.", at))
    assert sent_texts(world)[0] == "Be kind."


def test_one_question_names_what_was_not_answered_and_it_is_offered_by_that_name(world: World, terminal: Open) -> None:
    id = leave_partial(world)
    done = world.run("next")
    assert f"hitherto chat -c {id} offers to ask it again" in done.stderr
    shell = terminal("-c", id)
    shell.read("[a]ccept", shell.read("The beginning", shell.read("not answered: story")))


def test_an_answer_that_is_held_is_kept_before_anything_is_taken_back(
    world: World, session: Session, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Dialogue(session).take_turn("one")
    with monkeypatch.context() as patch:
        original = RecordedConversation._write

        def refuse(self: RecordedConversation, place: Any, messages: Any, *given: Any, **how: Any) -> Any:
            if messages[0].role == "assistant":
                raise hitherto.errors.StorageFull("full")
            return original(self, place, messages, *given, **how)

        patch.setattr(RecordedConversation, "_write", refuse)
        Dialogue(session).take_turn("two")
        Dialogue(session).take_turn("/undo")
        assert "error: full" in capsys.readouterr().err
    assert stored_texts(session) == ["one", "Good morning.", "two"]
    Dialogue(session).take_turn("/undo")
    assert "taken back: two" in capsys.readouterr().err
    assert session.store is not None
    assert [message.text for message in session.store.messages()].count("Good morning.") == 2
