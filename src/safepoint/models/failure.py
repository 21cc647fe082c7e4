"""Owns how a provider's failures become a ModelError: whether another attempt may succeed, and how long to wait.

Decides by status codes, headers and error types in the response, never by the name or text of an exception. Knows
nothing of any SDK.
"""

import json
import sys
from collections.abc import Mapping

from ..agent.model import ModelError
from ..run.retry import as_seconds

__all__ = [
    "MALFORMED",
    "cut_off",
    "error_details",
    "failed_mid_answer",
    "is_transient",
    "malformed",
    "refused",
    "retry_after",
    "transport_errors",
    "unreachable",
]

# What the SDKs raise when a response is not the JSON text it should be.
MALFORMED = (json.JSONDecodeError, UnicodeDecodeError)

TRANSIENT = frozenset({408, 409, 429})
TRANSIENT_KINDS = frozenset(
    {"server_error", "api_error", "overloaded_error", "timeout_error", "rate_limit_error", "rate_limit_exceeded"}
)

# Errors that no retry can fix, whatever their status: the account has to be paid first. OpenAI sends them as a 429.
FINAL_KINDS = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})


def is_transient(status: int) -> bool:
    """Whether the same request may succeed later: a time-out, a conflict, a rate limit, or an error of the server."""
    return status in TRANSIENT or status >= 500


def refused(
    model: str, message: str, status: int, headers: Mapping[str, str] | None = None, *kinds: object
) -> ModelError:
    """Build the error for a response with an error status.

    Args:
        model: The name of the model.
        message: What the provider says.
        status: The HTTP status.
        headers: The headers of the response, with lower-case names or in a case-insensitive mapping.
        *kinds: The type and code of the error, where the provider gives them.
    """
    headers = headers or {}
    should_retry = headers.get("x-should-retry")  # some providers decide it themselves
    retryable = is_transient(status) if should_retry not in ("true", "false") else should_retry == "true"
    retryable = retryable and FINAL_KINDS.isdisjoint(map(str, kinds))
    return ModelError(f"{model}: {message}", status=status, retryable=retryable, retry_after=retry_after(headers))


def failed_mid_answer(model: str, message: str, *kinds: object) -> ModelError:
    """Build the error for an error event in the middle of a streamed answer.

    Args:
        model: The name of the model.
        message: What the provider says.
        *kinds: The type and code of the error. Some providers send a number here, some a word.
    """
    words = {str(kind) for kind in kinds}
    status = next((int(word) for word in words if word.isdecimal()), None)
    transient = bool(TRANSIENT_KINDS & words) if status is None else is_transient(status)
    return ModelError(f"{model}: {message}", status=status, retryable=transient and FINAL_KINDS.isdisjoint(words))


def unreachable(model: str, error: BaseException) -> ModelError:
    """Build the error for a connection that could not be made, broke, or was silent for too long."""
    cause = error.__cause__ or error
    problem = ": ".join(filter(None, (type(cause).__name__, str(cause))))
    return ModelError(f"{model}: the connection failed ({problem})", retryable=True)


def cut_off(model: str, *, content_type: str = "", head: bytes = b"") -> ModelError:
    """Build the error for a response that ended before the answer did.

    Args:
        model: The name of the model.
        content_type: The type of the response, if it was to be an event stream.
        head: How the response began. Some servers send an error as a plain document with status 200.
    """
    if (error := _error_in(head)) is not None:
        return failed_mid_answer(model, *error)
    hint = f" (it is {content_type!r}, no event stream; see stream=False)"
    shown = hint if content_type and not content_type.startswith("text/event-stream") else ""
    return ModelError(f"{model}: the answer broke off: the stream ended without a finish reason{shown}", retryable=True)


def error_details(error: object) -> tuple[str, object, object]:
    """Return the message, the code and the type of what a provider sends as `error`."""
    if isinstance(error, Mapping):
        return str(error.get("message") or dict(error)), error.get("code"), error.get("type")
    return str(error), None, None


def _error_in(document: bytes) -> tuple[str, object, object] | None:
    try:
        found = json.loads(document) if document.lstrip()[:1] == b"{" else None
    except ValueError:
        return None
    error = found.get("error") if isinstance(found, dict) else None
    return error_details(error) if error else None


def malformed(model: str, error: object) -> ModelError:
    """Build the error for data that does not follow the protocol.

    It is retryable, as a broken connection is: the next attempt may get better data.
    """
    return ModelError(f"{model}: the provider sent malformed data: {error}", retryable=True)


def transport_errors() -> tuple[type[Exception], ...]:
    """Return what the HTTP clients of the SDKs raise when a connection fails. An SDK lets some of these through."""
    clients = (sys.modules.get(name) for name in ("httpx", "httpx2"))
    return (OSError, *(client.HTTPError for client in clients if client is not None))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds the server asks to wait, or None.

    It is read from `Retry-After`, a number or a date, or from `retry-after-ms`, which is more precise.
    """
    milliseconds = as_seconds(headers.get("retry-after-ms"))
    return as_seconds(headers.get("retry-after")) if milliseconds is None else milliseconds / 1000
