"""Reasons: typed, with the place that asked, and the same after JSON and pickling."""

import _thread
import asyncio
import inspect
import json
import os
import pickle
import sysconfig
import threading
from signal import SIGUSR1
from typing import get_args

import pytest

import safepoint
from safepoint.abort import AbortController, AbortError, AbortReason, AbortSignal, AbortTimeout, ReasonKind
from safepoint.errors import RemoteError, SafepointError, UsageError

ALL_KINDS = ["user", "deadline", "timeout", "parent", "preempted", "shutdown", "disconnected", "lease_lost", "error"]


def here(*, lines_up=0):
    """`file:line` of the line that asks, or of one above it."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno - lines_up}"


def through_json(reason):
    return AbortReason.from_dict(json.loads(json.dumps(reason.to_dict())))


def test_the_kinds_are_these_nine():
    assert list(get_args(ReasonKind)) == ALL_KINDS


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_each_kind_makes_a_reason(kind):
    assert AbortReason(kind).kind == kind


def test_another_kind_is_refused_and_the_error_lists_those_there_are():
    with pytest.raises(ValueError, match=r"AbortReason\.kind must be one of .*user, not 'users'") as caught:
        AbortReason("users")  # type: ignore[arg-type]  # the mistake under test
    assert all(kind in str(caught.value) for kind in ALL_KINDS)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_time_ran_out_in_two_kinds_only(kind):
    assert AbortReason(kind).timed_out is (kind in ("deadline", "timeout"))


def test_a_reason_reads_as_kind_message_and_place():
    assert (AbortReason().origin, AbortReason().cause) == (None, None)
    assert str(AbortReason()) == "user"
    assert str(AbortReason("shutdown", "SIGTERM")) == "shutdown: SIGTERM"
    assert str(AbortReason("user", "stop", "page.py:7")) == "user: stop (page.py:7)"
    assert str(AbortReason("user", "", "page.py:7")) == "user (page.py:7)"


def test_a_reason_cannot_be_changed():
    with pytest.raises(AttributeError):
        AbortReason().message = "other"  # type: ignore[misc]  # the mistake under test


def test_reasons_are_equal_when_kind_and_message_are():
    reason = AbortReason("error", "broken", "a.py:1", ValueError("one"))
    assert reason == AbortReason("error", "broken", "b.py:2", KeyError("two"))
    assert hash(reason) == hash(AbortReason("error", "broken"))
    assert reason != AbortReason("error", "other", "a.py:1")
    assert reason != AbortReason("user", "broken", "a.py:1")


@pytest.mark.parametrize("given", [7, b"stop", ["stop"], ValueError], ids=repr)
def test_anything_else_is_no_reason(given):
    with pytest.raises(TypeError, match=f"reason must be .* not {type(given).__name__}$"):
        AbortController().abort(given)


@pytest.mark.parametrize("given", ["stop", None, ValueError("wrong"), AbortReason("shutdown")], ids=repr)
def test_the_origin_is_the_line_that_called_abort(given):
    controller = AbortController()
    controller.abort(given)
    assert controller.signal.reason is not None
    assert controller.signal.reason.origin == here(lines_up=2)


def test_the_origin_is_the_line_that_made_the_signal():
    already = AbortSignal.already("stop")
    assert already.reason is not None
    assert already.reason.origin == here(lines_up=2)
    timeout = AbortSignal.timeout(0)
    assert timeout.reason is not None
    assert timeout.reason.origin == here(lines_up=2)


def test_the_origin_stays_that_of_the_first_abort():
    controller = AbortController()
    controller.abort("first")
    first = here(lines_up=1)
    assert not controller.abort("second")
    assert controller.signal.reason is not None
    assert controller.signal.reason.origin == first


def test_the_origin_of_a_callback_of_the_event_loop_is_the_line_that_runs_the_loop():
    """The loop has called, on behalf of the user's code that runs it. Nobody knows who asked for the callback."""

    async def main():
        controller = AbortController()
        asyncio.get_running_loop().call_later(0, controller.abort, "x")
        await asyncio.wait_for(controller.signal.wait_async(), 10)
        return controller.signal.reason

    reason = asyncio.run(main())
    assert reason.origin == here(lines_up=1)


def test_the_origin_of_a_signal_handler_of_the_event_loop_is_the_line_that_runs_the_loop():
    async def main():
        controller = AbortController()
        asyncio.get_running_loop().add_signal_handler(SIGUSR1, controller.abort, "x")
        os.kill(os.getpid(), SIGUSR1)
        await asyncio.wait_for(controller.signal.wait_async(), 10)
        return controller.signal.reason

    reason = asyncio.run(main())
    assert reason.origin == here(lines_up=1)


def test_a_timer_thread_has_no_line_of_the_users_so_there_is_no_origin():
    controller = AbortController()
    threading.Timer(0, controller.abort, ("x",)).start()
    assert controller.signal.wait(10)
    assert controller.signal.reason is not None
    assert controller.signal.reason.origin is None
    assert str(controller.signal.reason) == "user: x"


def test_a_callback_of_the_users_is_the_origin_also_where_a_library_calls_it():
    controller = AbortController()
    lines = []

    def callback():
        controller.abort("x")
        lines.append(here(lines_up=1))

    timer = threading.Timer(0, callback)
    timer.start()
    timer.join(10)
    assert controller.signal.reason is not None
    assert [controller.signal.reason.origin] == lines


def in_file(file):
    """A function of this file that aborts."""
    namespace = {}
    exec(compile("def abort(controller):\n    controller.abort('x')", file, "exec"), namespace)
    return namespace["abort"]


def test_a_package_that_aborts_for_the_user_is_skipped():
    controller = AbortController()
    in_file("/opt/app/lib/python3/site-packages/helper/tools.py")(controller)
    assert controller.signal.reason is not None
    assert controller.signal.reason.origin == here(lines_up=2)


@pytest.mark.parametrize(
    ("file", "origin"),
    [
        ("/opt/app/site-packages/service/main.py", "/opt/app/site-packages/service/main.py:2"),
        ("/usr/lib/python3/dist-packages/service.py", "/usr/lib/python3/dist-packages/service.py:2"),
        ("/usr/local/service.py", "/usr/local/service.py:2"),
        ("<stdin>", "<stdin>:2"),
        ("<frozen importlib._bootstrap>", None),
        (os.path.join(sysconfig.get_path("stdlib"), "sched.py"), None),
        (os.path.join(os.path.dirname(safepoint.__file__), "server", "api.py"), None),
    ],
)
def test_without_a_line_of_the_users_an_installed_package_may_be_the_origin(file, origin):
    controller = AbortController()
    _thread.start_new_thread(in_file(file), (controller,))  # so that this test is not on the stack
    assert controller.signal.wait(10)
    assert controller.signal.reason is not None
    assert controller.signal.reason.origin == origin


class Wordless(Exception):
    def __str__(self):
        raise LookupError("no words")


def test_an_error_that_cannot_be_put_into_words_aborts_all_the_same():
    controller = AbortController()
    assert controller.abort(error := Wordless())
    assert controller.signal.reason is not None
    assert controller.signal.reason == AbortReason("error", "Wordless: (its text cannot be read: LookupError)")
    assert controller.signal.reason.cause is error
    assert through_json(controller.signal.reason) == controller.signal.reason
    with pytest.raises(AbortError, match="aborted by error: Wordless"):
        controller.signal.raise_if_aborted()


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("origin", [None, "page.py:7"])
def test_a_reason_survives_json(kind, origin):
    reason = AbortReason(kind, "schluß ☂", origin)
    back = through_json(reason)
    assert back == reason
    assert back.origin == origin
    assert back.cause is None


def test_the_json_form_has_these_fields():
    reason = AbortReason("error", "KeyError: 'x'", "page.py:7", KeyError("x"))
    assert reason.to_dict() == {
        "kind": "error",
        "message": "KeyError: 'x'",
        "origin": "page.py:7",
        "cause": {"type": "KeyError", "message": "'x'"},
    }


def test_a_cause_arrives_as_a_remote_error_and_travels_on_unchanged():
    reason = AbortReason("error", "wrong", "page.py:7", ValueError("wrong"))
    once = through_json(reason)
    assert isinstance(once.cause, RemoteError)
    assert (once.cause.type_name, once.cause.message) == ("ValueError", "wrong")
    assert str(once.cause) == "ValueError: wrong"
    twice = through_json(once)
    assert isinstance(twice.cause, RemoteError)
    assert twice.to_dict() == once.to_dict() == reason.to_dict()


def test_a_remote_error_without_words_reads_as_its_type():
    assert str(RemoteError("ValueError", "")) == "ValueError"


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("paused", "for a while", "[paused] for a while"),
        ("paused", "", "[paused]"),
        (None, "", "[None]"),
        (7, "x", "[7] x"),
        (["user"], "x", "[['user']] x"),
    ],
)
def test_an_unknown_kind_is_still_an_abort_and_keeps_its_name(kind, message, expected):
    reason = AbortReason.from_dict(json.loads(json.dumps({"kind": kind, "message": message})))
    assert reason == AbortReason("error", expected)


def test_unknown_fields_are_ignored_and_wrong_ones_are_empty():
    data = {"kind": "shutdown", "message": 5, "origin": 7, "cause": "x", "colour": "red"}
    reason = AbortReason.from_dict(json.loads(json.dumps(data)))
    assert (reason.kind, reason.message, reason.origin, reason.cause) == ("shutdown", "", None, None)


def test_an_empty_dict_is_an_abort_too():
    assert AbortReason.from_dict({}) == AbortReason("error", "[None]")


def pickled(thing):
    return [pickle.loads(pickle.dumps(thing, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]


def test_a_reason_survives_pickling():
    reason = AbortReason("error", "wrong", "page.py:7", ValueError("wrong"))
    for back in pickled(reason):
        assert back == reason
        assert back.origin == reason.origin
        assert isinstance(back.cause, ValueError)
        assert back.cause.args == ("wrong",)


def test_a_remote_error_survives_pickling():
    for back in pickled(RemoteError("ValueError", "wrong")):
        assert (back.type_name, back.message) == ("ValueError", "wrong")


def test_a_timeout_has_no_error_number_or_file_of_an_os_error():
    error = AbortTimeout(AbortReason("timeout", "5 s passed"), "so far")
    assert error.errno is None
    assert error.strerror is None
    assert error.filename is None
    assert error.args == (error.reason,)


def test_an_error_says_who_aborted():
    assert str(AbortError(AbortReason("user", "stop", "page.py:7"))) == "aborted by user: stop (page.py:7)"
    assert str(AbortTimeout(AbortReason("timeout", "5 s passed"))) == "timed out by timeout: 5 s passed"


def test_the_callers_mistake_is_also_a_value_error():
    assert issubclass(UsageError, ValueError)
    assert issubclass(UsageError, SafepointError)
