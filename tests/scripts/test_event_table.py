"""The table of events in the documentation: it says what the classes say."""

from typing import get_args

from safepoint import events
from safepoint.events import __all__ as defined
from scripts.event_table import PAGE, page_with, table


def test_the_page_on_events_lists_every_event_with_its_fields():
    text = PAGE.read_text(encoding="utf-8")
    assert text == page_with(text, table()), "run: python scripts/event_table.py --write"


def test_every_event_can_be_imported_from_the_public_module():
    names = {event.__name__ for event in get_args(events.Event)}
    assert names <= set(events.__all__)
    assert {*defined} <= set(events.__all__)


def test_a_row_has_the_fields_of_an_event_as_they_are_written():
    [row] = [row for row in table().splitlines() if row.startswith("| `TurnEnded`")]
    assert "`turn_ended`" in row
    assert "`turn_id: str`, `outcome: Outcome[Any]`, `resumable: bool`" in row
