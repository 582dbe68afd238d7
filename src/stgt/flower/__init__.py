"""Server–worker methods on Flower: a strategy for its ServerApp and a ClientApp made of a user's train step."""

from stgt.flower.client import Task, client_app
from stgt.flower.in_process import run_in_process
from stgt.flower.strategy import Strategy

__all__ = ["Strategy", "Task", "client_app", "run_in_process"]
