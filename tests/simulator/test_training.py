"""Models train on the device as on the CPU, with every step asynchronous."""

import copy

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.simulated_accelerator

F = nn.functional
STEPS = 6


def data(seed=1):
    """The same batch over and over, so that losses must fall."""
    generator = torch.Generator().manual_seed(seed)
    batch = (
        torch.randn(32, 16, generator=generator),
        torch.randint(0, 4, (32,), generator=generator),
    )
    return [batch] * STEPS


class Recurrent(nn.Module):
    def __init__(self, cell, **options):
        super().__init__()
        self.cell, self.head = cell(4, 16, batch_first=True, **options), nn.LazyLinear(4)

    def forward(self, x):
        return self.head(self.cell(x.view(32, 4, 4))[0][:, -1])


class Tokens(nn.Module):
    """A Transformer encoder over small integers."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.embed, self.encode, self.head = nn.Embedding(10, 32), layer, nn.Linear(32, 4)

    def forward(self, x):
        tokens = (x.abs() * 3).long().clamp(0, 9)
        return self.head(self.encode(self.embed(tokens)).mean(1))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        )

    def forward(self, x):
        return self.body(x.view(32, 1, 4, 4).repeat(1, 1, 4, 4))


def perceptron():
    return nn.Sequential(
        nn.Linear(16, 64),
        nn.ReLU(),
        nn.LayerNorm(64),
        nn.Linear(64, 64),
        nn.GELU(),
        nn.Linear(64, 4),
    )


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


CASES = {
    "CNN": (Images, sgd),
    "LSTM": (lambda: Recurrent(nn.LSTM), sgd),
    "LSTM, two layers, both directions": (
        lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True),
        sgd,
    ),
    "LSTM without bias": (lambda: Recurrent(nn.LSTM, bias=False), sgd),
    "GRU": (lambda: Recurrent(nn.GRU), sgd),
    "GRU without bias": (lambda: Recurrent(nn.GRU, bias=False), sgd),
    "RNN": (lambda: Recurrent(nn.RNN), sgd),
    "Transformer": (Tokens, sgd),
    "MLP, SGD": (perceptron, sgd),
    "MLP, SGD foreach": (perceptron, lambda p: torch.optim.SGD(p, 0.05, foreach=True)),
    "MLP, Adam": (perceptron, lambda p: torch.optim.Adam(p, 1e-3)),
    "MLP, AdamW foreach": (perceptron, lambda p: torch.optim.AdamW(p, 1e-3, foreach=True)),
    "MLP, Adam fused": (perceptron, lambda p: torch.optim.Adam(p, 1e-3, fused=True)),
}


def train(model, make_optimizer, device):
    optimizer, losses = make_optimizer(model.parameters()), []
    for x, y in data():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_the_cpu_and_no_operator_waits(simulator, name):
    make_model, make_optimizer = CASES[name]
    torch.manual_seed(0)
    model = make_model()
    model(data()[0][0])  # sizes lazy layers
    there = copy.deepcopy(model).to("sim")
    expected = train(model, make_optimizer, "cpu")
    simulator.operation_counts(clear=True)
    losses = train(there, make_optimizer, "sim")
    counts = simulator.operation_counts()
    assert (losses - expected).abs().max().item() <= 1e-6
    assert losses[-1] < losses[0]
    assert [name for name in counts if name.startswith("synchronous")] == []
    assert sum(counts.values()) > 100
    for ours, theirs in zip(there.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["MLP, SGD", "LSTM", "GRU", "Transformer", "CNN"])
def test_mixed_precision_trains(simulator, name, dtype):
    torch.manual_seed(0)
    model = CASES[name][0]()
    model(data()[0][0])
    model = model.to("sim")
    optimizer = sgd(model.parameters())
    losses = []
    for _ in range(5):
        for x, y in data():
            optimizer.zero_grad()
            with torch.autocast("sim", dtype=dtype):
                out = model(x.to("sim"))
                loss = F.cross_entropy(out, y.to("sim"))
            assert out.dtype == dtype
            assert loss.dtype == torch.float32
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    assert losses[-1].item() < losses[0].item()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_layer_norm_runs_in_full_precision_under_autocast():
    norm, x = nn.LayerNorm(8).to("sim"), torch.randn(4, 8, device="sim", requires_grad=True)
    with torch.autocast("sim", dtype=torch.bfloat16):
        y = norm(x.bfloat16())
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad is not None
    assert norm.weight.grad.dtype == torch.float32


def test_grad_scaler_and_clipping():
    model = perceptron().to("sim")
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler("sim")
    x, y = data()[0]
    loss = F.cross_entropy(model(x.to("sim")), y.to("sim"))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    assert nn.utils.clip_grad_norm_(model.parameters(), 1e-3).item() > 1e-3
    before = model[0].weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before.cpu(), model[0].weight.detach().cpu())


def test_saved_activations_may_live_on_the_host(simulator):
    model, (x, y) = perceptron().to("sim"), data()[0]

    def gradients():
        model.zero_grad()
        F.cross_entropy(model(x.to("sim")), y.to("sim")).backward()
        return [p.grad.cpu() for p in model.parameters()]

    expected = gradients()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        offloaded = gradients()
    for a, b in zip(expected, offloaded, strict=True):
        torch.testing.assert_close(a, b)
    assert simulator.races() == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant):
    model, x = perceptron().to("sim"), data()[0][0].to("sim").requires_grad_()
    out = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant)
    out.sum().backward()
    assert x.grad.abs().sum().item() > 0


def test_backward_runs_on_the_stream_of_forward(simulator):
    seen, side = [], torch.Stream("sim")
    w = torch.ones(1000, device="sim", requires_grad=True)

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append(torch.accelerator.current_stream())
            return grad * 2

    side.wait_stream(torch.accelerator.current_stream())
    with side:
        y = Double.apply(w).sum()
    torch.accelerator.current_stream().wait_stream(side)
    y.backward()
    assert w.grad.cpu()[0].item() == 2
    assert seen == [side]
    assert simulator.races() == []


def test_modules_keep_their_parameters_when_they_move():
    model = perceptron()
    parameters = list(model.parameters())
    model.to("sim", non_blocking=True)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    perceptron().load_state_dict(model.state_dict())
    model.cpu()
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_parameter_data_may_be_swapped_between_host_and_device():
    p = nn.Parameter(torch.ones(4).pin_memory())
    host = p.data
    p.data = host.to("sim", non_blocking=True)
    (p * 2).sum().backward()
    assert p.grad.device.type == "sim"
    p.grad = None
    p.data = host
    assert p.device.type == "cpu"
