"""Where learning starts: the paper's random parameters, or ones drawn from the data."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import stiefel
from liesparse._checks import check_count, check_images, check_n_pixels, check_real, reject
from liesparse.groups import fourier_waves, grid_places
from liesparse.lattice import half_lattice
from liesparse.model import Parameters, uniform_prior

EXACT_PIXELS = 1024  # up to here a D × D matrix is small and quickly decomposed
SUBSPACE_STEPS = 2
PAPER_NOISE, LEAST_SIGNAL = 0.1, 0.04
MUCH_COMMON = 0.5  # of the images: where they have more in common, that hides how they differ


def random_start(
    n_pixels: int,
    *,
    n_components: int = 10,
    n_irreps: int = 128,
    torus_dim: int = 2,
    multiplicity: int = 1,
    include_zero: bool = False,
    noise_std: float = 0.1,
    sparsity: float = 10.0,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> Parameters:
    """Draw W uniformly and Φ from random directions; all else is the paper's setting [Chau20, app. E]."""
    check_count("n_components", n_components)
    check_n_pixels(n_pixels, check_count("n_irreps", n_irreps))
    check_real("noise_std", noise_std, above=0)
    frequencies = half_lattice(torus_dim, n_irreps, multiplicity=multiplicity, include_zero=include_zero)
    if n_irreps > 1 and not frequencies.any():
        reject("multiplicity", f"less than n_irreps = {n_irreps}", str(multiplicity), "Or no plane would turn.")
    dictionary = torch.randn(n_pixels, n_components, generator=generator, dtype=dtype)
    return Parameters(
        group_basis=stiefel.random_point(n_pixels, 2 * n_irreps, generator=generator, dtype=dtype),
        dictionary=torch.nn.functional.normalize(dictionary, dim=0),
        frequencies=frequencies,
        noise_std=noise_std,
        sparsity=sparsity,
        pose_prior=uniform_prior(n_irreps, dtype=dtype),
    )


def known_translation(
    shapes: Float[Tensor, "component height width"],
    *,
    n_irreps: int = 128,
    noise_std: float = 0.1,
    sparsity: float = 10.0,
) -> Parameters:
    """Return the model of cyclic translation with given shapes: W is the 2-D Fourier basis.

    A yardstick for learned models: T(s) shifts by s · width / 2π to the right and s · height / 2π down.
    The mean brightness does not move; its plane, ω = 0, holds the checkerboard as second column.
    """
    height, width = shapes.shape[1:]
    check_n_pixels(height * width, check_count("n_irreps", n_irreps))
    frequencies = half_lattice(2, n_irreps, include_zero=True)
    if int(frequencies.abs().max()) * 2 >= min(height, width):
        expected = f"frequencies below {min(height, width) / 2:g}"
        reject("n_irreps", expected, str(n_irreps), "Use fewer, or larger images.")
    waves = torch.view_as_real(fourier_waves((height, width), frequencies))
    waves[:, 0, 1] = 2 * grid_places((height, width)).sum(dim=1).remainder(2) - 1
    return Parameters(
        group_basis=torch.nn.functional.normalize(waves.flatten(1), dim=0).to(shapes),
        dictionary=torch.nn.functional.normalize(shapes.flatten(1), dim=1).T.contiguous(),
        frequencies=frequencies,
        noise_std=noise_std,
        sparsity=sparsity,
        pose_prior=uniform_prior(n_irreps, dtype=shapes.dtype),
    )


def leading_subspace(images: Float[Tensor, "image pixel"], n_columns: int) -> Float[Tensor, "pixel column"]:
    """Return orthonormal directions that hold most of the energy of images.

    Small images have them exactly, from their D × D matrix; larger ones by subspace iteration, from some of the
    images themselves, and no matrix is larger than the images or D × 2 ``n_columns``.
    """
    n_images, n_pixels = images.shape
    if n_pixels <= EXACT_PIXELS:
        _, directions = torch.linalg.eigh((images.T @ images).double())
        return directions[:, -n_columns:].to(images)
    width = min(2 * n_columns, n_pixels)
    spread = torch.arange(width, device=images.device) * n_images // width  # evenly over the images
    basis = torch.linalg.qr(images[spread].T).Q
    for _ in range(SUBSPACE_STEPS):
        basis = torch.linalg.qr(images.T @ (images @ basis)).Q
    inside = images @ basis
    _, mixing = torch.linalg.eigh((inside.T @ inside).double())
    return basis @ mixing[:, -n_columns:].to(basis)


def suggest_noise(images: Float[Tensor, "image pixel"], n_columns: int) -> float:
    """Return σ for images of norm 1: the paper's 0.1, scaled to the part of their norm that says something.

    Noise in an image of norm 1 makes the rest of it fainter, and the posterior of its pose flatter; so does what all
    images have in common, where that is most of them. What is left outside ``n_columns`` leading directions says how
    strong white noise is in each pixel.
    """
    n_pixels, white = images.shape[1], 0.0
    if n_columns < n_pixels:
        inside = (images @ leading_subspace(images, n_columns)).square().sum(dim=1).mean()
        white = max(0.0, 1 - float(inside)) * n_pixels / (n_pixels - n_columns)
    signal = 1 - white
    own = signal - float(images.mean(dim=0).square().sum())
    return PAPER_NOISE * max(min(signal, own / (1 - MUCH_COMMON)), LEAST_SIGNAL) ** 0.5


def start_from_data(
    parameters: Parameters, images: Float[Tensor, "image pixel"], *, generator: torch.Generator
) -> Parameters:
    """Put W inside the subspace that holds most of the data's energy, and shapes from the data into Φ.

    W is a random rotation of the leading principal directions, so no plane starts where the data
    has nothing; each shape is an image.
    """
    check_images(images, parameters.n_pixels, parameters.dtype)
    if len(images) < parameters.n_components:
        reject("images", f"at least {parameters.n_components} images", str(len(images)), "Use fewer components.")
    n_columns = 2 * parameters.n_irreps
    leading = leading_subspace(images, n_columns)
    mixing = stiefel.random_point(n_columns, n_columns, generator=generator, dtype=images.dtype)
    chosen = torch.randperm(len(images), generator=generator)[: parameters.n_components].to(images.device)
    return replace(
        parameters.to(images.device),
        group_basis=leading @ mixing.to(leading),
        dictionary=torch.nn.functional.normalize(images[chosen].T.contiguous(), dim=0),
    )
