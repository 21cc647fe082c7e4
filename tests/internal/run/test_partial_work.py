"""What stopped work leaves behind, as text."""

from dataclasses import dataclass

from safepoint.run.partial_work import PartialWork, partial_work


@dataclass
class Place:
    node: str

    def to_kept(self) -> PartialWork:
        return PartialWork("place", f'"{self.node}"')


def test_a_partial_that_can_be_written_as_text_is_kept():
    assert partial_work(Place("b")) == PartialWork("place", '"b"')


def test_what_was_kept_before_is_kept_as_it_is():
    kept = PartialWork("flow", "{}")
    assert partial_work(kept) is kept


def test_of_other_partials_nothing_is_kept():
    assert [partial_work(partial) for partial in (None, "half", {"to_kept": 1}, object())] == [None] * 4
