"""How data comes in: checks, units, uncertainties, blocks that are ready for a fit, results of data not in memory."""
