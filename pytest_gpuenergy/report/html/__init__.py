"""A report as one self-contained HTML page that works without a network."""

from pytest_gpuenergy.report.html.page import html_page, write_html
from pytest_gpuenergy.report.html.parts import check_html

__all__ = ["check_html", "html_page", "write_html"]
