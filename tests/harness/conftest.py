import pytest
from harness_fakes import Fake

from joblib_envs.harness import contenders


@pytest.fixture
def fakes(monkeypatch):
    """Register fake contenders by name for one test."""
    monkeypatch.setattr(contenders, "_REGISTERED", dict(contenders._REGISTERED))

    def register(*names, ours=False):
        for name in names:
            contenders.register_contender(Fake(name, ours))

    return register
