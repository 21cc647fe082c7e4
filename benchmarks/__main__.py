"""Owns the run: finds the `bench_<name>.py` files, measures them, prints one table and writes one file for each."""

import argparse
import gc
import importlib
import json
import os
import platform
import sys
import traceback
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol, cast

from .measure import Line, Measure
from .table import as_json, markdown

HERE = Path(__file__).parent
RESULTS = HERE / "results"
ROUNDS = 11
QUICK_ROUNDS = 3


class Bench(Protocol):
    """What a `bench_<name>.py` has."""

    def peers(self) -> Mapping[str, str]:
        """Who it is compared with → the version of it."""
        ...

    def lines(self, measure: Measure) -> Iterator[Line]:
        """Measure, and say what came out."""
        ...


def main(arguments: list[str] | None = None) -> int:
    names = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser("python -m benchmarks", description="Ratios against unmodified peers, in one run.")
    parser.add_argument("--only", choices=names, metavar="NAME", help=f"one benchmark file: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, not {ROUNDS}; writes no results")
    options = parser.parse_args(arguments)
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    measured: list[Line] = []
    crashed = []
    for name in [options.only] if options.only else names:
        measure = Measure(rounds, partial(print, f"{name}:", file=sys.stderr, flush=True))
        begin = len(measured)
        try:
            bench = cast(Bench, importlib.import_module(f"{__package__}.bench_{name}"))
            gc.collect()
            gc.freeze()  # what is imported stays: no need to look through it between rounds
            measured.extend(bench.lines(measure))  # also those that came before a crash
            if not options.quick:
                write(name, measured[begin:], about(bench.peers(), rounds))
        except Exception:
            traceback.print_exc()
            crashed.append(name)
    print(markdown(measured))
    for name in crashed:
        print(f"\nThe benchmark {name!r} crashed: its lines are incomplete, its results were not written.")
    return 1 if crashed else 0


def about(peers: Mapping[str, str], rounds: int) -> dict[str, str]:
    """What a reader needs to compare with another run; nothing that names the machine or its owner."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {
        "Python": python,
        **peers,
        "CPUs": str(os.cpu_count()),
        "machine": f"{platform.system()} {platform.machine()}",
        "rounds": str(rounds),
    }


def write(name: str, lines: list[Line], facts: Mapping[str, str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    page = [
        f"# Benchmark: {name}",
        "",
        ", ".join(f"{fact} {value}" for fact, value in facts.items()) + ".",
        "Medians over interleaved rounds in one run; a ratio is the median of the ratios within each round.",
        "Garbage is collected between rounds, not inside them. CPU time, or wall time where another process or thread",
        "takes part. Written by `make bench`.",
        "",
        markdown(lines),
        "",
    ]
    (RESULTS / f"{name}.md").write_text("\n".join(page), encoding="utf-8")
    data = {"name": name, "about": facts, "lines": as_json(lines)}
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
