"""Owns the provider of the agent benchmarks: the strict fake one, in a process of its own: only clients are measured.

The model's name says what it answers: `words-300` three hundred words at once, `slow-300` ten per second.
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from tests.kit.providers.openai import Provider
from tests.kit.providers.script import Pause

__all__ = ["ProviderProcess", "Seen"]

SLOW_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Seen:
    """What the provider saw of one request, by the monotonic clock, which all processes share."""

    sent_at: list[float]
    closed_at: float | None


class ProviderProcess:
    """`with ProviderProcess() as provider: provider.base_url`; `exchanges()` says what became of each request."""

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

    def hang_up(self) -> None:
        """Close what is still open, and forget what has happened so far."""
        self._ask("hang up")

    def exchanges(self) -> list[Seen]:
        """What has happened since then."""
        return [Seen(**one) for one in self._ask("report")]

    def _ask(self, command: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return json.loads(self._line())

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
        for command in sys.stdin:
            if command.strip() == "hang up":
                provider.hang_up()
                provider.exchanges.clear()
            found = [Seen(list(one.sent_at), one.closed_at) for one in provider.exchanges]
            print(json.dumps([asdict(one) for one in found]), flush=True)


if __name__ == "__main__":
    main()
