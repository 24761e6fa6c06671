"""One interface to P(s | I, α) for one group and for two: what engines are told of images, and what they answer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_images, reject
from liesparse.model import Codes, Images, Parameters, compose
from liesparse.posterior.ascent import Ascent, Modes, Natural, PerImage, Poses, Turn
from liesparse.torus import Frequencies

Planes = Float[Tensor, "#batch irrep 2"]  # of shapes; one may be for all images
Seen = Float[Tensor, "batch seen_irrep 2"]  # of images: in the planes of the outer group, where there is one


class Evidence(NamedTuple):
    """What the pose is inferred from. With an outer group v = W₂ᵀI, and M = W₂ᵀW leads from the planes of W there."""

    shape: Planes  # u = WᵀΦα
    image: Seen  # v = WᵀI
    noise_std: float
    prior: Float[Tensor, "irrep 2"]
    turn: Turn | None = None  # M

    @classmethod
    def of_planes(cls, parameters: Parameters, shape: Planes, image: Seen) -> Evidence:
        """Return what planes of shapes and images tell a model."""
        return cls(shape, image, parameters.noise_std, parameters.pose_prior, parameters.turn)

    @classmethod
    def of(cls, parameters: Parameters, images: Images, codes: Codes) -> Evidence:
        """Return what images tell of their poses at some codes."""
        shape = parameters.to_planes(compose(parameters, codes))
        return cls.of_planes(parameters, shape, parameters.seen_planes(images))

    @property
    def natural(self) -> torus.Planes:
        """η̂ = η + (u₁v₁ + u₂v₂, u₁v₂ - u₂v₁)/σ² for each plane of one torus [Chau20, app. B]."""
        return self.prior + torus.apply_mean_rotation_transposed(self.image, self.shape) / self.noise_std**2

    def show(self, planes: Float[Tensor, "*batch irrep 2"]) -> Float[Tensor, "*batch seen_irrep 2"]:
        """Return Mu: shapes as images are seen."""
        return planes if self.turn is None else (planes.flatten(-2) @ self.turn.T).unflatten(-1, (-1, 2))

    def hide(self, planes: Float[Tensor, "*batch seen_irrep 2"]) -> Float[Tensor, "*batch irrep 2"]:
        """Return Mᵀv, the transpose of :meth:`show`."""
        return planes if self.turn is None else (planes.flatten(-2) @ self.turn).unflatten(-1, (-1, 2))

    def split(self, size: int) -> Iterator[Evidence]:
        """Yield the evidence of some images at a time."""
        shapes = self.shape.split(size) if len(self.shape) > 1 else repeat(self.shape)
        for image, shape in zip(self.image.split(size), shapes, strict=False):
            yield self._replace(shape=shape, image=image)

    def repeat(self, n: int) -> Evidence:
        """Return the evidence of each image ``n`` times."""
        return self._replace(**{name: getattr(self, name).repeat_interleave(n, dim=0) for name in ("shape", "image")})


class PoseExpectation(NamedTuple):
    """What the E-step knows of the pose under P(s | I, α), in planes, where T is R or, with an outer group, R₂MR₁."""

    shape_planes: Planes  # u
    returned: Planes  # E[T]ᵀv, the image turned back
    explained: Planes  # E[TᵀT]u: the shape itself, or what an outer group lets through of it
    damped: Planes  # the same with R̄ᵀR̄: T and ε taken as independent
    moved: Seen  # E[T]u, the shape as the image is expected to show it
    log_partition: PerImage
    cross: Float[Tensor, "_ column"]  # frame @ cross is Σ I (R̄u)ᵀ or, with an outer group, Σ E[T₂ᵀI (R₁u)ᵀ]
    frame: Float[Tensor, "pixel _"] = torch.empty(0, 0)  # set where there are pixels


class PoseEngine(ABC):
    """What the functions that take an engine and a model ask of it: integrals over all of the pose, and its modes."""

    tori: tuple[Frequencies, ...]  #: of the groups that it integrates over, the outer one first
    frequencies: Frequencies  #: those of the model's own W
    torus_dim: int  #: dimension of the pose (paper: n)
    dtype: torch.dtype
    device: torch.device

    def check_fits(self, parameters: Parameters) -> None:
        """Reject a model with other frequencies, another floating point type, or on another device."""
        wanted = [action.frequencies for action in parameters.actions]
        if len(self.tori) != len(wanted) or not all(map(torch.equal, self.tori, wanted)):
            reject("engine", "the model's own frequencies", "other ones", "Make it by engine_of(parameters).")
        for name in ("dtype", "device"):
            own, theirs = getattr(self, name), getattr(parameters, name)
            if own != theirs:
                reject("engine", f"{name} {theirs}, as the model has", str(own), f"Pass {name} to the engine.")

    @abstractmethod
    def expect(self, evidence: Evidence) -> PoseExpectation:
        """Integrate the pose out [Chau20, app. B and C]."""

    @abstractmethod
    def log_evidence(self, evidence: Evidence) -> PerImage:
        """Return ln ∫ P(s) exp((v·Tu - ‖Tu‖²/2) / σ²) ds."""

    @abstractmethod
    def find_modes(self, evidence: Evidence, n_modes: int) -> Modes:
        """Return the highest distinct modes; ln Z is still in their log density."""

    @abstractmethod
    def find_poses(self, evidence: Evidence, *, refine: bool = True) -> Poses:
        """Return the most probable pose of each image, or the best of the engine's own points."""

    @abstractmethod
    def find_codes(self, codes: Codes, ascent: Ascent) -> Codes:
        """Return the codes after all steps of FISTA; they carry no gradient [Chau20, app. D]."""

    def carry(self, evidence: Evidence) -> tuple[Seen, Planes]:
        """Return E[T]u and E[T]ᵀv, perhaps more roughly than :meth:`expect`: for the many pairs of a sort."""
        found = self.expect(evidence)
        return found.moved, found.returned


def pose_natural(parameters: Parameters, images: Images, codes: Codes) -> Natural:
    """Return η̂ of P(s | I, α) [Chau20, app. B]."""
    return Evidence.of(parameters, images, codes).natural


def log_likelihood(parameters: Parameters, images: Images, codes: Codes, engine: PoseEngine) -> PerImage:
    """Return ln P(I | α) with the pose integrated out [Chau20, app. B, last line]."""
    engine.check_fits(parameters)
    check_images(images, parameters.n_pixels, parameters.dtype)
    variance = parameters.noise_std**2
    constant = 0.5 * parameters.n_pixels * math.log(2 * math.pi * variance)
    energy = images.square().sum(dim=1) / (2 * variance)
    return engine.log_evidence(Evidence.of(parameters, images, codes)) - energy - constant
