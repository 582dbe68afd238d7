"""Server–client methods on Flower: a strategy for its ServerApp, and a ClientApp made from your train step."""

from stgt.flower.client import client_app
from stgt.flower.in_process import run_in_process
from stgt.flower.result import Absence, FederatedResult, RoundOutcome
from stgt.flower.strategy import Strategy
from stgt.flower.training import Task

__all__ = ["Absence", "FederatedResult", "RoundOutcome", "Strategy", "Task", "client_app", "run_in_process"]
