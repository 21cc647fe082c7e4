"""Owns what every provider refuses as no JSON in UTF-8: halves of characters, NaN and Infinity."""

import json

__all__ = ["encoding_fault"]


def encoding_fault(body: object) -> str | None:
    """What cannot be encoded in a request that Python's JSON has read, or None."""
    try:
        json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return f"We could not parse the JSON body of your request: {type(error).__name__}"
    return None
