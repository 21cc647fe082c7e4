"""Owns the provider of the agent benchmarks: the strict fake one, in a process of its own: only clients are measured.

The model's name says what it answers: `words-300` three hundred words at once, `slow-300` ten per second.
"""

import json
import subprocess
import sys
from types import TracebackType
from typing import Any, cast

from tests.rigs.provider import Provider
from tests.rigs.script import Pause

__all__ = ["ProviderProcess"]

SLOW_SECONDS = 0.1


class ProviderProcess:
    """`with ProviderProcess() as provider: provider.base_url`; `closed()` says when each connection was closed."""

    def __enter__(self) -> "ProviderProcess":
        command = [sys.executable, "-m", "benchmarks.peers.provider"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.base_url = self._line()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None  # for the type checker: it was asked for
        self._process.stdin.close()
        self._process.wait(10)

    def exchanges(self) -> list[dict[str, Any]]:
        """What has happened since the last time: when each connection was closed, by the monotonic clock."""
        assert self._process.stdin is not None
        self._process.stdin.write("report\n")
        self._process.stdin.flush()
        return cast(list[dict[str, Any]], json.loads(self._line()))

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def answer(body: dict[str, Any]) -> Any:
    """What the model's name asks for."""
    how, _, count = str(body["model"]).partition("-")
    words = [f"word{number} " for number in range(int(count))]
    return "".join(words) if how == "words" else [piece for word in words for piece in (word, Pause(SLOW_SECONDS))]


def main() -> None:
    """Serve until the other side lets go."""
    with Provider() as provider:
        provider.always(answer)
        print(provider.base_url, flush=True)
        for _ in sys.stdin:
            found = [{"closed_at": one.closed_at, "came_at": one.came_at} for one in provider.exchanges]
            provider.exchanges.clear()
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
