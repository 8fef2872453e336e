import os

import pytest
from batches import BACKENDS, IN_PROCESS, PROCESSES, TRAVELLING

from joblib_envs.envs import register


def pytest_configure():
    os.environ["JOBLIB_ENVS_CACHE"] = ""  # what is measured while tests run is nobody's to keep
    register()


@pytest.fixture(params=BACKENDS, ids=str)
def backend(request):
    """Every pair of backend and execution."""
    return request.param


@pytest.fixture(params=IN_PROCESS, ids=str)
def in_process_backend(request):
    """The pairs whose environments live in the caller's process."""
    return request.param


@pytest.fixture(params=PROCESSES, ids=str)
def process_backend(request):
    """The pairs whose environments live in other processes, or travel to them."""
    return request.param


@pytest.fixture(params=TRAVELLING, ids=str)
def travelling_backend(request):
    """The pairs whose environments travel to another process and back at each call."""
    return request.param
