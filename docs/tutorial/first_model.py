"""
A first model
=============

In this tutorial you teach a model ten digits and the way they move, without telling it anything about either. Then
you ask it what is in an image and where, and move images yourself.

You need Python 3.11 or newer and the package, see :doc:`/install`. You can copy the blocks into a Python session one
after another, or download the page as a notebook (links at the bottom).

Three words first:

- A **template** is one learned shape, such as a digit.
- A **pose** tells how far a template was moved, as one angle for each kind of movement.
- A **torus** is the space of such angles: every coordinate is a circle, so walking on brings you back to the start.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from liesparse import LieSparseCoder, embedded_digits, snr, translations
from liesparse.figures import draw_sheet, to_unit_peak

N_IMAGES = 20_000
N_EPOCHS = 10

# %%
# 1. Images to learn from
# -----------------------
# The package comes with ten digits. We halve their size, so that learning is quick, and shift each image by up to 3.5
# pixels to either side, up or down.

digits = torch.nn.functional.avg_pool2d(embedded_digits()[None], 2)[0]
data = translations(N_IMAGES, max_shift=3.5, sources=digits, generator=torch.Generator().manual_seed(0))
images = data.images.reshape(-1, 14, 14)  # number, height, width

figure, axes = plt.subplots(figsize=(8, 1.8), layout="constrained")
draw_sheet(axes, to_unit_peak(images[:20].numpy()), 10, "Some of the images")
plt.show()

# %%
# 2. Learn
# --------
# ``LieSparseCoder`` has the interface of a scikit-learn transformer. It gets the images alone. We ask for ten templates
# and leave the torus at its default of two dimensions, that is, two kinds of movement. ``random_state`` makes the run
# repeatable; ``settings`` changes values of the training recipe to suit small images.

coder = LieSparseCoder(
    n_components=10,
    n_irreps=50,
    n_epochs=N_EPOCHS,
    random_state=0,
)
coder.fit(images)

# %%
# 3. What are the templates?
# --------------------------
# Each row of ``components_`` is a template. ``inverse_transform`` draws images from codes; a code that is 1 for a single
# template and 0 for all others draws that template.

templates = coder.inverse_transform(np.eye(10, dtype=np.float32))
figure, axes = plt.subplots(figsize=(8, 1.8), layout="constrained")
draw_sheet(axes, to_unit_peak(templates), 10, "Ten templates, in no order")
plt.show()

# %%
# 4. What is in an image, and where?
# ----------------------------------
# New images, which the model has not seen. ``infer`` returns two tensors. ``codes`` says how much of each template is in
# an image; most are zero. ``poses`` says where it is on the torus, in radians.

new = translations(1000, max_shift=3.5, sources=digits, generator=torch.Generator().manual_seed(1))
new_images = new.images.reshape(-1, 14, 14)
codes, poses = coder.infer(new_images)
print("codes", tuple(codes.shape), "poses", tuple(poses.shape))
print("codes of the first image:", [f"{code:.2f}" for code in codes[0].tolist()])
print("pose of the first image: ", [f"{angle:.2f}" for angle in poses[0].tolist()])

# %%
# 5. How good is it?
# ------------------
# Draw the images again from codes and poses alone, and compare. The signal-to-noise ratio (SNR) is the squared length of
# an image over that of the error; here it is linear, not in decibels.

again = coder.reconstruct(new_images)
print(f"mean SNR: {snr(new.images, again.flatten(1)).mean():.1f}")
figure, axes = plt.subplots(2, 1, figsize=(8, 2.2), layout="constrained")
draw_sheet(axes[0], to_unit_peak(new_images[:10].numpy()), 10, "New images")
draw_sheet(axes[1], to_unit_peak(np.maximum(again[:10].numpy(), 0)), 10, "Drawn again from codes and poses")
plt.show()

# %%
# 6. Move an image
# ----------------
# Walk along one axis of the torus, and see what this axis means. Nobody told the model about shifts: it found them. The
# axes that it found need not be "right" and "down"; any two directions will do.

figure, axes = plt.subplots(2, 1, figsize=(8, 4.2), layout="constrained")
for axis in range(2):
    frames = coder.traverse(new_images[:3], axis, np.linspace(-1.2, 1.2, 9)).numpy()
    frames /= np.abs(frames[:, 4:5]).max(axis=(-2, -1), keepdims=True)
    draw_sheet(axes[axis], frames.reshape(-1, 14, 14), 9, f"A walk along axis {axis + 1}")
plt.show()

# %%
# 7. Bring all images to the same pose
# ------------------------------------
# ``canonicalize`` moves each image to pose 0.

canonical = coder.canonicalize(new_images)
figure, axes = plt.subplots(2, 1, figsize=(8, 2.2), layout="constrained")
draw_sheet(axes[0], to_unit_peak(new_images[:10].numpy()), 10, "As they came")
draw_sheet(axes[1], to_unit_peak(np.maximum(canonical[:10].numpy(), 0)), 10, "In pose 0")
plt.show()

# %%
# 8. Keep it
# ----------
# A model is one file.

coder.save("digits.safetensors")
same = LieSparseCoder.load("digits.safetensors")

# %%
# Where to go from here
# ---------------------
# - :doc:`/shell`: the same from the shell, with your own images.
# - :doc:`/explorer`: turn the knobs of a model in the browser.
# - :doc:`/generated/howto/index`: symmetries, pipelines, layers, priors.
# - :doc:`/model`: how it works.
