"""Data, how it is read, and what is known of its entries: the arguments and options of all commands that read data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy import sparse

from robustnmf import formats
from robustnmf.cli.console import say, warnings_in_one_line, with_options
from robustnmf.cli.options import path
from robustnmf.formats import LabelledMatrix, ReadOptions

Data = Annotated[
    Path,
    typer.Argument(
        parser=path,
        help="Table, array, image, stack, cube or movie in a file, or a folder of images; see the guide on files.",
    ),
]
DataOrNone = Annotated[
    Path | None, typer.Argument(parser=path, help="Data; without it, corrupted faces whose truth is known.")
]
Weights = Annotated[
    Path | None, typer.Option(parser=path, help="File with a weight for every entry; 0 for what does not count.")
]
Uncertainties = Annotated[Path | None, typer.Option(parser=path, help="File with an uncertainty for every entry.")]


def _option(kind: Any, text: str, *flags: str) -> Any:
    return Annotated[kind | None, typer.Option(*flags, help=text, show_default=False, rich_help_panel="How to read")]


# Each line is a field of `ReadOptions`. A field of another kind than texts, numbers, flags and lists of texts also
# needs a line in `MADE_OF_TEXT`.
READING: Mapping[str, Any] = {
    "key": _option(str, "Name of the array, in a file that holds several."),
    "missing_value": _option(list[str], "What stands for a missing entry, besides NaN; may be repeated."),
    "header": _option(bool, "Whether a text table begins with headings.", "--header/--no-header"),
    "transpose": _option(bool, "Samples are in columns.", "--transpose/--no-transpose"),
    "samples": _option(str, "What samples are, of an array of three axes or more: 'rows', 'frames' or 'pixels'."),
    "sample_axes": _option(str, "Axes of the array that are samples, counted from 0, such as 0,1."),
    "colour": _option(str, "What becomes of colour in images: 'keep', 'grey' or 'error'."),
    "encoding": _option(str, "Encoding of a text table, such as latin-1."),
    "skip_rows": _option(int, "Rows above a table that are left out."),
    "skip_footer": _option(int, "Rows below a table that are left out."),
    "units_row": _option(bool, "Whether the row below the headings holds units.", "--units-row/--no-units-row"),
    "index_column": _option(str, "Column with the names of the samples: heading, or number from 1 on."),
    "drop_columns": _option(list[str], "Column to leave out: heading, or number from 1 on; may be repeated."),
    "below_limit": _option(str, "What becomes of entries such as <0.05 and BDL: 'error', 'half' or 'missing'."),
    "negative": _option(str, "What becomes of negative entries: 'error', 'clip' (to zero) or 'missing'."),
    "sheet": _option(str, "Sheet of a workbook: name, or number from 1 on."),
}
# What is said of the data, not of the weights and uncertainties of its entries.
OF_DATA_ONLY = ("missing_value", "below_limit", "negative")


def _axes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--sample-axes must be numbers such as 0,1; got {text!r}.") from None


def _place(text: str) -> str | int:
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else text


MADE_OF_TEXT: Mapping[str, Callable[[str], Any]] = {
    "sample_axes": _axes,
    "index_column": _place,
    "drop_columns": _place,
    "sheet": _place,
}


@dataclass(frozen=True)
class Source:
    """What a command reads.

    Parameters
    ----------
    data : Path
        The data.
    reading : mapping of str
        Fields of `ReadOptions` that the user gave.
    weights, uncertainties : Path or None
        What is known of its entries.
    """

    data: Path
    reading: Mapping[str, Any]
    weights: Path | None = None
    uncertainties: Path | None = None

    @property
    def files(self) -> tuple[Path | None, ...]:
        """All files that are read."""
        return self.data, self.weights, self.uncertainties

    def read(
        self, remembered: ReadOptions | None = None, *, streams: bool = False
    ) -> tuple[LabelledMatrix, dict[str, Any]]:
        """Return the data, and the weights and uncertainties of its entries that are given.

        What was guessed is said. Options that the user did not give are those that a model remembers. If the command
        `streams`, a sparse matrix that is large is not read yet.
        """
        options = replace(remembered or ReadOptions(), **self.reading)
        streamed = self._streamed(options) if streams else None
        if streamed is not None:
            return streamed, {}
        with warnings_in_one_line():  # before the work begins
            table = formats.read_table(self.data, options)
        for note in table.notes:
            say(f"Note: {with_options(note)}")
        names = [name for name in READING if name not in OF_DATA_ONLY]
        like = {name: getattr(options, name) for name in names}
        given = {"weights": self.weights, "uncertainties": self.uncertainties}
        files = {name: file for name, file in given.items() if file is not None}
        return table, {
            name: formats.read_like(file, table, has_units=name == "uncertainties", **like)
            for name, file in files.items()
        }

    def _streamed(self, options: ReadOptions) -> LabelledMatrix | None:
        """Return data whose values are read block by block; None if they are taken into memory."""
        from robustnmf.data.out_of_core import is_large
        from robustnmf.formats.h5ad import open_h5ad

        is_plain = options == ReadOptions(key=options.key) and self.weights is self.uncertainties is None
        if not is_plain or self.data.suffix.lower() != ".h5ad" or not self.data.is_file():
            return None
        table = open_h5ad(self.data, options.key)
        if table is None or not is_large(table.values):
            return None
        say(f"{self.data.name} takes over a quarter of the memory: it is read block by block.")
        return table


def is_streamed(table: LabelledMatrix) -> bool:
    """Return whether the data is not in memory."""
    return not isinstance(table.values, np.ndarray) and not sparse.issparse(table.values)


def as_input(table: LabelledMatrix) -> Any:
    """Return what estimators take: data with its labels, or rows that are read block by block."""
    return table.values if is_streamed(table) else table


def reads_data(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `source` of a command by those of all that can be read: Typer has no groups of options."""
    arrays = {"weights": (Weights, None), "uncertainties": (Uncertainties, None)}
    return _with_source(command, (Data, Parameter.empty), arrays)


def reads_data_if_any(command: Callable[..., None]) -> Callable[..., None]:
    """Do the same for a command that can do without data, and knows nothing of single entries."""
    return _with_source(command, (DataOrNone, None), {})


def _with_source(command: Callable[..., None], data: tuple[Any, Any], arrays: Mapping[str, Any]) -> Callable[..., None]:
    options = {name: (kind, None) for name, kind in READING.items()}
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in {"data": data, **options, **arrays}.items()
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        taken = {parameter.name: given.pop(parameter.name) for parameter in shared}
        reading = {name: _value(name, taken.pop(name)) for name in READING}
        known = {name: value for name, value in reading.items() if value is not None}
        source = None if taken["data"] is None else Source(reading=known, **taken)
        command(source=source, **given)

    own = signature(command).parameters
    every = [new for old in own.values() for new in (shared if old.name == "source" else [old])]
    vars(run)["__signature__"] = Signature([new.replace(kind=Parameter.KEYWORD_ONLY) for new in every])
    return run


def _value(name: str, given: Any) -> Any:
    """Return what the user gave as a field of `ReadOptions`; None if nothing was given."""
    if isinstance(given, list | tuple):
        return tuple(_value(name, text) for text in given) or None
    return MADE_OF_TEXT[name](given) if isinstance(given, str) and name in MADE_OF_TEXT else given
