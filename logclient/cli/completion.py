"""``logclient completion``: print a script for bash, zsh or fish, which asks this command what fits.

With the words of a line behind the shell's name, the command prints what may stand at its end: first
``words``, ``file`` or ``directory``, then each word, a tab and its description.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from logclient.cli.parser import make_parser
from logclient.config import registry
from logclient.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="%(choices)s")
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Print the script of a shell, or what may stand at the end of a line."""
    if arguments.words:
        print(*_fitting(arguments.words), sep="\n")
    else:
        print(SHELLS[arguments.shell], end="")
    return ExitCode.OK


def _fitting(words: list[str]) -> list[str]:
    """Return what the command prints for a line without the program's name; its last word is not complete."""
    *before, current = words
    parser = make_parser()
    commands = _commands(parser)
    option: argparse.Action | None = None  # whose value follows
    places = 0
    for word in before:
        if word.startswith("-") and word != "-":
            option = _option(parser, word)
        elif option is not None:
            option = option if option.nargs in ("*", "+") else None
        elif commands is None:
            places += 1
        elif word in commands.choices:
            parser = commands.choices[word]
            parser.load()
            commands = _commands(parser)
        else:
            return ["words"]
    name, equals, _ = current.partition("=")
    if option is None and equals and name.startswith("--"):
        return _values(_option(parser, name), current, name + equals)
    if current.startswith("-") and (option is None or option.nargs in ("*", "+")):
        shown = [one for one in parser._actions if one.help != argparse.SUPPRESS]
        text = parser._get_formatter()._expand_help
        return _matching({name: text(one) for one in shown for name in one.option_strings}, current)
    if option is None and commands is not None:
        return _matching({one.dest: one.help or "" for one in commands._choices_actions}, current)
    if option is None:
        positional = [one for one in parser._actions if not one.option_strings]
        last = positional[-1:] if positional and positional[-1].nargs in ("*", "+") else []
        option = next(iter([*positional[places:], *last]), None)
    return _values(option, current)


def _commands(parser: argparse.ArgumentParser) -> Any:
    return next((one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None)


def _option(parser: argparse.ArgumentParser, name: str) -> argparse.Action | None:
    """Return the option of a name, if it takes a value from a word of its own."""
    found = parser._option_string_actions.get(name)
    return found if found is not None and found.nargs != 0 else None


def _values(argument: argparse.Action | None, current: str, prefix: str = "") -> list[str]:
    if argument is None or argument.help == argparse.SUPPRESS:
        return ["words"]
    choices = argument.choices or ()
    if argument.metavar == "URL" and not argument.option_strings:
        choices = [f"{scheme}://" for scheme in registry.SCHEMES]
    kind = {"FILE": "file", "DIR": "directory"}.get(str(argument.metavar))
    return [kind] if kind else _matching({f"{prefix}{choice}": "" for choice in choices}, current)


def _matching(words: Mapping[str, str], current: str) -> list[str]:
    return ["words", *(f"{word}\t{text}" for word, text in words.items() if word.startswith(current))]


_BASH = r"""# Completion of logclient in bash, also of version 3.2. Into ~/.bashrc:
#   source <(logclient completion bash)

_logclient() {
    local IFS=$' \t\n' line=${COMP_LINE:0:COMP_POINT} cur left
    local -a all
    # Split the line here: the shell splits a URL at each colon.
    read -ra all <<< "$line"
    [[ $line == *[[:space:]] ]] && all+=("")
    cur=${all[${#all[@]} - 1]}
    left=${cur%"${cur##*[:=]}"}
    IFS=$'\n'
    COMPREPLY=($(logclient completion bash "${all[@]:1}" 2> /dev/null))
    case ${COMPREPLY[0]} in
        file | directory)
            cur=${cur#--*=}
            left=${cur%"${cur##*[:=]}"}
            COMPREPLY=($(compgen "-${COMPREPLY:0:1}" -- "$cur"))
            compopt -o filenames 2> /dev/null
            ;;
        *)
            COMPREPLY=("${COMPREPLY[@]:1}")
            COMPREPLY=("${COMPREPLY[@]%%$'\t'*}")
            [[ ${COMPREPLY[0]} == *:// ]] && compopt -o nospace 2> /dev/null
            ;;
    esac
    [[ -n $left ]] && COMPREPLY=("${COMPREPLY[@]#"$left"}")
    return 0
}

complete -F _logclient logclient
"""

_ZSH = r"""#compdef logclient
# Completion of logclient in zsh: into a folder of $fpath, as _logclient; or into ~/.zshrc:
#   source <(logclient completion zsh)

_logclient() {
    local -a found described ending
    found=("${(@f)$(logclient completion zsh "${(@)words[2,CURRENT]}" 2> /dev/null)}")
    case $found[1] in
        file) [[ $PREFIX == --*=* ]] && compset -P '*='; _files ;;
        directory) [[ $PREFIX == --*=* ]] && compset -P '*='; _files -/ ;;
        *)
            shift found
            [[ $found[1] == *://* ]] && ending=(-S '')
            described=("${(@)found/$'\t'/  }")
            compadd -Q "${(@)ending}" -l -d described -- "${(@)found%%$'\t'*}"
            ;;
    esac
}

if [[ $funcstack[1] == _logclient ]]; then
    _logclient "$@"
else
    compdef _logclient logclient
fi
"""

_FISH = r"""# Completion of logclient in fish. Into ~/.config/fish/completions/logclient.fish

function __logclient
    set -l current (commandline -ct)
    set -l found (logclient completion fish (commandline -opc)[2..-1] "$current" 2> /dev/null)
    set -l prefix (string match -r -- '^--[^=]*=' "$current"; or echo '')
    set -l rest (string replace -- "$prefix" '' "$current")
    switch "$found[1]"
        case file
            printf '%s\n' $prefix(__fish_complete_path "$rest")
        case directory
            printf '%s\n' $prefix(__fish_complete_directories "$rest")
        case '*'
            printf '%s\n' $found[2..-1]
    end
end

complete -c logclient -f -a '(__logclient)'
"""

SHELLS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
