"""The generative model I = W R(s) Wᵀ Φ α + ε [Chau20, eq. 3]: its parameters and its densities."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import _checks, torus
from liesparse._checks import check_count, check_matrix, check_real, check_shape, reject
from liesparse.groups import Basis

Images = Float[Tensor, "batch pixel"]
Codes = Float[Tensor, "batch component"]
Poses = Float[Tensor, "batch torus"]  # in radians
Planes = Float[Tensor, "batch irrep 2"]  # one coordinate pair for each plane
Natural = Float[Tensor, "irrep 2"]  # η of a prior
Numbers = Float[Tensor, " batch"]
TENSORS = ("group_basis", "dictionary", "frequencies", "pose_prior")  # of Parameters


@dataclass(frozen=True)
class Parameters:
    """All that the model knows. Shapes are checked on construction, values by :meth:`validate`.

    Attributes
    ----------
    group_basis : Tensor of shape (n_pixels, 2 * n_irreps)
        Orthonormal columns, two for each rotation plane (paper: W).
    dictionary : Tensor of shape (n_pixels, n_components)
        One shape per column, unit norm (paper: Φ).
    frequencies : int64 Tensor of shape (n_irreps, torus_dim)
        How fast each plane turns (paper: ω).
    noise_std : float
        Standard deviation of the pixel noise (paper: σ).
    sparsity : float
        Rate of the exponential prior on the codes (paper: λ).
    pose_prior : Tensor of shape (n_irreps, 2)
        Natural parameters of the conjugate prior on the pose (paper: η); zeros are the uniform prior.
    outer : Basis, optional
        A known action T₂ after that of W, I = T₂(s₂) T₁(s₁) Φα + ε; the pose then is (s₂, s₁), the outer part first.
    """

    group_basis: Float[Tensor, "pixel column"]
    dictionary: Float[Tensor, "pixel component"]
    frequencies: Int[Tensor, "irrep torus"]
    noise_std: float
    sparsity: float
    pose_prior: Natural
    outer: Basis | None = None

    def __post_init__(self) -> None:
        _checks.check_frequencies(self.frequencies)
        n_irreps, pixels = self.n_irreps, ("n_pixels", self.n_pixels)
        check_shape("group_basis", self.group_basis, ("n_pixels", None), ("2 * n_irreps", 2 * n_irreps))
        full = 2 * n_irreps <= self.n_pixels
        n_empty = 0 if full else int((self.group_basis == 0).all(dim=0).sum())
        _checks.check_n_pixels(self.n_pixels, n_irreps, n_empty)
        check_shape("dictionary", self.dictionary, pixels, ("n_components", None), self.dtype)
        check_shape("pose_prior", self.pose_prior, ("n_irreps", n_irreps), ("columns", 2), self.dtype)
        check_count("n_components", self.n_components)
        check_real("noise_std", self.noise_std, **_checks.NOISE)
        check_real("sparsity", self.sparsity, minimum=0, maximum=_checks.MOST)
        if self.outer is not None:
            _checks.check_frequencies(self.outer.frequencies)
            columns = ("columns", 2 * len(self.outer.frequencies))
            check_shape("outer.group_basis", self.outer.group_basis, pixels, columns, self.dtype)

    def validate(self) -> Parameters:
        """Check the values too: finite, W orthonormal, Φ of unit columns. Too slow for every training step."""
        for name in ("group_basis", "dictionary", "pose_prior"):
            check_matrix(name, getattr(self, name), ("rows", None), ("columns", None))
        check_real("pose_prior", float(self.pose_prior.abs().max()), maximum=_checks.MOST)
        for basis, frequencies in self.actions:
            most = _checks.MOST_FREQUENCIES.get(frequencies.shape[1], _checks.MOST_OF_MANY_AXES)
            check_real("frequencies", float(frequencies.abs().max()), maximum=most)
            _checks.check_group_basis(basis)
        if self.outer is not None and bool(self.pose_prior.any()):
            reject("pose_prior", "the uniform prior, where two groups are composed", "another", "Leave it out.")
        _checks.check_unit_norm(self.dictionary.T, argument="dictionary columns")
        return self

    @property
    def dtype(self) -> torch.dtype:
        """Floating point type of all parameters, and of the images the model takes."""
        return self.group_basis.dtype

    @property
    def n_pixels(self) -> int:
        """Pixels of an image (paper: D)."""
        return self.group_basis.shape[0]

    @property
    def n_components(self) -> int:
        """Shapes in the dictionary (paper: K)."""
        return self.dictionary.shape[1]

    @property
    def n_irreps(self) -> int:
        """Rotation planes (paper: L)."""
        return self.frequencies.shape[0]

    @property
    def actions(self) -> tuple[Basis, ...]:
        """W and ω of each group, the outer one first."""
        own = Basis(self.group_basis, self.frequencies)
        return (own,) if self.outer is None else (self.outer, own)

    @property
    def torus_dim(self) -> int:
        """Dimension of the pose (paper: n), with that of the outer group."""
        return self.outer_dim + self.frequencies.shape[1]

    @property
    def outer_dim(self) -> int:
        """How many numbers of the pose, the first ones, belong to the outer group."""
        return 0 if self.outer is None else self.outer.frequencies.shape[1]

    @property
    def device(self) -> torch.device:
        """Where W, Φ and the prior are, and the images must be."""
        return self.group_basis.device

    def to(self, device: torch.device) -> Parameters:
        """Return the model on another device; the frequencies decide sizes and stay on the CPU."""
        return self.map(lambda tensor: tensor.to(device) if tensor.is_floating_point() else tensor)

    def map(self, function: Callable[[Tensor], Tensor]) -> Parameters:
        """Return the model with a function applied to each tensor."""
        changed: dict[str, Any] = {name: function(getattr(self, name)) for name in TENSORS}
        return replace(self, **changed, outer=self.outer and Basis(*map(function, self.outer)))

    def to_planes(self, images: Images) -> Planes:
        """Return Wᵀ I, one coordinate pair for each plane."""
        return torus.to_planes(self.group_basis, images)

    def seen_planes(self, images: Images) -> Planes:
        """Return the planes of an image as it is seen: those of the outer group, where there is one."""
        return torus.to_planes(self.actions[0].group_basis, images)

    @property
    def turn(self) -> Float[Tensor, "outer_column column"] | None:
        """M = W₂ᵀW, which leads from planes of W to those of an outer group."""
        return None if self.outer is None else self.outer.group_basis.T @ self.group_basis

    def from_planes(self, planes: Planes) -> Images:
        """Return W applied to plane coordinates."""
        return planes.flatten(-2) @ self.group_basis.T


def uniform_prior(n_irreps: int, *, dtype: torch.dtype = torch.float32) -> Natural:
    """Return the natural parameters of the uniform pose prior, κ = 0 [Chau20, app. B]."""
    return torch.zeros(check_count("n_irreps", n_irreps), 2, dtype=dtype)


@dataclass(frozen=True)
class PosePrior:
    """A conjugate prior P(s) ∝ exp Σ κ cos(ω·s - μ) over some frequencies, for any model that has them.

    Attributes
    ----------
    frequencies : tuple of tuples of int
        The ω of each term, as (1, 0).
    concentrations, means : tuple of float
        The κ >= 0 and μ of each term, κ in radians⁻².
    """

    frequencies: tuple[tuple[int, ...], ...]
    concentrations: tuple[float, ...]
    means: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.frequencies) == len(self.concentrations) == len(self.means):
            sizes = f"{len(self.frequencies)}, {len(self.concentrations)} and {len(self.means)}"
            reject("pose_prior", "as many frequencies as concentrations and means", sizes, "Give one of each.")
        for concentration, mean in zip(self.concentrations, self.means, strict=True):
            check_real("concentrations", concentration, minimum=0)
            check_real("means", mean)

    def natural(self, frequencies: Int[Tensor, "irrep torus"], *, dtype: torch.dtype = torch.float32) -> Natural:
        """Return η on the planes of a model: each term goes to the first plane that turns with ω or with -ω."""
        natural = uniform_prior(len(frequencies), dtype=dtype)
        rows = [tuple(row) for row in frequencies.tolist()]
        for omega, concentration, mean in zip(self.frequencies, self.concentrations, self.means, strict=True):
            mirrored = tuple(-entry for entry in omega)
            if omega not in rows and mirrored not in rows:
                reject("pose_prior", "frequencies that the model has", f"ω = {omega}", "Use more planes, or other ω.")
            place, sign = (rows.index(omega), 1) if omega in rows else (rows.index(mirrored), -1)
            natural[place] += concentration * torus.features(torch.tensor([sign * mean], dtype=dtype))[0]
        return natural


def narrow_prior(width: float, torus_dim: int = 2) -> PosePrior:
    """Return a prior around s = 0, about ``width`` radians wide in each coordinate: von Mises with κ = 1 / width²."""
    check_real("width", width, above=0)
    check_count("torus_dim", torus_dim)
    axes = tuple(tuple(int(i == j) for j in range(torus_dim)) for i in range(torus_dim))
    return PosePrior(axes, (1 / width**2,) * torus_dim, (0.0,) * torus_dim)


def apply_transform(parameters: Parameters, images: Images, poses: Poses) -> Images:
    """Return T(s) I = W R(s) Wᵀ I for each image and pose [Chau20, sec. 2]; with an outer group T₂(s₂) T₁(s₁) I."""
    for action, own in reversed(_parts(parameters, images, poses)):
        images = _turn(images, *action, own)
    return images


def undo_transform(parameters: Parameters, images: Images, poses: Poses) -> Images:
    """Return T(s)ᵀ I, which brings an image of pose s to s = 0; with an outer group T₁(s₁)ᵀ T₂(s₂)ᵀ I."""
    for action, own in _parts(parameters, images, poses):
        images = _turn(images, *action, -own)
    return images


def _parts(parameters: Parameters, images: Images, poses: Poses) -> list[tuple[Basis, Float[Tensor, "batch _"]]]:
    """Return each group with its part of the poses, the outer one first."""
    check_matrix("images", images, ("batch", None), ("n_pixels", parameters.n_pixels), parameters.dtype)
    check_matrix("poses", poses, ("batch", len(images)), ("torus_dim", parameters.torus_dim), parameters.dtype)
    actions = parameters.actions
    return list(zip(actions, poses.split([omega.shape[1] for _, omega in actions], dim=1), strict=True))


def _turn(
    images: Images, group_basis: Float[Tensor, "pixel column"], frequencies: Int[Tensor, "irrep torus"], poses: Poses
) -> Images:
    planes = torus.rotate(torus.to_planes(group_basis, images), torus.phases(frequencies, poses))
    return planes.flatten(-2) @ group_basis.T


def compose(parameters: Parameters, codes: Codes) -> Images:
    """Return the untransformed shapes Φα."""
    check_matrix("codes", codes, ("batch", None), ("n_components", parameters.n_components), parameters.dtype)
    return codes @ parameters.dictionary.T


def reconstruct(parameters: Parameters, codes: Codes, poses: Poses) -> Images:
    """Return Î = T(s) Φ α [Chau20, sec. 5]."""
    return apply_transform(parameters, compose(parameters, codes), poses)


def generate(parameters: Parameters, codes: Codes, poses: Poses, *, generator: torch.Generator) -> Images:
    """Draw images I = T(s) Φ α + ε for given codes and poses [Chau20, eq. 3]."""
    clean = reconstruct(parameters, codes, poses)
    noise = torch.randn(clean.shape, generator=generator, dtype=clean.dtype, device=generator.device)
    return clean + parameters.noise_std * noise.to(clean)


def unit_columns(dictionary: Float[Tensor, "pixel component"]) -> Float[Tensor, "pixel component"]:
    """Project every column to norm 1 [Chau20, sec. 3.2]."""
    return torch.nn.functional.normalize(dictionary, dim=0)


def draw_codes(parameters: Parameters, n_images: int, *, generator: torch.Generator) -> Codes:
    """Draw codes from their prior, α_k ~ Exp(λ) [Chau20, sec. 3.1]."""
    shape = (check_count("n_images", n_images), parameters.n_components)
    rate = check_real("sparsity", parameters.sparsity, above=0)
    codes = torch.empty(shape, dtype=parameters.dtype, device=generator.device)
    return codes.exponential_(rate, generator=generator).to(parameters.dictionary)


def log_likelihood_given_pose(parameters: Parameters, images: Images, codes: Codes, poses: Poses) -> Numbers:
    """Return ln P(I | s, α), a Gaussian around T(s)Φα [Chau20, app. B]."""
    residual = images - reconstruct(parameters, codes, poses)
    variance = parameters.noise_std**2
    constant = 0.5 * parameters.n_pixels * math.log(2 * math.pi * variance)
    return -residual.square().sum(dim=1) / (2 * variance) - constant


def log_prior_codes(parameters: Parameters, codes: Codes) -> Numbers:
    """Return ln P(α) = Σ_k ln λ - λ α_k, and -inf where a code is negative [Chau20, sec. 3.1].

    For λ = 0 the prior is flat and improper; its constant is taken as 0.
    """
    constant = parameters.n_components * math.log(parameters.sparsity) if parameters.sparsity > 0 else 0.0
    inside = constant - parameters.sparsity * codes.sum(dim=1)
    return torch.where((codes >= 0).all(dim=1), inside, -torch.inf)


def log_prior_poses(parameters: Parameters, poses: Poses, prior_log_partition: float | None = None) -> Numbers:
    """Return ln P(s) = η·T(s) - ln Z(η) [Chau20, app. B].

    ln Z of the uniform prior is known; for another one pass ``prior_log_partition``, as any engine
    of :mod:`liesparse.posterior` computes it.
    """
    if prior_log_partition is None:
        if bool(parameters.pose_prior.any()):
            expected, fix = "ln Z(η), as the prior is not uniform", "Pass engine.log_partition(η)."
            reject("prior_log_partition", expected, "None", fix)
        prior_log_partition = parameters.torus_dim * math.log(2 * math.pi)
    if parameters.outer is not None:  # whose prior is uniform, as validate says
        return poses.new_full((len(poses),), -prior_log_partition)
    statistics = torus.features(torus.phases(parameters.frequencies, poses))
    return (statistics * parameters.pose_prior).sum(dim=(-2, -1)) - prior_log_partition


def log_joint(
    parameters: Parameters, images: Images, codes: Codes, poses: Poses, prior_log_partition: float | None = None
) -> Numbers:
    """Return ln P(I, s, α) = ln P(I|s,α) + ln P(s) + ln P(α) [Chau20, sec. 3.1]."""
    of_images = log_likelihood_given_pose(parameters, images, codes, poses)
    return of_images + log_prior_poses(parameters, poses, prior_log_partition) + log_prior_codes(parameters, codes)
