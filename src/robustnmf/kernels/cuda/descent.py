"""Coordinate descent on the GPU in CUDA C++.

Every step of coordinate descent waits for the one before, and needs a row of the Gram matrix, which shared memory gives
up four times slower than it can be used. So a few lanes share a row, with its coordinates in their registers, and where
there are many rows, they work on some of them and use each number of the matrix for all. Triton cannot express that.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from robustnmf.kernels.cuda.compilation import plan, shared_memory
from robustnmf.kernels.cuda.cplusplus import kernel_of, warn_of

# Threads of a block and the most bytes of shared memory that it may take, of which more leave fewer blocks at a time:
# the first that are enough. And lanes that share a row.
SIZES, LANES = ((128, 48 * 1024), (64, 48 * 1024), (128, 128 * 1024)), 4
# Bytes of coordinates that a lane can keep in its registers.
MOST_KEPT = 128
# A GPU is busy with so many coordinates; with more, lanes work on several rows at once, at most so many.
MANY_COORDINATES, MOST_AT_ONCE = 2**18, 2
# Parts of a sum that it adds up; where there are more, they are better added up before.
MOST_PARTS = 8

SOURCE = """
typedef REAL_TYPE real;
struct __align__(16) Chunk { real of[CHUNK]; };
// Of each row of the Gram matrix, what a lane needs lies together, and begins in a bank of its own.
#define PLACE(j, k) ((j) * LANES + (k) % LANES) * SPAN + (k) / LANES

// Return the sum over the lanes that share a row.
__device__ real over_lanes(real part)
{
    for (int lane = 1; lane < LANES; lane *= 2) part += __shfl_xor_sync(~0u, part, lane);
    return part;
}

// Write the move of every row of X that coordinate descent makes, how steep the way is, and the total curvature.
// Descent and curvature come in parts, one after the other, that are added up.
// Coordinate k of a row is register k / LANES of lane k % LANES. See `descend` in functions.py.
extern "C" __global__ void __launch_bounds__(THREADS) descend(
    const real* X, const real* G, const real* descent, const real* curvature, const real* penalty,
    real* move, real* gain, real* total,
    int n_rows, int n_parts, int stride, int padded, int rank, int fixed, int sweeps)
{
    extern __shared__ __align__(16) real gram[];
    real* inverse = gram + RANK * LANES * SPAN;  // of the matrix's diagonal
    real* against = inverse + RANK;  // the penalty
    // What the rows start from, and what is left to do with their coordinates when they have come down.
    real (*start)[PITCH] = (real (*)[PITCH])(against + RANK);
    real (*slope)[PITCH] = start + ROWS * GROUPS, (*unit)[PITCH] = slope + ROWS * GROUPS;
    const long first = (long)blockIdx.x * ROWS * GROUPS;
    const int here = min((long)ROWS * GROUPS, n_rows - first);
    for (int k = threadIdx.x; k < RANK; k += THREADS) {
        const real diagonal = k < rank ? G[k * rank + k] : (real)0;
        inverse[k] = diagonal > SMALLEST ? 1 / diagonal : (real)0;
        against[k] = k < rank ? penalty[k] : (real)0;
    }
    #pragma unroll 8
    for (int i = threadIdx.x; i < RANK * RANK; i += THREADS) {
        const int j = i / RANK, k = i % RANK;
        const bool used = j < rank && k < rank;
        const real product = used ? G[j * rank + k] : (real)0, diagonal = used ? G[k * rank + k] : (real)0;
        const real root = rsqrt(diagonal);  // no division, whose special cases would be waited for one by one
        gram[PLACE(j, k)] = diagonal > SMALLEST ? product * root * root : (real)0;
    }
    #pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * GROUPS * RANK; i += THREADS) {
        const int row = i / RANK, k = i % RANK;
        const bool used = row < here && k < rank;
        const long at = (first + row) * stride + k, apart = (long)n_rows * stride;
        real descending = 0, curved = 0;
        #pragma unroll
        for (int part = 0; part < MOST_PARTS; part++) {  // a known number, or one would be waited for after the other
            const bool there = used && part < n_parts;
            descending += there ? descent[part * apart + at] : (real)0;
            curved += there ? curvature[part * apart + at] : (real)0;
        }
        start[row][k] = used ? X[(first + row) * rank + k] : (real)0;
        slope[row][k] = descending;
        unit[row][k] = curved;
    }
    __syncthreads();
    const real ridge = penalty[rank];
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    // In the variables z = x / unit every coordinate has the curvature of the Gram matrix; g is the step of each, which
    // needs no division if columns of the matrix are divided by the diagonal. A coordinate that no entry of positive
    // weight depends on has unit 0; it stays, because an infinite slope holds it at 0.
    real z[ROWS][MINE], g[ROWS][MINE];
    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = r * GROUPS + group;
        real whole = 0;
        #pragma unroll
        for (int q = 0; q < MINE; q++) {
            const int k = q * LANES + lane;
            const real x = start[row][k], curved = unit[row][k];
            const real c = k < fixed ? (real)0 : curved + ridge;
            const bool seen = row < here && c > SMALLEST && inverse[k] > 0;
            const real ratio = c * inverse[k], one = seen ? rsqrt(ratio) : (real)0;
            const real d = seen ? slope[row][k] - against[k] - ridge * x : (real)0;
            whole += curved;
            unit[row][k] = one;
            slope[row][k] = d;
            z[r][q] = seen ? x * ratio * one : (real)0;
            g[r][q] = seen ? d * one * inverse[k] : -__int_as_float(0x7f800000);
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
                real change[ROWS];
                #pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const real next = max(z[r][q] + g[r][q], (real)0);
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
            const real one = unit[row][k];
            const real m = one > 0 ? z[r][q] * one - start[row][k] : (real)0;
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


def kernel_for(device: torch.device, rank: int, dtype: torch.dtype, n_rows: int) -> Callable[..., None] | None:
    """Return the kernel for so many rows of a rank, or None if Torch cannot compile it or the rank is too high."""
    at_once = MOST_AT_ONCE if n_rows * rank > MANY_COORDINATES else 1
    mine, planned = -(-rank // (4 * LANES)) * 4, plan()
    if planned is not None:
        planned.note(("descend", mine, dtype, at_once), partial(kernel_for, device, rank, dtype, n_rows))
        return _nothing
    kernels = (_compiled(device, mine, dtype, at_once, *size) for size in SIZES)
    found = next((kernel for kernel in kernels if kernel is not None), None)
    if found is None:
        warn_of("descend")
    return found


def _nothing(n_rows: int, arguments: list[Any]) -> None:
    """Stand for a kernel while what is to be compiled is planned."""


@cache
def _compiled(
    device: torch.device, mine: int, dtype: torch.dtype, at_once: int, threads: int, most: int
) -> Callable[..., None] | None:
    """Return the kernel for `mine` coordinates of each of some rows in a lane, or None."""
    size = dtype.itemsize
    chunk = 16 // size
    span = mine + chunk * (mine * size % 32 == 0)  # lanes that begin in the same bank would wait for each other
    rows, rank = max(1, min(at_once, MOST_KEPT // (mine * size))), LANES * mine
    groups, pitch = threads // LANES, rank + 4  # again, for rows
    shared = size * (rank * LANES * span + 2 * rank + 3 * rows * groups * pitch)
    if shared > min(most, shared_memory(device)):
        return None
    macros = {"REAL_TYPE": "double" if dtype == torch.float64 else "float", "THREADS": threads, "LANES": LANES}
    macros |= {"GROUPS": groups, "ROWS": rows, "RANK": rank, "MINE": mine, "SPAN": span, "CHUNK": chunk}
    macros |= {"PITCH": pitch, "MOST_PARTS": MOST_PARTS}
    macros["SMALLEST"] = "1e-292" if dtype == torch.float64 else "1e-31f"  # see `smallest_curvature`
    source = "".join(f"#define {name} {value}\n" for name, value in macros.items()) + SOURCE
    kernel = kernel_of(device, source, "descend", shared)
    if kernel is None:
        return None

    def launch(n_rows: int, arguments: list[Any]) -> None:
        grid = (-(-n_rows // (rows * groups)), 1, 1)
        kernel(grid=grid, block=(threads, 1, 1), args=arguments, shared_mem=shared)

    return launch
