"""A DDP training script, for torchrun: knows nothing of sidestream."""

import json
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

readers = set()


class Rows(TensorDataset):
    def __getitem__(self, index):
        readers.add(threading.current_thread().name.rpartition("-")[0])
        return super().__getitem__(index)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Rows(torch.arange(18.0).unsqueeze(1))
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=3, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    seen = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            loss = (model(x) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append((x.flatten().int().tolist(), loss.item()))
    everyone = [None, None]
    dist.all_gather_object(everyone, (seen, sorted(readers)))
    if dist.get_rank() == 0:
        print(json.dumps(everyone))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
