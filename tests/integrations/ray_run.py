"""Ray Train with two workers: what each saw, with and without the loader."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
warnings.simplefilter("ignore")

import ray  # noqa: E402
from ray.train import RunConfig, ScalingConfig  # noqa: E402
from ray.train.torch import TorchTrainer  # noqa: E402


def loop(config: dict[str, Any]) -> None:
    import ray.train.torch as train
    from torch.utils.data import DataLoader

    from sidestream import AsynchronousLoader

    def epochs(wrap: Any) -> Any:
        data = DataLoader(list(range(13)), batch_size=2, shuffle=True)
        loader = wrap(data)
        seen = []
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            seen.append([batch.tolist() for batch in loader])
        return seen

    plain = epochs(train.prepare_data_loader)
    ours = {
        str(move): epochs(
            lambda data, move=move: AsynchronousLoader(
                train.prepare_data_loader(data, move_to_device=move), train.get_device()
            )
        )
        for move in (False, True)
    }
    rank = ray.train.get_context().get_world_rank()
    result = {"same": [plain == one for one in ours.values()], "seen": plain}
    Path(config["folder"], f"{rank}.json").write_text(json.dumps(result))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        try:
            TorchTrainer(
                loop,
                train_loop_config={"folder": folder},
                scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
                run_config=RunConfig(storage_path=folder),
            ).fit()
            found = [json.loads(one.read_text()) for one in sorted(Path(folder).glob("*.json"))]
        finally:
            ray.shutdown()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
