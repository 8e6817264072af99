"""A fit that can be interrupted: its state in a folder, from which it goes on.

A folder holds arrays, as npy and npz files, and one text, `checkpoint.json`, that names them with their checksums and
says of which data and parameters they are. The text takes the place of an older one in one step, after everything that
it names has been written: whenever a process is killed, the folder holds the last complete state. Nothing in it is ever
run: no pickles.

`run` keeps the state of its last iteration. A staged fit looks back further, but all that it decides follows from its
predictions of held-out entries: `Journal` keeps those of every step, and the factors of the few that are still needed;
to resume is to go through the same steps again, with what they led to taken from the journal.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from robustnmf.arrays import Array, Blocks, Namespace, to_host
from robustnmf.engines.lazy import ReadBlock, is_lazy
from robustnmf.engines.protocol import Engine
from robustnmf.files import write_atomically
from robustnmf.heldout import Point

FOR_HOST = True
FORMAT = 1
TEXT = "checkpoint.json"
# Iterations after which the state is saved, unless that would take more than this share of the time;
EVERY, SHARE = 5, 0.05
# and seconds after which it is in any case.
LONGEST = 120.0
# Name of blocks that were joined, among arrays.
_JOINED = "blocks"


class CheckpointError(ValueError):
    """A checkpoint that is damaged, or belongs to another fit."""


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
        self.folder.mkdir(parents=True, exist_ok=True)
        self.of = dict(of)
        self.every = every
        self._records: dict[str, Any] = {}
        self._last, self._cost, self._unsaved = perf_counter(), 0.0, 0

    # --- Reading ------------------------------------------------------------------------------------------------------

    def load(self) -> dict[str, Any] | None:
        """Return what was committed last, None if nothing was."""
        path = self.folder / TEXT
        if not path.exists():
            return None
        try:
            outer = json.loads(path.read_text())
            body = outer["body"]
            intact = outer["sha256"] == _checksum(_text(body))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is not a checkpoint of robustnmf. Choose another folder.") from error
        if not intact:
            raise CheckpointError(f"{path} is damaged: its checksum is wrong. Delete the folder to begin anew.")
        if body["format"] != FORMAT:
            raise CheckpointError(
                f"{path} has format {body['format']}, this version of robustnmf reads {FORMAT}. Resume with the "
                "version that wrote it, or choose another folder."
            )
        self._check_is_of(body["of"])
        self._records = body["records"]
        values: dict[str, Any] = body["values"]
        return values

    def _check_is_of(self, of: Mapping[str, str]) -> None:
        for name in sorted({*of, *self.of}):
            if of.get(name) != self.of.get(name):
                raise CheckpointError(
                    f"The checkpoint in {self.folder} is of another fit: its {name} is {_short(of.get(name))}, here it "
                    f"is {_short(self.of.get(name))}. Choose another folder, or delete this one to begin anew."
                )

    def has(self, name: str) -> bool:
        """Return whether something was committed under this name."""
        return name in self._records

    def arrays(self, name: str) -> dict[str, Array]:
        """Return the arrays that were put under a name."""
        record = self._records[name]["arrays"]
        if record is None:
            return {}
        data = (self.folder / record["file"]).read_bytes() if (self.folder / record["file"]).exists() else b""
        if _checksum(data) != record["sha256"]:
            raise CheckpointError(f"{self.folder / record['file']} is missing or damaged. Delete the folder.")
        with np.load(BytesIO(data), allow_pickle=False) as file:
            return {key: file[key] for key in file.files}

    def n_samples(self, name: str) -> int:
        """Return the number of samples in the blocks that were put under a name."""
        return sum(self._records[name]["lengths"])

    def blocks(self, name: str, like: Blocks, engine: Engine) -> Blocks:
        """Return the blocks that were put under a name; data is cut as `like`."""
        files, lengths = self._records[name]["blocks"], self._records[name]["lengths"]
        if lengths != [len(block) for block in like]:
            raise CheckpointError(
                f"The checkpoint in {self.folder} has {len(lengths)} blocks of samples, the data is cut into "
                f"{len(like)} others. Use the same chunks, or delete the folder to begin anew."
            )
        if not files:
            return engine.split(engine.place(self.arrays(name)[_JOINED]), like=like)
        sources = [_Saved(str(self.folder / file["file"]), file["sha256"]) for file in files]
        if not engine.reaches(self.folder):
            return engine.split(np.concatenate([source() for source in sources]), like=like)
        return engine.hold(
            [
                ReadBlock(source, None, tuple(file["shape"]), np.dtype(file["dtype"]))
                for source, file in zip(sources, files, strict=True)
            ]
        )

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
        record: dict[str, Any] = {"arrays": None, "blocks": [], "lengths": []}
        if blocks is not None:
            record["lengths"] = [len(block) for block in blocks]
            if not is_lazy(blocks):  # one file is enough for what is here
                arrays, blocks = arrays | {_JOINED: engine.join(blocks)}, None
        if arrays:
            buffer = BytesIO()
            np.savez(buffer, **{key: to_host(array) for key, array in arrays.items()})
            file = f"{name}.npz"
            with write_atomically(self.folder / file) as temporary:
                temporary.write_bytes(buffer.getvalue())
            record["arrays"] = {"file": file, "sha256": _checksum(buffer.getvalue())}
        if blocks is not None:
            files = [f"{name}-{i:05d}.npy" for i in range(len(blocks))]
            paths = [str(self.folder / file) for file in files]
            if engine.reaches(self.folder):
                checksums = [str(text) for text in engine.join(engine.map(_write, blocks, paths))]
            else:
                checksums = [
                    str(_write(engine.join([block]), path, xp=engine.xp)[0])
                    for block, path in zip(blocks, paths, strict=True)
                ]
            record["blocks"] = [
                {"file": file, "sha256": checksum, "shape": list(block.shape), "dtype": np.dtype(block.dtype).str}
                for file, checksum, block in zip(files, checksums, blocks, strict=True)
            ]
        self._records[name] = record

    def commit(self, values: dict[str, Any], names: Iterable[str]) -> None:
        """Make these values, and what was put under these names, the state to resume from; forget all else."""
        begin = perf_counter()
        self._records = {name: self._records[name] for name in names}
        body = {"format": FORMAT, "of": self.of, "values": values, "records": self._records}
        with write_atomically(self.folder / TEXT) as temporary:
            temporary.write_text(json.dumps({"sha256": _checksum(_text(body)), "body": body}))
        self._forget_others()
        self._cost, self._last, self._unsaved = perf_counter() - begin, perf_counter(), 0

    def _forget_others(self) -> None:
        """Remove files that the committed state does not need."""
        needed = {TEXT}
        for record in self._records.values():
            needed |= {file["file"] for file in record["blocks"]}
            needed |= {record["arrays"]["file"]} if record["arrays"] else set()
        for path in self.folder.iterdir():
            if path.suffix in (".npy", ".npz") and path.name not in needed:
                path.unlink(missing_ok=True)


class Journal:
    """The steps of a fit, and what they led to; without a checkpoint it keeps nothing.

    Parameters
    ----------
    data : list of blocks
        What codes may be cut like: some of the samples, or all.
    """

    def __init__(self, checkpoint: Checkpoint | None, engine: Engine, data: list[Blocks]) -> None:
        self.checkpoint, self.engine, self._data = checkpoint, engine, data
        self._next = 0
        self._values: list[Any] = []
        """What each step led to, as far as it can be written as text."""
        self._arrays: dict[int, dict[str, Array]] = {}
        """Arrays of steps that have not been saved yet."""
        self._saved: list[str] = []
        """Names under which arrays of earlier steps are."""
        self._recorded: list[dict[str, Array]] = []
        self.seconds: list[float] = []
        saved = None if checkpoint is None else checkpoint.load()
        if checkpoint is not None and saved is not None:
            self._values, self.seconds, self._saved = saved["steps"], saved["seconds"], saved["saved"]
            parts: dict[int, dict[str, Array]] = {}
            for name in self._saved:
                for key, array in checkpoint.arrays(name).items():
                    number, what = key.split(".")
                    parts.setdefault(int(number), {})[what] = array
            self._recorded = [parts.get(i, {}) for i in range(len(self._values))]

    @property
    def is_replaying(self) -> bool:
        """Whether the next step has been made before."""
        return self._next < len(self._recorded)

    def point(self, make: Callable[[], Point]) -> Point:
        """Return the point that a step leads to."""
        number, self._next = self._next, self._next + 1
        if self.checkpoint is None:
            return make()
        if number < len(self._recorded):
            point = self._read(number)
        else:
            point = make()
            self._values.append(None)
            self._arrays[number] = {"predictions": to_host(point.predictions)}
        return point._replace(step=number)

    def _read(self, number: int) -> Point:
        name, checkpoint = _point_name(number), self.checkpoint
        predictions = self._recorded[number]["predictions"]
        if checkpoint is None or not checkpoint.has(name):
            return Point(None, [], predictions)  # nobody will ask for its factors any more
        W, n_samples = checkpoint.arrays(name)["W"], checkpoint.n_samples(name)
        like = next((V for V in self._data if sum(len(block) for block in V) == n_samples), self._data[0])
        return Point(self.engine.place(W), checkpoint.blocks(name, like, self.engine), predictions)

    def values(self, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the numbers and arrays that a step leads to."""
        number, self._next = self._next, self._next + 1
        if self.checkpoint is None:
            return make()
        if number < len(self._recorded):
            return {**self._values[number], **self._recorded[number]}
        found = make()
        self._arrays[number] = {name: value for name, value in found.items() if isinstance(value, np.ndarray)}
        self._values.append({name: value for name, value in found.items() if not isinstance(value, np.ndarray)})
        return found

    def save_if_due(self, needed: Iterable[Point], seconds: list[float]) -> None:
        """Save all steps, and the factors of points that are still needed, if it is time."""
        if self.checkpoint is None or self.is_replaying or not self.checkpoint.is_due():
            return
        names = {_point_name(point.step): point for point in needed}
        for name, point in names.items():
            self.checkpoint.put(name, {"W": point.W}, point.Ht, self.engine)
        if self._arrays:
            name = f"steps-{len(self._values):06d}"
            arrays = {f"{number}.{what}": a for number, parts in self._arrays.items() for what, a in parts.items()}
            self.checkpoint.put(name, arrays, None, self.engine)
            self._saved.append(name)
            self._arrays = {}
        values = {"steps": self._values, "seconds": seconds, "saved": self._saved}
        self.checkpoint.commit(values, [*names, *self._saved])


def data_fingerprint(V: Blocks, M: Blocks | None, engine: Engine) -> str:
    """Return a text that is another for other data, or data that is cut otherwise."""
    numbers = [np.array([i]) for i in range(len(V))]
    high, low = engine.sum(_digest, V, M, numbers)
    kind = str(V[0].dtype).removeprefix("torch.")
    return f"{sum(len(block) for block in V)} x {V[0].shape[1]} {kind} {int(high):x}-{int(low):x}"


def _digest(Y: Array, M: Array | None, number: Array, *, xp: Namespace) -> tuple[int, int]:
    """Return a checksum of a block and its place, as two numbers whose sums over blocks do not overflow."""
    digest = hashlib.blake2b(str(int(number[0])).encode(), digest_size=8)
    for array in (Y, M):
        digest.update(b"-" if array is None else np.ascontiguousarray(to_host(array)).data)
    return int.from_bytes(digest.digest()[:4], "little"), int.from_bytes(digest.digest()[4:], "little")


@dataclass(frozen=True)
class _Saved:
    """A block in a file; calling it reads and checks it."""

    path: str
    sha256: str

    def __call__(self) -> Array:
        path = Path(self.path)
        data = path.read_bytes() if path.exists() else b""
        if _checksum(data) != self.sha256:
            raise CheckpointError(f"{path} is missing or damaged. Delete the folder to begin anew.")
        return np.load(BytesIO(data), allow_pickle=False)


def _write(block: Array, path: str, *, xp: Namespace) -> Array:
    """Write a block to a file in one step and return its checksum, (1,)."""
    buffer = BytesIO()
    np.save(buffer, np.asarray(block), allow_pickle=False)
    data = buffer.getvalue()
    with write_atomically(Path(path)) as temporary:
        temporary.write_bytes(data)
    return np.array([_checksum(data)])


def _point_name(number: int) -> str:
    return f"point-{number:06d}"


def _text(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _short(text: str | None) -> str:
    return "not given" if text is None else text if len(text) <= 80 else f"{text[:77]}..."
