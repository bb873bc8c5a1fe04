"""One process of several with Lightning's DDP: what each saw, with and without the callback."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from typing import Any

import torch

warnings.simplefilter("ignore")
import lightning.pytorch as pl  # noqa: E402

from sidestream import AsynchronousLoader  # noqa: E402
from sidestream.integrations.lightning import AsynchronousTransfer  # noqa: E402
from support.lightning import Hooks, loader, make_module, make_trainer  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def fit(*callbacks: Any, bases: Any = (), wrap: Any = lambda one: one) -> Any:
    module = make_module(pl, *bases)
    trainer = make_trainer(pl, *callbacks, devices=2, strategy="ddp", num_sanity_val_steps=1)
    trainer.fit(module, wrap(loader(18, shuffle=True)), loader(10, 100, num_workers=1))
    return {"seen": module.seen, "weights": [one.tolist() for one in module.parameters()]}


def main() -> None:
    torch.manual_seed(0)
    results: dict[str, Any] = {}
    for name, bases in (("bare", ()), ("hooks", (Hooks,))):
        plain, ours = fit(bases=bases), fit(AsynchronousTransfer(), bases=bases)
        results[name] = plain == ours
        results.setdefault("seen", ours["seen"])
    try:
        fit(AsynchronousTransfer(), wrap=lambda one: AsynchronousLoader(one, "cpu"))
    except ValueError as error:
        results["refused"] = str(error)
    sys.stdout.write(json.dumps(results) + "\n")
    sys.stdout.flush()
    torch.distributed.barrier()  # gloo may abort a process whose peer left first
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
