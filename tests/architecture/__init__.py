"""Owns the house rules: pure functions that read sources and yield what breaks a rule. Knows nothing of pytest.

A rule yields one line per offender, `path:line: what is wrong`; `test_architecture.py` applies it and says what to do.
"""
