"""A fitted model on one HTML page (`write`), and in a notebook (`summary_html`)."""

from robustnmf.report.page import write
from robustnmf.report.summary import summary_html

__all__ = ["summary_html", "write"]
