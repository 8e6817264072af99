"""Sums over the data in double precision, on the tensor cores of Hopper and later GPUs, in CUDA C++.

Triton multiplies doubles in products of 8 x 8 x 4 numbers, at half of the speed, and moves the residuals through shared
memory between two products. Here they stay in registers: the columns of a product of residuals are numbered so that
each lane already holds what it has to give. See `accumulate` in functions.py for what is summed up.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from robustnmf.kernels.cuda.compilation import plan
from robustnmf.kernels.cuda.cplusplus import kernel_of, warn_of
from robustnmf.kernels.interface import CAUCHY, CORRENTROPY, HUBER, ROUNDED, SQUARED

# Rows that a warp works on, the warps of a block, and tiles of 8 columns whose residuals a warp has at a time.
WARP_ROWS, WARPS, TILES = 16, 4, 2
ROWS = WARP_ROWS * WARPS
# Columns that are in shared memory at a time, and blocks that a multiprocessor should have registers for, by padded
# rank: the fastest on an H200 of some that were tried.
COLUMNS, BLOCKS = {16: 64, 32: 16, 64: 16}, {16: 3, 32: 3, 64: 1}
# Blocks that a multiprocessor of an H200 has room for.
AT_A_TIME = {16: 3, 32: 3, 64: 2}

FORMS = (SQUARED, CAUCHY, HUBER, ROUNDED, CORRENTROPY)
"""Forms that `weigh` knows."""

SOURCE = """
#define THREADS (32 * WARPS)
// Pitches for which the lanes of a half-warp read from banks of their own, along a row and along a column.
#define BY_RANK (RANK + 4)
#define BY_COLUMN (RANK + 2)
#define STEPS (COLUMNS / (8 * TILES))

// Add the product of a (16, 16) and b (16, 8) to c.
__device__ void multiply(double (&c)[4], const double (&a)[8], const double (&b)[4])
{
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
        "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
          "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
}

// Return 1 / v of a number from 1 to 1e300: without the special cases of a division.
__device__ double inverse_of(double v)
{
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(v));
    y = fma(y, fma(-v, y, 1.0), y);
    return fma(y, fma(-v, y, 1.0), y);
}

// Return the weight of a residual; 0 for NaN.
__device__ double weigh(double e, double inverse, double limit, double support, double constant)
{
    const double ratio = e * inverse;
    double q = 1.0;
    bool kept = fabs(e) <= limit;
    if (FORM == CAUCHY) {
        const double v = fma(ratio, ratio, 1.0);
        kept = kept && v < 1e300;
        q = inverse_of(v);
    } else if (FORM == HUBER) {
        const double v = fmax(fabs(ratio), 1.0);
        kept = kept && v < 1e300;
        q = inverse_of(v);
    } else if (FORM == ROUNDED) {
        q = 0.5 * rsqrt(fma(ratio, ratio, constant));
    } else if (FORM == CORRENTROPY) {
        q = 0.5 * exp(-0.5 * ratio * ratio);
    }
    if (CAPPED) kept = kept && fabs(ratio) <= support;
    return kept ? q : 0.0;
}

// Copy 16 bytes to shared memory, or zeros, while the program goes on.
__device__ void begin_copy(void* to, const void* from, bool exists)
{
    const unsigned place = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(place), "l"(from), "r"(exists ? 16 : 0));
}

// Rows and columns of the data that a lane has of a tile (16, 8): rows lane / 4 and 8 more, columns 2 (lane % 4) and 1
// more. In products over columns, number t + 4 j of 16 is column 2 t + j % 2 of tile j / 2.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) accumulate(
    const double* Y, const double* M, const double* X, const double* A, const double* scale, const double* threshold,
    const double* constants, double* descent, double* curvature,
    int n_rows, int n_columns, int row_stride, int column_stride, int scale_stride, int threshold_stride,
    int columns_per_split)
{
    __shared__ __align__(16) double by_rank[2][COLUMNS][BY_RANK], by_column[2][COLUMNS][BY_COLUMN];
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int top = (blockIdx.x * WARPS + threadIdx.x / 32) * 16;
    const int first = blockIdx.y * columns_per_split, last = min(first + columns_per_split, n_columns);
    const double support = constants[0], constant = constants[1];
    double x[RANK / 16][8], inverse[2], limit[2], d[RANK / 8][4], c[RANK / 8][4];
    long at[2];
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const long row = min(top + g + 8 * half, n_rows - 1);  // beyond the last one, nothing is written
        at[half] = row * row_stride;
        inverse[half] = 1.0 / scale[row * scale_stride];
        limit[half] = threshold[row * threshold_stride];
        #pragma unroll
        for (int s = 0; s < RANK / 16; s++)
            #pragma unroll
            for (int j = 0; j < 4; j++) x[s][2 * j + half] = -X[row * RANK + 16 * s + t + 4 * j];
    }
    #pragma unroll
    for (int n = 0; n < RANK / 8; n++)
        #pragma unroll
        for (int i = 0; i < 4; i++) d[n][i] = c[n][i] = 0;

    auto stage = [&](int buffer, int begin) {
        for (int i = threadIdx.x; i < COLUMNS * RANK / 2; i += THREADS) {
            const int column = i / (RANK / 2), k = 2 * (i % (RANK / 2));
            const double* from = A + (long)min(begin + column, n_columns - 1) * RANK + k;
            const bool exists = begin + column < last;
            begin_copy(&by_rank[buffer][column][k], from, exists);
            begin_copy(&by_column[buffer][column][k], from, exists);
        }
        asm volatile("cp.async.commit_group;");
    };
    // What lies beyond the last column adds nothing, because A is zero there.
    auto load = [&](double (&values)[TILES][4], const double* from, int begin) {
        #pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                const int column = begin + 8 * tile + 2 * t, most = n_columns - 1;
                if (PAIRED) {
                    const double2 both = *(const double2*)(from + at[half] + min(column, most - 1));
                    values[tile][2 * half] = both.x;
                    values[tile][2 * half + 1] = both.y;
                } else {
                    #pragma unroll
                    for (int i = 0; i < 2; i++)
                        values[tile][2 * half + i] = from[at[half] + (long)min(column + i, most) * column_stride];
                }
            }
    };

    double next[TILES][4], next_m[TILES][4];
    stage(0, first);
    load(next, Y, first);
    if (WEIGHTED) load(next_m, M, first);
    int buffer = 0;
    for (int begin = first; begin < last; begin += COLUMNS, buffer ^= 1) {
        if (begin + COLUMNS < last) {
            stage(buffer ^ 1, begin + COLUMNS);
            asm volatile("cp.async.wait_group 1;");
        } else {
            asm volatile("cp.async.wait_group 0;");
        }
        __syncthreads();
        #pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const int here = 8 * TILES * step;
            double e[TILES][4], m[TILES][4], q[4 * TILES], qe[4 * TILES];
            #pragma unroll
            for (int tile = 0; tile < TILES; tile++)
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    e[tile][i] = next[tile][i];
                    if (WEIGHTED) m[tile][i] = next_m[tile][i];
                }
            load(next, Y, begin + here + 8 * TILES);
            if (WEIGHTED) load(next_m, M, begin + here + 8 * TILES);
            #pragma unroll
            for (int s = 0; s < RANK / 16; s++)
                #pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    double b[4];
                    #pragma unroll
                    for (int j = 0; j < 4; j++) b[j] = by_rank[buffer][here + 8 * tile + g][16 * s + t + 4 * j];
                    multiply(e[tile], x[s], b);
                }
            #pragma unroll
            for (int tile = 0; tile < TILES; tile++)
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int half = i / 2, place = 2 * (2 * tile + i % 2) + half;
                    const int column = min(begin + here + 8 * tile + 2 * t + i % 2, n_columns - 1);
                    const double most = COLUMN_THRESHOLDS ? threshold[column] : limit[half];
                    double weight = weigh(e[tile][i], inverse[half], most, support, constant);
                    if (WEIGHTED) weight *= m[tile][i];
                    q[place] = weight;
                    qe[place] = weight > 0 ? weight * e[tile][i] : 0.0;
                }
            #pragma unroll
            for (int n = 0; n < RANK / 8; n++) {
                double b[2 * TILES], squares[2 * TILES];
                #pragma unroll
                for (int j = 0; j < 2 * TILES; j++) {
                    b[j] = by_column[buffer][here + 8 * (j / 2) + 2 * t + j % 2][8 * n + g];
                    squares[j] = b[j] * b[j];
                }
                multiply(d[n], qe, b);
                multiply(c[n], q, squares);
            }
        }
        __syncthreads();
    }
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = top + g + 8 * half;
        if (row < n_rows)
            #pragma unroll
            for (int n = 0; n < RANK / 8; n++) {
                const long out = ((long)blockIdx.y * n_rows + row) * RANK + 8 * n + 2 * t;
                *(double2*)(descent + out) = make_double2(d[n][2 * half], d[n][2 * half + 1]);
                *(double2*)(curvature + out) = make_double2(c[n][2 * half], c[n][2 * half + 1]);
            }
    }
}
"""


class Kind(NamedTuple):
    """What the kernel is compiled for."""

    rank: int
    """As padded."""
    form: int
    capped: bool
    weighted: bool
    column_thresholds: bool
    paired: bool
    """Whether two entries of a row can be read at a time."""


def kernel_for(device: torch.device, kind: Kind) -> Callable[..., None] | None:
    """Return the kernel, called with a grid and arguments, or None if the device or Torch cannot have it."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return None
    if kind.rank not in COLUMNS or kind.form not in FORMS:
        return None
    planned = plan()
    if planned is not None:
        planned.note(("doubles", kind), partial(_compiled, device, kind))
        return _nothing
    found = _compiled(device, kind)
    if found is None:
        warn_of("accumulate")
    return found


def _nothing(grid: tuple[int, int], arguments: list[Any]) -> None:
    """Stand for a kernel while what is to be compiled is planned."""


@cache
def _compiled(device: torch.device, kind: Kind) -> Callable[..., None] | None:
    kernel = kernel_of(device, source_of(kind), "accumulate")
    if kernel is None:
        return None

    def launch(grid: tuple[int, int], arguments: list[Any]) -> None:
        kernel(grid=(*grid, 1), block=(32 * WARPS, 1, 1), args=arguments)

    return launch


def source_of(kind: Kind) -> str:
    """Return the kernel as it is compiled."""
    macros = {"RANK": kind.rank, "WARPS": WARPS, "TILES": TILES, "FORM": kind.form}
    macros |= {"COLUMNS": COLUMNS[kind.rank], "BLOCKS": BLOCKS[kind.rank]}
    macros |= {"CAUCHY": CAUCHY, "HUBER": HUBER, "ROUNDED": ROUNDED, "CORRENTROPY": CORRENTROPY}
    flags = {"CAPPED": kind.capped, "WEIGHTED": kind.weighted, "COLUMN_THRESHOLDS": kind.column_thresholds}
    macros |= {name: int(flag) for name, flag in (flags | {"PAIRED": kind.paired}).items()}
    return "".join(f"#define {name} {value}\n" for name, value in macros.items()) + SOURCE
