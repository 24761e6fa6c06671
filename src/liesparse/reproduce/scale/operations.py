"""Operations of a training step of online EM on the grid, by formulas; a multiply-add counts as two.

Products of matrices only: torch's own decompositions (eigenvalues), products of a matrix and a vector,
exponentials and sums are left out, as they are by torch's counter.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

N_CODE_STEPS = 20


class Sizes(NamedTuple):
    """The sizes that decide the work of a step."""

    n_pixels: int
    n_irreps: int
    n_components: int
    batch: int
    n_grid: int


def count_step(sizes: Sizes, frequencies: Int[Tensor, "irrep 2"]) -> dict[str, float]:
    """Return the operations of a step by what they are for; an M-step in every second step counts half.

    ``pixels`` touch the pixels and grow with D, ``posterior`` and ``codes`` do not.
    """
    d, m, k, b, n = sizes.n_pixels, 2 * sizes.n_irreps, sizes.n_components, sizes.batch, sizes.n_grid
    first, last = (int(size) for size in frequencies.amax(dim=0) - frequencies.amin(dim=0) + 1)
    cells = 2 * first * last  # numbers in the box of frequencies
    evaluate = 2 * (4 * first * last * n + 2 * first * n * n)  # last axis, then the first
    posterior = (N_CODE_STEPS + 1) * b * 2 * evaluate  # there and back, in each step of FISTA and at the end
    root = 2 * m * m * m  # of the Gram matrix in the polar factor
    codes = 2 * k * m * k + N_CODE_STEPS * 2 * 2 * b * k * cells + 2 * m * b * k + 2 * k * b * k
    projections = 2 * (b + k) * d * m + 2 * b * k * d + 2 * 2 * b * d * m  # WᵀI, WᵀΦ; Φα, WᵀΦα, WᵀI
    average = 2 * d * b * m  # I (R̄u)ᵀ
    maximize = 2 * 2 * d * m * m + 2 * m * d * k + 2 * d * m * k  # there and back in the polar factor, WᵀΦ, WA
    return {"pixels": projections + average + maximize / 2, "posterior": float(posterior), "codes": codes + root / 2}
