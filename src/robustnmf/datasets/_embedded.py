"""The data sets that come with the package."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import as_file, files
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from robustnmf.datasets._archive import Axes, count_from_zero, image_fields, read_arrays

ORL_DESCRIPTION = """\
ORL faces (the AT&T "Database of Faces"), 32 x 32
=================================================

400 grey images of 40 people, 10 of each, taken between April 1992 and April 1994 at the
Olivetti Research Laboratory in Cambridge, later AT&T Laboratories Cambridge; here the aligned
tight crops at 32 x 32 pixels.

Credit: AT&T Laboratories Cambridge, who ask to be credited wherever the images are used. No
formal licence is known.

Reference: F. Samaria and A. Harter, "Parameterisation of a stochastic model for human face
identification", 2nd IEEE Workshop on Applications of Computer Vision, 1994.
"""

BALTIMORE_DESCRIPTION = """\
Fine particles (PM2.5) at Baltimore, by chemical species
========================================================

630 samples of airborne particles, each gathered over 24 hours between 2000-12-14 and 2007-07-05
and analysed for its chemical species, with an uncertainty for every value; micrograms per cubic
metre. Factorised to find the sources of the particles, each with its own mix of species.

PM2.5 is the total mass and OM is 1.4 times Organic Carbon: neither is a species of its own.

Real outliers: potassium at New Year 2005 and about every 4th of July (fireworks), chlorine on
2002-02-28, chromium on 2007-05-18.

Filled-in values: a missing value was replaced by one typical value of its species, near the median
for most, and given 4 times that as its uncertainty; 39 samples hold no measured species at all.

Credit: United States Environmental Protection Agency, example data of EPA PMF 5.0. Data of the
US government, in the public domain as far as known; taken from the repository quanted/esat,
which is under the Apache License 2.0.

Reference: EPA Positive Matrix Factorization (PMF) 5.0 Fundamentals and User Guide,
EPA/600/R-14/108, 2014.
"""


def load_orl() -> Bunch:
    """Return the ORL faces, 400 images of 40 people.

    Returns
    -------
    Bunch
        A dictionary whose keys are attributes too:

        data : ndarray of shape (400, 1024), float64
            One image per row, its pixels line by line; values from 2 to 235.
        images : ndarray of shape (400, 32, 32), uint8
            The same, upright.
        target : ndarray of shape (400,), int
            The person, from 0 to 39.
        image_shape : tuple of int
            ``(32, 32)``: a row of `data` or of ``components_``, reshaped so, is a picture.
        DESCR : str
            Where the data comes from, and its terms.

    Notes
    -----
    AT&T Laboratories Cambridge ask to be credited wherever the images are used.

    References
    ----------
    F. Samaria and A. Harter, "Parameterisation of a stochastic model for human face identification",
    2nd IEEE Workshop on Applications of Computer Vision, 1994.

    Examples
    --------
    >>> from robustnmf.datasets import load_orl
    >>> faces = load_orl()
    >>> faces.data.shape, faces.image_shape
    ((400, 1024), (32, 32))
    >>> float(faces.data.min()), float(faces.data.max())
    (2.0, 235.0)
    """
    arrays = _read_embedded("orl_32x32.npz", {"images": ("n", "rows", "columns"), "labels": ("n",)})
    return Bunch(**image_fields(arrays["images"]), target=count_from_zero(arrays["labels"]), DESCR=ORL_DESCRIPTION)


def load_baltimore(*, drop_totals: bool = True) -> Bunch:
    """Return chemical species of fine particles at Baltimore, 630 samples.

    The values come with uncertainties, a few dated outliers of known cause, and some that were
    filled in: a real case for weights and for robust losses.

    Parameters
    ----------
    drop_totals : bool
        Whether to leave out PM2.5, the total mass, and OM, which is 1.4 times Organic Carbon. Neither
        is a species of its own; kept, the first outweighs and the second repeats the others.

    Returns
    -------
    Bunch
        A dictionary whose keys are attributes too; n_features is 24, or 26 with the totals:

        data : ndarray of shape (630, n_features), float64
            Concentrations in micrograms per cubic metre.
        uncertainties : ndarray of shape (630, n_features), float64
            The uncertainty of each concentration, in the same unit.
        filled_in : ndarray of shape (630, n_features), bool
            True where the value is no measurement but one typical value of its species, marked in
            the source by an uncertainty of 4 times the value. Mask these or weigh them down.
        dates : ndarray of shape (630,), datetime64[D]
            The day of each sample.
        feature_names : ndarray of shape (n_features,), str
            The species.
        DESCR : str
            Where the data comes from, and its terms.

    References
    ----------
    EPA Positive Matrix Factorization (PMF) 5.0 Fundamentals and User Guide, EPA/600/R-14/108, 2014.

    Examples
    --------
    >>> from robustnmf.datasets import load_baltimore
    >>> air = load_baltimore()
    >>> air.data.shape
    (630, 24)
    >>> int(air.filled_in.all(axis=1).sum())
    39
    >>> potassium = list(air.feature_names).index("Potassium Ion")
    >>> print(air.dates[air.data[:, potassium].argmax()])  # fireworks of New Year's Eve
    2005-01-01
    """
    table: Axes = ("n", "species")
    required = {"concentrations": table, "uncertainties": table, "species": ("species",), "dates": ("n",)}
    arrays = _read_embedded("pm25_baltimore.npz", required)
    species = arrays["species"]
    kept = ~np.isin(species, ["PM2.5", "OM"]) if drop_totals else np.ones(species.shape, dtype=bool)
    data = arrays["concentrations"][:, kept].astype(np.float64)
    uncertainties = arrays["uncertainties"][:, kept].astype(np.float64)
    return Bunch(
        data=data,
        uncertainties=uncertainties,
        # 1e-4: the archive is float32 (1e-7); the same cells are found for any tolerance from 1e-6 to 1e-3.
        filled_in=np.isclose(uncertainties, 4 * data, rtol=1e-4, atol=0),
        dates=arrays["dates"].astype("datetime64[D]"),
        feature_names=species[kept],
        DESCR=BALTIMORE_DESCRIPTION,
    )


def _read_embedded(name: str, required: Mapping[str, Axes]) -> dict[str, NDArray[Any]]:
    """Return arrays of an archive that lies beside this module, even when installed as a zip file."""
    with as_file(files(__package__) / name) as path:
        return read_arrays(path, required)
