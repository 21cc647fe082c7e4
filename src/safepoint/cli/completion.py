"""Completion scripts for shells, generated from the parser of the command line. Knows nothing of what commands do."""

import argparse
from collections.abc import Mapping

__all__ = ["SHELLS", "script"]

SHELLS = ("bash", "zsh", "fish")


def script(shell: str, parser: argparse.ArgumentParser) -> str:
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
