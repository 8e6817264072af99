"""Arrays of all libraries: type aliases used throughout the core, and the way to NumPy and back.

The core is written against the array API, so an `Array` may be a NumPy array, a Torch tensor or
anything else that ``array_api_compat`` understands; static typing cannot say more than that.
Shapes are given in docstrings, in the letters of the paper.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import accumulate
from typing import Any, TypeAlias

import array_api_compat
import numpy as np
from scipy import sparse

from robustnmf.utils.process_state import ignored_warnings

Array: TypeAlias = Any
Namespace: TypeAlias = Any
Blocks: TypeAlias = Sequence[Array]

# Share of the memory of a device that is free that results for all entries may take.
ROOM_FOR_RESULTS = 0.8

device = array_api_compat.device
"""Where an array is."""
size = array_api_compat.size
"""Number of its entries."""


def transposed(results: list[Any]) -> Any:
    """Return a list of results; for a list of tuples, the tuple of lists."""
    return tuple(map(list, zip(*results, strict=True))) if isinstance(results[0], tuple) else results


def zip_blocks(blocks: Sequence[Blocks | None]) -> list[tuple[Any, ...]]:
    """Return one tuple of arrays per block; None stands for None in every block."""
    n_blocks = next(len(b) for b in blocks if b is not None)
    return list(zip(*([None] * n_blocks if b is None else b for b in blocks), strict=True))


def subsample(lengths: Sequence[int], every: int) -> list[slice]:
    """Return every so many of all rows, as a slice of each of the blocks, which have these lengths.

    Examples
    --------
    >>> [list(range(n)[rows]) for n, rows in zip([4, 3], subsample([4, 3], 3))]
    [[0, 3], [2]]
    """
    return [slice(-first % every, None, every) for first in accumulate([0, *lengths[:-1]])]


def taken(A: Any, rows: Array) -> Any:
    """Return some rows of an array that may be None, in ascending order; without a copy if they are all.

    Examples
    --------
    >>> taken(np.eye(2), np.array([1]))
    array([[0., 1.]])
    """
    return A if A is None or rows.shape[0] == A.shape[0] else A[rows]


def dtype_of(a: Any) -> np.dtype[Any]:
    """Return the type of the numbers of an array, or of a block that is not an array yet, as NumPy calls it."""
    if is_foreign(a):
        dtype: np.dtype[Any] = to_host(a[:0]).dtype
        return dtype
    return np.dtype(str(a.dtype).removeprefix("torch."))


def add(total: Any, part: Any) -> Any:
    """Return the sum of two numbers, arrays, or tuples of them."""
    return tuple(a + b for a, b in zip(total, part, strict=True)) if isinstance(total, tuple) else total + part


def is_uniform(a: Array) -> bool:
    """Return whether a vector of NumPy or Torch is one number in memory, made longer by broadcasting."""
    steps = a.strides if isinstance(a, np.ndarray) else a.stride()
    return not any(steps)


def mapped(a: Array, function: Callable[[Any], Any]) -> Array:
    """Return a function, of each entry alone, of a vector; what is one number in memory (`is_uniform`) remains one.

    Examples
    --------
    >>> is_uniform(mapped(np.broadcast_to(1.0, 3), lambda a: 2 * a))
    True
    """
    if not is_uniform(a):
        return function(a)
    one = function(a[:1])
    return array_api_compat.array_namespace(one).broadcast_to(one, a.shape)


def moved(value: Any, move: Callable[[Any], Any]) -> Any:
    """Return arrays elsewhere, and with them tuples, lists, dicts and dataclasses that hold some.

    Examples
    --------
    >>> moved(({"W": np.zeros(2)}, "text"), lambda array: array + 1)
    ({'W': array([1., 1.])}, 'text')
    """
    if isinstance(value, np.ndarray) or is_foreign(value):
        return move(value)
    if isinstance(value, dict):
        return {name: moved(part, move) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return type(value)._make(moved(part, move) for part in value)
    if isinstance(value, list | tuple):
        return type(value)(moved(part, move) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        changed = {name: new for name, part in parts.items() if (new := moved(part, move)) is not part}
        return replace(value, **changed) if changed else value
    return value


def is_foreign(X: Any) -> bool:
    """Return whether X is an array of another library than NumPy, such as a tensor of Torch."""
    return not isinstance(X, np.ndarray | np.generic | type) and array_api_compat.is_array_api_obj(X)


def is_on_host(X: Any) -> bool:
    """Return whether an array of any library is in the memory of the host."""
    if not is_foreign(X):
        return True
    if array_api_compat.is_torch_array(X):
        return bool(X.device.type == "cpu")
    if array_api_compat.is_cupy_array(X):
        return False
    return not hasattr(X, "__dlpack_device__") or int(X.__dlpack_device__()[0]) == 1  # DLPack's number of the CPU


def device_name(device: Any) -> str | None:
    """Return a device, given as text or as one of Torch, as text: "cpu" by whatever number; None for none.

    Examples
    --------
    >>> device_name("cpu:0"), device_name("cuda:1"), device_name(None)
    ('cpu', 'cuda:1', None)
    """
    name = None if device is None else str(device)
    return "cpu" if name is not None and name.startswith("cpu:") else name


def is_sparse_tensor(X: Any) -> bool:
    """Return whether X is a tensor of Torch that stores only some of its entries."""
    return array_api_compat.is_torch_array(X) and str(X.layout) != "torch.strided"


def without_narrow_floats(X: Any) -> Any:
    """Return an array of bfloat16, or of floats of 8 bits or less, in single precision; anything else as it is.

    NumPy does not know these types. Single precision holds all of their numbers.
    """
    dtype = str(getattr(X, "dtype", "")).removeprefix("torch.")
    if not dtype.startswith(("bfloat16", "float8_", "float6_", "float4_")):
        return X
    return X.float() if array_api_compat.is_torch_array(X) else X.astype(np.float32)


def to_host(X: Any) -> Any:
    """Return an array of another library as one of NumPy, a sparse tensor as one of SciPy; anything else as it is.

    What is on the host already is not copied.

    Examples
    --------
    >>> to_host([1.0, 2.0])
    [1.0, 2.0]
    """
    if not is_foreign(X):
        return X
    X = without_narrow_floats(X)
    if array_api_compat.is_torch_array(X):
        # What is conjugate or negative is so by a mark alone, which NumPy does not know.
        return _scipy_of(X.detach().cpu()) if is_sparse_tensor(X) else X.detach().cpu().resolve_neg().numpy()
    if array_api_compat.is_cupy_array(X):
        return X.get()
    can_convert = is_on_host(X) or array_api_compat.is_jax_array(X)  # those come to the host by themselves
    return np.asarray(X if can_convert else array_api_compat.to_device(X, "cpu"))


def _scipy_of(X: Any) -> Any:
    """Return a sparse tensor of the host by rows, as a sparse array of SciPy."""
    check_layout(X)
    layout = str(X.layout)
    if layout == "torch.sparse_coo":
        X = X.coalesce()  # what is stored twice is summed
        return sparse.coo_array((X.values().numpy(), X.indices().numpy()), shape=tuple(X.shape)).tocsr()
    if layout == "torch.sparse_csc":
        parts = (X.values(), X.row_indices(), X.ccol_indices())
        return sparse.csc_array(tuple(part.numpy() for part in parts), shape=tuple(X.shape)).tocsr()
    parts = (X.values(), X.col_indices(), X.crow_indices())
    return sparse.csr_array(tuple(part.numpy() for part in parts), shape=tuple(X.shape))


def check_layout(X: Any) -> None:
    """Refuse a sparse tensor that is no matrix of numbers by rows, columns or coordinates."""
    layout = str(X.layout).removeprefix("torch.")
    if layout not in ("sparse_csr", "sparse_csc", "sparse_coo") or X.ndim != 2 or X.dense_dim():
        raise ValueError(
            "A sparse tensor must be a matrix of samples and features, in the layout torch.sparse_csr, sparse_csc or "
            f"sparse_coo; got {layout} of shape {tuple(X.shape)}. X.to_dense().to_sparse_csr() converts others."
        )


def _tensor_of(matrix: Any, X: Any) -> Any:
    """Return a sparse array of SciPy as a tensor where X is, in the layout of X if that is sparse, else by rows."""
    import torch

    matrix = matrix.tocsr()
    parts = (torch.as_tensor(part, device=X.device) for part in (matrix.indptr, matrix.indices, matrix.data))
    with ignored_warnings((UserWarning, "Sparse CSR tensor support is in beta")):
        tensor = torch.sparse_csr_tensor(*parts, size=matrix.shape, check_invariants=False)
        return tensor.to_sparse(layout=X.layout) if is_sparse_tensor(X) else tensor


def _has_room(values: Any, device: Any) -> bool:
    """Return whether a tensor is on a device of Torch, or fits into its memory."""
    if device.type != "cuda" or values.device == device:
        return True
    import torch

    return bool(values.nbytes <= ROOM_FOR_RESULTS * torch.cuda.mem_get_info(device)[0])


def same_kind(X: Any, values: Any) -> Any:
    """Return values as an array of the library of X, where X is; if that is no array library, as an array of NumPy.

    Sparse values are a sparse tensor of Torch if X is a tensor, else a sparse array of SciPy. A tensor of the host
    stays there if the GPU of X has no room for it.
    """
    if sparse.issparse(values):
        return _tensor_of(values, X) if array_api_compat.is_torch_array(X) else values
    if not is_foreign(X):
        return to_host(values)
    if is_foreign(values):
        if array_api_compat.is_torch_array(X):
            return values.to(X.device) if _has_room(values, X.device) else values
        if not is_on_host(X) and not is_on_host(values):
            return array_api_compat.array_namespace(X).from_dlpack(values)
        values = to_host(values)
    return array_api_compat.array_namespace(X).asarray(values, device=array_api_compat.device(X))
