"""The kernels of the CPU, as the table that an engine has."""

from robustnmf.kernels.interface import Kernels, StoredKernels
from robustnmf.kernels.numba import functions, one_block, stored, sweep

KERNELS = Kernels(
    rule_of=sweep.rule_of,
    half_step=sweep.half_step,
    sweep_block=sweep.sweep_block,
    sweep=one_block.sweep,
    sweep_filled=sweep.sweep_filled,
    propose=sweep.propose,
    hals=functions.hals,
    nesterov=functions.nesterov,
    weighted_medians=functions.weighted_medians,
    cauchy_sum=functions.cauchy_sum,
    row_medians=functions.row_medians,
    order_statistics=functions.order_statistics,
    predict=functions.predict,
    least_squares=functions.least_squares,
    squares=sweep.squares,
    without_wrong=functions.without_wrong,
    stored=StoredKernels(
        predict=stored.predict,
        predict_at=functions.predict,
        zeros_beyond=stored.zeros_beyond,
        sweep=stored.sweep,
        least_squares=stored.least_squares,
        squares=stored.squares,
    ),
)
