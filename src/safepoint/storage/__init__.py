"""What is kept on disk: files that are whole or not there, leases, SQLite databases, and checkpoints.

Owns how data gets to disk and whose it is. What the data means is known to flows, turn loops and sessions.
"""

from .files import read_back, write_atomically

__all__ = ["read_back", "write_atomically"]
