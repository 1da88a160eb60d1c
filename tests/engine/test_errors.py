"""The tree of errors: hints in tracebacks, and the built-in errors that some of them are as well."""

import traceback

import pytest

from hitherto import errors
from hitherto.errors import Conflict, HithertoError, MissingExtra, NotFound


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error))


def test_a_traceback_shows_the_hint_and_the_text_stays_as_it_is() -> None:
    error = NotFound("message", ["abc123"])
    assert str(error) == "no such message: abc123"
    assert error.args == ("no such message: abc123",)
    assert printed(error).splitlines() == [
        "hitherto.errors.NotFound: no such message: abc123",
        "hint: list what is there with store.conversations() or store.messages()",
    ]


def test_the_hint_of_a_call_is_shown_instead_of_that_of_the_class() -> None:
    assert printed(NotFound("message", ["abc123"], hint="look elsewhere")).splitlines()[1:] == ["hint: look elsewhere"]


def test_without_a_hint_there_is_no_note() -> None:
    assert printed(HithertoError("broken")).splitlines() == ["hitherto.errors.HithertoError: broken"]


def test_a_hint_that_is_replaced_is_shown_once_and_other_notes_stay() -> None:
    error = Conflict(expected="a", head="b")
    error.add_note("of the caller")
    error.replace_hint("read again")
    assert error.hint == "read again"
    assert printed(error).splitlines()[1:] == ["hint: read again", "of the caller"]


def test_a_missing_extra_is_an_import_error_as_well() -> None:
    with pytest.raises(ImportError) as caught:
        raise MissingExtra("psycopg", "postgres")
    assert isinstance(caught.value, HithertoError)
    assert (caught.value.name, str(caught.value)) == ("psycopg", "psycopg is not installed")
    assert "hint: pip install 'hitherto[postgres]'" in printed(caught.value)


def test_every_error_is_in_the_drawn_tree() -> None:
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, HithertoError)]
    assert kinds
    assert [kind.__name__ for kind in kinds if f" {kind.__name__} " not in f"{errors.__doc__}".replace("\n", " ")] == []
