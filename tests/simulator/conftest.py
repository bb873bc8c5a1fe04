"""Runs on the simulated accelerator, which becomes THE accelerator of its process.

Hence a pytest call of its own: `pytest tests/simulator`. In a call that collects more than this
folder its tests are left out.
"""

import sys
from pathlib import Path

import pytest
import torch

from sidestream import simulator

_HERE = Path(__file__).parent
_PLUGIN = "sidestream.simulator.pytest_plugin"


def _runs_alone(config):
    root = config.invocation_params.dir
    paths = [(root / arg.partition("::")[0]).resolve() for arg in config.args]
    return all(path.is_relative_to(_HERE) for path in paths)


def pytest_configure(config):
    if not _runs_alone(config):
        return
    if not config.pluginmanager.has_plugin(_PLUGIN):
        config.pluginmanager.import_plugin(_PLUGIN)
    sys.path.insert(0, str(_HERE))  # soak.py and releases.py are scripts, too
    simulator.enable()  # before test modules are imported: they may name the device


def pytest_ignore_collect(config):
    return None if _runs_alone(config) else True


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)  # stream threads would start a team of OpenMP threads each


@pytest.fixture(name="simulator")
def _simulator(simulated_accelerator):
    return simulated_accelerator
