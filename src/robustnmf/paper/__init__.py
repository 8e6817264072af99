"""The paper's experiments: what each table and figure is made of, run in parallel and kept in one tidy table.

A file here is an experiment or two; `runner` runs their tasks, `results` keeps them, `report` shows them beside the
paper's numbers. The choices that the paper leaves open are in ``protocol.toml``.
"""
