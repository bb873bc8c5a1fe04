"""Runs on the simulated accelerator, which becomes THE accelerator of its process.

Hence a pytest call of its own: `pytest tests/simulator`. In a call that collects more than this
folder its tests are left out.
"""

from pathlib import Path

import pytest
import torch

_HERE = Path(__file__).parent
_PLUGIN = "sidestream.simulator.pytest_plugin"


def _runs_alone(config):
    root = config.invocation_params.dir
    paths = [(root / arg.partition("::")[0]).resolve() for arg in config.args]
    return all(path.is_relative_to(_HERE) for path in paths)


def pytest_configure(config):
    if _runs_alone(config) and not config.pluginmanager.has_plugin(_PLUGIN):
        config.pluginmanager.import_plugin(_PLUGIN)


def pytest_ignore_collect(config):
    return None if _runs_alone(config) else True


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)  # stream threads would start a team of OpenMP threads each


@pytest.fixture
def simulator(simulated_accelerator):
    return simulated_accelerator
