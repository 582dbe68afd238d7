"""Runs as data: the demo, and what comes after it."""

from stgt.experiments.demo import demo, summary

__all__ = ["demo", "summary"]
