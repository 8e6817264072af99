"""A fit that can be interrupted: its state in a folder, from which it goes on.

A folder holds arrays, as npy and npz files, and a manifest, `checkpoint.json`, that names them with their checksums and
says of which data and parameters they are. The manifest takes the place of an older one in one step, after everything
that it names has been written: whenever a process is killed, the folder holds the last complete state. Nothing in it is
ever run: no pickles.

Other files in the folder are left alone. The manifest has an identifier that is part of the name of every array file:
a file is removed only if the manifest names it, or if its name has that identifier.

`run` keeps the state of its last iteration. A staged fit looks back further, but all that it decides follows from its
predictions of held-out entries: `Journal` keeps those of every step, and the factors of the few that are still needed;
to resume is to go through the same steps again, with what they led to taken from the journal.
"""

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from math import inf, isfinite
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from robustnmf.algorithm.holdout import Point
from robustnmf.engines.lazy import ReadBlock, is_lazy
from robustnmf.engines.protocol import Engine, block_function
from robustnmf.errors import CheckpointError
from robustnmf.utils.arrays import Array, Blocks, Namespace, to_host
from robustnmf.utils.files import make_folder, remove_file, write_atomically

FORMAT = 2
"""Number of the format that is written. Format 1 has no identifier; it can be read."""
TEXT = "checkpoint.json"
# Iterations after which the state is saved, unless that would take more than this share of the time;
EVERY, SHARE = 5, 0.05
# and seconds after which it is in any case.
LONGEST = 120.0
# Name of blocks that were joined, among arrays.
_JOINED = "blocks"
# Names of array files: no folder is part of them.
_FILE = re.compile(r"[A-Za-z0-9_-]{1,120}\.np[yz]")
# What reading a file raises if its content is not what this module writes.
_CONTENT_ERRORS = (
    *(KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError, MemoryError),
    *(EOFError, OSError, zipfile.BadZipFile, NotImplementedError),
)


@dataclass(frozen=True)
class _File:
    """A file of arrays."""

    file: str
    sha256: str

    def __post_init__(self) -> None:
        if not _FILE.fullmatch(self.file):
            raise ValueError(f"{self.file!r} is not the name of a file of a checkpoint")

    def read(self, folder: Path) -> bytes:
        """Return the content, which must be what was written."""
        path = folder / self.file
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        if _checksum(data) != self.sha256:
            raise CheckpointError(f"{path} is missing or damaged. Delete the checkpoint to begin anew.")
        return data


@dataclass(frozen=True)
class _Block(_File):
    """A file of one block of samples."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class _Record:
    """What was put under a name."""

    arrays: _File | None
    blocks: tuple[_Block, ...] = ()
    lengths: tuple[int, ...] = ()
    """Numbers of samples in the blocks."""

    @property
    def files(self) -> set[str]:
        """Names of all files."""
        return {file.file for file in (*self.blocks, *([self.arrays] if self.arrays else []))}

    def to_json(self) -> dict[str, Any]:
        """Return it as the manifest has it."""
        arrays = None if self.arrays is None else vars(self.arrays)
        return {"arrays": arrays, "blocks": [vars(block) for block in self.blocks], "lengths": self.lengths}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "_Record":
        """Return what the manifest has."""
        arrays = None if record["arrays"] is None else _File(**record["arrays"])
        blocks = (
            _Block(block["file"], block["sha256"], tuple(map(int, block["shape"])), np.dtype(block["dtype"]).str)
            for block in record["blocks"]
        )
        return cls(arrays, tuple(blocks), tuple(map(int, record["lengths"])))


class Checkpoint:
    """The folder of a fit.

    Parameters
    ----------
    folder : path
        Made if it does not exist. One folder is for one fit.
    of : mapping of str to str
        What the fit is of, data and parameters: a state is only taken up if all of it is the same.
    every : int
        Iterations after which the state is saved.
    """

    def __init__(self, folder: str | PathLike[str], of: Mapping[str, str], every: int = EVERY) -> None:
        self.folder = Path(folder).expanduser()
        if self.folder.exists() and not self.folder.is_dir():
            raise CheckpointError(f"checkpoint must be a folder; {self.folder} is a file.")
        make_folder(self.folder)
        self.of = dict(of)
        self.every = every
        body = self._read_manifest()
        self._last_text = self._path.read_bytes() if body else None
        """The manifest in the folder, which this fit has read or written; None if there is none."""
        self._is_claimed = "id" in body
        """Whether the manifest in the folder has the identifier of our files."""
        self._id: str = body.get("id", os.urandom(6).hex())
        self._values: dict[str, Any] | None = body.get("values")
        self._of = body.get("of", self.of)
        with self.reading():
            records = body.get("records", {})
            self._records = {str(name): _Record.from_json(record) for name, record in records.items()}
        self._named = set[str]().union(*(record.files for record in self._records.values()))
        """Files that the manifest has named."""
        self._last, self._cost, self._unsaved = perf_counter(), 0.0, 0

    # --- Reading ------------------------------------------------------------------------------------------------------

    @property
    def _path(self) -> Path:
        return self.folder / TEXT

    def _read_manifest(self) -> dict[str, Any]:
        """Return what was committed last; nothing, if nothing was."""
        path = self._path
        if not os.path.lexists(path):
            return {}
        with self.reading():
            if path.is_symlink():
                raise ValueError("a link leads out of the folder")
            outer = json.loads(path.read_text(encoding="utf-8"))
            body: dict[str, Any] = outer["body"]
            intact, number = outer["sha256"] == _checksum(_text(body)), body["format"]
        if not intact:
            raise CheckpointError(f"{path} is damaged: its checksum is wrong. Delete the checkpoint to begin anew.")
        if number not in (1, FORMAT):
            raise CheckpointError(
                f"{path} has format {number}, this version of robustnmf reads {FORMAT}. Resume with the version that "
                "wrote it, or choose another folder."
            )
        with self.reading():
            if number == FORMAT and not re.fullmatch("[0-9a-f]{12}", body["id"]):
                raise ValueError("the identifier is none")
            if number == 1:  # which did not compare all that it should: what it has is compared
                body["of"] = {name: self.of.get(name, "") for name in self.of} | body["of"]
            return {name: body[name] for name in ("id", "of", "values", "records") if name in body}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise CheckpointError where content is not what this version writes."""
        try:
            yield
        except CheckpointError:
            raise
        except _CONTENT_ERRORS as error:
            raise CheckpointError(
                f"{self._path} is not a checkpoint of robustnmf, or damaged. Choose another folder, or delete the "
                "checkpoint to begin anew."
            ) from error

    def load(self) -> dict[str, Any] | None:
        """Return what was committed last, None if nothing was."""
        self._check_is_of(self._of)
        return self._values

    def _check_is_of(self, of: Mapping[str, str]) -> None:
        with self.reading():
            others = [name for name in sorted({*of, *self.of}) if of.get(name) != self.of.get(name)]
            if others:
                there, here = _short(of.get(others[0])), _short(self.of.get(others[0]))
                raise CheckpointError(
                    f"The checkpoint in {self.folder} is of another fit: its {others[0]} is {there}, here it is "
                    f"{here}. Choose another folder, or delete the checkpoint to begin anew."
                )

    def has(self, name: str) -> bool:
        """Return whether something was committed under this name."""
        return name in self._records

    def arrays(self, name: str) -> dict[str, Array]:
        """Return the arrays that were put under a name."""
        with self.reading():
            record = self._records[name].arrays
            return {} if record is None else _unpacked(record.read(self.folder))

    def n_samples(self, name: str) -> int:
        """Return the number of samples in the blocks that were put under a name."""
        with self.reading():
            return sum(self._records[name].lengths)

    def blocks(self, name: str, like: Blocks, rank: int, engine: Engine) -> Blocks:
        """Return the blocks (n, rank) that were put under a name; data is cut as `like`."""
        with self.reading():
            record = self._records[name]
        lengths = [len(block) for block in like]
        if list(record.lengths) != lengths:
            raise CheckpointError(
                f"The checkpoint in {self.folder} has {len(record.lengths)} blocks of samples, the data is cut into "
                f"{len(like)} others. Use the same chunks, or delete the checkpoint to begin anew."
            )
        if not record.blocks:
            with self.reading():
                joined = factor(self.arrays(name)[_JOINED], (sum(lengths), rank))
            return engine.split(engine.place(joined), like=like)
        with self.reading():
            if [block.shape for block in record.blocks] != [(length, rank) for length in lengths]:
                raise ValueError("blocks of other shapes")
        if not engine.reaches(self.folder):
            return engine.split(np.concatenate([_read_block(self.folder, block) for block in record.blocks]), like=like)
        sources = (partial(_read_block, self.folder, block) for block in record.blocks)
        return engine.persist([ReadBlock(s, None, s.args[1].shape, np.dtype(s.args[1].dtype)) for s in sources])

    # --- Writing ------------------------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Return whether it is time to save the state, after an iteration."""
        self._unsaved += 1
        elapsed = perf_counter() - self._last
        return elapsed > LONGEST or (self._unsaved >= self.every and self._cost <= SHARE * elapsed)

    def put(self, name: str, arrays: dict[str, Array], blocks: Blocks | None, engine: Engine) -> None:
        """Write arrays and blocks of samples, to be found under this name once they are committed."""
        if name in self._records:
            return
        if not self._is_claimed:  # before the first file: one that a kill leaves behind must be known as ours
            self._write_manifest()
        lengths = () if blocks is None else tuple(len(block) for block in blocks)
        if blocks is not None and not is_lazy(blocks):  # one file is enough for what is here
            arrays, blocks = arrays | {_JOINED: engine.join(blocks)}, None
        packed = self._put_arrays(name, arrays) if arrays else None
        self._records[name] = _Record(packed, self._put_blocks(name, blocks or [], engine), lengths)

    def _put_arrays(self, name: str, arrays: dict[str, Array]) -> _File:
        buffer = BytesIO()
        np.savez(buffer, **{key: to_host(array) for key, array in arrays.items()})
        file = _File(f"{name}-{self._id}.npz", _checksum(buffer.getvalue()))
        _write_bytes(self.folder / file.file, buffer.getvalue())
        return file

    def _put_blocks(self, name: str, blocks: Blocks, engine: Engine) -> tuple[_Block, ...]:
        files = [f"{name}-{self._id}-{i:05d}.npy" for i in range(len(blocks))]
        paths = [str(self.folder / file) for file in files]
        if blocks and engine.reaches(self.folder):
            checksums = [str(text) for text in engine.join(engine.map(_write, blocks, paths))]
        else:
            checksums = [
                str(_write(engine.join([block]), path, xp=engine.xp)[0])
                for block, path in zip(blocks, paths, strict=True)
            ]
        about = zip(files, checksums, blocks, strict=True)
        return tuple(_Block(file, text, tuple(block.shape), np.dtype(block.dtype).str) for file, text, block in about)

    def commit(self, values: dict[str, Any], names: Iterable[str]) -> None:
        """Make these values, and what was put under these names, the state to resume from; forget all else."""
        begin = perf_counter()
        self._named.update(*(record.files for record in self._records.values()))
        self._records = {name: self._records[name] for name in names}
        self._values = values
        self._write_manifest()
        self._forget_others()
        self._cost, self._last, self._unsaved = perf_counter() - begin, perf_counter(), 0

    def _write_manifest(self) -> None:
        records = {name: record.to_json() for name, record in self._records.items()}
        body = {"format": FORMAT, "id": self._id, "of": self.of, "values": self._values, "records": records}
        text = json.dumps({"sha256": _checksum(_text(body)), "body": body}).encode()
        try:
            with write_atomically(self._path, replace=self._last_text is not None) as temporary:
                temporary.write_bytes(text)
                self._check_is_alone()
        except FileExistsError as error:
            raise self._shared_error() from error
        self._last_text, self._is_claimed = text, True

    def _check_is_alone(self) -> None:
        """Raise CheckpointError if the manifest is not what this fit has read or written last."""
        there = self._path.read_bytes() if self._path.is_file() and not self._path.is_symlink() else None
        if there != self._last_text:
            raise self._shared_error()

    def _shared_error(self) -> CheckpointError:
        return CheckpointError(
            f"{self._path} was changed while this fit was running, perhaps by another fit. A folder is for one fit at "
            "a time: choose another for this one."
        )

    def _forget_others(self) -> None:
        """Remove our files that the committed state does not need."""
        needed = set[str]().union(*(record.files for record in self._records.values()))
        ours = re.compile(rf"\.?(state|point|steps)-\d{{6}}-{self._id}(-\d{{5}})?\.np[yz](\.[0-9a-f]{{12}})?")
        for path in self.folder.iterdir():
            if path.name not in needed and (path.name in self._named or ours.fullmatch(path.name)):
                remove_file(path)


class Journal:
    """The steps of a fit in stages, and what they led to.

    Parameters
    ----------
    data : list of blocks
        What codes may be cut like: some of the samples, or all.
    rank : int
        Number of components.
    n_held : int
        Number of entries held out.
    """

    def __init__(self, checkpoint: Checkpoint, engine: Engine, data: list[Blocks], rank: int, n_held: int) -> None:
        self.checkpoint, self.engine, self._data, self._rank, self._n_held = checkpoint, engine, data, rank, n_held
        self._next = 0
        self._values: list[Any] = []
        """What each step led to, as far as it can be written as text."""
        self._arrays: dict[int, dict[str, Array]] = {}
        """Arrays of steps that have not been saved yet."""
        self._saved: list[str] = []
        """Names under which arrays of earlier steps are."""
        self._recorded: list[dict[str, Array]] = []
        self.seconds: list[float] = []
        saved = checkpoint.load()
        if saved is not None:
            with checkpoint.reading():
                self._resume(saved)

    def _resume(self, saved: dict[str, Any]) -> None:
        """Take the steps of an earlier fit."""
        self._values, self._saved = list(saved["steps"]), list(saved["saved"])
        self.seconds = [number(value) for value in saved["seconds"]]
        parts: dict[int, dict[str, Array]] = {}
        for name in self._saved:
            for key, array in self.checkpoint.arrays(name).items():
                step, what = key.split(".")
                parts.setdefault(int(step), {})[what] = array
        self._recorded = [parts.get(i, {}) for i in range(len(self._values))]
        if len(self.seconds) > len(self._values):
            raise ValueError("more iterations than steps")

    def point(self, make: Callable[[], Point], *begin: Point) -> Point:
        """Return the point that a step leads to, which begins at others."""
        step, self._next = self._next, self._next + 1
        if step < len(self._recorded):
            with self.checkpoint.reading():
                point = self._read(step)
        else:
            self._check_factors(begin)
            point = make()
            self._values.append(None)
            self._arrays[step] = {"predictions": to_host(point.predictions)}
        return point._replace(step=step)

    def _read(self, step: int) -> Point:
        checkpoint, name = self.checkpoint, _point_name(step)
        # An initial stage may lead nowhere: then what it predicts is not finite, and another is followed.
        predictions = _numbers(self._recorded[step]["predictions"], (self._n_held,))
        if not checkpoint.has(name):
            return Point(None, [], predictions)  # nobody will ask for its factors any more
        W, n_samples = checkpoint.arrays(name)["W"], checkpoint.n_samples(name)
        W = factor(W, (self._data[0][0].shape[1], self._rank))
        like = next((V for V in self._data if sum(len(block) for block in V) == n_samples), self._data[0])
        return Point(self.engine.place(W), checkpoint.blocks(name, like, self._rank, self.engine), predictions)

    def _check_factors(self, points: Iterable[Point]) -> None:
        """Refuse to go on from points whose factors a checkpoint should have, and has not."""
        if any(point.W is None for point in points):
            raise CheckpointError(f"The checkpoint in {self.checkpoint.folder} is incomplete. Delete it to begin anew.")

    def values(self, make: Callable[[], Any], is_valid: Callable[[Any], bool], begin: Point, name: str | None) -> Any:
        """Return what a step leads to; that of an earlier fit must be valid.

        It is a number or an array, to be found under a name, or a dictionary of them.
        """
        step, self._next = self._next, self._next + 1
        if step < len(self._recorded):
            with self.checkpoint.reading():
                recorded: dict[str, Any] = {**self._values[step], **self._recorded[step]}
                result = recorded if name is None else recorded[name]
                if not is_valid(result):
                    raise ValueError("this is no result of that step")
            return result
        self._check_factors([begin])
        result = make()
        found = result if name is None else {name: result}
        self._arrays[step] = {key: value for key, value in found.items() if isinstance(value, np.ndarray)}
        self._values.append({key: value for key, value in found.items() if not isinstance(value, np.ndarray)})
        return result

    def save_if_due(self, needed: Iterable[Point], seconds: list[float]) -> None:
        """Save all steps, and the factors of points that are still needed, if it is time."""
        if self._next < len(self._recorded) or not self.checkpoint.is_due():  # the next step has been made before
            return
        names = {_point_name(point.step): point for point in needed}
        self._check_factors(names.values())
        for name, point in names.items():
            self.checkpoint.put(name, {"W": point.W}, point.Ht, self.engine)
        if self._arrays:
            name = f"steps-{len(self._values):06d}"
            arrays = {f"{step}.{what}": a for step, parts in self._arrays.items() for what, a in parts.items()}
            self.checkpoint.put(name, arrays, None, self.engine)
            self._saved.append(name)
            self._arrays = {}
        values = {"steps": self._values, "seconds": seconds, "saved": self._saved}
        self.checkpoint.commit(values, [*names, *self._saved])


def _read_block(folder: Path, block: _Block) -> Array:
    """Return a block of a file, checked."""
    data = block.read(folder)
    try:
        return factor(np.load(BytesIO(data), allow_pickle=False), block.shape)
    except _CONTENT_ERRORS as error:
        raise CheckpointError(f"{block.file} in {folder} is damaged. Delete the checkpoint.") from error


def number(value: Any) -> float:
    """Return a number of a checkpoint, which must be one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def positive(value: Any) -> float:
    """Return a number of a checkpoint, which must be positive and finite."""
    if not 0 < number(value) < inf:
        raise ValueError(f"{value} is not positive and finite")
    return number(value)


def is_finite(value: Any) -> bool:
    """Return whether a value of a checkpoint is a finite number."""
    return isfinite(number(value))


def factor(array: Array, shape: tuple[int, ...], *, bounded: bool = True) -> Array:
    """Return an array of a checkpoint, which must have this shape and be non-negative; finite, if it is `bounded`."""
    largest = np.finfo(np.float64).max if bounded else inf
    if not ((_numbers(array, shape) >= 0) & (array <= largest)).all():
        raise ValueError("entries are not what was saved")
    return array


def _numbers(array: Array, shape: tuple[int, ...]) -> Array:
    """Return an array of a checkpoint, which must have this shape and hold floating-point numbers."""
    if array.shape != shape or array.dtype.kind != "f":
        raise ValueError(f"an array of shape {array.shape} and dtype {array.dtype} is not what was saved")
    return array


def _unpacked(data: bytes) -> dict[str, Array]:
    """Return the arrays of an npz file that does not claim to be larger than it is."""
    with zipfile.ZipFile(BytesIO(data)) as archive:
        if sum(member.file_size for member in archive.infolist()) > len(data):
            raise ValueError("arrays of a checkpoint are not compressed")
    with np.load(BytesIO(data), allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


@block_function(on_host=True)
def _write(block: Array, path: str, *, xp: Namespace) -> Array:
    """Write a block to a file in one step and return its checksum, (1,)."""
    buffer = BytesIO()
    np.save(buffer, np.asarray(block), allow_pickle=False)
    _write_bytes(Path(path), buffer.getvalue())
    return np.array([_checksum(buffer.getvalue())])


def _write_bytes(path: Path, data: bytes) -> None:
    with write_atomically(path) as temporary:
        temporary.write_bytes(data)


def _point_name(step: int) -> str:
    return f"point-{step:06d}"


def _text(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _short(text: str | None) -> str:
    return "not given" if text is None else text if len(text) <= 80 else f"{text[:77]}..."
