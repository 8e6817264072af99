"""Coordinate descent on the GPU in CUDA C++, compiled when it is first needed by the compiler that comes with Torch.

Every step of coordinate descent waits for the one before. A thread works on one row and keeps all its coordinates in
registers, which Triton cannot express: there, a row is spread over threads that have to talk at every step.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

# Threads of a block.
THREADS = 64
# The coordinates of a row and its gradient must fit in the registers of a thread.
MOST_BYTES = 256

SOURCE = """
typedef REAL_TYPE real;

// Lower the model of the objective in z (n_rows, stride), whose descent is g; coordinates with s = 0 stay.
extern "C" __global__ void __launch_bounds__(THREADS) descend(
    real* Z, const real* descent, const real* S, const real* G, int n_rows, int stride, int rank, int sweeps)
{
    __shared__ __align__(16) real gram[RANK * RANK];
    __shared__ real inverse[RANK];
    for (int i = threadIdx.x; i < RANK * RANK; i += THREADS) {
        int j = i / RANK, k = i % RANK;
        gram[i] = j < rank && k < rank ? G[j * rank + k] : (real)0;
    }
    __syncthreads();
    for (int k = threadIdx.x; k < RANK; k += THREADS)
        inverse[k] = gram[k * RANK + k] > 0 ? (real)1 / gram[k * RANK + k] : (real)0;
    __syncthreads();
    long row = (long)blockIdx.x * THREADS + threadIdx.x;
    if (row >= n_rows) return;
    real z[RANK], g[RANK];
    unsigned long long seen[2] = {0, 0};
    #pragma unroll
    for (int k = 0; k < RANK; k++) {
        z[k] = Z[row * stride + k];
        g[k] = descent[row * stride + k];
        if (S[row * stride + k] > 0) seen[k / 64] |= 1ull << (k % 64);
    }
    for (int sweep = 0; sweep < sweeps; sweep++) {
        #pragma unroll
        for (int j = 0; j < RANK; j++) {
            real step = seen[j / 64] >> (j % 64) & 1 ? inverse[j] : (real)0;
            real next = max(z[j] + g[j] * step, (real)0);
            real change = next - z[j];
            z[j] = next;
            asm volatile("" ::: "memory");  // or all of the Gram matrix would be kept in registers that there are not
            #pragma unroll
            for (int k = 0; k < RANK; k++) g[k] -= change * gram[j * RANK + k];
        }
    }
    #pragma unroll
    for (int k = 0; k < RANK; k++) Z[row * stride + k] = z[k];
}
"""


@cache
def kernel_for(rank: int, dtype: torch.dtype) -> Callable[..., None] | None:
    """Return the kernel for factors of a rank, or None if Torch cannot compile it or the rank is too high."""
    padded = 8 * ((rank + 7) // 8)
    if padded * dtype.itemsize > MOST_BYTES:
        return None
    real = "double" if dtype == torch.float64 else "float"
    macros = f"#define REAL_TYPE {real}\n#define RANK {padded}\n#define THREADS {THREADS}\n"
    try:
        kernel = torch.cuda._compile_kernel(macros + SOURCE, "descend")
    except (AttributeError, ImportError, OSError, RuntimeError):  # an older Torch, or one without the compiler
        return None

    def launch(n_rows: int, arguments: list[Any]) -> None:
        kernel(grid=(-(-n_rows // THREADS), 1, 1), block=(THREADS, 1, 1), args=arguments)

    return launch
