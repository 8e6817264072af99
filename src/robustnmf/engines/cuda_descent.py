"""Coordinate descent on the GPU in CUDA C++, compiled when it is first needed by the compiler that comes with Torch.

Every step of coordinate descent waits for the one before, and needs a row of the Gram matrix, which shared memory gives
up four times slower than it can be used. So a few lanes share a row, with its coordinates in their registers, and where
there are many rows, they share some of them and use each number of the matrix for all. Triton cannot express that.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

# Threads of a block, and lanes that share a row.
THREADS, LANES = 64, 4
# Bytes of shared memory for the Gram matrix, and of coordinates that a lane can keep in its registers.
MOST_SHARED, MOST_KEPT = 47 * 1024, 128
# A GPU is busy with so many rows; with more, lanes work on several at once, at most so many.
MANY_ROWS, MOST_AT_ONCE = 8192, 4

SOURCE = """
typedef REAL_TYPE real;
struct __align__(16) Chunk { real of[CHUNK]; };

// Return the sum over the lanes that share a row.
__device__ real over_lanes(real part)
{
    for (int lane = 1; lane < LANES; lane *= 2) part += __shfl_xor_sync(~0u, part, lane);
    return part;
}

// Write the move of every row of X that coordinate descent makes, how steep the way is, and the total curvature; the
// sums `descent` and `curvature` are lost.
// Coordinate k of a row is register k / LANES of lane k % LANES. See `_descend` in triton_kernels.py.
extern "C" __global__ void __launch_bounds__(THREADS) descend(
    const real* X, const real* G, real* descent, real* curvature, const real* linear,
    real* move, real* gain, real* total,
    int n_rows, int n_splits, int stride, int padded, int rank, int fixed, double penalty, int sweeps)
{
    // Of each row of the Gram matrix, what a lane needs lies together, and begins in a bank of its own.
    __shared__ __align__(16) real gram[RANK * LANES * SPAN];
    __shared__ real inverse[RANK];
    for (int i = threadIdx.x; i < RANK * RANK; i += THREADS) {
        int j = i / RANK, k = i % RANK;
        gram[(j * LANES + k % LANES) * SPAN + k / LANES] = j < rank && k < rank ? G[j * rank + k] : (real)0;
    }
    for (int k = threadIdx.x; k < RANK; k += THREADS) {
        real diagonal = k < rank ? G[k * rank + k] : (real)0;
        inverse[k] = diagonal > 0 ? 1 / diagonal : (real)0;
    }
    __syncthreads();
    const real ridge = penalty;
    const int lane = threadIdx.x % LANES;
    const long first = ((long)blockIdx.x * THREADS + threadIdx.x) / LANES * ROWS;
    const int here = min((long)ROWS, n_rows - first);  // none or less for the last groups
    // In the variables z = root * x every coordinate has the curvature of the Gram matrix. A coordinate that no entry
    // of positive weight depends on has root 0; it stays, because an infinite slope holds it at 0.
    // Roots and slopes wait in the place of the sums, for there are not enough registers.
    real z[ROWS][MINE] = {}, g[ROWS][MINE] = {};
    const long origin = first * stride + lane;
    #pragma unroll AHEAD
    for (int split = 0; split < n_splits; split++) {
        const long part = (long)split * n_rows * stride + origin;
        #pragma unroll
        for (int r = 0; r < ROWS; r++)
            #pragma unroll
            for (int q = 0; q < MINE; q++)
                if (r < here && q * LANES + lane < rank) {
                    g[r][q] += descent[part + r * stride + q * LANES];
                    z[r][q] += curvature[part + r * stride + q * LANES];
                }
    }
    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
        real whole = 0;
        #pragma unroll
        for (int q = 0; q < MINE; q++) {
            const int k = q * LANES + lane;
            const bool used = r < here && k < rank;
            const real x = used ? X[(first + r) * rank + k] : (real)0;
            const real c = k < fixed ? (real)0 : z[r][q] + ridge;
            const bool seen = used && c > 0 && inverse[k] > 0;
            whole += z[r][q];
            const real root = seen ? sqrt(c * inverse[k]) : (real)0;
            const real slope = seen ? g[r][q] - linear[k] - ridge * x : (real)0;
            if (used) {
                curvature[origin + r * stride + q * LANES] = root;
                descent[origin + r * stride + q * LANES] = slope;
            }
            z[r][q] = x * root;
            g[r][q] = seen ? slope / root : -__int_as_float(0x7f800000);
        }
        whole = over_lanes(whole);
        if (lane == 0 && r < here) total[first + r] = whole;
    }
    for (int sweep = 0; sweep < sweeps; sweep++) {
        #pragma unroll
        for (int q = 0; q < MINE; q++) {
            if (q * LANES >= rank) break;
            #pragma unroll
            for (int owner = 0; owner < LANES; owner++) {
                const int j = q * LANES + owner;
                const real step = inverse[j];
                real change[ROWS];
                #pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const real next = max(z[r][q] + g[r][q] * step, (real)0);
                    change[r] = __shfl_sync(~0u, next - z[r][q], owner, LANES);
                    if (lane == owner) z[r][q] = next;
                }
                const Chunk* row = (const Chunk*)(gram + (j * LANES + lane) * SPAN);
                #pragma unroll
                for (int k = 0; k < MINE; k += CHUNK) {
                    const Chunk chunk = row[k / CHUNK];
                    #pragma unroll
                    for (int i = 0; i < CHUNK; i++)
                        #pragma unroll
                        for (int r = 0; r < ROWS; r++) g[r][k + i] -= change[r] * chunk.of[i];
                }
                asm volatile("" ::: "memory");  // or more of the matrix would be read ahead than there are registers
            }
        }
    }
    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
        real sum = 0;
        #pragma unroll
        for (int q = 0; q < MINE; q++) {
            const int k = q * LANES + lane;
            if (r >= here || k >= rank) continue;
            const real root = curvature[origin + r * stride + q * LANES];
            const real m = root > 0 ? z[r][q] / root - X[(first + r) * rank + k] : (real)0;
            move[(first + r) * padded + k] = m;
            sum += descent[origin + r * stride + q * LANES] * m;
        }
        sum = over_lanes(sum);
        if (lane == 0 && r < here) gain[first + r] = sum;
    }
}
"""


def kernel_for(rank: int, dtype: torch.dtype, n_rows: int) -> Callable[..., None] | None:
    """Return the kernel for so many rows of a rank, or None if Torch cannot compile it or the rank is too high."""
    at_once = 1
    while at_once < MOST_AT_ONCE and n_rows > at_once * MANY_ROWS:
        at_once *= 2
    return _compiled(-(-rank // (4 * LANES)) * 4, dtype, at_once)


@cache
def _compiled(mine: int, dtype: torch.dtype, at_once: int) -> Callable[..., None] | None:
    """Return the kernel for `mine` coordinates of each of some rows in a lane, or None."""
    size = dtype.itemsize
    chunk = 16 // size
    span = mine + chunk * (mine * size % 32 == 0)  # lanes that begin in the same bank would wait for each other
    rank = LANES * mine
    if rank * LANES * span * size > MOST_SHARED:
        return None
    rows = max(1, min(at_once, MOST_KEPT // (mine * size)))
    numbers = {"THREADS": THREADS, "LANES": LANES, "RANK": rank, "MINE": mine, "SPAN": span, "CHUNK": chunk}
    macros = {"REAL_TYPE": "double" if dtype == torch.float64 else "float", "ROWS": rows} | numbers
    macros["AHEAD"] = MOST_AT_ONCE // rows  # parts of a sum that are read at a time: few rows come in many parts
    source = "".join(f"#define {name} {value}\n" for name, value in macros.items()) + SOURCE
    try:
        kernel = torch.cuda._compile_kernel(source, "descend")
    except (AttributeError, ImportError, OSError, RuntimeError):  # an older Torch, or one without the compiler
        return None

    def launch(n_rows: int, arguments: list[Any]) -> None:
        groups = -(-n_rows // rows)
        kernel(grid=(-(-groups * LANES // THREADS), 1, 1), block=(THREADS, 1, 1), args=arguments)

    return launch
