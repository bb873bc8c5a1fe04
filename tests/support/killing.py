"""A training run killed with SIGKILL and started again gives the unbroken run's losses.

A script forks one life of the run after the other. Each trains, writes a checkpoint after every
step, and is killed at a random moment, between any two instructions; the last one may end. The
sequence of samples and losses must be that of a life that nobody killed.
"""

from __future__ import annotations

import os

from support.process import run

KILLS = int(os.environ.get("SIDESTREAM_KILLS", "3"))
"""How often each kind of source is killed; SIDESTREAM_KILLS=20 for a long look."""

TRAINING = """
import itertools, pathlib, random, select, tempfile, warnings
import torch.distributed as distributed
from torch.utils.data import DistributedSampler
from support.resuming import *

warnings.simplefilter("ignore")
torch.set_num_threads(1)
EPOCHS, DEVICE = 3, {device!r}

def train(make, path, rank, world, tell):
    torch.set_num_threads(1)  # the pool of threads did not survive the fork
    if DEVICE == "sim":
        from sidestream import simulator
        simulator.enable()
    if world > 1:
        meet = f"file://{{path}}.{{LIFE}}"
        distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=world)
    seed(0)
    source = make(rank)
    loader = AsynchronousLoader(source, DEVICE)
    width = 2 if isinstance(getattr(source, "dataset", None), Augmented) else 1
    model = torch.nn.Linear(width, 1).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    first, lines = 0, []
    if path.exists():
        kept = torch.load(path, weights_only=True, map_location="cpu")
        first, lines = kept["epoch"], kept["lines"]
        loader.load_state_dict(kept["loaders"][rank])
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        restore_program(kept["programs"][rank])
    for epoch in range(first, EPOCHS):
        set_epoch(loader, epoch)
        for batch in loader:
            x = batch.reshape(len(batch), -1).float()
            keep = (torch.rand(1, 1) < 0.8).to(DEVICE)  # the loop draws, too
            loss = (model(x * keep) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if world > 1:
                for parameter in model.parameters():
                    distributed.all_reduce(parameter.grad)
            optimizer.step()
            line, mine = [epoch, x[:, 0].tolist(), loss.item()], (loader.state_dict(), program())
            every = [(line, mine)] * world
            if world > 1:
                distributed.all_gather_object(every, (line, mine))
            lines.append([line for line, _ in every])
            if rank == 0:
                loaders, programs = zip(*(mine for _, mine in every))
                kept = dict(epoch=epoch, lines=lines, loaders=loaders, programs=programs,
                    model=model.state_dict(), optimizer=optimizer.state_dict())
                torch.save(kept, path.with_suffix(".new"))
                os.replace(path.with_suffix(".new"), path)
                os.write(tell, b".")
    end(source)

def warm_up():
    "What is imported late is imported here, once, and not in every life."
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], 0.01, momentum=0.9).step()
    through_a_file(program())

warm_up()
LIFE = 0

def life(make, path, world, killed_after=None):
    "One life; whether it came to its end."
    global LIFE
    LIFE += 1
    ears, tell = os.pipe()
    ranks = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            code = 1
            try:
                train(make, path, rank, world, tell)
                code = 0
            except BaseException:
                import traceback
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        ranks.append(pid)
    os.close(tell)
    steps = 0
    while killed_after is None or steps < killed_after[0]:
        if not os.read(ears, 1):
            break
        steps += 1
    if killed_after is not None:
        select.select([ears], [], [], killed_after[1])  # any moment from here to the next step
        for pid in ranks:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:  # not yet its own group, or over
                os.kill(pid, signal.SIGKILL)
    os.close(ears)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    assert set(codes) <= {{0, -signal.SIGKILL}}, codes
    return set(codes) == {{0}}

def lines(path):
    return torch.load(path, weights_only=True, map_location="cpu")["lines"]

def compare(name, make, world=1):
    moments = random.Random(name)
    folder = pathlib.Path(tempfile.mkdtemp())
    assert life(make, folder / "unbroken", world)
    wanted = lines(folder / "unbroken")
    assert len(wanted) == EPOCHS * LENGTH
    kills, number = 0, 0
    while kills < {kills}:
        path, number, over = folder / f"run {{number}}", number + 1, False
        while not over and kills < {kills}:
            moment = moments.choice([0, 1, 1, 2, 5]), moments.random() / 50
            over = life(make, path, world, moment)
            kills += not over
        assert over or life(make, path, world)
        assert lines(path) == wanted, name
    say(name.replace(" ", "-"))
"""
OWN = {
    "DataLoader": "loading(shuffle=True)",
    "a generator": "loading(shuffle=True, generator=generator())",
    "workers": "loading(shuffle=True, num_workers=2, persistent_workers=True)",
    "augmented": 'loading(Augmented("torch"), shuffle=True, num_workers=2)',
    "iterable": "Batches()",
    "list": "list(Batches())",
    "stream": "loading(Resumable())",
    "nested": 'AsynchronousLoader(loading(Resumable()), "cpu")',
}


def show(sources: dict[str, str], start: str = "", world: int = 1, device: str = "cpu") -> None:
    calls = [f"compare({name!r}, lambda rank: {text}, {world})" for name, text in sources.items()]
    text = TRAINING.format(device=device, kills=KILLS) + start + "\n".join(["", *calls, ""])
    names = [name.replace(" ", "-") for name in sources]
    run(text, limit_s=limit_s(sources)).assert_clean(*names)


def limit_s(sources: dict[str, str]) -> float:
    return 60 + 8 * KILLS * len(sources)
