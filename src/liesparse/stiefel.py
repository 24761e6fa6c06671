"""The Stiefel manifold of matrices with orthonormal columns, and Riemannian Adam on it for W.

Written by hand because geoopt solves a D × D system in every step (about 30 ms at 784 × 256) and
cannot resume from its own ``state_dict``; the oracle tests follow geoopt step by step.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse._checks import orthonormality_error as orthonormality_error
from liesparse.devices import read_numbers

Metric = Literal["canonical", "euclidean"]
METRICS: tuple[Metric, ...] = ("canonical", "euclidean")
Matrix = Float[Tensor, "row column"]
NOTHING = 1e-12  # of the largest singular value; double precision alone can tell it from rounding
A_LITTLE = 1e-6
SPREAD = 1e-10  # of the largest eigenvalue of MᵀM, up to which rounding shows in the others
BETAS, EPS = (0.9, 0.999), 1e-8  # of Adam
RESOLVED = 1e-16  # of the largest eigenvalue of MᵀM: below it float32 only has rounding errors


class AdamState(NamedTuple):
    """What Riemannian Adam remembers: a tangent vector and one scalar second moment."""

    step: int
    momentum: Matrix
    second_moment: Float[Tensor, ""]

    @classmethod
    def zero(cls, point: Matrix) -> AdamState:
        """Return the state before the first step at ``point``."""
        return cls(0, torch.zeros_like(point), point.new_zeros(()))


def random_point(
    n_rows: int, n_columns: int, *, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> Matrix:
    """Draw an orthonormal matrix uniformly (Haar measure)."""
    return orthonormalize(torch.randn(n_rows, n_columns, generator=generator, dtype=dtype))


def orthonormalize(matrix: Matrix) -> Matrix:
    """Return the Q of the QR decomposition with a positive diagonal of R."""
    q, r = torch.linalg.qr(matrix)
    return q * (1 - 2 * (r.diagonal() < 0).to(matrix))


def polar(matrix: Matrix, near: Matrix | None = None) -> Matrix:
    """Return the orthonormal matrix nearest to ``matrix``: of all of them it has the largest tr(WᵀM).

    A direction about which ``matrix`` says nothing would follow rounding errors; with ``near`` it follows that.
    """
    double = matrix.double()
    basis = _polar_by_gram(double) if matrix.dtype == torch.float32 else None
    if basis is None:
        basis = _polar_by_svd(double, None if near is None else near.double())
    return basis.to(matrix)


def _polar_by_gram(matrix: Matrix, least: float | None = None) -> Matrix | None:
    """Return M (MᵀM)^(-1/2), or None where an eigenvalue of MᵀM is below ``least``; by default, of what is resolved.

    Of a float32 matrix this is as exact as an SVD, and with two threads twice as fast. Squares lose half of the digits:
    the weak directions of MᵀM are found once more, from the part of M that is left in them.
    """
    try:
        squares, directions = torch.linalg.eigh(matrix.T @ matrix)
    except RuntimeError:  # of numbers that are not finite the SVD says so
        return None
    values = read_numbers(squares)
    least = RESOLVED * values[-1] if least is None else least
    n_weak = sum(value < SPREAD * values[-1] for value in values)
    if n_weak == 0 and not values[0] > least:
        return None
    weak, strong = directions[:, :n_weak], directions[:, n_weak:]
    scaled = strong * squares[n_weak:].rsqrt()
    whole = matrix @ (scaled @ strong.T)
    if not n_weak:
        return whole
    left = matrix @ weak
    left = left - matrix @ (scaled @ (scaled.T @ (matrix.T @ left)))  # or rounding in the strong ones shows here
    rest = _polar_by_gram(left, least)
    return None if rest is None else whole + rest @ weak.T


def _polar_by_svd(matrix: Matrix, near: Matrix | None) -> Matrix:
    left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    if near is not None:
        largest, smallest = read_numbers(torch.stack((sizes[0], sizes[-1])))
        if smallest <= NOTHING * largest:
            return _polar_by_svd(matrix + A_LITTLE * (largest or 1.0) * near, None)
    return left @ right


def tangent(point: Matrix, gradient: Matrix, metric: Metric = "canonical") -> Matrix:
    """Turn a Euclidean gradient into the Riemannian one, tangent at ``point``.

    Any part of the form W·S with S symmetric vanishes under either metric.
    """
    inner = point.T @ gradient
    normal = inner.T if metric == "canonical" else 0.5 * (inner + inner.T)
    return gradient - point @ normal


def adam_step(
    point: Matrix, gradient: Matrix, state: AdamState, *, rate: float, metric: Metric = "canonical"
) -> tuple[Matrix, AdamState]:
    """Take one descent step of Riemannian Adam and return the new point and state.

    The second moment is one scalar, the squared Riemannian length of the gradient, so the step
    keeps the direction of the momentum: at a constant gradient it has length ``rate``.
    """
    step = state.step + 1
    direction = tangent(point, gradient, metric)
    momentum = torch.lerp(state.momentum, direction, 1 - BETAS[0])
    square = direction.square().sum()
    if metric == "canonical":
        square = square - 0.5 * (point.T @ direction).square().sum()
    second_moment = torch.lerp(state.second_moment, square, 1 - BETAS[1])
    mean_correction, square_correction = 1 - BETAS[0] ** step, 1 - BETAS[1] ** step
    length = (second_moment / square_correction).sqrt() + EPS
    scale = rate / (mean_correction * length)
    move = _cayley_step if metric == "canonical" else _qr_step
    new_point, new_momentum = move(point, momentum, -scale)
    return new_point, AdamState(step, new_momentum, second_moment)


def _qr_step(point: Matrix, vector: Matrix, scale: Float[Tensor, ""]) -> tuple[Matrix, Matrix]:
    """Retract ``scale * vector`` by QR and transport ``vector`` by projection.

    R is the Cholesky factor of the Gram matrix 1 + scale² UᵀU, which is well conditioned here;
    that is four times faster than Householder QR. One Newton-Schulz step then removes the
    rounding error, so that ten thousand steps in float32 do not drift.
    """
    moved = point + scale * vector
    factor = torch.linalg.cholesky(moved.T @ moved)
    new_point = newton_schulz(torch.linalg.solve_triangular(factor, moved.T, upper=False).T)
    return new_point, tangent(new_point, vector, "euclidean")


def _cayley_step(point: Matrix, vector: Matrix, scale: Float[Tensor, ""]) -> tuple[Matrix, Matrix]:
    """Move ``point`` and ``vector`` by the Cayley transform of A = UWᵀ - WUᵀ, U = scale * vector.

    (1 - A/2)⁻¹(1 + A/2) = 1 + P (1 - QᵀP/2)⁻¹ Qᵀ with P = [U, -W], Q = [W, U] (Woodbury), and block
    elimination leaves one 2L × 2L system instead of the D × D one.
    """
    inner, gram = point.T @ vector, vector.T @ vector
    skew, square = scale * inner, scale * scale * gram  # WᵀU, UᵀU
    eye = torch.eye(len(skew), dtype=skew.dtype, device=skew.device)
    half = eye - 0.5 * skew
    # Qᵀ[W, V] = [top; bottom]; solve (1 - QᵀP/2) [first; second] = [top; bottom].
    top = torch.cat((eye, inner), dim=1)
    bottom = torch.cat((skew.T, scale * gram), dim=1)
    first = torch.linalg.solve(2 * half @ half + 0.5 * square, 2 * half @ top - bottom)
    second = 2 * (top - half @ first)
    moved = torch.cat((point, vector), dim=1) + vector @ (scale * first) - point @ second
    new_point, new_vector = moved.chunk(2, dim=1)
    return newton_schulz(new_point), new_vector


def newton_schulz(point: Matrix) -> Matrix:
    """One step towards the nearest orthonormal matrix: squares a small orthonormality error."""
    gram = point.T @ point
    return point @ (1.5 * torch.eye(len(gram), dtype=gram.dtype, device=gram.device) - 0.5 * gram)
