"""The processes that the trainer's tests share."""

import pytest
from nodes import Forker, World

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
