"""Options in a file: a study is one ``robustnmf.toml``."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from robustnmf.cli.console import say

NAME = "robustnmf.toml"
"""File that is read if it is in the present folder."""
FLAG = "--config"
# Options are few: a larger file is something else.
LARGEST = 2**20
# Parameters of commands that name files: those of a configuration are relative to its folder.
PATHS = frozenset({"data", "model", "out", "picture", "plot", "uncertainties", "weights"})


def defaults(arguments: Sequence[str], commands: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the arguments without that of the configuration, and what the file says for each command.

    Parameters
    ----------
    arguments : sequence of str
        The command line; ``--config FILE`` may stand anywhere.
    commands : mapping
        Commands of Click by name.
    """
    rest, named = _without_flag(list(arguments))
    file = Path(NAME) if named is None and Path(NAME).is_file() else named
    if file is None:
        return rest, {}
    content = _read(file.expanduser())
    if named is None:
        say(f"Note: options are read from {NAME}.")
    return rest, _by_command(file, content, commands)


def _without_flag(arguments: list[str]) -> tuple[list[str], Path | None]:
    for i, argument in enumerate(arguments):
        if argument == "--":
            break
        if argument.startswith(f"{FLAG}="):
            return arguments[:i] + arguments[i + 1 :], Path(argument.removeprefix(f"{FLAG}="))
        if argument == FLAG:
            if i + 1 == len(arguments):
                raise ValueError(f"{FLAG} must be followed by a file, such as {FLAG} study.toml.")
            return arguments[:i] + arguments[i + 2 :], Path(arguments[i + 1])
    return arguments, None


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"{FLAG} must name a TOML file; there is no file {file}.")
    if file.stat().st_size > LARGEST:
        raise ValueError(f"{file} must be a TOML file of options; it is larger than {LARGEST} bytes.")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # of TOML, or of its encoding
        raise ValueError(f"{file} must be a TOML file: {error}") from None


def _by_command(file: Path, content: Mapping[str, Any], commands: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of each command: those of its table, and those above all tables that it has."""
    known = {name: _parameters(command) for name, command in commands.items()}
    everywhere = {name for names in known.values() for name in names}
    shared = {key: value for key, value in content.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    for key in shared:
        _check_known(file, "", key, everywhere)
    for command in tables:
        _check_known(file, "table ", command, commands)
    return {
        command: _values(file, command, {key: v for key, v in shared.items() if _plain(key) in names}, names)
        | _values(file, command, tables.get(command, {}), names)
        for command, names in known.items()
    }


def _parameters(command: Any) -> dict[str, Any]:
    """Return the parameters of a command by their names in a file: those of the options, without dashes in front."""
    named: dict[str, Any] = {}
    for parameter in command.params:
        words = [_plain(flag) for flag in parameter.opts if flag.startswith("--")] or [parameter.name]
        named |= dict.fromkeys(words, parameter)
    return {name: parameter for name, parameter in named.items() if name != "help"}


def _plain(key: str) -> str:
    return key.removeprefix("--").replace("-", "_")


def _values(file: Path, command: str, given: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    for key in given:
        _check_known(file, f"[{command}] ", key, names)
    found = {key: (names[_plain(key)].name, value) for key, value in given.items()}
    return {name: _value(file, key, name, value) for key, (name, value) in found.items()}


def _check_known(file: Path, what: str, key: str, names: Iterable[str]) -> None:
    if _plain(key) in names or key in names:
        return
    written = sorted(name.replace("_", "-") for name in names)
    near = get_close_matches(key, written, n=1, cutoff=0.5)
    advice = f"Did you mean {near[0]!r}?" if near else f"Known are {', '.join(written)}."
    raise ValueError(f"{file} must hold options of the commands; there is no {what}{key!r}. {advice}")


def _value(file: Path, key: str, name: str, value: Any) -> Any:
    """Return a value as Click takes it: numbers as texts, files relative to the folder of the configuration."""
    if isinstance(value, list):
        return [_value(file, key, name, item) for item in value]
    if isinstance(value, bool):
        return value
    if not isinstance(value, str | int | float):
        raise ValueError(f"{file} must give texts, numbers, true or false, or lists of them; {key} is {value!r}.")
    return str(file.parent / Path(str(value)).expanduser()) if name in PATHS else str(value)
