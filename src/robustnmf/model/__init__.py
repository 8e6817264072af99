"""WHAT is minimised: losses, scales of clean residuals, outlier rules, penalties, and the weights they give."""
