"""FISTA on the codes α with the pose integrated out, in the 2L plane coordinates [Chau20, Algorithm 1 lines 4-9]."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from liesparse import torus
from liesparse.fista import fista


class Ascent(NamedTuple):
    """What FISTA on the codes needs to know [Chau20, app. D]: A = WᵀΦ, v = WᵀI and a few numbers."""

    image_planes: Float[Tensor, "batch irrep 2"]
    dictionary_planes: Float[Tensor, "component irrep 2"]
    pose_prior: Float[Tensor, "irrep 2"]
    n_steps: int
    step: Float[Tensor, ""]
    sparsity: float
    variance: float
    exact: bool  # gradient of the likelihood, else the approximate one
    subgradient: bool  # of the sparsity with sign(0) = 0, else a proximal step

    def rows(self, chosen: Bool[Tensor, " batch"]) -> Ascent:
        """Return the same for some of the images."""
        return self._replace(image_planes=self.image_planes[chosen])


def ascend_codes(
    expect_rotation: Callable[[Float[Tensor, "batch irrep 2"]], Float[Tensor, "batch irrep 2"]],
    codes: Float[Tensor, "batch component"],
    ascent: Ascent,
) -> Float[Tensor, "batch component"]:
    """Return the codes after all steps, where ``expect_rotation`` gives R̄ for natural parameters.

    Conjugate planes ū, v̄ throughout: then η̂ = η + ūv/σ² and R̄ᵀv - u need no conjugation in the loop.
    """
    atoms = torus.conjugate(ascent.dictionary_planes).flatten(1)  # Ā
    planes = ascent.image_planes
    evidence, mirrored = torus.as_complex(planes / ascent.variance), torus.as_complex(torus.conjugate(planes))
    prior = torus.as_complex(ascent.pose_prior)
    back = (atoms * (ascent.step / ascent.variance)).T

    def advance(codes: Float[Tensor, "batch component"]) -> Float[Tensor, "batch component"]:
        shape = torus.as_complex((codes @ atoms).unflatten(1, (-1, 2)))  # ū
        natural = shape * evidence + prior
        rotation = torus.as_complex(expect_rotation(torch.view_as_real(natural)))
        residual = rotation * mirrored - shape if ascent.exact else rotation * (mirrored - rotation.conj() * shape)
        uphill = torch.view_as_real(residual).flatten(1) @ back
        shrink = codes.sign() if ascent.subgradient else 1.0
        return (codes + uphill - ascent.step * ascent.sparsity * shrink).clamp_(min=0)

    with torch.inference_mode():  # a tenth faster; the clone is an ordinary tensor again
        found = fista(advance, codes, ascent.n_steps)
    return found.clone()
