"""What the tests share, by what a test needs. Nothing here replaces a part of Safepoint.

- `waiting`: bounded ways to wait.
- `agents`, `flows`, `turn_loops`, `leaves`, `sessions`, `stores`: parts to build a scenario from, and ways to read its
  result.
- `hosts`, `workers`, `servers`: these in the test's own process; `server_process`, `worker_process`: in another one.
- `programs`, `background`, `clocks`, `browser`: other processes, other threads, fake time, a real browser.
- `certificates`: for servers that speak TLS.
- `nats` and `providers`: real servers that tests and benchmarks talk to. They know nothing of Safepoint.
"""
