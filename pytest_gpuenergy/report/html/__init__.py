"""A report as one self-contained HTML page that works without a network."""

from pytest_gpuenergy.report.html.page import html_page, write_html

__all__ = ["html_page", "write_html"]
