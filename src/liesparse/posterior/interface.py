"""One interface to P(s | I, α) for one group and for two: what engines are told of images, and what they answer.

And how all of them climb: by FISTA on the codes α, and by Newton steps to the modes of the pose's density.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_images, reject
from liesparse.model import Codes, Images, Numbers, Parameters, Poses, compose
from liesparse.torus import Frequencies

Natural = Float[Tensor, "batch irrep 2"]  # η, or R̄: two numbers for each plane
PosesOfModes = Float[Tensor, "batch mode torus"]
Planes = Float[Tensor, "#batch irrep 2"]  # of shapes; one may be for all images
Seen = Float[Tensor, "batch seen_irrep 2"]  # of images: in the planes of the outer group, where there is one
Turn = Float[Tensor, "outer_column column"]  # M = W₂ᵀW, which leads from planes of W to those of an outer group

N_STEPS = 12  # Newton steps; they converge in about half as many
ARRIVED = 0.2  # nats left to climb from which a start stands on a mode of its own
FLAT = 1e-3  # a curvature below this share of the largest is as good as none
RIDGE = 1.0  # added to the curvature: no mode counts as wider than a radian


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
    log_partition: Numbers
    cross: Float[Tensor, "_ column"]  # frame @ cross is Σ I (R̄u)ᵀ or, with an outer group, Σ E[T₂ᵀI (R₁u)ᵀ]
    frame: Float[Tensor, "pixel _"] = torch.empty(0, 0)  # set where there are pixels


def fista(advance: Callable[[Tensor], Tensor], start: Tensor, n_steps: int) -> Tensor:
    """Accelerate the fixed-point iteration x ← advance(x) by Nesterov's momentum [Beck09, eq. 4.1-4.3]."""
    current = ahead = start
    momentum = 1.0
    for _ in range(n_steps):
        previous, current = current, advance(ahead)
        next_momentum = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = torch.lerp(previous, current, 1 + (momentum - 1) / next_momentum)
        momentum = next_momentum
    return current


class Ascent(NamedTuple):
    """What FISTA on the codes needs to know [Chau20, app. D]: A = WᵀΦ, v = WᵀI and a few numbers."""

    image_planes: Natural
    dictionary_planes: Float[Tensor, "component irrep 2"]
    pose_prior: Float[Tensor, "irrep 2"]
    n_steps: int
    step: Float[Tensor, ""]
    sparsity: float
    variance: float
    exact: bool  # gradient of the likelihood, else the approximate one
    subgradient: bool  # of the sparsity with sign(0) = 0, else a proximal step
    turn: Turn | None = None  # M, where there is an outer group

    def climb(self, codes: Codes, expect_rotation: Callable[[Natural], Natural]) -> Codes:
        """Return the codes after all steps, where ``expect_rotation`` gives R̄ [Chau20, Algorithm 1 lines 4-9].

        Conjugate planes ū, v̄ throughout: then η̂ = η + ūv/σ² and R̄ᵀv - u need no conjugation in the loop.
        """
        as_complex, planes = torch.view_as_complex, self.image_planes
        atoms = torus.conjugate(self.dictionary_planes).flatten(1)  # Ā
        evidence, mirrored = as_complex(planes / self.variance), as_complex(torus.conjugate(planes))
        prior = as_complex(self.pose_prior)
        back = (atoms * (self.step / self.variance)).T

        def advance(codes: Codes) -> Codes:
            shape = as_complex((codes @ atoms).unflatten(1, (-1, 2)))  # ū
            natural = shape * evidence + prior
            rotation = as_complex(expect_rotation(torch.view_as_real(natural)))
            residual = rotation * mirrored - shape if self.exact else rotation * (mirrored - rotation.conj() * shape)
            uphill = torch.view_as_real(residual).flatten(1) @ back
            shrink = codes.sign() if self.subgradient else 1.0
            return (codes + uphill - self.step * self.sparsity * shrink).clamp_(min=0)

        with torch.inference_mode():  # a tenth faster; the clone is an ordinary tensor again
            found = fista(advance, codes, self.n_steps)
        return found.clone()


class Modes(NamedTuple):
    """Distinct local maxima, highest first; where there are fewer, the rest have log density -inf."""

    poses: PosesOfModes
    log_density: Float[Tensor, "batch mode"]  # η·T(s), not normalised
    curvature: Float[Tensor, "batch mode torus torus"]  # the negative second derivatives, no eigenvalue below 0


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
    def log_evidence(self, evidence: Evidence) -> Numbers:
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


def pose_log_density(natural: Natural, frequencies: Frequencies, poses: Poses) -> Numbers:
    """Return η·T(s), the unnormalised log density, at any pose [Chau20, app. B]."""
    return (natural * torus.features(torus.phases(frequencies, poses))).sum(dim=(1, 2))


def slope_and_curvature(
    natural: Natural, frequencies: Frequencies, poses: Poses
) -> tuple[Poses, Float[Tensor, "batch torus torus"]]:
    """Return the gradient of η·T(s) and its negative Hessian."""
    omega = frequencies.to(natural)
    cos, sin = torus.features(torus.phases(frequencies, poses)).unbind(-1)
    slope = (natural[..., 1] * cos - natural[..., 0] * sin) @ omega
    return slope, torch.einsum("bl,li,lj->bij", natural[..., 0] * cos + natural[..., 1] * sin, omega, omega)


def refine_poses(natural: Natural, frequencies: Frequencies, poses: Poses, *, n_steps: int = N_STEPS) -> Poses:
    """Climb η·T(s) from ``poses`` by safeguarded Newton steps; the result is never worse than the start.

    Each image has its own damping: a step that does not climb is not taken and the next is shorter. None goes further
    than a radian of the highest frequency: where the curvature changes its sign, Newton's own step has no end.
    """
    longest = 1 / max(1, int(frequencies.abs().max()))
    value = pose_log_density(natural, frequencies, poses)
    damping = torch.zeros_like(value)
    for _ in range(n_steps):
        slope, curvature = slope_and_curvature(natural, frequencies, poses)
        eigenvalues, axes = torch.linalg.eigh(curvature)
        # The absolute value turns saddles into ascent directions; the floor keeps flat directions finite.
        floor = 1e-6 * eigenvalues.abs().amax(dim=1, keepdim=True) + torch.finfo(natural.dtype).tiny
        stiffness = eigenvalues.abs().maximum(floor) * (1 + damping[:, None])
        step = torch.einsum("bij,bj,bkj,bk->bi", axes, 1 / stiffness, axes, slope)
        trial = poses + step.nan_to_num(0.0) * (longest / step.norm(dim=1, keepdim=True)).clamp(max=1).nan_to_num(0.0)
        trial_value = pose_log_density(natural, frequencies, trial)
        better = trial_value > value
        poses = torch.where(better[:, None], trial, poses)
        value = torch.where(better, trial_value, value)
        damping = torch.where(better, damping / 4, 4 * damping + 1)
    return poses


def find_modes(
    natural: Natural, frequencies: Frequencies, starts: PosesOfModes, n_modes: int, *, n_steps: int = N_STEPS
) -> Modes:
    """Climb from all starts and keep the ``n_modes`` highest distinct modes.

    A place is a mode if little is left to climb there and no way leads up, as from a saddle, and one of its own if no
    higher one lies within its width. The best place always counts: a flat density has no mode.
    """
    batch, n_starts, n = starts.shape
    repeated = natural.repeat_interleave(n_starts, dim=0)
    reached = refine_poses(repeated, frequencies, starts.flatten(0, 1), n_steps=n_steps)
    slopes, curvatures = slope_and_curvature(repeated, frequencies, reached)
    values, order = pose_log_density(repeated, frequencies, reached).view(batch, n_starts).sort(1, descending=True)
    poses, slopes = (part.view(batch, n_starts, n).take_along_dim(order[..., None], 1) for part in (reached, slopes))
    curvatures = curvatures.view(batch, n_starts, n, n).take_along_dim(order[..., None, None], 1)
    eigenvalues, axes = torch.linalg.eigh(curvatures)
    along = torch.einsum("bmij,bmi->bmj", axes, slopes)
    left = 0.5 * (along.square() / eigenvalues.clamp(min=torch.finfo(natural.dtype).tiny)).sum(dim=-1)
    summit = eigenvalues[..., 0] >= -FLAT * eigenvalues.abs().amax(dim=-1)
    arrived = (summit & (left < ARRIVED)) | (torch.arange(n_starts, device=natural.device) == 0)
    curvatures = torch.einsum("bmij,bmj,bmkj->bmik", axes, eigenvalues.clamp(min=0), axes)
    apart = torus.wrap(poses[:, :, None] - poses[:, None])  # of the first from the second, which is higher
    distances = torch.einsum("bmni,bnij,bmnj->bmn", apart, curvatures, apart) + RIDGE * apart.square().sum(dim=-1)
    kept = arrived & ~torch.tril(distances < 1, diagonal=-1).any(dim=2)
    chosen = kept.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :n_modes]
    missing = max(0, n_modes - n_starts)
    chosen = torch.nn.functional.pad(chosen, (0, missing), value=n_starts - 1)
    log_density = values.masked_fill(~kept, -torch.inf).take_along_dim(chosen, 1)
    log_density[:, n_starts:] = -torch.inf
    poses = poses.take_along_dim(chosen[..., None], 1)
    return Modes(poses, log_density, curvatures.take_along_dim(chosen[..., None, None], 1))


def pose_natural(parameters: Parameters, images: Images, codes: Codes) -> Natural:
    """Return η̂ of P(s | I, α) [Chau20, app. B]."""
    return Evidence.of(parameters, images, codes).natural


def log_likelihood(parameters: Parameters, images: Images, codes: Codes, engine: PoseEngine) -> Numbers:
    """Return ln P(I | α) with the pose integrated out [Chau20, app. B, last line]."""
    engine.check_fits(parameters)
    check_images(images, parameters.n_pixels, parameters.dtype)
    variance = parameters.noise_std**2
    constant = 0.5 * parameters.n_pixels * math.log(2 * math.pi * variance)
    energy = images.square().sum(dim=1) / (2 * variance)
    return engine.log_evidence(Evidence.of(parameters, images, codes)) - energy - constant
