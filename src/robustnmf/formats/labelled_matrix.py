"""A matrix with what is known of its samples, its features and the file that it comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from robustnmf.formats.axes import MAX_CHANNELS, is_image, role_of
from robustnmf.formats.options import ReadOptions


@dataclass(frozen=True)
class GridNames(Sequence[str]):
    """What the points of a grid are called, each made when it is asked for.

    Parameters
    ----------
    grid : tuple of int
        Shape of the grid.
    axes : tuple of str or None
        What its axes are.

    Examples
    --------
    >>> GridNames((72, 88), ("y", "x"))[863], GridNames((72, 88), None)[863]
    ('y 9, x 71', 'pixel (9, 71)')
    """

    grid: tuple[int, ...]
    axes: tuple[str, ...] | None

    def __len__(self) -> int:
        return math.prod(self.grid)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        numbers = np.unravel_index(range(len(self))[place], self.grid)
        if self.axes is None or not all(self.axes):
            return f"pixel ({', '.join(map(str, numbers))})"
        return ", ".join(f"{axis} {number}" for axis, number in zip(self.axes, numbers, strict=True))


@dataclass(frozen=True)
class Axis:
    """The samples, or the features: what they are called, and the grid whose points they are.

    Parameters
    ----------
    names : sequence of str or None
        A name for each.
    title : str or None
        What the names are: the heading above them, such as "date".
    grid : tuple of int or None
        Shape of the grid whose points they are, in C order: (rows, columns) for the pixels of an image.
    grid_names : tuple of str or None
        What the axes of the grid are, such as ("y", "x").
    units : sequence of str or None
        Unit of each, "" where there is none.
    columns : mapping of str to sequence of str
        Further texts about each, by their headings.
    is_scale : bool
        Whether they are points of a scale, such as wavelengths. Units are then those of the scale, not of the entries.
    """

    names: Sequence[str] | None = None
    title: str | None = None
    grid: tuple[int, ...] | None = None
    grid_names: tuple[str, ...] | None = None
    units: Sequence[str] | None = None
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    is_scale: bool = field(default=False, compare=False)  # a saved model does not remember it

    @property
    def shown_names(self) -> Sequence[str] | None:
        """Names for the user: where there are none, places on a grid of several axes, such as those of pixels."""
        is_grid = self.names is None and self.grid is not None and len(self.grid) > 1
        return GridNames(self.grid or (), self.grid_names) if is_grid else self.names

    @property
    def picture_shape(self) -> tuple[int, ...] | None:
        """Shape of what can be drawn as a picture: (y, x), (y, x, 3) in colour, or some channels of one, (..., y, x).

        Examples
        --------
        >>> shapes = {("y", "x"): (7, 8), ("y", "x", "c"): (7, 8, 3), ("c", "y", "x"): (2, 7, 8), ("wavelength",): (9,)}
        >>> [Axis(grid=grid, grid_names=names).picture_shape for names, grid in shapes.items()]
        [(7, 8), (7, 8, 3), (2, 7, 8), None]
        """
        grid = self.grid or ()
        roles = [role_of(name) for name in self.grid_names or ("",) * len(grid)]
        is_colour = len(grid) == 3 and grid[-1] == 3 and roles[-1] in ("c", "") and {*roles[:2]} <= {"y", "x", ""}
        is_stack = roles[-2:] == ["y", "x"] and grid[-1] != 3 and math.prod(grid[:-2]) <= MAX_CHANNELS
        is_picture = is_image(self.grid_names) if len(grid) == 2 else len(grid) > 2 and (is_colour or is_stack)
        return grid if is_picture else None

    def some(self, places: Sequence[int]) -> Axis:
        """Return what is known of some of them; they are no grid any more.

        Parameters
        ----------
        places : sequence of int
            Which ones, in order.

        Returns
        -------
        Axis
            What is known of them.
        """
        taken = [_some(values, places) for values in (self.names, self.units)]
        columns = {title: [column[i] for i in places] for title, column in self.columns.items()}
        return Axis(taken[0], self.title, units=taken[1], columns=columns, is_scale=self.is_scale)


def _some(values: Sequence[str] | None, places: Sequence[int]) -> list[str] | None:
    return None if values is None else [values[i] for i in places]


@dataclass(frozen=True)
class ArrayLayout:
    """Which axes of an array are samples; those of the others are features.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array.
    sample_axes : tuple of int
        Axes whose points are samples, in the order in which samples are counted.
    names : tuple of str or None
        What the axes are, such as ("t", "y", "x").
    feature_axes : tuple of int
        The other axes, by default as they come.
    points : mapping of int to sequence of str
        What the points of an axis are called, such as wavelengths.
    units : mapping of int to str
        Unit of the points of an axis.

    Examples
    --------
    >>> cube = np.arange(24).reshape(2, 3, 4)
    >>> layout = ArrayLayout((2, 3, 4), (0, 1), ("y", "x", "band"))
    >>> layout.matrix(cube).shape, layout.samples.grid, layout.features.grid
    ((6, 4), (2, 3), (4,))
    >>> bool((layout.array(layout.matrix(cube)) == cube).all())
    True
    """

    shape: tuple[int, ...]
    sample_axes: tuple[int, ...]
    names: tuple[str, ...] | None = None
    feature_axes: tuple[int, ...] = ()
    points: Mapping[int, Sequence[str]] = field(default_factory=dict)
    units: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.feature_axes:
            others = tuple(axis for axis in range(len(self.shape)) if axis not in self.sample_axes)
            object.__setattr__(self, "feature_axes", others)

    @property
    def samples(self) -> Axis:
        """The grid of the samples."""
        return self._axis(self.sample_axes)

    @property
    def features(self) -> Axis:
        """The grid of the features."""
        return self._axis(self.feature_axes)

    def _axis(self, axes: tuple[int, ...]) -> Axis:
        names = None if self.names is None else tuple(self.names[axis] for axis in axes)
        grid = Axis(grid=tuple(self.shape[axis] for axis in axes), grid_names=names)
        if len(axes) != 1:
            return grid
        (axis,) = axes
        unit = self.units.get(axis)
        return replace(
            grid,
            names=self.points.get(axis),
            title=names[0] or None if names else None,
            units=[unit] * self.shape[axis] if unit else None,
            is_scale=True,
        )

    def matrix(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array of this shape as a matrix, (n_samples, n_features).

        Parameters
        ----------
        array : ndarray
            An array of this shape.

        Returns
        -------
        ndarray (n_samples, n_features)
            The matrix.
        """
        turned = array.transpose(self.sample_axes + self.feature_axes)
        return turned.reshape(math.prod(self.samples.grid or ()), -1)

    def array(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a matrix (n_samples, n_features) as an array of this shape.

        Parameters
        ----------
        values : ndarray (n_samples, n_features)
            A matrix.

        Returns
        -------
        ndarray
            The array.
        """
        order = self.sample_axes + self.feature_axes
        turned = values.reshape([self.shape[axis] for axis in order])
        return turned.transpose([order.index(axis) for axis in range(len(order))])

    @property
    def transposed(self) -> ArrayLayout:
        """The layout in which features and samples are exchanged."""
        return replace(self, sample_axes=self.feature_axes, feature_axes=self.sample_axes)


COMPONENT = "component"
"""Name of the axis of components."""

STORED_TYPE = "stored_type"
"""Key of `Source.about`: type of the numbers in the file, if those are scaled to floats when they are read."""

CLIPPED = "clipped"
"""Key of `Source.about`: the negative values that were set to zero when the file was read, in a csr_array."""


@dataclass(frozen=True, eq=False)
class Source:
    """The file that a matrix was read from: what is needed to write such a file again.

    Parameters
    ----------
    format : str
        Name of the format, see `robustnmf.formats.format.Format`.
    options : ReadOptions
        How the file was read.
    dtype : dtype or None
        Type of the numbers in the file.
    layout : ArrayLayout or None
        How the array in the file became a matrix, if it had other axes than samples and features.
    about : mapping
        Whatever the writer of this format needs: the delimiter of a text, the frames per second of a movie.
    """

    format: str = ""
    options: ReadOptions = field(default_factory=ReadOptions)
    dtype: np.dtype[Any] | None = None
    layout: ArrayLayout | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def with_type(self, dtype: np.dtype[Any]) -> Source:
        """Return the source with another type of numbers to be written, which are then not scaled.

        Parameters
        ----------
        dtype : dtype
            The type of numbers.

        Returns
        -------
        Source
            The other source.
        """
        return replace(self, dtype=dtype, about={key: value for key, value in self.about.items() if key != STORED_TYPE})


@dataclass(frozen=True, eq=False)
class LabelledMatrix:
    """Data with one sample in each row, and what is known of samples and features.

    Parameters
    ----------
    values : ndarray or csr_array of shape (n_samples, n_features)
        float64 or float32; NaN where missing. A sparse matrix in a file stays one, without duplicates.
    samples, features : Axis
        What is known of them.
    uncertainties : ndarray of shape (n_samples, n_features) or None
        Standard deviations of the entries, where the file tells them; NaN where it does not.
    source : Source or None
        The file, None for what is no file's.
    notes : tuple of str
        What was guessed when the file was read, in words for the user.
    """

    values: Any
    samples: Axis = field(default_factory=Axis)
    features: Axis = field(default_factory=Axis)
    uncertainties: NDArray[Any] | None = None
    source: Source | None = None
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Samples and features."""
        n_samples, n_features = self.values.shape
        return int(n_samples), int(n_features)

    @property
    def sample_names(self) -> Sequence[str] | None:
        """A name for each sample."""
        return self.samples.names

    @property
    def feature_names(self) -> Sequence[str] | None:
        """A name for each feature."""
        return self.features.names

    @property
    def unit(self) -> str:
        """Unit of the entries, "" if it is unknown or not the same for all.

        Examples
        --------
        >>> air, cube = Axis(["Al", "Fe"], units=["ng", "ng"]), Axis(["400", "410"], units=["nm", "nm"], is_scale=True)
        >>> [LabelledMatrix(np.ones((1, 2)), features=features).unit for features in (air, cube)]
        ['ng', '']
        """
        known = [axis.units for axis in (self.features, self.samples) if axis.units and not axis.is_scale]
        different = set(known[0]) if known else set()
        return different.pop() if len(different) == 1 else ""

    @property
    def image_shape(self) -> tuple[int, int] | None:
        """(rows, columns) if each sample is an image; its features are the pixels, line by line."""
        grid = self.features.grid
        if grid is None or len(grid) != 2 or not is_image(self.features.grid_names):
            return None
        return grid[0], grid[1]

    @property
    def is_result(self) -> bool:
        """Whether values are a mask, codes or components, and so in other units than the data."""
        return self.values.dtype == bool or COMPONENT in (self.samples.title, self.features.title)

    def place(self, sample: int, feature: int) -> str:
        """Return what an entry is called: by names or places on a grid where there are some, else by numbers.

        Parameters
        ----------
        sample, feature : int
            Where the entry is.

        Returns
        -------
        str
            Its name.

        Examples
        --------
        >>> air = LabelledMatrix(np.ones((1, 2)), Axis(["2004-07-04"]), Axis(["Sulphate", "Nitrate"]))
        >>> air.place(0, 1)
        "sample '2004-07-04', feature 'Nitrate'"
        """
        return f"{_called('sample', self.samples, sample)}, {_called('feature', self.features, feature)}"

    def with_values(self, values: Any) -> LabelledMatrix:
        """Return other values of the same samples and features, such as a mask of them.

        Parameters
        ----------
        values : array-like (n_samples, n_features)
            The other values.

        Returns
        -------
        LabelledMatrix
            The other matrix.
        """
        return replace(self, values=values)

    def with_about(self, **about: Any) -> LabelledMatrix:
        """Return the matrix with more of what the writer of its format needs, see `Source`.

        Parameters
        ----------
        **about
            What to add to `Source.about`.

        Returns
        -------
        LabelledMatrix
            The other matrix.
        """
        source = self.source or Source()
        return replace(self, source=replace(source, about={**source.about, **about}))

    def with_names(self, samples: Sequence[str] | None = None, features: Sequence[str] | None = None) -> LabelledMatrix:
        """Return the matrix with other names of samples and features; None leaves them as they are.

        Parameters
        ----------
        samples, features : sequence of str or None
            The names.

        Returns
        -------
        LabelledMatrix
            The other matrix.
        """
        axes = [
            axis if names is None else replace(axis, names=names)
            for axis, names in ((self.samples, samples), (self.features, features))
        ]
        return replace(self, samples=axes[0], features=axes[1])

    def some_features(self, places: Sequence[int]) -> LabelledMatrix:
        """Return some of the features, in another order perhaps.

        Parameters
        ----------
        places : sequence of int
            Which ones, in order.

        Returns
        -------
        LabelledMatrix
            The other matrix.
        """
        chosen = np.asarray(places, dtype=np.intp)
        uncertainties = None if self.uncertainties is None else self.uncertainties[:, chosen]
        values = self.values[:, chosen]
        source = None if self.source is None else replace(self.source, layout=None)
        return replace(
            self, values=values, features=self.features.some(places), uncertainties=uncertainties, source=source
        )

    def other_samples(self, values: NDArray[Any], names: Sequence[str] | None = None) -> LabelledMatrix:
        """Return values of the same features, such as components, in what shape an array of them has.

        Parameters
        ----------
        values : ndarray of shape (k, n_features)
        names : sequence of str or None
            A name for each of the k.

        Returns
        -------
        LabelledMatrix
            The other matrix.
        """
        return self._other(values, Axis(names, COMPONENT), self.features, is_sample=True)

    def other_features(self, values: NDArray[Any], names: Sequence[str] | None = None) -> LabelledMatrix:
        """Return values of the same samples, such as codes: of pixels, k maps.

        Parameters
        ----------
        values : ndarray of shape (n_samples, k)
        names : sequence of str or None
            A name for each of the k.

        Returns
        -------
        LabelledMatrix
            The other matrix.
        """
        return self._other(values, self.samples, Axis(names, COMPONENT), is_sample=False)

    def _other(self, values: NDArray[Any], samples: Axis, features: Axis, is_sample: bool) -> LabelledMatrix:
        source = self.source or Source()
        old = source.layout
        kept = () if old is None else old.feature_axes if is_sample else old.sample_axes
        layout = None
        if old is not None and len(kept) > 1:
            n_new = values.shape[0 if is_sample else 1]
            names = (COMPONENT, *(("",) * len(kept) if old.names is None else (old.names[axis] for axis in kept)))
            points = {place: old.points[axis] for place, axis in enumerate(kept, 1) if axis in old.points}
            called = (samples if is_sample else features).names
            points |= {} if called is None else {0: called}
            units = {place: old.units[axis] for place, axis in enumerate(kept, 1) if axis in old.units}
            first, rest = (0,), tuple(range(1, len(kept) + 1))
            sizes = tuple(old.shape[axis] for axis in kept)
            layout = ArrayLayout(
                (n_new, *sizes), first if is_sample else rest, names, rest if is_sample else first, points, units
            )
        # Not in the type of the data: components and codes have fractions.
        narrow = source.dtype is not None and source.dtype != np.float64
        dtype = np.dtype(np.float32 if narrow else np.float64)
        return LabelledMatrix(values, samples, features, source=replace(source.with_type(dtype), layout=layout))

    def array(self) -> Any:
        """Return the values in the shape that they have in the file.

        Returns
        -------
        ndarray
            The values.
        """
        layout = None if self.source is None else self.source.layout
        return self.values if layout is None else layout.array(self.values)

    @property
    def transposed(self) -> LabelledMatrix:
        """The matrix with samples and features exchanged."""
        source = self.source
        if source is not None and source.layout is not None:
            source = replace(source, layout=source.layout.transposed)
        return LabelledMatrix(
            _turned(self.values),
            self.features,
            self.samples,
            None if self.uncertainties is None else _turned(self.uncertainties),
            source,
            self.notes,
        )


@dataclass(frozen=True)
class Input:
    """What a model remembers of the file that its data comes from, so that new files are read in the same way.

    Parameters
    ----------
    options : ReadOptions
        How the file was read.
    features : Axis
        What is known of the features.
    """

    options: ReadOptions
    features: Axis

    @classmethod
    def of(cls, X: Any) -> Input | None:
        """Return what is to be remembered of data; None if it is no `LabelledMatrix`.

        Parameters
        ----------
        X : any
            The data.

        Returns
        -------
        Input or None
            What is to be remembered.
        """
        if not isinstance(X, LabelledMatrix):
            return None
        # How many rows stand below the samples is not the same in the next file.
        return cls(ReadOptions() if X.source is None else replace(X.source.options, skip_footer=0), X.features)


def _turned(values: Any) -> Any:
    turned: Any = values.T
    return turned.tocsr() if sparse.issparse(values) else np.ascontiguousarray(turned)


def _called(what: str, axis: Axis, place: int) -> str:
    names = axis.shown_names
    return f"{what} {place}" if names is None else f"{what} {names[place]!r}"
