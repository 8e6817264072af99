"""Kernels in CUDA C++: compiled by the compiler that comes with Torch, and kept on disk where Triton keeps its own.

A process that finds a kernel on disk needs neither the compiler nor what Torch imports to find it.
"""

from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from triton.runtime.cache import get_cache_manager

from robustnmf.kernels.cuda.compilation import is_ahead
from robustnmf.utils.user_warnings import warn_user

# What an older Torch raises, one without the compiler, and the compiler.
FAILURES = (AttributeError, ImportError, OSError, RuntimeError, TypeError)

_failed: dict[str, Exception] = {}
"""Why kernels could not be had, by name, until the user is told."""
_told: set[str] = set()
"""Kernels that the user knows could not be had."""


def kernel_of(device: torch.device, source: str, name: str, shared: int = 0) -> Callable[..., None] | None:
    """Return a kernel for the device that is worked on, or None; `warn_of` then tells the user.

    Parameters
    ----------
    shared : int
        Bytes of shared memory that it will be launched with.
    """
    try:
        binary = _binary(source, name, torch.cuda.get_device_capability(device))
        kernel: Any = _load(binary, name)
        if shared >= 48 * 1024:
            kernel.set_shared_memory_config(shared)
    except FAILURES as error:
        _failed[name] = error
        return None
    return kernel  # type: ignore[no-any-return]


def warn_of(name: str) -> None:
    """Tell the user, once in a process, if a kernel could not be had; not while kernels are compiled ahead."""
    if name not in _failed or name in _told or is_ahead():
        return
    _told.add(name)
    error = _failed[name]
    reason = f"{type(error).__name__}: {error}".strip().replace("\n", " ")[:300]
    warn_user(
        f"Torch {torch.__version__} could not compile a kernel of the GPU, {name!r} ({reason}). A slower one of Triton "
        "is used instead, with the same results up to rounding. To have the fast one, install the newest Torch for "
        "CUDA with its compiler, NVRTC: pip install -U torch nvidia-cuda-nvrtc.",
        RuntimeWarning,
    )


def _binary(source: str, name: str, capability: tuple[int, int]) -> bytes:
    """Return the compiled kernel, from disk if an earlier process has compiled it."""
    of = (source, name, torch.__version__, torch.version.cuda, capability)
    try:
        kept = get_cache_manager(sha256(repr(of).encode()).hexdigest())
        path = kept.get_file(name)
    except (OSError, RuntimeError):  # there is no folder where it could be kept
        return _compile(source, name, capability)
    if path is not None:
        return Path(path).read_bytes()
    binary = _compile(source, name, capability)
    with suppress(OSError):  # a full disk, say
        kept.put(binary, name)
    return binary


def _compile(source: str, name: str, capability: tuple[int, int]) -> bytes:
    from torch.cuda._utils import _nvrtc_compile

    binary: bytes = _nvrtc_compile(source, name, compute_capability="{}{}".format(*capability))[0]
    return binary


def _load(binary: bytes, name: str) -> Any:
    """Return a compiled kernel on the device that is worked on."""
    from torch.cuda._utils import _cuda_load_module

    return _cuda_load_module(binary, [name])[name]
