"""Figures as data, code that draws them, and pages that show whole studies."""

from stgt.study.report.figures import Figure, Line, Panel, band, curves, draw, long_band
from stgt.study.report.page import write_page
from stgt.study.report.study import Network, Study

__all__ = ["Figure", "Line", "Network", "Panel", "Study", "band", "curves", "draw", "long_band", "write_page"]
