"""One process of a test world: hears the name of a scenario, runs it with the others, answers; until told to stop."""

import traceback
import warnings
from multiprocessing.connection import Client

import scenarios
import scenarios_use
import torch
import torch.distributed as dist

from stgt.torch import init


def main(address: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    rank = init(timeout=60.0)
    with Client(address) as connection:
        connection.send(rank)
        while True:
            try:
                name, arguments = connection.recv()
            except EOFError:
                break
            connection.send(answer(name, arguments))
    dist.destroy_process_group()


def answer(name: str, arguments: dict) -> dict:
    try:
        return {"result": getattr(scenarios if hasattr(scenarios, name) else scenarios_use, name)(**arguments)}
    except ValueError as error:
        return {"error": str(error)}
    except Exception:
        return {"crash": traceback.format_exc()}
