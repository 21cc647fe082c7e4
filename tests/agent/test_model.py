"""The model protocol."""

import pickle

from safepoint.agent import ModelError
from safepoint.run import Retry


def test_a_model_error_says_its_status_once():
    assert str(ModelError("too many requests", status=429)) == "too many requests (status 429)"
    assert str(ModelError("the stream broke off")) == "the stream broke off"


def test_a_retry_waits_as_long_as_the_provider_asked():
    error = ModelError("slow down", status=429, retryable=True, retry_after=7.0)
    assert Retry(delay=0.1).pause(1, error) == 7.0


def test_a_model_error_survives_pickling():
    error = pickle.loads(pickle.dumps(ModelError("slow down", status=429, retryable=True, retry_after=7.0)))
    assert (str(error), error.retryable, error.retry_after) == (
        "slow down (status 429); it asks to wait 7 s",
        True,
        7.0,
    )
