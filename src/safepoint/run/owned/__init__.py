"""Owns what a leaf starts: programs, connections, threads and tasks, and what a stop does to them.

| module | owns |
|---|---|
| `account.py` | the account of one leaf: what it started, and how that is ended or named in the receipt |
| `hook.py` | the audit hook, which runs in the thread and context of the code that starts something |
| `programs.py` | programs: which process one is, what descends from it, TERM and KILL |
| `starter.py` | what started a program, and whether the program may be ended while that still runs |
| `threads.py` | functions that run in a thread: when they are interrupted, and how often they are checked |
| `connections.py` | the socket or database connection in which a thread is blocked |
| `executor.py` | functions that a leaf passes to other threads: `to_thread`, `run_in_executor`, pools, threads |
| `leftovers.py` | tasks, threads and programs that remain when a run ends |

docs/owned-resources.md explains it to users.

**To cut** means, in this package: to end something that code is waiting for, such as a program or a connection. Code
that waited then continues with a partial result, so before anything is cut, the code is set up to be interrupted, and
what it returns is dropped.
"""

from ...abort.resource_account import detached

__all__ = ["detached"]
