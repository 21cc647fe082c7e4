"""Owns the acceptance lines of Think: a session's turn under a signal from outside."""

from tests.acceptance.lines import not_built, open_line


@open_line
def test_01_an_abort_in_mid_stream_stops_the_model_request_and_gives_aborted_with_the_reason() -> None:
    """`save_messages(messages, signal=s)`: abort `s` mid-stream → the model request stops, the result is `aborted`
    with the reason. (They planned `error`; ours is `aborted`.)
    """
    not_built()


@open_line
def test_02_a_signal_aborted_before_the_call_makes_no_model_request() -> None:
    """`s` aborted before the call → no model request at all, no wasted inference."""
    not_built()


@open_line
def test_03_a_signal_aborted_between_admission_and_first_token_leaves_no_window() -> None:
    """`s` aborted between admission and the first token (while queued, while storing, while broadcasting) → the
    same: no model request; there is no window.
    """
    not_built()


@open_line
def test_04_without_a_signal_everything_is_as_before_and_either_source_ends_the_turn() -> None:
    """Without a signal everything is as before; the other ways to stop (by turn id, by closing) still work, and
    either source ends the turn.
    """
    not_built()


@open_line
def test_05_only_this_turn_is_stopped_and_all_others_go_on() -> None:
    """Only this turn is stopped: other turns, queued or of other sessions, go on."""
    not_built()


@open_line
def test_06_the_listener_on_the_outside_signal_is_removed_when_the_turn_ends() -> None:
    """The listener on the outside signal is removed when the turn ends (1,000 turns under one signal: none left)."""
    not_built()


@open_line
def test_07_messages_may_be_a_function_of_the_current_messages_sync_or_async() -> None:
    """`messages` may be a function of the current messages, sync or async."""
    not_built()


@open_line
def test_08_a_helper_turn_driven_by_a_tool_ends_with_the_parent_the_reader_or_the_tab() -> None:
    """Helper as sub-agent: a parent's tool drives a turn of a helper session and forwards its events; the parent's
    abort, the reader's closing of `stream`, a tab closing under the stop policy → exactly that turn ends.
    """
    not_built()


@open_line
def test_09_a_pre_aborted_parent_keeps_the_turn_of_the_helper_from_beginning() -> None:
    """A pre-aborted parent: the helper's turn does not begin."""
    not_built()


@open_line
def test_10_every_method_that_drives_a_turn_takes_the_signal_in_the_same_way() -> None:
    """Every method that drives a turn takes the signal in the same way."""
    not_built()


@open_line
def test_11_the_turn_id_is_known_to_the_caller_before_anything_has_run() -> None:
    """The turn id is known at once, to the caller, before anything has run."""
    not_built()


@open_line
def test_12_any_outside_caller_can_stop_by_id() -> None:
    """Any outside caller (an HTTP handler, a timer, a sibling) can stop by id."""
    not_built()
