"""Message ids are a permutation of numbers (C4): every number has an id, every id one number."""

import os
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitherto.errors import InvalidID, NotFound
from hitherto.ids import (
    ALPHABET,
    LIMIT,
    RUN,
    Names,
    check_message_id,
    is_conversation_prefix,
    new_conversation_id,
    new_token,
    parse_conversation_id,
    show_conversation_id,
)

NAMES = Names(bytes(range(16)))
SHORT = 57**6


@given(st.integers(0, LIMIT - 1), st.binary(min_size=16, max_size=16))
def test_an_id_leads_back_to_its_number(number: int, seed: bytes) -> None:
    names = Names(seed)
    id = names.id(number)
    assert names.number(id) == number
    assert len(id) == (6 if number < SHORT else 8)
    assert set(id) <= set(ALPHABET)


@given(st.text(ALPHABET, min_size=6, max_size=6) | st.text(ALPHABET, min_size=8, max_size=8))
def test_a_number_leads_back_to_its_id(id: str) -> None:
    assert NAMES.id(NAMES.number(id)) == id


def test_seeds_give_different_ids() -> None:
    ids = {Names(os.urandom(16)).id(12345) for _ in range(50)}
    assert len(ids) > 45


def test_the_ids_of_a_run_look_nothing_alike() -> None:
    """So that a few characters are enough to type: no position is the same throughout, first characters are spread."""
    ids = [NAMES.id(64 + n) for n in range(RUN)]
    for position in range(6):
        assert Counter(id[position] for id in ids).most_common(1)[0][1] <= RUN // 3


def test_prefixes_enumerate_exactly_the_ids_that_begin_so() -> None:
    id = NAMES.id(987654)
    numbers = NAMES.with_prefix(id[:4])
    assert len(numbers) == len(set(numbers)) == 57**2
    assert 987654 in numbers
    assert all(NAMES.id(number).startswith(id[:4]) for number in numbers[::100])
    assert NAMES.with_prefix("0O1l") == []


@pytest.mark.parametrize("id", ["", "abc", "abcde", "abcdefg", "abc-ef", "abc12\n", "ａｂｃｄｅｆ", "a" * 9, "\0" * 6])
def test_other_shapes_are_not_ids(id: str) -> None:
    with pytest.raises(InvalidID):
        check_message_id(id)
    with pytest.raises(InvalidID):
        NAMES.number(id)


@pytest.mark.parametrize("id", ["O00000", "lIlIlI", "0123456a"])
def test_characters_that_ids_never_have_are_not_found(id: str) -> None:
    with pytest.raises(NotFound):
        NAMES.number(id)


@given(st.integers(0, SHORT + 5000), st.integers(0, RUN))
def test_the_ids_of_a_stretch_are_those_of_its_numbers(first: int, count: int) -> None:
    assert NAMES.ids(first, count) == [NAMES.id(first + n) for n in range(count)]


@given(st.integers(1, 10**7))
def test_the_ids_of_a_stretch_are_right_where_digits_carry(high: int) -> None:
    first = high * 57**2 - 7
    assert NAMES.ids(first, 15) == [NAMES.id(first + n) for n in range(15)]


def test_conversation_ids_are_canonical_uuids() -> None:
    id = new_conversation_id()
    text = show_conversation_id(id)
    assert parse_conversation_id(text) == id
    assert len(text) == 36
    for wrong in (text.upper(), "{" + text + "}", text.replace("-", ""), text + "\n", text[:-1], ""):
        if wrong != text:
            with pytest.raises(InvalidID):
                parse_conversation_id(wrong)
    assert all(is_conversation_prefix(text[:n]) for n in range(1, 37))
    assert not any(is_conversation_prefix(x) for x in ("", "g", "6f1c0d8e2", "6-", text + "0"))


def test_tokens_are_sixteen_random_bytes() -> None:
    assert len({new_token() for _ in range(100)}) == 100
    assert len(new_token()) == 16
