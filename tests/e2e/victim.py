"""A training run that gets killed: ``python victim.py FOLDER OUT [fsync|replace N]``.

With the last two arguments it kills itself, by a real SIGKILL, inside the N-th such call of a write. VICTIM_SETTINGS in
the environment has other settings, as JSON.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from liesparse import random_start, save_model, start_from_data
from liesparse.settings import Settings
from liesparse.training import CheckpointPolicy, train


def images() -> torch.Tensor:
    rng = torch.Generator().manual_seed(3)
    return torch.nn.functional.normalize(torch.rand(600, 64, generator=rng), dim=1)


def main(folder: str, out: str, deadly: str = "", count: str = "0") -> None:
    torch.set_num_threads(1)
    if deadly:
        original, left = getattr(os, deadly), int(count)

        def kill(*arguments):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments)

        setattr(os, deadly, kill)
    rng = torch.Generator().manual_seed(4)
    data = images()
    start = random_start(64, n_components=5, n_irreps=12, include_zero=True, generator=rng)
    start = start_from_data(start, data, generator=rng)
    usual = {"n_epochs": 20, "batch_size": 20, "posterior": "adaptive", "method": "em", "lattice": "fitted"}
    settings = Settings(**usual | json.loads(os.environ.get("VICTIM_SETTINGS", "{}")))
    checkpoints = CheckpointPolicy(Path(folder), every=7)
    trained = train(start, data, settings, generator=rng, monitor_images=data[:20], checkpoints=checkpoints)
    save_model(out, trained.parameters, {"history": trained.history})


if __name__ == "__main__":
    main(*sys.argv[1:])
