"""What the failures of a provider mean."""

from email.utils import formatdate

import pytest

from safepoint.models.failure import (
    cut_off,
    failed_mid_answer,
    is_transient,
    malformed,
    refused,
    retry_after,
    transport_errors,
    unreachable,
)
from safepoint.testing import FakeClock


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_some_statuses_are_worth_another_attempt(status: int):
    assert is_transient(status)
    assert refused("m", "no", status).retryable


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422, 451])
def test_other_statuses_are_final(status: int):
    assert not is_transient(status)
    assert not refused("m", "no", status).retryable


def test_a_provider_that_says_outright_whether_to_come_back_is_believed():
    assert not refused("m", "your credit is used up", 429, {"x-should-retry": "false"}).retryable
    assert refused("m", "come again", 400, {"x-should-retry": "true"}).retryable
    assert refused("m", "come again", 500, {"x-should-retry": "perhaps"}).retryable


def test_a_quota_that_is_used_up_is_final_whatever_the_status_and_headers_say():
    assert not refused("m", "pay first", 429, {"retry-after": "1"}, "insufficient_quota", None).retryable
    assert not refused("m", "pay first", 429, {"x-should-retry": "true"}, None, "insufficient_quota").retryable
    assert refused("m", "slow down", 429, {}, "requests", "rate_limit_exceeded").retryable
    assert not failed_mid_answer("m", "pay first", "insufficient_quota", 429).retryable


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
def test_the_server_says_when_to_come_back(headers: dict[str, str], seconds: float | None):
    assert retry_after(headers) == seconds


def test_a_date_is_seconds_from_now_on_the_clock_in_use(clock: FakeClock):
    assert retry_after({"retry-after": formatdate(clock.time() + 30, usegmt=True)}) == pytest.approx(30, abs=1)


def test_an_error_inside_of_an_answer_is_judged_by_its_number_or_its_kind():
    assert (failed_mid_answer("m", "x", "503", None).status, failed_mid_answer("m", "x", "503", None).retryable) == (
        503,
        True,
    )
    assert not failed_mid_answer("m", "x", "400", "server_error").retryable
    assert failed_mid_answer("m", "x", 500, None).status == 500
    assert failed_mid_answer("m", "x", None, "server_error").retryable
    assert failed_mid_answer("m", "x", "rate_limit_exceeded", "tokens").retryable
    assert not failed_mid_answer("m", "x", "context_length_exceeded", "invalid_request_error").retryable
    assert not failed_mid_answer("m", "x").retryable


def test_failures_of_the_line_are_worth_another_attempt_and_say_why():
    error = unreachable("m", ConnectionResetError(104, "reset by peer"))
    assert (error.retryable, str(error)) == (
        True,
        "m: the connection failed (ConnectionResetError: [Errno 104] reset by peer)",
    )
    assert cut_off("m").retryable
    assert malformed("m", "<html>").retryable
    assert "<html>" in str(malformed("m", "<html>"))


def test_the_errors_of_the_line_are_known_of_both_http_clients():
    import httpx
    import httpx2

    for error in (httpx.ReadTimeout("x"), httpx2.RemoteProtocolError("x"), ConnectionError(), TimeoutError()):
        assert isinstance(error, transport_errors())
    assert not isinstance(ValueError(), transport_errors())
