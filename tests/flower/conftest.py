import logging
import os

import pytest

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns of what it will do one day


@pytest.fixture(autouse=True)
def quiet():
    """Flower logs much; its warnings stay, and caplog sees them."""
    logger = logging.getLogger("flwr")
    before = logger.level, logger.propagate
    logger.setLevel(logging.WARNING)
    logger.propagate = True
    yield
    logger.level, logger.propagate = before
