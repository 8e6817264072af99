"""
Walk-through: air quality, from Excel to the figures of a paper
===============================================================

A workbook with one row for each day goes in; sources, the days on which something else happened, and figures come out.
The data is fine particles in the air of Baltimore, which is part of the package. It is written to a workbook first.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import robustnmf
from robustnmf import plots
from robustnmf.datasets import load_baltimore
from robustnmf.formats import Axis, LabelledMatrix, read_table, write_table

# %%
# The workbooks
# -------------
# Days in rows, species in columns, and a second workbook with the uncertainty of every value.
folder = tempfile.TemporaryDirectory()
air, here = load_baltimore(), Path(folder.name)
known = ~air.filled_in.all(axis=1)
axes = Axis([str(day) for day in air.dates[known]], "date"), Axis([str(name) for name in air.feature_names])
write_table(here / "air.xlsx", LabelledMatrix(air.data[known], *axes))
write_table(here / "uncertainties.xlsx", LabelledMatrix(air.uncertainties[known], *axes))

# %%
# One command
# -----------
# It writes the model, tables of the results as workbooks, and a report to read in the browser.
command = "fit air.xlsx --uncertainties uncertainties.xlsx -k 5 --quiet"
program = [sys.executable, "-m", "robustnmf.cli"]  # in a shell: robustnmf
done = subprocess.run([*program, *command.split()], cwd=here, capture_output=True, text=True, check=True)
print(f"$ robustnmf {command}\n{done.stdout}")
print(*sorted(path.name for path in (here / "air-robustnmf").iterdir()), sep="\n")

# %%
# Profiles
# --------
# What each source gives to an average day (bars), and which part of each species comes from it (dots).
model = robustnmf.load(here / "air-robustnmf" / "model.robustnmf")
table, uncertainties = read_table(here / "air.xlsx"), read_table(here / "uncertainties.xlsx")
codes = np.asarray(model.transform(table, uncertainties=uncertainties))
about = {"codes": codes, "feature_names": table.feature_names}
figure = plt.figure(figsize=(8, 7), layout="constrained")
plots.profiles(model, **about, units="µg/m³", figure=figure)
figure.savefig(here / "profiles.pdf")  # as journals want it

# %%
# Sources over time
# -----------------
figure, ax = plt.subplots(figsize=(8, 3), layout="constrained")
plots.contributions(model, **about, index=table.sample_names, units="µg/m³", ax=ax)

# %%
# What no source explains
# -----------------------
# Potassium is cut off as too high on the days of fireworks. They are no part of the profiles above.
species = table.feature_names.index("Potassium Ion")
excess = table.values[:, species] - (codes @ model.components_)[:, species]
mask = model.outlier_mask(table, uncertainties=uncertainties).values[:, species] & (excess > 0)
for day in np.flatnonzero(mask)[np.argsort(-excess[mask])][:5]:
    print(f"{table.sample_names[day]}: {excess[day]:.2f} µg/m³ of potassium that no source explains")
figure, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
plots.explained_share(model, table, **about, uncertainties=uncertainties, ax=ax)
folder.cleanup()
