"""Owns the servers that tests and benchmarks stand on: real sockets, real processes. Knows nothing of Safepoint."""
