"""
Firework days in air quality data
=================================

Fine particles in the air of Baltimore were analysed on 630 days, with an uncertainty for every value. A few days are
unlike all others, and the outlier mask finds them: among them the fireworks of July and of New Year.
"""

import matplotlib.pyplot as plt
import numpy as np

from robustnmf import RobustNMF
from robustnmf.datasets import load_baltimore

# %%
# Data
# ----
# Days on which no species was measured at all are left out. Single values that were filled in have large
# uncertainties, and so count for little.
air = load_baltimore()
measured = ~air.filled_in.all(axis=1)
X, uncertainties, dates = air.data[measured], air.uncertainties[measured], air.dates[measured]

# %%
# Fit
# ---
# With uncertainties, species are compared in units of their own noise: trace metals count as well as sulfate does.
model = RobustNMF(6, random_state=0)
codes = model.fit_transform(X, uncertainties=uncertainties)

potassium = list(air.feature_names).index("Potassium Ion")
excess = X[:, potassium] - model.inverse_transform(codes)[:, potassium]
cut = model.outliers_[:, potassium] & (excess > 0)


def from_holiday(day):
    """Return the days to the nearest 4 July or New Year."""
    years = day.astype("datetime64[Y]").astype(int) + np.array([[1969], [1970], [1971]])
    holidays = [np.datetime64(f"{year}-{rest}") for year in years.ravel() for rest in ("01-01", "07-04")]
    return min(abs((day - holiday).astype(int)) for holiday in holidays)


largest = np.flatnonzero(cut)[np.argsort(-excess[cut])][:6]
for sample in largest:
    print(f"{dates[sample]}  {excess[sample]:.2f} µg/m³ too much potassium, {from_holiday(dates[sample])} days off")
print(f"{model.outliers_.mean():.1%} of all entries are cut, {cut.sum()} of {len(dates)} days for their potassium")

# %%
# Result
# ------
figure, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
ax.plot(dates, X[:, potassium], color="C0", linewidth=0.8, label="measured")
ax.plot(dates, X[:, potassium] - excess, color="black", linewidth=0.8, label="explained by six sources")
ax.plot(dates[cut], X[cut, potassium], "o", color="C3", markersize=4, label="cut off")
for sample in largest:
    ax.annotate(str(dates[sample]), (dates[sample], X[sample, potassium]), xytext=(4, 2), textcoords="offset points")
ax.set(yscale="log", ylabel="potassium ion, µg/m³")
ax.legend(loc="upper left", ncols=3)
ax.set_ylim(top=20)

# %%
# The largest excesses of potassium that no source explains are within a few days of 4 July and New Year.
