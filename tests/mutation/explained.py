"""Mutants that no test can tell from the original, and why."""

EXPLAINED: dict[str, str] = {}
