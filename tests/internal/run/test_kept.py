"""What stopped work leaves behind, as text."""

from dataclasses import dataclass

from safepoint.run.kept import KeptWork, kept_work


@dataclass
class Place:
    node: str

    def to_kept(self) -> KeptWork:
        return KeptWork("place", f'"{self.node}"')


def test_a_partial_that_can_be_written_as_text_is_kept():
    assert kept_work(Place("b")) == KeptWork("place", '"b"')


def test_what_was_kept_before_is_kept_as_it_is():
    kept = KeptWork("flow", "{}")
    assert kept_work(kept) is kept


def test_of_other_partials_nothing_is_kept():
    assert [kept_work(partial) for partial in (None, "half", {"to_kept": 1}, object())] == [None] * 4
