"""Child processes: programs, functions in a process of their own, and what becomes of them when a signal is aborted.

Owns how a child is started, supervised and ended, with everything that it has started. POSIX only.
"""

from .program import ProcessResult, run_process

__all__ = ["ProcessResult", "run_process"]
