"""What a leaf owns: the programs, connections, threads and tasks that it started, and what a stop does to them.

| module | owns |
|---|---|
| `account.py` | the account of one leaf: what it started, and how that is ended or named |
| `hook.py` | how it is known: an audit hook, which runs in the thread and context of whoever starts something |
| `programs.py` | programs: which process, who descends from it, TERM and KILL |
| `starter.py` | who started a program, and whether it may be ended under that task or function now |
| `threads.py` | functions that run in a thread: when they are interrupted, and how often one looks |
| `connections.py` | the socket or database connection in which a thread is blocked |
| `executor.py` | functions that a leaf hands to other threads: `to_thread`, `run_in_executor`, pools, threads |
| `leftovers.py` | tasks, threads and programs that are left when a run ends |

The page that explains it to users is docs/owned-resources.md.
"""

from ...abort.resource_account import detached

__all__ = ["detached"]
