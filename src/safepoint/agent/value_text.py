"""Owns how the value of a tool becomes text for a model."""

from pydantic_core import to_json

__all__ = ["as_text"]


def as_text(value: object) -> str:
    """Return the value of a tool as text for a model. It never raises: a strange value is not a failed call."""
    if isinstance(value, str):
        text = value
    elif value is None:
        text = ""
    else:
        try:
            text = to_json(value, fallback=str, inf_nan_mode="constants").decode()
        except Exception:  # it has no JSON form: its keys are tuples, or it contains itself
            text = str(value)
    # Half of a surrogate pair, as in some file names, cannot be sent to any provider.
    return text.encode(errors="replace").decode() if text.strip() else "(no output)"
