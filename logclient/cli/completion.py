"""``logclient completion``: print a completion script for bash, zsh or fish, made from the parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from logclient.cli.parser import CommandParser, make_parser
from logclient.config import registry
from logclient.errors import ExitCode

__all__ = ["SHELLS", "add_arguments", "run", "script"]

SHELLS = ("bash", "zsh", "fish")


class _Argument(NamedTuple):
    names: list[str]  # such as --ledger; empty: a positional argument
    kind: str  # of its value: file, directory, words, any; empty: no value
    words: list[str]  # the possible values, if kind is words
    many: bool  # whether it takes more than one value
    metavar: str
    help: str


class _Command(NamedTuple):
    """A command with its arguments; an empty name: the program itself."""

    name: str
    help: str
    arguments: list[_Argument]

    @property
    def options(self) -> list[_Argument]:
        return [argument for argument in self.arguments if argument.names]

    @property
    def positionals(self) -> list[_Argument]:
        return [argument for argument in self.arguments if not argument.names]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="%(choices)s")


def run(arguments: argparse.Namespace) -> int:
    """Print the script of a shell."""
    print(script(arguments.shell), end="")
    return ExitCode.OK


def script(shell: str) -> str:
    """Make the script of a shell."""
    parser = make_parser()
    commands = list(_commands(parser))
    make = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    return make(parser.prog, _Command("", "", _arguments(parser)), commands)


def _commands(parser: argparse.ArgumentParser) -> Iterator[_Command]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, sub in action.choices.items():
                assert isinstance(sub, CommandParser)
                sub.load()
                yield _Command(name, helps[name], _arguments(sub))


def _arguments(parser: argparse.ArgumentParser) -> list[_Argument]:
    return [
        _argument(action)
        for action in parser._actions
        if action.help != argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction)
    ]


def _argument(action: argparse.Action) -> _Argument:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    words: list[str] = []
    if action.nargs == 0:
        kind = ""
    elif action.choices is not None:
        kind, words = "words", [str(choice) for choice in action.choices]
    elif metavar == "URL" and not action.option_strings:
        kind, words = "words", [f"{name}://" for name in registry.SCHEMES]
    else:
        kind = {"FILE": "file", "DIR": "directory"}.get(metavar, "any")
    many = action.nargs in ("*", "+")
    help = (action.help or "").replace("%(choices)s", ", ".join(words))
    return _Argument(list(action.option_strings), kind, words, many, metavar or action.dest, help)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- bash: also version 3.2, which macOS has, and without the package bash-completion


def _bash(prog: str, top: _Command, commands: list[_Command]) -> str:
    cases = []
    lists = [f"        '') words={_quoted(' '.join(_names(top)))} ;;"]
    for command in [top, *commands]:
        for option in command.options:
            if option.kind:
                pattern = "|".join(f"'{command.name} {name}'" for name in option.names)
                cases.append(f"        {pattern}) kind={_quoted(_bash_kind(option))} ;;")
        for number, place in enumerate(command.positionals):
            cases.append(f"        '{command.name} {number}') kind={_quoted(_bash_kind(place))} ;;")
            if place.many:
                cases.append(f"        '{command.name} '[0-9]*) kind={_quoted(_bash_kind(place))} ;;")
        if command.name:
            lists.append(f"        {command.name}) words={_quoted(' '.join(_names(command)))} ;;")
    names = " ".join(command.name for command in commands)
    return _BASH.format(prog=prog, cases="\n".join(cases), lists="\n".join(lists), commands=names)


def _names(command: _Command) -> list[str]:
    return [name for option in command.options for name in option.names if name.startswith("--")]


def _bash_kind(argument: _Argument) -> str:
    many = "many " if argument.many and argument.names else ""
    return many + " ".join([argument.kind, *argument.words])


_BASH = """\
# Completion of {prog} in bash, made by: {prog} completion bash
# Into ~/.bashrc:  source <({prog} completion bash)

_{prog}_kind() {{ # sets kind to the kind of values of argument $2 of command $1
    kind=
    case "$1 $2" in
{cases}
    esac
}}

_{prog}() {{
    local IFS=$' \\t\\n' line=${{COMP_LINE:0:COMP_POINT}}
    local word cur command= kind= place=0 i words left
    local -a all
    # Split the line here: the shell splits a URL at each colon.
    read -ra all <<< "$line"
    [[ $line == *[[:space:]] ]] && all+=("")
    cur=${{all[${{#all[@]}} - 1]}}
    for ((i = 1; i < ${{#all[@]}} - 1; i++)); do
        word=${{all[i]}}
        if [[ -n $kind && $word != -?* ]]; then
            [[ $kind == many* ]] || kind=
        elif [[ $word == -?* ]]; then
            kind=
            [[ $word == *=* ]] || _{prog}_kind "$command" "$word"
        elif [[ -z $command ]]; then
            command=$word
        else
            place=$((place + 1))
        fi
    done
    left=${{cur%"${{cur##*[:=]}}"}}
    COMPREPLY=()
    if [[ -z $kind && $cur == --*=* ]]; then
        _{prog}_kind "$command" "${{cur%%=*}}"
        cur=${{cur#*=}} left=
    elif [[ $cur == -* && $kind != any ]]; then
        case $command in
{lists}
        esac
        kind="words $words"
    elif [[ -z $kind && -z $command ]]; then
        kind="words {commands}"
    elif [[ -z $kind ]]; then
        _{prog}_kind "$command" "$place"
    fi
    kind=${{kind#many }}
    case $kind in
        words*)
            COMPREPLY=($(compgen -W "${{kind#words}}" -- "$cur"))
            [[ ${{COMPREPLY[0]}} == *:// ]] && compopt -o nospace 2> /dev/null
            ;;
        file)
            IFS=$'\\n'
            COMPREPLY=($(compgen -f -- "$cur"))
            compopt -o filenames 2> /dev/null
            ;;
        directory)
            IFS=$'\\n'
            COMPREPLY=($(compgen -d -- "$cur"))
            compopt -o filenames 2> /dev/null
            ;;
    esac
    [[ -n $left ]] && COMPREPLY=("${{COMPREPLY[@]#"$left"}}")
    return 0
}}

complete -F _{prog} {prog}
"""


# -- zsh


def _zsh(prog: str, top: _Command, commands: list[_Command]) -> str:
    described = "\n".join(f"        {_quoted(f'{command.name}:{command.help}')}" for command in commands)
    cases = "\n".join(
        f"        {command.name})\n            _arguments \\\n"
        + " \\\n".join(f"                {spec}" for spec in _zsh_specs(command))
        + "\n            ;;"
        for command in commands
    )
    options = " \\\n".join(f"        {spec}" for spec in _zsh_specs(top))
    return _ZSH.format(prog=prog, options=options, described=described, cases=cases)


def _zsh_specs(command: _Command) -> Iterator[str]:
    for option in command.options:
        help = option.help.replace("[", "(").replace("]", ")")
        for name in option.names:
            others = f"({' '.join(option.names)})" if len(option.names) > 1 else ""
            equals = "=" if option.kind and name.startswith("--") else ""
            value = f"{':*-*' if option.many else ''}:{_zsh_value(option)}" if option.kind else ""
            yield _quoted(f"{others}{name}{equals}[{help}]{value}")
    for number, place in enumerate(command.positionals, 1):
        yield _quoted(f"{'*' if place.many else number}:{_zsh_value(place)}")


def _zsh_value(argument: _Argument) -> str:
    """Return the message and the action of an argument, as _arguments takes them."""
    action = {"file": "_files", "directory": "_files -/", "any": " "}.get(argument.kind, "")
    if argument.kind == "words":
        action = f"({' '.join(argument.words)})"
        if argument.words[0].endswith("://"):
            words = " ".join(word.replace(":", "\\:") for word in argument.words)
            action = f'compadd -S "" -- {words}'
    return f"{argument.metavar.replace(':', chr(92) + ':')}:{action}"


_ZSH = """\
#compdef {prog}
# Completion of {prog} in zsh, made by: {prog} completion zsh
# Into a folder of $fpath, as _{prog}; or into ~/.zshrc:  source <({prog} completion zsh)

_{prog}() {{
    local curcontext=$curcontext state line
    local -a commands
    commands=(
{described}
    )
    _arguments -C \\
{options} \\
        '1: :->command' \\
        '*:: :->arguments' && return
    case $state in
        command)
            _describe command commands
            ;;
        arguments)
            case $words[1] in
{cases}
            esac
            ;;
    esac
}}

if [[ $funcstack[1] == _{prog} ]]; then
    _{prog} "$@"
else
    compdef _{prog} {prog}
fi
"""


# -- fish


def _fish(prog: str, top: _Command, commands: list[_Command]) -> str:
    valued: dict[bool, list[str]] = {False: [], True: []}  # key: takes more than one value
    for command in [top, *commands]:
        for option in command.options:
            if option.kind:
                valued[option.many] += [f"'{command.name} {name}'" for name in option.names]
    completions = [" -f"]
    at = f" -n '__{prog}_at \"\" 0'"
    completions += [at + _fish_option(option) for option in top.options]
    completions += [f"{at} -a {command.name} -d {_fish_quoted(command.help)}" for command in commands]
    for command in commands:
        at = f" -n '__{prog}_at {command.name}"
        completions += [f"{at}'{_fish_option(option)}" for option in command.options]
        completions += [
            f"{at} {name}'{_fish_value(option)}"
            for option in command.options
            for name in option.names
            if option.many
        ]
        completions += [
            f"{at} {number}{' more' if place.many else ''}'{_fish_value(place)}"
            for number, place in enumerate(command.positionals)
        ]
    lines = [f"complete -c {prog}{completion}\n" for completion in completions]
    one, many = (" ".join(valued[which]) for which in (False, True))
    return _FISH.format(prog=prog, one=one, many=many) + "".join(lines)


def _fish_option(option: _Argument) -> str:
    names = "".join(f" -l {n[2:]}" if n.startswith("--") else f" -s {n[1:]}" for n in option.names)
    value = f" -{'r' if option.kind == 'file' else 'x'}{_fish_value(option)}" if option.kind else ""
    return f"{names}{value} -d {_fish_quoted(option.help)}"


def _fish_value(argument: _Argument) -> str:
    return {
        "file": " -F",
        "directory": " -a '(__fish_complete_directories)'",
        "words": f" -a {_fish_quoted(' '.join(argument.words))}",
    }.get(argument.kind, "")


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_FISH = """\
# Completion of {prog} in fish, made by: {prog} completion fish
# Into ~/.config/fish/completions/{prog}.fish

function __{prog}_at --description 'Test that the cursor is in command $argv[1], at its argument $argv[2]'
    set -l command ''
    set -l place 0
    set -l skip ''
    for word in (commandline -opc)[2..-1]
        if string match -q -- '-?*' $word
            set skip ''
            if contains -- "$command $word" {one}
                set skip one
            else if contains -- "$command $word" {many}
                set skip $word
            end
        else if test "$skip" = one
            set skip ''
        else if test -n "$skip"
            continue
        else if test -z "$command"
            set command $word
        else
            set place (math $place + 1)
        end
    end
    test "$command" = "$argv[1]"; or return 1
    test (count $argv) = 1; and return 0
    test -n "$skip"; and test "$argv[2]" = "$skip"; and return 0
    test -n "$skip"; and return 1
    test $place = $argv[2]; or test (count $argv) = 3 -a $place -gt $argv[2]
end

"""
