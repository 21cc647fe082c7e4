"""Interrupting a synchronous function in its thread, where nothing is left held, lost or half cleaned up.

`call.py` is the call that can be interrupted, `safety.py` decides at which instruction (docs/interrupting-threads.md).
Of Safepoint, the modules here need `errors` alone; only `code_location.py`, which names places for people, also
uses `abort`.
"""

from .call import AbortInterrupt, InterruptibleCall

__all__ = ["AbortInterrupt", "InterruptibleCall"]
