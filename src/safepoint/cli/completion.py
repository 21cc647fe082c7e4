"""Owns completion scripts for shells, made from the command line itself. Knows nothing of what commands do."""

import argparse

__all__ = ["SHELLS", "script"]

SHELLS = ("bash", "zsh", "fish")


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """A script to be sourced: `source <(safepoint completion bash)`."""
    words = _words(parser)
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


def _words(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                found[name] = [flag for one in command._actions for flag in one.option_strings if flag.startswith("--")]
    return found
