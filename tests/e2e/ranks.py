"""Small training runs in float64, alone or as one of several processes: ``ranks.py OUT SHARDS STEP METHOD...``.

OUT gets a model for each method, and its checkpoints in a folder beside it. At step STEP of the first method (0: never)
the last process kills itself, by a real SIGKILL. SHARDS is the folder of images for the method "stream".
"""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch

from liesparse import Parameters, cli, random_start, save_model, start_from_data
from liesparse.data import ShardBatches, open_shards
from liesparse.groups import Shifts
from liesparse.parallel import Group, LostError, join
from liesparse.settings import Settings
from liesparse.state import Progress
from liesparse.training import CheckpointPolicy, train

# 213 images in batches of 15: the last batch has 3, so that of four processes one has none.
N_IMAGES, BATCH = 213, 15
# Codes that start at 0.2 stay above 0: once all codes of an image are 0, rounding alone decides whether they leave it.
COMMON = Settings(
    n_epochs=4, batch_size=BATCH, n_grid=16, n_code_steps=8, code_start=0.2, group_rate=0.02, reseed_overlap=0.8
)
EM = replace(COMMON, posterior="adaptive", method="em", first_memory=10.0)
METHODS = {"gradient": COMMON, "em": EM, "one shape": EM, "stream": COMMON, "composition": EM}


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


def make_start(data: torch.Tensor, method: str = "") -> Parameters:
    """Return four shapes; or one with a plane that never turns, of which no image tells one direction."""
    rng, one = torch.Generator().manual_seed(4), method == "one shape"
    start = random_start(
        24,
        n_components=1 if one else 4,
        n_irreps=3,
        torus_dim=1,
        include_zero=one,
        noise_std=0.4,
        sparsity=0.3,
        generator=rng,
        dtype=data.dtype,
    )
    start = start_from_data(start, data, generator=rng)
    return replace(start, outer=Shifts(24).make_basis(data, 6)) if method == "composition" else start


def learn(group: Group, method: str, out: Path, shards: str, deadly: int) -> None:
    data = images()

    def die(progress: Progress, _history: object) -> None:
        if progress.step == deadly and group.rank == group.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    trained = train(
        make_start(data, method),
        ShardBatches(open_shards(shards), BATCH, dtype=torch.float64) if method == "stream" else data,
        METHODS[method],
        generator=torch.Generator().manual_seed(5),
        monitor_images=data[:20],
        checkpoints=CheckpointPolicy(out / method, every=20),
        callback=die,
        group=group,
    )
    name = f"{method}.safetensors" if group.rank == 0 else f"{method}-{group.rank}.safetensors"
    save_model(out / name, trained.parameters, {"steps": trained.n_steps, "history": len(trained.history)})


def main(out: str, shards: str, deadly: str, *methods: str) -> None:
    torch.set_num_threads(1)
    with join() as group:
        try:
            for method in methods:
                learn(group, method, Path(out), shards, int(deadly) if method == methods[0] else 0)
        except LostError as error:
            if group.speaks_first():
                print(error, file=sys.stderr)
            raise SystemExit(1) from None


def train_on_own(first, second, stream, out):
    """Learn from other files than the other process."""
    data = (first, second)[int(os.environ["RANK"])]
    sizes = ("--components", "3", "--irreps", "3", "--torus-dim", "1", "--epochs", "1")
    sys.argv = ["liesparse", "train", f"{data}:stream={stream}", "--out", out, *sizes]
    cli.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
