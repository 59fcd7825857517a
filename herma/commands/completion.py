"""`herma completion SHELL`: what completes the commands and options of `herma` at the Tab key.

Owns the scripts for bash, zsh and fish. The words are those of the parser when the script is
printed: a Tab starts no Python. Must not know what a command does.
"""

import argparse
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from herma.cli import command_parser

_BASH: Final = """\
_herma() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} at=herma words= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$at ${{COMP_WORDS[i]}}" in
            {paths}) at="$at ${{COMP_WORDS[i]}}" ;;
        esac
    done
    case "$at" in
{words}
    esac
    case "$at $before" in
{choices}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _herma herma
"""
"""Where no word fits, bash completes the names of files."""

_FISH: Final = """\
function __herma_at
    set -l at herma
    for word in (commandline -opc)[2..]
        switch "$at $word"
            case {paths}
                set at "$at $word"
        end
    end
    test "$at" = "$argv"
end
{words}
"""


class _Level(NamedTuple):
    """What may stand behind the words of a command: the commands below it with their texts, the
    words for its first argument, and the options.
    """

    commands: Mapping[str, str]
    words: tuple[str, ...]
    options: tuple[argparse.Action, ...]


def run(arguments: argparse.Namespace) -> int:
    """Print the script for `arguments.shell`."""
    levels = dict(_levels("herma", command_parser()))
    print(_fish(levels) if arguments.shell == "fish" else _bash(levels, arguments.shell), end="")
    return 0


def _levels(path: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, _Level]]:
    """The level of each command, by all of its words."""
    actions = parser._actions  # noqa: SLF001 -- argparse offers no public list
    within: Mapping[str, argparse.ArgumentParser] = {}
    commands: dict[str, str] = {}
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            within = action.choices
            texts = {one.dest: one.help or "" for one in action._get_subactions()}  # noqa: SLF001
            commands = {name: texts.get(name, "") for name in within}
    options = tuple(
        one for one in actions if one.option_strings and one.help is not argparse.SUPPRESS
    )
    first = (one.choices for one in actions if one.choices and not one.option_strings)
    yield path, _Level(commands, tuple(map(str, next(first, ()))), options)
    for name, inner in within.items():
        yield from _levels(f"{path} {name}", inner)


def _bash(levels: Mapping[str, _Level], shell: str) -> str:
    """The script of bash, which zsh reads too, after two lines of its own."""
    words, choices = [], []
    for path, level in levels.items():
        names = [name for one in level.options for name in one.option_strings]
        words.append(f'        "{path}") words="{" ".join((*level.words, *names))}" ;;')
        for one in level.options:
            if one.choices is not None:
                keys = "|".join(f'"{path} {name}"' for name in one.option_strings)
                choices.append(f'        {keys}) words="{" ".join(map(str, one.choices))}" ;;')
            elif one.nargs != 0:
                keys = "|".join(f'"{path} {name}"' for name in one.option_strings)
                choices.append(f"        {keys}) words= ;;")
    paths = "|".join(f'"{path}"' for path in levels if path != "herma")
    script = _BASH.format(paths=paths, words="\n".join(words), choices="\n".join(choices))
    is_zsh = shell == "zsh"
    head = "autoload -Uz compinit bashcompinit\ncompinit -C\nbashcompinit\n" if is_zsh else ""
    return head + script


def _fish(levels: Mapping[str, _Level]) -> str:
    lines = []
    for path, level in levels.items():
        begin = f"complete -c herma -n '__herma_at {path}'"
        lines += [
            f"{begin} -f -a {name} -d {_quoted(level.commands.get(name, ''))}"
            for name in level.words
        ]
        for one in level.options:
            names = " ".join(_fish_name(name) for name in one.option_strings)
            takes = "" if one.nargs == 0 else " -r"
            if one.choices is not None:
                takes = f" -x -a {_quoted(' '.join(map(str, one.choices)))}"
            lines.append(f"{begin} {names}{takes} -d {_quoted(_first_part(one.help or ''))}")
    paths = " ".join(f"'{path}'" for path in levels if path != "herma")
    return _FISH.format(paths=paths, words="\n".join(lines))


def _fish_name(name: str) -> str:
    return f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"


def _first_part(text: str) -> str:
    return text.partition(";")[0].partition(". ")[0].replace("%%", "%")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
