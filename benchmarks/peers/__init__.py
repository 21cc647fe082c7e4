"""Owns the same job done by ours and by each unmodified peer, as users of each would write it."""
