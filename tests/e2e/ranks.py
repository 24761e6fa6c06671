"""A small training run in float64, alone or as one of several processes: ``ranks.py OUT METHOD [FOLDER [STEP]]``.

With a FOLDER it keeps checkpoints there; with a STEP the last process kills itself, by a real SIGKILL, after it.
"""

import os
import signal
import sys
from pathlib import Path

import torch

from liesparse import random_start, save_model, start_from_data
from liesparse.learning import Progress, Settings
from liesparse.parallel import LostError, join
from liesparse.runs import Keeping, train

# 213 images in batches of 15: the last batch has 3, so that of four processes one has none.
N_IMAGES, BATCH, EPOCHS = 213, 15, 8
METHODS = {
    "gradient": Settings(n_epochs=EPOCHS, batch_size=BATCH, n_grid=16, group_rate=0.05, reseed_overlap=0.8),
    "em": Settings(
        n_epochs=EPOCHS,
        batch_size=BATCH,
        posterior="adaptive",
        method="em",
        em_rate=0.3,
        schedule="cosine",
        single_shape_epochs=2,
        reseed_overlap=0.8,
    ),
}


def images() -> torch.Tensor:
    """Return bumps of four kinds, anywhere on a ring: smooth, so that no two poses are almost equally good."""
    rng = torch.Generator().manual_seed(3)
    angles = torch.arange(24).double() * (2 * torch.pi / 24)
    places = 2 * torch.pi * torch.rand(N_IMAGES, 1, generator=rng, dtype=torch.float64)
    kinds = torch.tensor([[1.0, 0.5, 0.0], [1.0, -0.5, 0.3], [0.2, 1.0, 0.5], [0.6, 0.0, 1.0]]).double()
    mixture = kinds[torch.randint(4, (N_IMAGES,), generator=rng)]
    waves = torch.stack([(k * (angles - places)).cos() for k in (1, 2, 3)], dim=1)
    rows = (mixture[:, :, None] * waves).sum(dim=1)
    return torch.nn.functional.normalize(rows + 0.02 * torch.randn(rows.shape, generator=rng).double(), dim=1)


def main(out: str, method: str, folder: str = "", deadly: str = "0") -> None:
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(4)
    data = images()
    start = random_start(
        24, n_components=4, n_irreps=3, torus_dim=1, noise_std=0.2, sparsity=1.0, generator=rng, dtype=data.dtype
    )
    start = start_from_data(start, data, generator=rng)
    keeping = Keeping(Path(folder), every=7) if folder else None
    with join() as group:

        def die(progress: Progress, _history: object) -> None:
            if progress.step == int(deadly) and group.rank == group.size - 1:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            trained = train(
                start, data, METHODS[method], generator=rng, glance=data[:20], keeping=keeping, callback=die
            )
        except LostError as error:
            if group.speaks_first():
                print(error, file=sys.stderr)
            raise SystemExit(1) from None
        if group.rank == 0:
            save_model(out, trained.parameters, {"steps": trained.n_steps})
        else:
            save_model(f"{out}.{group.rank}", trained.parameters)


if __name__ == "__main__":
    main(*sys.argv[1:])
