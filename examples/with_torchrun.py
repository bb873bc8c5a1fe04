"""DistributedDataParallel: one loader a process, around the DataLoader with its sampler.

torchrun --nproc-per-node 2 examples/with_torchrun.py
torchrun --nproc-per-node 2 examples/with_torchrun.py --plain     # the same losses
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sidestream import AsynchronousLoader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true", help="without the loader")
    parser.add_argument("--fsdp", action="store_true", help="shard the model instead")
    arguments = parser.parse_args()

    device = torch.device("cpu")
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    torch.manual_seed(0)
    x = torch.randn(509, 8)  # not a multiple: the sampler fills the last round up
    data = TensorDataset(x, x.sum(1, keepdim=True))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    if not arguments.plain:
        loader = AsynchronousLoader(loader, device)

    model = torch.nn.Linear(8, 1).to(device)
    if arguments.fsdp:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            inputs, targets = (
                inputs.to(device),
                targets.to(device),
            )  # costs nothing: they are there
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        print(f"process {dist.get_rank()}, epoch {epoch}: loss {loss.item():.8f}")
    dist.barrier()  # gloo may abort a process whose peer left first
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
