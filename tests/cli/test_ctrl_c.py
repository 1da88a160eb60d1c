"""Ctrl+C takes effect at once, except in code that must not be interrupted. Each claim has its control: the same
without `uninterruptible()`.

Requirements: C10.
"""

import signal
import subprocess
import sys
import threading

import pytest

from hitherto._system.interrupts import uninterruptible
from hitherto.cli._ctrl_c import Stoppable

from ..support.command import PATIENCE, World

_PRESS_IN_PROCESS = """
import os, signal, sys
from hitherto._system import interrupts
from hitherto.{module} import {owner}
from hitherto.cli import main

pressed = []
original = {owner}.{method}

def press(self, *args, **kwargs):
    if {when}:
        pressed.append(1)
        for _ in range({times}):
            os.kill(os.getpid(), signal.SIGINT)
    return original(self, *args, **kwargs)

{owner}.{method} = press
if {unprotected}:
    interrupts.uninterruptible.__enter__ = lambda self: None
    interrupts.uninterruptible.__exit__ = lambda self, *_: None
main(sys.argv[1:])
"""
_QUESTION = ("recorder._recorder", "Recorder", "ask", "not pressed")
_ANSWER = ("chat._turn", "Turns", "_take_answer", "not pressed")
_WRITE = ("recorder._recorded_conversation", "RecordedConversation", "write", "args[1][0].role == 'assistant'")


def chat_and_press(
    world: World, moment: tuple[str, str, str, str], *, times: int = 1, unprotected: bool = False
) -> subprocess.CompletedProcess[str]:
    """Ask one question in a process of its own, which gets a real SIGINT at this moment."""
    module, owner, method, when = moment
    script = _PRESS_IN_PROCESS.format(
        module=module, owner=owner, method=method, when=when, times=times, unprotected=unprotected
    )
    return world.plain(sys.executable, "-c", script, *world.chatting("story")[3:])


def kept(world: World) -> list[str]:
    """The texts of all messages in the store."""
    with world.store() as store:
        return [message.text for talk in store.conversations() for message in store.conversation(talk.id).thread()]


# -- the context


def press_within(done: list[str]) -> None:
    with uninterruptible():
        with uninterruptible():
            signal.raise_signal(signal.SIGINT)
            done.append("inner")
        done.append("outer")
    done.append("behind")


def press_twice(done: list[str]) -> None:
    with uninterruptible():
        signal.raise_signal(signal.SIGINT)
        done.append("first")
        signal.raise_signal(signal.SIGINT)
        done.append("second")


def press_and_fail() -> None:
    with uninterruptible():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("full")


def test_ctrl_c_takes_effect_at_once_outside_and_at_the_end_inside() -> None:
    done: list[str] = []
    with Stoppable(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with Stoppable(), pytest.raises(KeyboardInterrupt):
        press_within(done)
    assert done == ["inner", "outer"]


def test_a_second_press_is_not_delayed() -> None:
    done: list[str] = []
    with Stoppable(), pytest.raises(KeyboardInterrupt):
        press_twice(done)
    with Stoppable():  # nothing is left of it
        with uninterruptible():
            done.append("later")
        done.append("behind")
    assert done == ["first", "later", "behind"]


def test_a_press_while_the_first_one_is_handled_is_the_second() -> None:
    with Stoppable():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with uninterruptible(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_an_error_that_ends_the_context_goes_before_ctrl_c() -> None:
    with Stoppable(), pytest.raises(ValueError, match="full"):
        press_and_fail()


def test_without_a_handler_that_defers_ctrl_c_is_as_in_every_program() -> None:
    with pytest.raises(KeyboardInterrupt), uninterruptible():
        signal.raise_signal(signal.SIGINT)
    with uninterruptible():
        pass


def test_the_handler_before_is_there_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Stoppable():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_than_the_main_one_can_ask() -> None:
    """Signals can be handled in the main thread only. The control is `signal.signal` in the same thread."""
    done: list[str] = []

    def work() -> None:
        with Stoppable(), uninterruptible():
            done.append("asked")
        with pytest.raises(ValueError, match="main thread"):
            signal.signal(signal.SIGINT, signal.default_int_handler)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE)
    assert done == ["asked"]


# -- a process


@pytest.mark.parametrize("unprotected", [False, True], ids=["protected", "control"])
def test_ctrl_c_while_the_question_is_kept_stops_behind_it(world: World, unprotected: bool) -> None:
    done = chat_and_press(world, _QUESTION, unprotected=unprotected)
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert world.service.requests == []  # the model is not asked any more
    said = "stopped; the question was not kept" if unprotected else "shows what is kept"
    assert said in done.stderr
    assert kept(world) == ([] if unprotected else ["story"])


@pytest.mark.parametrize("unprotected", [False, True], ids=["protected", "control"])
def test_ctrl_c_behind_the_last_piece_keeps_the_whole_answer(world: World, unprotected: bool) -> None:
    done = chat_and_press(world, _ANSWER, unprotected=unprotected)
    assert (done.returncode, done.stdout) == (130, "Good morning.\n"), done.stderr
    assert kept(world) == ["story", *([] if unprotected else ["Good morning."])]


def test_ctrl_c_while_the_answer_is_written_stops_behind_it(world: World) -> None:
    done = chat_and_press(world, _WRITE)
    assert (done.returncode, done.stdout) == (130, "Good morning.\n"), done.stderr
    assert kept(world) == ["story", "Good morning."]
    assert world.partials() == []


def test_a_second_press_while_the_question_is_kept_is_not_delayed(world: World) -> None:
    done = chat_and_press(world, _QUESTION, times=2)
    assert done.returncode == 130, done.stderr
    assert "the question was not kept" in done.stderr
    assert kept(world) == []
