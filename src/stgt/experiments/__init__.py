"""Comparisons that are ready to run."""

from stgt.experiments.ridge_demo import demo, summary

__all__ = ["demo", "summary"]
