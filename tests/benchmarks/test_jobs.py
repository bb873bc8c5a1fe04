"""The two jobs that such loaders were first shown with: their data, and that both ways agree."""

import gzip

import matrices
import mnist
import pytest
import torch


def idx(values, *shape):
    return (
        b"\0\0\x08" + bytes([len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + values
    )


@pytest.fixture
def folder(tmp_path):
    """Three images in the files of the validation part, one of them packed."""
    pixels, labels, _ = mnist.FILES["validation"]
    (tmp_path / pixels).write_bytes(idx(bytes(range(12)), 3, 2, 2))
    (tmp_path / f"{labels}.gz").write_bytes(gzip.compress(idx(bytes([7, 8, 9]), 3)))
    return tmp_path


def test_files_are_read_packed_or_not(folder):
    x, y = mnist.images(folder, "validation").tensors
    assert x.shape == (3, 1, 2, 2)
    assert torch.equal(x.flatten(), torch.arange(12.0) / 255)
    assert y.tolist() == [7, 8, 9]


def test_another_file_is_refused(tmp_path):
    pixels, _, _ = mnist.FILES["validation"]
    (tmp_path / pixels).write_bytes(b"something else")
    with pytest.raises(ValueError, match="is no file of bytes in MNIST's format"):
        mnist.images(tmp_path, "validation")


def test_without_files_images_are_made_in_the_same_shape():
    x, y = mnist.images(None, "validation").tensors
    assert x.shape == (10_000, 1, 28, 28)
    assert (x.min(), x.max()) == (0, 1)
    assert set(y.tolist()) == set(range(10))


@pytest.mark.timeout(60)
def test_both_ways_come_to_the_same_losses():
    part = torch.utils.data.TensorDataset(
        *(one[:512] for one in mnist.images(None, "validation").tensors)
    )
    found = [
        mnist.epoch("cpu", way, {"training": part, "validation": part}, 128)
        for way in ("plain", "loader")
    ]
    losses = [[one["training_loss"], one["validation_loss"]] for one in found]
    assert losses[0] == losses[1]
    assert losses[0][0] > 0


@pytest.mark.timeout(60)
def test_both_ways_multiply_the_same_numbers():
    job = matrices.Job("cpu", 1 << 20, 4)
    stages = job.stages()
    (plain, first), (loader, second) = job.plain(), job.ours()
    assert first == second
    assert len(first) == 4
    assert len(set(first)) == 4, "every batch has numbers of its own"
    assert min(plain, loader, *stages.values()) > 0
    assert list(stages) == ["read_s", "compute_s"]
