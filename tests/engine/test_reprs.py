"""The repr of what people hold says what they need to see, and no more."""

import hitherto
from hitherto import Block, Message
from hitherto.model import Usage


def test_a_message_shows_only_the_fields_that_were_given() -> None:
    assert repr(Message.user("Why?")) == "Message(role='user', blocks=(Block(type='content', content='Why?'),))"
    assert repr(Usage(3, 4)) == "Usage(input_tokens=3, output_tokens=4)"


def test_long_binary_content_is_shown_by_its_size() -> None:
    picture = Block.image(b"x" * 5000, "image/png")
    assert repr(picture) == "Block(type='content', content=<5,000 bytes>, modality='image', mime_type='image/png')"
    assert "b'x'" in repr(Block.image(b"x", "image/png"))  # the control: a short one is shown


def test_handles_and_lists_name_what_they_stand_for() -> None:
    with hitherto.open("memory:") as store:
        talk = store.start()
        saved = talk.append(Message.user("hi"))
        assert repr(saved).startswith("Saved(role='user', blocks=(Block(type='content', content='hi'),), id=")
        assert repr(talk) == f"<Conversation {talk.id} at {saved.id}>"
        listing = store.messages()
        assert repr(listing) == "<MessageListing after nothing>"
        next(listing)
        assert repr(listing) == f"<MessageListing after {listing.cursor}>"
