"""Where it runs: versions, threads, accelerators."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("numpy", "scipy", "scikit-learn", "numba")
EXTRAS = {
    "cli": ("typer",),
    "plots": ("matplotlib",),
    "report": ("jinja2", "matplotlib"),
    "io": ("h5py", "zarr", "pillow", "pyarrow"),
    "torch": ("torch",),
    "dask": ("dask", "distributed"),
}


def describe() -> dict[str, Any]:
    """Return what one would put into a report of a problem."""
    import numba
    from threadpoolctl import threadpool_info

    import robustnmf
    from robustnmf.engines import NumPyEngine

    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    blas = {f"{pool['internal_api']} ({pool['num_threads']})" for pool in pools}
    return {
        "robustnmf": robustnmf.__version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        **{package: version(package) for package in PACKAGES},
        "cores": os.cpu_count(),
        "threads of a fit": NumPyEngine().n_threads,
        "numba threads": numba.get_num_threads(),
        "blas (threads)": ", ".join(sorted(blas)) or "unknown",
        **{f"extra {name}": _installed(packages) for name, packages in EXTRAS.items()},
        "fits run on": "the CPU, unless the data or device= is on a GPU",
        **_gpu(),
    }


def _installed(packages: tuple[str, ...]) -> str:
    found, missing = [], []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    return "missing " + ", ".join(missing) if missing else ", ".join(found)


def _gpu() -> dict[str, str]:
    """Return the GPUs that Torch sees, and how steps that read the data are computed there."""
    try:
        import torch

        from robustnmf.engines.torch_engine import TorchEngine
    except ImportError:
        return {"gpu": "unknown: torch is not installed", "path on a gpu": "none: torch is not installed"}
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        path = {"triton": "Triton kernels", "torch": "plain Torch"}[TorchEngine("cuda").path]
        return {"gpu": names, "path on a gpu": path}
    has_mps = torch.backends.mps.is_available()
    return {"gpu": "none", "path on a gpu": "plain Torch" if has_mps else "none: Torch sees no GPU"}
