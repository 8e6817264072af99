"""The engine protocol: where the data lives and how a function is applied to its blocks.

The data matrix is cut into blocks of samples. A block holds its samples in *rows* (a piece of V transposed),
because every step of the algorithm is a batch of independent problems, one per row. A machine with one block
is the special case. Functions given to an engine are plain functions of arrays that take the array namespace
as keyword `xp`; they must not depend on how the data was cut.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from robustnmf.formats.rows import Rows
from robustnmf.kernels.interface import Kernels
from robustnmf.utils.arrays import Array, Blocks, Namespace


@dataclass(frozen=True)
class Traits:
    """What an engine should know of a function of blocks."""

    light: bool = False
    """It is too quick to be worth handing over to a thread."""
    recomputed: bool = False
    """Its result is as large as the data and quick to compute from it. An engine whose data does not fit in memory
    computes it anew wherever it is needed, instead of keeping it."""
    parts: int | None = None
    """How many arrays a recomputed function returns; None for one, which is no tuple. Each has the shape of the first
    argument, or one column of it, and its dtype, unless a keyword `dtype` says otherwise."""
    rowwise: bool = False
    """All of its arguments have the rows of a block, and its results belong to rows or are summed over them. So an
    engine may call it for some of the rows at a time, which saves memory: it computes arrays as large as the block."""
    on_host: bool = False
    """It is written for arrays of NumPy."""
    selects_rows: bool = False
    """It returns some of the rows: those of sparse data are kept sparse."""
    stored: Callable[..., Any] | None = None
    """The same function of blocks that are `robustnmf.utils.entries.Entries`: data whose zeros are not stored, without
    weights. It returns NotImplemented for arguments for which blocks have to be dense."""
    keeps_stored: bool = False
    """What that returns is kept, although the function is recomputed for other data: it costs more than memory."""


ORDINARY = Traits()
Function = TypeVar("Function", bound=Callable[..., Any])


def block_function(**traits: Any) -> Callable[[Function], Function]:
    """Tell engines something of a function of blocks, see `Traits`; a decorator."""

    def mark(function: Function) -> Function:
        function.traits = Traits(**traits)  # type: ignore[attr-defined]
        return function

    return mark


def traits_of(function: Callable[..., Any]) -> Traits:
    """Return what is known of a function of blocks."""
    traits: Traits = getattr(function, "traits", ORDINARY)
    return traits


class Engine(Protocol):
    """Places arrays, maps functions over blocks, and reduces."""

    xp: Namespace
    gathers_features: bool
    """Whether `map_features` may be asked for any data; where it would move all of it, sums have to do."""
    keeps_sparse: bool
    """Whether sparse data stays sparse: blocks are made dense where they are worked on."""
    has_tiles: bool
    """Whether the data is in reach of the device, but worked on in tiles: blocks are lazy, and results are not."""
    keeps_masks: bool
    """Whether truth values of all entries are kept where results as large as the data are not."""
    rows_at_a_time: int | None
    """Rows of a factor that a step is made for at a time; None for all."""
    few_rows: float
    """When no more than this share of the rows is still worked on, they are worth a copy of their data."""

    @property
    def kernels(self) -> Kernels:
        """Faster copies of reference functions that it has."""
        ...

    def place(self, values: Any, dtype: Any = None) -> Array:
        """Return a number, or an array of the host, as an array where the engine works.

        Parameters
        ----------
        values : number or array-like
            On the host.
        dtype : dtype or None
            Of the result; None keeps it.

        Returns
        -------
        array
            The values, where the engine works.
        """
        ...

    def from_dlpack(self, X: Any) -> Array | None:
        """Return an array that is where the engine works, of whatever library, as a floating one of its own.

        None for anything else: lists, data frames, arrays of the host.

        Parameters
        ----------
        X : object
            What the user has passed.

        Returns
        -------
        array or None
            The same memory, if it can be shared.
        """
        ...

    def to_device(self, X: Any) -> Array:
        """Return a matrix of the host in the memory of the device, or where it is if it is too large for that.

        `SparseRows` become dense, unless the engine keeps them sparse.

        Parameters
        ----------
        X : array or Rows
            A matrix (n, m).

        Returns
        -------
        array or Rows
            The matrix.
        """
        ...

    def read(self, rows: Rows, like: Blocks | None = None) -> Blocks:
        """Return data on disk as blocks of samples, cut as `like` if given; they may be lazy.

        Parameters
        ----------
        rows : Rows
            Data of which rows can be read, (n, m).
        like : blocks or None
            Blocks that it is cut as; None lets the engine choose.

        Returns
        -------
        blocks
            Its samples, in order.
        """
        ...

    def split(self, X: Array, like: Blocks | None = None) -> Blocks:
        """Cut an array with samples in rows, shape (n, anything), into blocks of samples, or as `like` is cut.

        Parameters
        ----------
        X : array (n, ...)
            Samples in rows.
        like : blocks or None
            Blocks that it is cut as; None lets the engine choose.

        Returns
        -------
        blocks
            Views where that can be.
        """
        ...

    def join(self, blocks: Blocks) -> Array:
        """Undo `split`.

        Parameters
        ----------
        blocks : blocks
            Arrays with samples in rows, or lazy ones.

        Returns
        -------
        array (n, ...)
            All rows.
        """
        ...

    def regroup(self, blocks: Blocks, n_rows: int) -> Blocks:
        """Return the same rows in blocks of `n_rows`, the last one shorter; for parts of the data that are small.

        Parameters
        ----------
        blocks : blocks
            Arrays with samples in rows, or lazy ones.
        n_rows : int
            Rows of each new block.

        Returns
        -------
        blocks
            The same rows.
        """
        ...

    def persist(self, blocks: Blocks) -> Blocks:
        """Return lazy blocks as blocks that have been computed, and stay where functions find them.

        Parameters
        ----------
        blocks : blocks
            Arrays with samples in rows, or lazy ones.

        Returns
        -------
        blocks
            The same blocks.
        """
        ...

    def reaches(self, folder: Path) -> bool:
        """Return whether functions of blocks can write to a folder of this machine.

        Parameters
        ----------
        folder : Path
            A folder of this machine.

        Returns
        -------
        bool
            False if blocks live on machines that do not share it.
        """
        ...

    def truncate_lineage(self, blocks: Blocks) -> Blocks:
        """Return blocks that the next iteration starts from.

        An engine that remembers how blocks were made, to make them again where they are lost, may forget it here.

        Parameters
        ----------
        blocks : blocks
            Arrays with samples in rows, or lazy ones.

        Returns
        -------
        blocks
            The same blocks.
        """
        ...

    def empty(self, shape: tuple[int, int], dtype: Any) -> Array:
        """Return a matrix (n, m) into which results for all entries are written.

        Parameters
        ----------
        shape : (int, int)
            Samples and features.
        dtype : dtype
            Of the entries.

        Returns
        -------
        array (n, m)
            Entries of any value.
        """
        ...

    def map(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        """Apply `function(*block, **shared, xp=xp)` to every block; None reaches every block as None.

        A function that returns a tuple of arrays gives a tuple of blocks. One whose `Traits` are light is over before
        another thread could have begun.

        Parameters
        ----------
        function : callable
            A pure function at the top level of a module. It gets one block of each argument, what is shared, and the
            array namespace as `xp`.
        *blocks : blocks or None
            Arguments, all cut alike.
        **shared : object
            Arguments that are the same for all blocks.

        Returns
        -------
        blocks, or tuple of blocks
            What it returned for each block.
        """
        ...

    def fill(
        self, targets: Sequence[Blocks], function: Callable[..., Any], *blocks: Blocks | None, **shared: Any
    ) -> Any:
        """Apply a function that returns a tuple to every block, as `map` does, but write its first results.

        They go into the blocks of `targets`, which may be those of an argument; the other results are returned.

        Parameters
        ----------
        targets : sequence of blocks
            Where the first results are written.
        function : callable
            A pure function at the top level of a module. It gets one block of each argument, what is shared, and the
            array namespace as `xp`.
        *blocks : blocks or None
            Arguments, all cut alike.
        **shared : object
            Arguments that are the same for all blocks.

        Returns
        -------
        blocks, or tuple of blocks
            The results beyond those that were written.
        """
        ...

    def map_features(
        self, function: Callable[..., Any], V: Blocks, M: Blocks | None, *rows: Array | None, **shared: Any
    ) -> Array:
        """Apply `function(V', M', *rows, **shared, xp=xp)` with the features in rows.

        V' has shape (m, n): all samples of a feature in one row. `rows` are arrays of first dimension m. The
        engine may call the function on any cut of the features; the results are joined along the first axis.

        Parameters
        ----------
        function : callable
            Gets rows of V' and M', of `rows`, what is shared, and `xp`.
        V : blocks
            Data, (n, m) in all.
        M : blocks or None
            Weights, cut alike.
        *rows : array (m, ...) or None
            Arguments with features in rows.
        **shared : object
            Arguments that are the same for all blocks.

        Returns
        -------
        array (m, ...)
            The results of all features.
        """
        ...

    def sum(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        """Apply a function to every block and add up the numbers, arrays, or tuples of them it returns.

        Parameters
        ----------
        function : callable
            A pure function at the top level of a module. It gets one block of each argument, what is shared, and the
            array namespace as `xp`.
        *blocks : blocks or None
            Arguments, all cut alike.
        **shared : object
            Arguments that are the same for all blocks.

        Returns
        -------
        number, array, or tuple of them
            The sums over blocks.
        """
        ...

    def map_and_sum(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> tuple[Any, Any]:
        """Apply a function that returns a pair to every block: `map` of the first results and `sum` of the second.

        Parameters
        ----------
        function : callable
            A pure function at the top level of a module. It gets one block of each argument, what is shared, and the
            array namespace as `xp`.
        *blocks : blocks or None
            Arguments, all cut alike.
        **shared : object
            Arguments that are the same for all blocks.

        Returns
        -------
        blocks, sums
            As `map` and `sum` return them.
        """
        ...

    def quantile(self, A: Blocks, M: Blocks | None, q: float, *, axis: Literal["feature"] | None = None) -> Array:
        """Return the q-quantile of the entries of A with weights M, over all entries or for each feature.

        It is the smallest entry at which the cumulated weight reaches a share q of the total, so that an integer
        weight counts as that many copies of the entry, and entries of weight zero do not count.

        Parameters
        ----------
        A : blocks
            Values, (n, m) in all.
        M : blocks or None
            Weights; None if all are 1.
        q : float
            Between 0 and 1.
        axis : None or "feature"
            Whether there is one quantile or one for each feature.

        Returns
        -------
        array () or (m,)
            The quantiles.
        """
        ...


class InMemoryEngine:
    """What engines have in common whose blocks are arrays of one machine."""

    gathers_features = True
    keeps_sparse = False
    has_tiles = False
    keeps_masks = False

    def read(self, rows: Rows, like: Blocks | None = None) -> Blocks:
        return self.split(rows.read(0, rows.shape[0]), like)

    def split(self, X: Array, like: Blocks | None = None) -> Blocks:
        raise NotImplementedError

    def empty(self, shape: tuple[int, int], dtype: Any) -> Array:
        raise NotImplementedError

    def reaches(self, folder: Path) -> bool:
        return True

    def truncate_lineage(self, blocks: Blocks) -> Blocks:
        return blocks

    def map_and_sum(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def sum(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        return self.map_and_sum(lambda *block, **kwargs: (None, function(*block, **kwargs)), *blocks, **shared)[1]
