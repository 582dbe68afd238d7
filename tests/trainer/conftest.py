"""The processes that the trainer's tests share."""

import pytest
import torch.distributed as dist
from nodes import Forker, World

from stgt.torch import init

NODES = 8


@pytest.fixture(scope="session")
def forker():
    made = Forker()
    yield made
    made.close()


@pytest.fixture(scope="session")
def world(forker):
    """Eight nodes."""
    made = World(forker, NODES)
    yield made
    made.close()


@pytest.fixture
def alone(monkeypatch):
    """A world of one: this process."""
    monkeypatch.delenv("RANK", raising=False)
    assert init() == 0
    yield
    dist.destroy_process_group()
