"""Owns what the failures of a provider mean to a caller: worth another attempt or not, and when.

Decides by status codes and headers, never by the name or text of an exception. Knows nothing of any SDK.
"""

import json
import sys
from collections.abc import Mapping

from ..agent.model import ModelError
from ..run.retry import as_seconds

__all__ = [
    "MALFORMED",
    "broke_off",
    "failed_within",
    "is_transient",
    "malformed",
    "refused",
    "retry_after",
    "transport_errors",
    "unreachable",
]

MALFORMED = (json.JSONDecodeError, UnicodeDecodeError)
TRANSIENT = frozenset({408, 409, 429})
TRANSIENT_KINDS = frozenset(
    {"server_error", "api_error", "overloaded_error", "timeout_error", "rate_limit_error", "rate_limit_exceeded"}
)

# Whatever the status: nobody gets an answer before the account has been paid. OpenAI sends it as a 429.
FINAL_KINDS = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})


def is_transient(status: int) -> bool:
    """Whether the same request may succeed later: a time-out, a conflict, a limit, or the server's own trouble."""
    return status in TRANSIENT or status >= 500


def refused(
    model: str, message: str, status: int, headers: Mapping[str, str] | None = None, *kinds: object
) -> ModelError:
    """The provider answered with an error status.

    Args:
        headers: With lower-case names, or of a kind that does not care about case.
        kinds: The type and code of the error, where the provider gives them.
    """
    headers = headers or {}
    asked = headers.get("x-should-retry")  # some providers say it outright
    retryable = is_transient(status) if asked not in ("true", "false") else asked == "true"
    retryable = retryable and FINAL_KINDS.isdisjoint(map(str, kinds))
    return ModelError(f"{model}: {message}", status=status, retryable=retryable, retry_after=retry_after(headers))


def failed_within(model: str, message: str, *kinds: object) -> ModelError:
    """An error event in the middle of an answer. `kinds`: its type and code, of which some are numbers, some words."""
    words = {str(kind) for kind in kinds}
    status = next((int(word) for word in words if word.isdecimal()), None)
    transient = bool(TRANSIENT_KINDS & words) if status is None else is_transient(status)
    return ModelError(f"{model}: {message}", status=status, retryable=transient and FINAL_KINDS.isdisjoint(words))


def unreachable(model: str, error: BaseException) -> ModelError:
    """The connection could not be made, broke, or was silent for too long."""
    cause = error.__cause__ or error
    told = ": ".join(filter(None, (type(cause).__name__, str(cause))))
    return ModelError(f"{model}: the connection failed ({told})", retryable=True)


def broke_off(model: str, hint: str = "") -> ModelError:
    """The stream ended, and the answer had not."""
    return ModelError(f"{model}: the answer broke off: the stream ended without a finish reason{hint}", retryable=True)


def malformed(model: str, error: object) -> ModelError:
    """What came is not what the protocol says. As with a broken line, the next attempt may get better data."""
    return ModelError(f"{model}: the provider sent malformed data: {error}", retryable=True)


def transport_errors() -> tuple[type[Exception], ...]:
    """What the HTTP clients of the SDKs raise when the line fails: an SDK lets some of it through."""
    clients = (sys.modules.get(name) for name in ("httpx", "httpx2"))
    return (OSError, *(client.HTTPError for client in clients if client is not None))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """How many seconds the server asks to wait: from `Retry-After`, a number or a date, or its finer variant."""
    milliseconds = as_seconds(headers.get("retry-after-ms"))
    return as_seconds(headers.get("retry-after")) if milliseconds is None else milliseconds / 1000
