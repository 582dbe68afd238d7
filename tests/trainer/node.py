"""One process of a test world: hears the name of a scenario, runs it with the others, answers; until it is killed."""

import traceback
import warnings
from multiprocessing.connection import Client

import scenarios
import scenarios_files
import scenarios_guarded
import scenarios_numbers
import scenarios_use
import torch

from stgt.torch import init

PLAYS = (scenarios, scenarios_use, scenarios_files, scenarios_guarded, scenarios_numbers)


def main(address: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    rank = init(timeout=60.0)
    with Client(address) as connection:
        connection.send(rank)
        while True:
            connection.send(answer(*connection.recv()))


def answer(name: str, arguments: dict) -> dict:
    try:
        return {"result": next(getattr(one, name) for one in PLAYS if hasattr(one, name))(**arguments)}
    except ValueError as error:
        return {"error": str(error)}
    except Exception:
        return {"crash": traceback.format_exc()}
