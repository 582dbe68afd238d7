import pytest
from shared_noise import PROBLEMS, SERVERS, TAUS, TOPOLOGIES


@pytest.fixture(params=PROBLEMS)
def problem(request):
    return PROBLEMS[request.param]


@pytest.fixture(params=TOPOLOGIES)
def topology(request):
    return TOPOLOGIES[request.param]


@pytest.fixture(params=TAUS)
def tau(request):
    return request.param


@pytest.fixture(params=SERVERS, ids=str)
def server(request):
    return request.param
