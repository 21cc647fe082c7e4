"""The search of `abort_everywhere`: one run of a scenario for each point at which it can be aborted.

`safepoint.testing` exports the public names. This package imports nothing by itself, because `laws.py` needs some of
its modules, and others need the laws.
"""
