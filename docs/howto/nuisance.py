"""
A known nuisance, an unknown factor
===================================

Pictures that lie anywhere, which everybody can see, and that change in another way, which nobody has named. With a
learned torus alone the shift would take all of its axes: it changes the pictures most. But it is known, so say so, and
let what is left be discovered.

Here ten digits at half their size are sheared and stretched, then shifted by up to two pixels. Neither labels nor
factors are given. ``Translations(14, 14) @ LearnedTorus(2)`` is the group: two learned axes inside, shifts outside. From
the shell it is ``liesparse train DATA --group translation@learned --torus-dim 2 --out RUN``.
"""

import matplotlib.pyplot as plt
import torch

from liesparse import LieSparseCoder, embedded_digits, snr
from liesparse.data import shears_stretches
from liesparse.figures import draw_sheet, to_unit_peak
from liesparse.groups import LearnedTorus, Translations
from liesparse.symmetry import fit_factors

N_IMAGES, N_EPOCHS, N_TEST = 4000, 2, 500
SIZE = 14

# %%
# Pictures
# --------


def moving_digits(n_images, seed):
    """Shear and stretch digits, then shift them; return pictures and factors."""
    generator = torch.Generator().manual_seed(seed)
    digits = torch.nn.functional.avg_pool2d(embedded_digits()[None], 2)[0]
    made = shears_stretches(n_images, sources=digits, generator=generator)
    shifts = torch.randint(-2, 3, (n_images, 2), generator=generator)
    pictures = made.images.reshape(-1, SIZE, SIZE)
    moved = [
        one.roll((int(down), int(right)), dims=(0, 1)) for one, (right, down) in zip(pictures, shifts, strict=True)
    ]
    return torch.stack(moved), torch.cat((shifts, made.factors), dim=1), ("shift_x", "shift_y", *made.factor_names)


train, _, _ = moving_digits(N_IMAGES, 0)
test, factors, names = moving_digits(N_TEST, 1)

# %%
# Learn, with and without what is known
# -------------------------------------
# Afterwards each true factor is fitted by a linear function of the pose, one for each template. Two learned axes alone
# mix the shift to the side with the shear; with the shift given, all four factors come out.


def learn(**group):
    """Learn ten shapes with a group, and say what its pose knows."""
    coder = LieSparseCoder(10, n_epochs=N_EPOCHS, random_state=0, **group).fit(train)
    codes, poses = coder.infer(test)
    quality = snr(test.flatten(1), coder.reconstruct(test).flatten(1)).mean()
    shares = ", ".join(f"{fit.name} {fit.share:.0%}" for fit in fit_factors(codes, poses, factors, names))
    print(f"SNR {quality:.1f}; of the variance of each factor the pose explains: {shares}.")
    return coder


plain = learn(torus_dim=2)
coder = learn(group=Translations(SIZE, SIZE) @ LearnedTorus(2))

# %%
# Look at what was discovered
# ---------------------------
# Walks along the two learned axes, which come after the two of the shift, as far as the poses of each template go.

figure, axes = plt.subplots(1, 2, figsize=(10, 2.1), layout="constrained")
for place, axis in enumerate((2, 3)):
    frames = coder.traverse(test[[2, 4, 7]], axis, steps=9).numpy()
    title = f"A walk along learned axis {place + 1}"
    draw_sheet(axes[place], to_unit_peak(frames.reshape(-1, SIZE, SIZE)), 9, title)
plt.show()
