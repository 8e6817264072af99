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
X, uncertainties = air.data[measured], air.uncertainties[measured]
dates = air.dates[measured]

# %%
# Fit
# ---
# With uncertainties, species are compared in units of their own noise: trace metals count as well as sulfate does.
model = RobustNMF(5, random_state=0)
codes = model.fit_transform(X, uncertainties=uncertainties)

potassium = list(air.feature_names).index("Potassium Ion")
excess = X[:, potassium] - model.inverse_transform(codes)[:, potassium]
cut = model.outliers_[:, potassium] & (excess > 0)

largest = np.flatnonzero(cut)[np.argsort(-excess[cut])][:6]
for sample in largest:
    print(f"{dates[sample]}: {excess[sample]:.2f} µg/m³ more potassium than explained")
print(f"{model.outliers_.mean():.1%} of all entries are cut")
print(f"potassium is cut off as too high on {cut.sum()} of {len(dates)} days")

# %%
# Result
# ------
figure, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
measured = X[:, potassium]
ax.plot(dates, measured, color="C0", linewidth=0.8, label="measured")
ax.plot(dates, measured - excess, color="black", linewidth=0.8, label="explained by five sources")
ax.plot(dates[cut], measured[cut], "o", color="C3", markersize=4, label="cut off")
for sample in largest:
    ax.text(dates[sample], 1.1 * measured[sample], f" {dates[sample]}")
ax.set(yscale="log", ylabel="potassium ion, µg/m³")
ax.legend(loc="upper left", ncols=3)
ax.set_ylim(top=20)

# %%
# The six largest excesses of potassium that no source explains are within three days of 4 July or New Year.
