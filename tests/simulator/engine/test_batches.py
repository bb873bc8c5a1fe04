"""The contract's test of every kind of batch again, on the simulated device, races included."""

import importlib.util
import sys
from pathlib import Path

import pytest

_PATH = Path(__file__).parents[2] / "contract" / "test_batch_fidelity.py"
_spec = importlib.util.spec_from_file_location("batch_fidelity_on_the_simulator", _PATH)
_contract = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _contract  # where a dataclass looks for its module
_spec.loader.exec_module(_contract)
for _name, _test in vars(_contract).items():
    if _name.startswith("test_"):
        globals()[_name] = _test


@pytest.fixture
def device(simulator):
    return "sim"
