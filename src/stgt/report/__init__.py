"""Pictures: what to draw, and drawing it."""

from stgt.report.figures import curves, draw
from stgt.report.panels import Figure, Line, Panel, band, long_band

__all__ = ["Figure", "Line", "Panel", "band", "curves", "draw", "long_band"]
