"""How sure a model is of each image: is it explained, by one template, is its pose the only one, does motion help."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from liesparse import torus
from liesparse.baselines import infer_sparse_codes
from liesparse.baselines import log_likelihood as plain_log_likelihood
from liesparse.metrics import code_cost, template_share
from liesparse.model import Codes, Images, Numbers, Parameters, Poses, apply_transform, reconstruct
from liesparse.posterior import Evidence, PoseEngine
from liesparse.verdict import LEAST_FIT, alignments

N_MODES = 5
ALIKE = 0.95  # cosine from which two modes show the same picture
LEAST_CONFIDENCE = 0.5  # below, half of the picture or half of the posterior says something else
NO_MOTION, BLANK, STRANGE, UNMOVED, MIXED, SPREAD, UNEXPLAINED, POSE = range(1, 9)
DOUBTS = (  # why an image is not to be trusted, the worst first; of the last one only the pose is not
    "",
    "no motion found",
    "blank",
    "like no template",
    "of a template never seen moving",
    "of a template that mixes shapes",
    "spread over several templates",
    "largely not explained",
    "alike in other poses",
)


class Confidence(NamedTuple):
    """How sure the model is of each image."""

    confidence: Numbers  # alignment² · mode_share · sharpness · template_share: 1 for one template, surely in one pose
    alignment: Numbers  # cosine between the picture, its noise apart, and what the model makes of it
    mode_share: Numbers  # of the posterior of the pose: its best mode, and those that show the same picture
    gain: Numbers  # nats by which moved shapes explain it better than the same shapes held still
    sharpness: Numbers  # of the coordinate that is known best, the length of E[exp(is)]: 0 where any pose will do
    template_share: Numbers  # of what the model makes of it, what its largest template alone would be
    uncertain: Bool[Tensor, " batch"]  # not to be trusted
    doubt: Int[Tensor, " batch"]  # why not: a place in DOUBTS, 0 where there is none


def mode_shares(
    parameters: Parameters, images: Images, codes: Codes, engine: PoseEngine
) -> tuple[Float[Tensor, "batch mode torus"], Float[Tensor, "batch mode"]]:
    """Return the modes of the pose, best first, and the share of each: a Gaussian of its height and curvature."""
    evidence = Evidence.of(parameters, images, codes)
    poses, log_density, curvature = engine.find_modes(evidence, N_MODES)
    log_density = log_density - engine.expect(evidence).log_partition[:, None]
    stiffness = torch.linalg.eigvalsh(curvature).clamp(min=1e-12)
    masses = (log_density + 0.5 * (math.log(2 * math.pi) - stiffness.log()).sum(dim=-1)).clamp(max=0).exp()
    shares = masses / masses.sum(dim=1, keepdim=True).clamp(min=1)  # Gaussians may count some mass twice
    return torus.wrap(poses), shares  # modes that are not there have the share 0


def _same_motion(
    parameters: Parameters, codes: Codes, poses: Poses, modes: Float[Tensor, "batch mode torus"]
) -> Bool[Tensor, "batch mode"]:
    """Tell which modes do the same as the pose: to the picture, and to all shapes together.

    An axis may change nothing, or be gone round several times. Where the picture alone is the same, as that of a bar
    turned by half a turn, the pose is not known.
    """
    same = torch.ones(modes.shape[:2], dtype=torch.bool, device=modes.device)
    for shapes in (codes, torch.ones_like(codes)):
        here = reconstruct(parameters, shapes, poses)
        there = [reconstruct(parameters, shapes, mode) for mode in modes.unbind(dim=1)]
        same &= torch.stack([torch.cosine_similarity(here, one) > ALIKE for one in there], dim=1)
    return same


@torch.no_grad()
def rate_confidence(
    parameters: Parameters,
    images: Images,
    codes: Codes,
    poses: Poses,
    log_likelihoods: Numbers,
    middles: Float[Tensor, "component torus"],
    widths: Poses,
    engine: PoseEngine,
    *,
    noise: float = 0.0,
    least_fit: float = LEAST_FIT,
    usual_share: float = 1.0,
    least_share: float = 0.0,
) -> Confidence:
    """Say how sure the model is of unit-norm images, from what it inferred.

    ``noise`` is the share of a picture that is noise, and ``least_fit`` the share of the rest that the model usually
    explains: less, and the picture is a stranger. ``usual_share`` is the usual ``template_share`` of the model's
    pictures, and below ``least_share`` one is spread over more templates than they are. ``middles`` has a pose for each
    template, in which it is held still to see what the motion gains. ``widths`` are those of the posterior of each
    coordinate; one that is not used may be as wide as the circle, not all of them.
    """
    found = reconstruct(parameters, codes, poses)
    alignment = alignments(images, found, noise).clamp(max=1)
    modes, shares = (part.to(images) for part in mode_shares(parameters, images, codes, engine))
    share = (shares * _same_motion(parameters, codes, poses, modes)).sum(dim=1).clamp(max=1)
    still = apply_transform(parameters, parameters.dictionary.T, middles.to(images)).T.contiguous()
    still_codes = infer_sparse_codes(still, images, noise_std=parameters.noise_std, sparsity=parameters.sparsity)
    unmoved = plain_log_likelihood(still, images, still_codes, noise_std=parameters.noise_std)
    gain = log_likelihoods - unmoved - code_cost(codes, parameters.sparsity)
    gain = gain + code_cost(still_codes, parameters.sparsity)
    sharpness = torch.exp(-0.5 * widths.to(images).amin(dim=1).square())
    fit = alignment.square()
    spread = template_share(parameters, codes, poses)
    confidence = fit * share * sharpness * spread
    # A sum of shapes may be what pictures of this model are: then it is no doubt.
    weakest = torch.tensor((UNEXPLAINED, SPREAD, POSE), device=images.device)
    doubt = weakest[torch.stack((fit, spread, share * sharpness)).argmin(dim=0)]
    doubt = doubt * (confidence < LEAST_CONFIDENCE * usual_share)
    doubt = torch.where(spread < least_share, SPREAD, doubt)
    doubt = torch.where(fit < least_fit, STRANGE, doubt)
    return Confidence(confidence, alignment, share, gain, sharpness, spread, doubt > 0, doubt)
