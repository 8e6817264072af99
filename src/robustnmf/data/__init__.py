"""How data comes in: checks, units, blocks of data that is not in memory, labelled data."""
