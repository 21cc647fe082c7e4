"""Owns the data that a provider wants back as it came, such as its reasoning: how it is kept, and to whom it is sent.

It goes back only to the API and host that it came from: another provider refuses signatures that it did not make, and
fields that it does not know. Knows nothing of any provider's format.
"""

import json
from collections.abc import Mapping
from typing import Any

from ..agent.clean_text import clean_json
from ..messages import NativeData

__all__ = ["native_data", "native_fields"]


def native_data(provider: str, fields: Mapping[str, object]) -> NativeData:
    """Return the data as it is kept in a message or a call."""
    return NativeData(provider=provider, document=json.dumps(fields))


def native_fields(native: NativeData | None, provider: str) -> dict[str, Any]:
    """Return the data as it is sent to this provider: nothing if it came from another one."""
    if native is None or native.provider != provider:
        return {}
    try:
        found = clean_json(json.loads(native.document))
    except ValueError:  # a message that somebody else wrote
        return {}
    return found if isinstance(found, dict) else {}
