"""Coordinate descent on the GPU in CUDA C++, compiled when it is first needed by the compiler that comes with Torch.

Every step of coordinate descent waits for the one before, and needs a row of the Gram matrix, which shared memory gives
up four times slower than it can be used. So a few lanes share a row, with its coordinates in their registers, and where
there are many rows, they work on some of them and use each number of the matrix for all. Triton cannot express that.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

# Threads of a block, and lanes that share a row.
THREADS, LANES = 64, 4
# Bytes of shared memory that a block has, and of coordinates that a lane can keep in its registers.
MOST_SHARED, MOST_KEPT = 48 * 1024, 128
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

// Write the move of every row of X that coordinate descent makes, how steep the way is, and the total curvature.
// Coordinate k of a row is register k / LANES of lane k % LANES. See `_descend` in triton_kernels.py.
extern "C" __global__ void __launch_bounds__(THREADS) descend(
    const real* X, const real* G, const real* descent, const real* curvature, const real* linear,
    real* move, real* gain, real* total,
    int n_rows, int stride, int padded, int rank, int fixed, double penalty, int sweeps)
{
    // Of each row of the Gram matrix, what a lane needs lies together, and begins in a bank of its own.
    __shared__ __align__(16) real gram[RANK * LANES * SPAN];
    __shared__ real inverse[RANK];
    // What the rows start from, and what is left to do with their coordinates when they have come down.
    __shared__ real start[ROWS * GROUPS][PITCH], slope[ROWS * GROUPS][PITCH], root[ROWS * GROUPS][PITCH];
    const long first = (long)blockIdx.x * ROWS * GROUPS;
    const int here = min((long)ROWS * GROUPS, n_rows - first);
    for (int i = threadIdx.x; i < RANK * RANK; i += THREADS) {
        const int j = i / RANK, k = i % RANK;
        gram[(j * LANES + k % LANES) * SPAN + k / LANES] = j < rank && k < rank ? G[j * rank + k] : (real)0;
    }
    for (int k = threadIdx.x; k < RANK; k += THREADS) {
        const real diagonal = k < rank ? G[k * rank + k] : (real)0;
        inverse[k] = diagonal > 0 ? 1 / diagonal : (real)0;
    }
    #pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * GROUPS * RANK; i += THREADS) {
        const int row = i / RANK, k = i % RANK;
        const bool used = row < here && k < rank;
        start[row][k] = used ? X[(first + row) * rank + k] : (real)0;
        slope[row][k] = used ? descent[(first + row) * stride + k] : (real)0;
        root[row][k] = used ? curvature[(first + row) * stride + k] : (real)0;
    }
    __syncthreads();
    const real ridge = penalty;
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    // In the variables z = root * x every coordinate has the curvature of the Gram matrix. A coordinate that no entry
    // of positive weight depends on has root 0; it stays, because an infinite slope holds it at 0.
    real z[ROWS][MINE], g[ROWS][MINE];
    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = r * GROUPS + group;
        real whole = 0;
        #pragma unroll
        for (int q = 0; q < MINE; q++) {
            const int k = q * LANES + lane;
            const real x = start[row][k], curved = root[row][k];
            const real c = k < fixed ? (real)0 : curved + ridge;
            const bool seen = row < here && c > 0 && inverse[k] > 0;
            const real scale = seen ? sqrt(c * inverse[k]) : (real)0;
            const real d = seen ? slope[row][k] - linear[k] - ridge * x : (real)0;
            whole += curved;
            root[row][k] = scale;
            slope[row][k] = d;
            z[r][q] = x * scale;
            g[r][q] = seen ? d / scale : -__int_as_float(0x7f800000);
        }
        whole = over_lanes(whole);
        if (lane == 0 && row < here) total[first + row] = whole;
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
        const int row = r * GROUPS + group;
        real sum = 0;
        #pragma unroll
        for (int q = 0; q < MINE; q++) {
            const int k = q * LANES + lane;
            const real scale = root[row][k];
            const real m = scale > 0 ? z[r][q] / scale - start[row][k] : (real)0;
            start[row][k] = m;
            sum += slope[row][k] * m;
        }
        sum = over_lanes(sum);
        if (lane == 0 && row < here) gain[first + row] = sum;
    }
    __syncthreads();
    #pragma unroll 4
    for (int i = threadIdx.x; i < here * RANK; i += THREADS)
        if (i % RANK < rank) move[(first + i / RANK) * padded + i % RANK] = start[i / RANK][i % RANK];
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
    rows, rank = max(1, min(at_once, MOST_KEPT // (mine * size))), LANES * mine
    groups, pitch = THREADS // LANES, rank + 4  # again, for rows
    if rank * LANES * span + rank + 3 * rows * groups * pitch > MOST_SHARED // size:
        return None
    macros = {"REAL_TYPE": "double" if dtype == torch.float64 else "float", "THREADS": THREADS, "LANES": LANES}
    macros |= {"GROUPS": groups, "ROWS": rows, "RANK": rank, "MINE": mine, "SPAN": span, "CHUNK": chunk}
    macros["PITCH"] = pitch
    source = "".join(f"#define {name} {value}\n" for name, value in macros.items()) + SOURCE
    try:
        kernel = torch.cuda._compile_kernel(source, "descend")
    except (AttributeError, ImportError, OSError, RuntimeError):  # an older Torch, or one without the compiler
        return None

    def launch(n_rows: int, arguments: list[Any]) -> None:
        kernel(grid=(-(-n_rows // (rows * groups)), 1, 1), block=(THREADS, 1, 1), args=arguments)

    return launch
