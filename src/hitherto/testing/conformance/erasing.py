"""The contract of erasing by person: everything of one participant, metadata value or beginning of a key.

Requirements: K1.
"""

from collections.abc import Callable

import pytest

from ...conversation import Conversation
from ...errors import InvalidArgument
from ...model import Message
from ...records import Participant, Records
from ...reports import PurgePlan
from ...store import Store
from .stores import interrupt_commit

ADA, BOB = Participant("ada", "user"), Participant("bob", "user")


def started(store: Store, owner: str, key: str, kind: str = "chat", participant: Participant | None = None) -> str:
    """Make a conversation; its id."""
    talk = store.ensure(key, kind=kind, metadata={"owner": owner, "app": "a"}, title=f"of {owner}")
    talk.append(Message.user("hi"))
    if participant is not None:
        Records(store).update(talk.id, participants=[participant, Participant("model", "assistant")])
    return talk.id


def left(store: Store) -> set[str]:
    """The ids of all conversations, of the kinds that these tests use."""
    kinds = ("chat", "langgraph", "adk")
    return {info.id for kind in kinds for info in store.conversations(kind=kind, limit=1000, include_expired=True)}


def planned(plan: PurgePlan) -> set[str]:
    return {target.conversation for target in plan.purges}


class EraseContract:
    """Purging everything of one person."""

    def test_everything_of_one_person_goes_of_every_kind_and_nothing_else(self, store: Store) -> None:
        """K1."""
        kinds = ("chat", "langgraph", "adk")
        ada = {started(store, "ada", f"ada/{kind}", kind, ADA) for kind in kinds}
        bob = {started(store, "bob", f"bob/{kind}", kind, BOB) for kind in kinds}
        bob.add(store.start(title="of nobody").id)
        named = {"participant": "ada"}, {"metadata": {"owner": "ada", "app": "a"}}, {"key_prefix": "ada/"}
        for selectors in named:
            plan = store.plan_purge(**selectors)
            assert planned(plan) == ada
            assert {(one.kind, one.title, one.messages) for one in plan.purges} == {(k, "of ada", 1) for k in kinds}
        assert left(store) == ada | bob
        report = store.purge_matching(
            participant="ada", metadata={"owner": "ada"}, key_prefix="ada/", reason="user-requested"
        )
        assert (set(report.purged), report.purged_count, report.failures) == (ada, 3, ())
        assert left(store) == bob

    @pytest.mark.parametrize(
        "selectors",
        [{"participant": "ada"}, {"metadata": {"owner": "ada"}}, {"key_prefix": "ada/"}],
        ids=["participant", "metadata", "key prefix"],
    )
    def test_each_selector_purges_by_itself(self, store: Store, selectors: dict[str, object]) -> None:
        ada, bob = started(store, "ada", "ada/1", participant=ADA), started(store, "bob", "bob/1", participant=BOB)
        report = store.purge_matching(**selectors, reason="privacy-policy-change")  # type: ignore[arg-type]  # as above
        assert (report.purged, report.reason) == ((ada,), "privacy-policy-change")
        assert left(store) == {bob}

    def test_selectors_given_together_must_all_fit(self, store: Store) -> None:
        both = started(store, "ada", "ada/1", participant=ADA)
        others = {
            started(store, "ada", "team/1", participant=ADA),
            started(store, "bob", "ada/2", participant=ADA),
            started(store, "ada", "ada/3", participant=BOB),
            started(store, "ada", "ada/4"),
        }
        together = {"participant": "ada", "metadata": {"owner": "ada"}, "key_prefix": "ada/"}
        assert planned(store.plan_purge(**together)) == {both}  # type: ignore[arg-type]  # as above
        report = store.purge_matching(**together, reason="user-requested")  # type: ignore[arg-type]  # as above
        assert report.purged == (both,)
        assert left(store) == others

    def test_a_conversation_on_hold_stays_and_is_reported(self, store: Store) -> None:
        held, free = started(store, "ada", "ada/1", "adk"), started(store, "ada", "ada/2")
        store.conversation(held).hold()
        plan = store.plan_purge(metadata={"owner": "ada"})
        assert [(one.conversation, one.stays) for one in plan.stays] == [(held, "held")]
        report = store.purge_matching(metadata={"owner": "ada"}, reason="user-requested")
        assert (report.purged, [one.id for one in report.failures]) == ((free,), [held])
        assert "on hold" in report.failures[0].error
        assert left(store) == {held}
        store.conversation(held).release()
        assert store.purge_matching(metadata={"owner": "ada"}, reason="user-requested").purged == (held,)

    def test_a_conversation_that_changes_before_the_commit_is_looked_at_again(
        self, open_store: Callable[[], Store], store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        changes: dict[str, Callable[[Conversation], object]] = {
            "put on hold": lambda talk: talk.hold(),
            "given to somebody else": lambda talk: talk.describe({"owner": "bob"}),
        }
        other = open_store()
        for change in changes.values():
            changed = started(store, "ada", f"ada/{len(left(store))}")
            said = started(store, "ada", f"ada/{len(left(store))}")
            with monkeypatch.context() as patch:
                interrupt_commit(
                    patch,
                    store.backend,
                    lambda: (
                        change(other.conversation(changed)),  # noqa: B023  # called within this pass of the loop
                        other.conversation(said).append(Message.user("more")),  # noqa: B023  # as above
                    ),
                )
                report = store.purge_matching(metadata={"owner": "ada"}, reason="user-requested")
            assert said in report.purged
            assert changed in left(store)
            talk = store.conversation(changed)
            if talk.held:
                assert [one.id for one in report.failures] == [changed]
                talk.release()
                store.purge(talk, reason="user-requested")
            else:
                assert report.failures == ()

    def test_a_conversation_that_appears_meanwhile_goes_too(
        self, open_store: Callable[[], Store], store: Store
    ) -> None:
        first, later = started(store, "ada", "ada/1"), list[str]()
        other = open_store()

        def begin(done: int, total: int) -> None:
            if done == total and not later:
                later.append(started(other, "ada", "ada/2"))

        report = store.purge_matching(key_prefix="ada/", reason="user-requested", progress=begin)
        assert report.purged == (first, *later)
        assert left(store) == set()

    def test_if_nothing_matches_nothing_is_written(self, store: Store) -> None:
        started(store, "bob", "bob/1", participant=BOB)
        for selectors in ({"participant": "ada"}, {"metadata": {"owner": "ada"}}, {"key_prefix": "ada/"}):
            assert store.plan_purge(**selectors).targets == ()
            report = store.purge_matching(**selectors, reason="user-requested")
            assert (report.purged_count, report.purged, report.failures) == (0, (), ())
        assert len(left(store)) == 1

    def test_a_purge_without_a_selector_is_refused(self, store: Store) -> None:
        started(store, "ada", "ada/1")
        wrong: list[dict[str, object]] = [
            {}, {"metadata": {}}, {"participant": ""}, {"key_prefix": ""}, {"participant": 7}, {"metadata": ["owner"]},
            {"participant": "\ud800"}, {"metadata": {"owner": "\ud800"}}, {"key_prefix": "\ud800"},
        ]  # fmt: skip
        for selectors in wrong:
            with pytest.raises(InvalidArgument):
                store.plan_purge(**selectors)  # type: ignore[arg-type]  # they are wrong
            with pytest.raises(InvalidArgument):
                store.purge_matching(**selectors, reason="user-requested")  # type: ignore[arg-type]  # as above
        with pytest.raises(InvalidArgument):
            store.purge_matching(participant="ada", reason="because")
        assert len(left(store)) == 1
