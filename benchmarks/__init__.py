"""The benchmarks: ratios to unmodified peers in one run, never timed tests.

`python -m benchmarks` runs every `bench_<name>.py` here. To add one, write a module with two functions:

    def peers() -> dict[str, str]: ...                        # who it is compared with → the version of it
    def lines(measure: Measure) -> Iterator[Line]: ...        # measure, and say what came out
"""
