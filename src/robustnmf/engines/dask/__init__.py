"""The engine for clusters of Dask."""
