"""Scripts written for the two earlier loaders run with another import, and come to the same."""

import importlib.util
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_digits_are_learned(capsys):
    accuracy = example("from_lighter").main(["--device", "cpu"])
    assert accuracy > 0.9
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_every_way_of_giving_matrices_comes_to_the_same(capsys):
    module = example("from_bolts")
    sums = module.main(["--device", "cpu", "--size", "16"])
    pairs = module.RandomMatrices(24, 16)
    expected = sum(
        torch.stack([pair["left"] @ pair["right"] for pair in map(pairs.__getitem__, four)]).max()
        for four in torch.arange(24).reshape(6, 4).tolist()
    )
    assert sums == pytest.approx([float(expected)] * 6, rel=1e-4)
    assert len(capsys.readouterr().out.splitlines()) == 6
