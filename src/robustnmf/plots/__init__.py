"""Pictures of a factorisation, with Matplotlib (extra ``plots``).

A function that draws one picture takes the axes to draw on, ``ax=``, and returns them; one that draws a grid takes and
returns a figure. Without, a new figure is made. Nothing is shown or saved, and no setting of Matplotlib is changed.
Samples and features are counted from 0, as in the arrays, and components from 1, as in reports and files.
"""

from robustnmf.plots.base import MOST_BARS as MOST_BARS
from robustnmf.plots.base import check_fitted as check_fitted
from robustnmf.plots.base import check_image_shape as check_image_shape
from robustnmf.plots.base import check_names as check_names
from robustnmf.plots.codes import codes, contributions
from robustnmf.plots.components import Kind as Kind
from robustnmf.plots.components import component_images, components, explained_share, profiles
from robustnmf.plots.fits import HISTORY_LABELS as HISTORY_LABELS
from robustnmf.plots.fits import history, rank_curve
from robustnmf.plots.losses import loss_curves, weight_curves
from robustnmf.plots.outliers import before_after, outlier_image, outlier_map, weight_maps
from robustnmf.plots.residuals import noise_width, observed_vs_explained, residual_histogram, residuals
from robustnmf.plots.shares import explained_shares
from robustnmf.plots.stability import consensus_map, intervals

__all__ = [
    "before_after",
    "codes",
    "component_images",
    "components",
    "consensus_map",
    "contributions",
    "explained_share",
    "explained_shares",
    "history",
    "intervals",
    "loss_curves",
    "noise_width",
    "observed_vs_explained",
    "outlier_image",
    "outlier_map",
    "profiles",
    "rank_curve",
    "residual_histogram",
    "residuals",
    "weight_curves",
    "weight_maps",
]
