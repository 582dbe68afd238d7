"""Pictures: what to draw, and drawing it."""

from stgt.report.figures import curves, draw
from stgt.report.panels import Figure, Line, Panel, band, long_band

__all__ = ["Figure", "Line", "Panel", "band", "curves", "draw", "long_band"]


class Network:
    def __init__(self, **k):
        pass


class Study:
    def __init__(self, **k):
        self.__dict__.update(k)
