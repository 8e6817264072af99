"""Data to factorise: embedded sets, loaders for sets kept elsewhere, and seeded corruptions."""

from robustnmf.datasets import corruptions
from robustnmf.datasets._embedded import load_baltimore, load_orl
from robustnmf.datasets._external import load_ar, load_caltech101, load_samson, load_video_hall

__all__ = [
    "corruptions",
    "load_ar",
    "load_baltimore",
    "load_caltech101",
    "load_orl",
    "load_samson",
    "load_video_hall",
]
