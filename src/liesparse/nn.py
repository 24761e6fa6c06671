"""The torus transformation as layers for deep networks: move features by a pose, infer the pose between two.

W is the polar factor of an unconstrained parameter V, so any optimizer may change V. Of the ways tried it keeps V
best conditioned: a gradient step leaves VᵀV as it is to first order, whereas QR and Cholesky, twice as fast, favour
the first columns, and QR took a square V to a condition number above 10⁴. As W does not depend on the length of V,
steps of a constant size turn it less and less while V grows; weight decay counters that.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from liesparse import stiefel, torus
from liesparse._checks import check_count, check_group_basis, check_n_pixels, check_real, check_shape, describe, reject
from liesparse.lattice import half_lattice
from liesparse.model import Images, Parameters, Poses
from liesparse.posterior import Evidence

NO_EVIDENCE = 1e-5  # a pull towards s = 0, so that a flat posterior has a mean and a finite gradient
POLISH = 2  # Newton-Schulz steps against rounding: W is orthonormal in float32 up to a condition number of V of 300
WORKING_TYPES = (torch.float32, torch.float64)


class TorusAction(nn.Module):
    """Move features along a learned torus group: x ↦ W R(s) Wᵀ x [Chau20, sec. 2].

    Parameters
    ----------
    n_pixels : int
        Length of a feature vector (paper: D).
    torus_dim : int
        Dimension of the pose (paper: n).
    n_irreps : int
        Rotation planes (paper: L). Needs ``2 * n_irreps <= n_pixels``.
    multiplicity : int, default=1
        How many planes share each frequency.
    include_zero : bool, default=True
        Whether there are planes that do not turn, for what the motion leaves alone.
    keep_rest : bool, default=False
        Whether what lies outside the planes passes unmoved; else it is dropped.
    dtype : torch.dtype, default=torch.float32
        float32 or float64. Mixed precision goes around the layer: inside it autocast is off.
    generator : torch.Generator, optional
        Draws the first W; torch's own generator otherwise, as in other layers.
    """

    frequencies: Int[Tensor, "irrep torus"]

    def __init__(
        self,
        n_pixels: int,
        torus_dim: int,
        n_irreps: int,
        *,
        multiplicity: int = 1,
        include_zero: bool = True,
        keep_rest: bool = False,
        dtype: torch.dtype = torch.float32,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_n_pixels(n_pixels, check_count("n_irreps", n_irreps))
        if dtype not in WORKING_TYPES:
            reject("dtype", "torch.float32 or torch.float64", str(dtype), "Use autocast around the layer instead.")
        self.n_pixels, self.torus_dim, self.n_irreps, self.keep_rest = n_pixels, torus_dim, n_irreps, bool(keep_rest)
        frequencies = half_lattice(torus_dim, n_irreps, multiplicity=multiplicity, include_zero=include_zero)
        self.register_buffer("frequencies", frequencies)
        random = torch.randn(n_pixels, 2 * n_irreps, generator=generator, dtype=dtype)
        self.free_basis = nn.Parameter(stiefel.orthonormalize(random).contiguous())  # LBFGS wants rows

    @classmethod
    def from_parameters(cls, parameters: Parameters, *, keep_rest: bool = False, outer: bool = False) -> TorusAction:
        """Make a layer from a learned model: it moves as :func:`liesparse.model.apply_transform` does.

        Of two groups it is the inner one, or with ``outer`` the other; one layer after the other moves as both do.
        """
        if outer and parameters.outer is None:
            reject("outer", "a model of two groups", "one of one group", "Leave it out.")
        basis, frequencies = parameters.actions[0 if outer else -1]
        check_group_basis(basis)
        sizes = parameters.n_pixels, frequencies.shape[1], len(frequencies)
        unused = torch.Generator()  # leaves torch's own generator as it was
        layer = cls(*sizes, keep_rest=keep_rest, dtype=parameters.dtype, generator=unused).to(parameters.device)
        with torch.no_grad():
            layer.free_basis.copy_(basis)
            layer.frequencies.copy_(frequencies)
        return layer

    @property
    def group_basis(self) -> Float[Tensor, "pixel column"]:
        """The orthonormal W, the polar factor of ``free_basis``; gradients flow through it."""
        if self.free_basis.dtype not in WORKING_TYPES:
            fix = "Call layer.float() and use autocast around it."
            reject("free_basis", "float32 or float64", str(self.free_basis.dtype), fix)
        return _Polar.apply(self.free_basis)

    def forward(self, images: Images, poses: Poses) -> Images:
        """Return T(s) x for each row: W R(s) Wᵀ x, plus x - WWᵀx if ``keep_rest``."""
        dtype = self.free_basis.dtype  # values are not checked, so that torch.compile sees one graph
        check_shape("images", images, ("batch", None), ("n_pixels", self.n_pixels), dtype)
        check_shape("poses", poses, ("batch", len(images)), ("torus_dim", self.torus_dim), dtype)
        with torch.autocast(images.device.type, enabled=False):  # half precision cannot hold ω·s
            basis = self.group_basis
            planes = torus.to_planes(basis, images)
            moved = torus.rotate(planes, torus.phases(self.frequencies, poses))
            if self.keep_rest:
                return images + (moved - planes).flatten(1) @ basis.mT
            return moved.flatten(1) @ basis.mT

    def extra_repr(self) -> str:
        """Say the sizes when the layer is printed."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in ("n_pixels", "torus_dim", "n_irreps", "keep_rest"))


class TorusPose(nn.Module):
    """Infer by how much one feature vector is moved against another: the circular mean of P(s | x, x').

    The mean, as it is smooth in everything: the mode jumps from peak to peak while the features are still being
    learned. In a few trials both trained equally well with slow planes, the mean better with fast ones. The integral is
    a sum over a grid; a posterior narrower than its spacing is softened until the grid resolves it. If nothing tells
    one pose from another, it is 0.

    Parameters
    ----------
    action : TorusAction
        The group along which to compare; its parameters are shared, not copied.
    noise_std : float, default=1.0
        Expected difference of a single feature (paper: σ): the larger, the softer. It may be changed at any time.
    n_grid : int, optional
        Grid points per torus axis; by default four for each period of the fastest plane, and at least 32.
    """

    def __init__(self, action: TorusAction, *, noise_std: float = 1.0, n_grid: int | None = None) -> None:
        super().__init__()
        if not isinstance(action, TorusAction):
            reject("action", "a TorusAction", describe(action), "Pass the layer that moves the features.")
        self.action = action
        self.noise_std = check_real("noise_std", noise_std, above=0)
        fastest = int(action.frequencies.abs().max())
        self.n_grid = check_count("n_grid", max(32, 4 * fastest + 1) if n_grid is None else n_grid, 2 * fastest + 1)

    def forward(self, first: Images, second: Images) -> Poses:
        """Return the pose s, in [-π, π], that moves each row of ``first`` to that of ``second``."""
        action, dtype = self.action, self.action.free_basis.dtype
        check_shape("first", first, ("batch", None), ("n_pixels", action.n_pixels), dtype)
        check_shape("second", second, ("batch", len(first)), ("n_pixels", action.n_pixels), dtype)
        with torch.autocast(first.device.type, enabled=False):
            basis = action.group_basis
            flat = basis.new_zeros(action.n_irreps, 2)
            planes = torus.to_planes(basis, first), torus.to_planes(basis, second)
            natural = Evidence(*planes, self.noise_std, flat).natural
            # Scale η so that no peak is narrower than the grid's spacing.
            squares = action.frequencies.to(natural).square().sum(dim=1)
            sharpest = natural.square().sum(dim=-1).add(torch.finfo(dtype).tiny).sqrt() @ squares  # bounds ‖η·T''‖
            resolved = (self.n_grid / (2 * math.pi)) ** 2
            natural = natural * (resolved / sharpest.clamp(min=resolved))[:, None, None]
            points = torus.grid_points(self.n_grid, action.torus_dim, dtype=dtype).to(first.device)
            statistics = torus.features(torus.phases(action.frequencies, points)).flatten(1)
            weights = torch.softmax(natural.flatten(1) @ statistics.mT, dim=1)
            return torch.atan2(weights @ points.sin(), weights @ points.cos() + NO_EVIDENCE)

    def extra_repr(self) -> str:
        """Say the settings when the layer is printed."""
        return f"noise_std={self.noise_std}, n_grid={self.n_grid}"


class _Polar(torch.autograd.Function):
    """W = V S⁻¹ with S = (VᵀV)^½: the orthonormal matrix nearest to V.

    Torch's own derivative of an SVD or eigh divides by differences of singular values, which are all equal for an
    orthonormal V; the true one has only their sums.
    """

    @staticmethod
    def forward(ctx: Any, free: Tensor) -> Tensor:
        squares, axes = torch.linalg.eigh(free.mT @ free)
        limits = torch.finfo(free.dtype)  # a floor, should an optimizer bring V to a singular matrix
        stretch = squares.clamp(min=limits.eps * squares[-1] + limits.tiny).sqrt()
        basis = free @ (axes / stretch) @ axes.mT
        for _ in range(POLISH):
            basis = stiefel.newton_schulz(basis)
        ctx.save_for_backward(basis, axes, stretch)
        return basis

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        basis, axes, stretch = ctx.saved_tensors
        inner = basis.mT @ gradient
        # dW = (1 - WWᵀ) dV S⁻¹ + WΩ, where ΩS + SΩ = WᵀdV - dVᵀW; this is the transpose.
        turn = (axes.mT @ (inner - inner.mT) @ axes) / (stretch[:, None] + stretch)
        return (gradient - basis @ inner) @ (axes / stretch) @ axes.mT + basis @ (axes @ turn @ axes.mT)
