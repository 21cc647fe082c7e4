"""The `safepoint` command: its subcommands, their options, and its exit codes. Knows nothing of HTTP.

Exit codes: 0 done; 1 the server refused; 2 a wrong call; 3 no server or broker answers; 130 interrupted by Ctrl-C.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from ..errors import SafepointError, UsageError
from ..version import __version__
from ..worker.broker import BrokerError
from .client import ServerRefused, ServerUnreachable, receipt, sessions, stop, turns
from .serve import serve
from .worker import NATS_URL, broker_options, list_workers, work

__all__ = ["main"]

URL = "http://127.0.0.1:8420"
SHELLS = ("bash", "zsh", "fish")
EXAMPLES = """examples:
  safepoint serve                              the demo agent on http://127.0.0.1:8420
  safepoint serve my_agents:helper --db chat.db
  safepoint sessions
  safepoint turns SESSION
  safepoint stop SESSION                       stop the running turn, now
  safepoint stop SESSION --abandon 0           and abandon what does not end
  safepoint stop SESSION TURN --at AFTER_TOOLS --within 30
  safepoint receipt SESSION TURN
  safepoint worker my_agents:helper --nats nats://10.0.0.1:4222
  safepoint serve --nats nats://10.0.0.1:4222  sessions on those workers
  safepoint workers

exit codes: 0 done, 1 refused by the server, 2 wrong call, 3 no server answers, 130 interrupted
environment: SAFEPOINT_URL, SAFEPOINT_TOKEN, NATS_URL, NO_COLOR
"""


class Commands(Protocol):
    """What `ArgumentParser.add_subparsers()` returns: adds a parser for a subcommand."""

    def add_parser(
        self,
        name: str,
        *,
        help: str,
        description: str,
        epilog: str,
        formatter_class: type[argparse.HelpFormatter],
    ) -> argparse.ArgumentParser:
        """Add the parser of a subcommand."""
        ...


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    top = argparse.ArgumentParser(
        prog="safepoint",
        description="Run agents that can be stopped: press Stop, get a receipt, keep the conversation.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"safepoint {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _serve_command(commands)
    _work_commands(commands)
    _remote(_command(commands, "sessions", "list the sessions", "sessions --url http://127.0.0.1:9000"), session=False)
    _remote(
        _command(commands, "turns", "list the turns of a session that have not ended", "turns SESSION"), session=True
    )
    stop = _command(
        commands, "stop", "stop a turn: the running one, or TURN", "stop SESSION --at AFTER_TOOLS --within 30"
    )
    _remote(stop, session=True)
    stop.add_argument("turn", nargs="?", help="the id of the turn; by default the one that runs")
    stop.add_argument(
        "--at",
        choices=["NOW", "SAFE_POINT", "AFTER_MODEL", "AFTER_TOOLS"],
        default="NOW",
        help="where the turn may stop; by default at once",
    )
    stop.add_argument("--scope", choices=["root", "tree"], help="with tree, sub-agents stop at their own safe points")
    stop.add_argument("--within", type=_seconds, metavar="S", help="seconds until it is stopped at once")
    stop.add_argument(
        "--abandon",
        type=_seconds_or_zero,
        metavar="S",
        help="seconds; what has not ended by then is abandoned, 0 to not wait at all",
    )
    stop.add_argument("--reason", help="the reason, for the receipt")
    receipt = _remote(
        _command(commands, "receipt", "show what a stop did", "receipt SESSION TURN --json"), session=True
    )
    receipt.add_argument("turn", help="the id of the turn")
    receipt.add_argument("--json", action="store_true", help="as JSON")
    completion = _command(commands, "completion", "print a completion script for your shell", "completion bash")
    completion.add_argument("shell", choices=SHELLS)
    return top


def _serve_command(commands: Commands) -> None:
    serve = _command(commands, "serve", "serve an agent, with the page", "serve my_agents:helper --db chat.db")
    serve.add_argument("agent", nargs="?", metavar="module:agent", help="the agent to serve; by default a demo")
    serve.add_argument("--db", metavar="FILE", help="keep sessions in this SQLite file; by default in memory")
    serve.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="default 127.0.0.1; others need a token")
    serve.add_argument("--port", type=int, default=8420, help="default 8420; 0 for any")
    serve.add_argument("--token", default=os.environ.get("SAFEPOINT_TOKEN"), help="or SAFEPOINT_TOKEN")
    serve.add_argument("--within", type=_seconds, default=10.0, metavar="S", help="seconds that a shutdown may take")
    serve.add_argument(
        "--abandon-after",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="seconds after which a tool that ignores a stop is abandoned",
    )
    serve.add_argument("--resume", action="store_true", help="continue turns that a crash has interrupted")
    serve.add_argument(
        "--on-disconnect",
        type=lambda text: text if text == "continue" else _seconds(text),
        default="continue",
        metavar="S",
        help="'continue', or seconds until an unwatched turn stops",
    )
    broker_options(serve, by_default=None)


def _work_commands(commands: Commands) -> None:
    worker = _command(
        commands, "worker", "run the turns of sessions that servers host", "worker my_agents:helper --concurrency 16"
    )
    worker.add_argument("agents", nargs="+", metavar="module:agent", help="the agents that it offers")
    worker.add_argument("--name", help="sessions can be pinned to it; by default machine and process")
    worker.add_argument("--concurrency", type=int, default=8, metavar="N", help="sessions at once; default 8")
    worker.add_argument(
        "--isolation",
        choices=["process", "task"],
        default="process",
        help="process: each session in a process that can be killed (default); task: all in this one",
    )
    worker.add_argument(
        "--grace", type=_seconds, default=5.0, metavar="S", help="seconds after a stop until a turn's process is killed"
    )
    worker.add_argument("--within", type=_seconds, default=20.0, metavar="S", help="seconds for safe points on SIGTERM")
    worker.add_argument(
        "--attempts", type=int, default=10, metavar="N", help="how often the work for a session is tried; default 10"
    )
    worker.add_argument("--metrics", type=int, metavar="PORT", help="serve counters for Prometheus on 127.0.0.1")
    broker_options(worker, by_default=NATS_URL)
    workers = _command(
        commands, "workers", "list the workers: load, agents, version", "workers --nats nats://10.0.0.1:4222"
    )
    broker_options(workers, by_default=NATS_URL)


def _command(commands: Commands, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n  safepoint {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _remote(command: argparse.ArgumentParser, *, session: bool) -> argparse.ArgumentParser:
    if session:
        command.add_argument("session", help="the id of the session")
    command.add_argument("--url", default=os.environ.get("SAFEPOINT_URL", URL), help=f"default {URL}")
    command.add_argument("--token", default=os.environ.get("SAFEPOINT_TOKEN"), help="or SAFEPOINT_TOKEN")
    return command


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    options = parser().parse_args(argv)
    try:
        return COMMANDS[options.command](options)
    except ServerRefused as error:
        return _fail(1, f"the server refused: {error}")
    except ServerUnreachable as error:
        return _fail(3, str(error))
    except BrokerError as error:
        return _fail(3, str(error))
    except (UsageError, SafepointError) as error:
        return _fail(2, str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the program that reads our output has ended
        sys.stderr.close()
        return 0


def completion_script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The completion script for a shell, to be sourced: `source <(safepoint completion bash)`."""
    words = _flags_of_commands(parser)
    if shell == "fish":
        lines = [f"complete -c safepoint -n __fish_use_subcommand -a {name}" for name in words]
        seen = "complete -c safepoint -n '__fish_seen_subcommand_from {}' -l {}"
        lines += [seen.format(name, flag.removeprefix("--")) for name, flags in words.items() for flag in flags]
        return "\n".join(lines)
    cases = "\n".join(
        f'    {name}) COMPREPLY=($(compgen -W "{" ".join(flags)}" -- "$word")) ;;' for name, flags in words.items()
    )
    bash = f"""_safepoint() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$word")); return; fi
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
}}
complete -F _safepoint safepoint"""
    return bash if shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{bash}"


def _flags_of_commands(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """The commands of a parser, each with its flags."""
    found: dict[str, list[str]] = {}
    for action in parser._actions:
        if isinstance(action.choices, Mapping):  # the subparsers, by name
            for name, command in action.choices.items():
                found[name] = [flag for one in command._actions for flag in one.option_strings if flag.startswith("--")]
    return found


def completion(options: argparse.Namespace) -> int:
    """Print a completion script."""
    print(completion_script(options.shell, parser()))
    return 0


COMMANDS = {
    "serve": serve,
    "sessions": sessions,
    "turns": turns,
    "stop": stop,
    "receipt": receipt,
    "completion": completion,
    "worker": work,
    "workers": list_workers,
}


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(text)
    return seconds


def _seconds_or_zero(text: str) -> float:
    return 0.0 if float(text) == 0 else _seconds(text)


def _fail(code: int, message: str) -> int:
    print(f"safepoint: {message}", file=sys.stderr)
    return code
