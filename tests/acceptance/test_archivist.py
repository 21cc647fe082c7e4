"""Owns the acceptance lines of Archivist: flows under a signal and a deadline."""

from tests.acceptance.lines import not_built, open_line


@open_line
def test_01_execute_takes_a_signal_a_deadline_both_or_neither_and_nodes_see_one_signal() -> None:
    """`execute` takes a signal, a deadline, both or neither; nodes see one composed signal."""
    not_built()


@open_line
def test_02_an_abort_by_the_caller_while_a_scout_waits_gives_aborted_and_closes_its_request() -> None:
    """The caller aborts after 800 ms while a scout waits for a slow server → `Aborted` with the caller's reason;
    the scout's request is closed.
    """
    not_built()


@open_line
def test_03_a_passed_deadline_gives_timed_out_distinct_from_an_abort() -> None:
    """The deadline passes → `TimedOut`, with the time it finished; distinct from an abort, also when both are given."""
    not_built()


@open_line
def test_04_all_nodes_done_gives_completed_with_the_state() -> None:
    """All nodes done → `Completed`, with the state."""
    not_built()


@open_line
def test_05_a_match_on_the_outcome_covers_all_cases_for_the_type_checker() -> None:
    """`match` on the outcome covers all cases, checked by the type checker."""
    not_built()


@open_line
def test_06_a_retry_in_its_back_off_wakes_up_on_abort_and_never_tries_again() -> None:
    """A retry in its back-off wakes up at once on abort and starts no further attempt, ever."""
    not_built()


@open_line
def test_07_node_timeouts_are_the_nodes_own() -> None:
    """Node timeouts are the node's own."""
    not_built()


@open_line
def test_08_a_node_that_collects_an_error_and_returns_another_output_takes_that_route() -> None:
    """A node that catches its errors, collects one (code, message, operation, recoverable, timestamp) and returns
    another output → the flow goes on by that route; the collected errors come with the result.
    """
    not_built()


@open_line
def test_09_the_cursor_is_the_next_or_the_interrupted_node_and_none_when_completed() -> None:
    """`cursor` is the next node that would have run, or the interrupted one; `None` when completed."""
    not_built()


@open_line
def test_10_a_checkpoint_resumes_in_a_later_process_and_ends_as_the_uninterrupted_run() -> None:
    """A checkpoint made from the result resumes in a later process and ends as the uninterrupted run would have."""
    not_built()


@open_line
def test_11_services_are_given_to_nodes_by_the_caller_typed() -> None:
    """Services are given to nodes by the caller, typed."""
    not_built()


@open_line
def test_12_a_composite_interrupted_inside_resumes_inside() -> None:
    """A composite (sub-flow, parallel, scatter) interrupted inside resumes inside."""
    not_built()
