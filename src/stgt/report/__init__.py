"""Pictures, tables and files."""

from stgt.report.figures import curves
from stgt.report.files import output_folder, write_atomically

__all__ = ["curves", "output_folder", "write_atomically"]
