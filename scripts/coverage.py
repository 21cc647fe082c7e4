"""Owns the promise that the tests of the abort layer take every branch of it."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SECONDS = 600
LAYER = "src/safepoint/abort"
# Measured, the randomised schedules take as long as all the rest, and no branch that the rest does not take.
TESTS = [
    "tests/abort",
    "tests/internal/abort",
    "--ignore=tests/abort/test_guard_interleavings.py",
    "-p",
    "no:cacheprovider",
]


def measure(data: str) -> int:
    """Run the tests and print the report; 0 when all pass and no branch is missed."""
    tool = [sys.executable, "-m", "coverage"]  # as a module: beside this file, `import coverage` would find this file
    tests = [*tool, "run", f"--data-file={data}", "-m", "pytest", *TESTS]
    report = [*tool, "report", f"--data-file={data}", f"--include={LAYER}/*", "--fail-under=100"]
    codes = [subprocess.run(command, cwd=ROOT, timeout=SECONDS).returncode for command in (tests, report)]
    return int(any(codes))


def main() -> int:
    argparse.ArgumentParser(
        description=f"Branch coverage of {LAYER} by the tests of the abort layer, in one process.",
        epilog="The exit code is 1 when a test fails, when a line or branch is missed, or after ten minutes.",
    ).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            return measure(f"{folder}/coverage")
        except subprocess.TimeoutExpired:
            print(f"The tests did not end within {SECONDS} seconds.", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
