"""Owns the tests of how a program hears that it should end: whatever it is doing, once, and in time."""

import signal
import subprocess
import sys

SECONDS = 10.0


# In C code: no handler of Python's own runs before it is done.
BLOCKED = """
import hashlib
from safepoint.process.termination import graceful_shutdown

with graceful_shutdown(lambda: print("told", flush=True), 0.3, "the test"):
    print("blocked", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"p", b"s", 10**8)
"""


def test_a_program_that_is_blocked_in_c_code_is_told_of_and_cut_off_in_time():
    with subprocess.Popen([sys.executable, "-c", BLOCKED], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"blocked\n"
            child.send_signal(signal.SIGTERM)
            said, errors = child.communicate(timeout=SECONDS)
        finally:
            child.kill()
    assert child.returncode == 1
    assert b"the test did not end within 0.3 s" in errors
    assert said == b"told\n"
