"""Pictures, tables and files."""

from stgt.report.figures import curves, draw
from stgt.report.files import output_folder
from stgt.report.outcome import write_outcome

__all__ = ["curves", "draw", "output_folder", "write_outcome"]
