"""Owns the promise that the tests of the signal and of child processes take every branch of both."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SECONDS = 600
# Of isolated functions a good part runs in another process, where it is not measured.
FILES = [
    "src/safepoint/abort/*",
    *(f"src/safepoint/process/{name}.py" for name in ("child", "frames", "group", "program", "termination", "tree")),
]
# Measured, the randomised schedules take as long as all the rest, and no branch that the rest does not take.
TESTS = [
    "tests/abort",
    "tests/internal/abort",
    "tests/process",
    "tests/internal/process",
    "--ignore=tests/abort/test_guard_interleavings.py",
    "-p",
    "no:cacheprovider",
]


def measure(data: str) -> int:
    """Run the tests and print the report; 0 when all pass and no branch is missed."""
    tool = [sys.executable, "-m", "coverage"]  # as a module: beside this file, `import coverage` would find this file
    tests = [*tool, "run", f"--data-file={data}", "-m", "pytest", *TESTS]
    report = [*tool, "report", f"--data-file={data}", f"--include={','.join(FILES)}", "--fail-under=100"]
    codes = [subprocess.run(command, cwd=ROOT, timeout=SECONDS).returncode for command in (tests, report)]
    return int(any(codes))


def main() -> int:
    argparse.ArgumentParser(
        description="Branch coverage of abort/ and of the core of process/ by their own tests, in one process.",
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
