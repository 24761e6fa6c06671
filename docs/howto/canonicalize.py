"""
Canonicalise a data set
=======================

Every image in the same pose, without a label, a landmark or a name for the transformation.

Here the images are ten digits at half their size, each shifted by up to 3.5 pixels.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from liesparse import LieSparseCoder, embedded_digits, translations
from liesparse.figures import draw_sheet, to_unit_peak

N_IMAGES, N_EPOCHS, N_TEST = 20_000, 10, 1000

digits = torch.nn.functional.avg_pool2d(embedded_digits()[None], 2)[0]
train = translations(N_IMAGES, max_shift=3.5, sources=digits, generator=torch.Generator().manual_seed(0))
test = translations(N_TEST, max_shift=3.5, sources=digits, generator=torch.Generator().manual_seed(1))
images, labels = test.images.reshape(-1, 14, 14), test.labels

coder = LieSparseCoder(
    n_components=10,
    n_irreps=50,
    n_epochs=N_EPOCHS,
    random_state=0,
)
coder.fit(train.images.reshape(-1, 14, 14))

# %%
# Bring every image to pose 0
# ---------------------------
# ``canonicalize`` applies T(-ŝ) to each image, where ŝ is its most probable pose. The image itself is moved, not its
# reconstruction, so its own detail stays. Each shape has its own origin: images of the same shape end in the same pose.

canonical = coder.canonicalize(images)

# %%
# Two more ways: keep what W cannot represent, in its place; or bring all images to the pose of a chosen one.

kept = coder.canonicalize(images, keep_rest=True)
like_first = coder.transfer_pose(images[:1], images)

# %%
# Look at it
# ----------
# The mean image of each digit is a blur before and sharp after.

shown = [0, 10, 20, 3, 13, 23, 5, 15, 25, 8, 18, 28]
figure, axes = plt.subplots(2, 2, figsize=(8, 4.4), layout="constrained")
for column, (title, batch) in enumerate((("As they came", images), ("Brought to s = 0", canonical))):
    draw_sheet(axes[0, column], to_unit_peak(np.maximum(batch[shown].numpy(), 0)), 6, title)
    means = torch.stack([batch[labels == label].mean(dim=0) for label in range(10)])
    draw_sheet(axes[1, column], to_unit_peak(np.maximum(means.numpy(), 0)), 5, "Mean image of each digit")
plt.show()


# %%
# How well did it do?
# -------------------
# The share of the images' energy that differs from the mean image of their digit:


def spread(batch):
    """Return that share."""
    apart = [batch[labels == label] - batch[labels == label].mean(dim=0) for label in labels.unique()]
    return float(torch.cat(apart).square().sum() / batch.square().sum())


before, after = spread(images), spread(canonical)
print(f"Energy that is not the digit's mean image: {before:.1%} before, {after:.1%} after.")

# %%
# When this page was written, the script printed
#
# .. code-block:: text
#
#    Energy that is not the digit's mean image: 63.9% before, 1.8% after.
