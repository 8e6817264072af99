"""The mixture of Laplace and uniform residuals: what `robustnmf.model.mixture` and the kernels for it share."""

# A Laplace residual is beyond six widths once in four hundred times.
SUPPORT = 6.0
# The likelihood is that of a histogram: a bin is a thirtieth of the width, and any number of entries costs the same.
BINS = 200
# The expectation-maximisation ends when the share changes by less than this, or after so many steps.
TOLERANCE = 1e-4
MAX_STEPS = 200
# The first R is the median, where half or more of the magnitudes below it are clean; then R follows the width.
ROUNDS = 20
# It has settled when it changes by less than this part.
SETTLED = 0.05
# A Laplace component so many times wider than the window cannot be told from a uniform one.
WIDEST = 10.0
# A sum of weights such as 1/3 that reaches the half but for rounding, does.
ROUNDING = 1e-6
# A share is at least this, so that it can be divided by.
SMALLEST_SHARE = 0.01
