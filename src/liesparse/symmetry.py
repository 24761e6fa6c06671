"""What did it learn? The learned group in words: by known factors, or by fields that everybody knows.

With known factors the question is which combination of s is x-shift, rotation, log-scale, …; without them, which
known motion the generators G_j = ∂T/∂s_j at s = 0 resemble. G_j commutes with T(s), so G_j I is ∂I/∂s_j at any pose.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_count, check_matrix, reject
from liesparse.model import Codes, Images, Parameters, Poses, reconstruct

Factors = Float[Tensor, "batch factor"]
Pictures = Float[Tensor, "batch height width *colour"]

MIN_IMAGES = 20  # of one template, from which its map is fitted
CLEAR = 0.5  # share of the energy from which a motion gets a name
PURE = 0.9  # from which the name needs no "mostly"
NEARLY = 0.75  # of what several fields explain together, from which one of them gives the name
NOTHING = 1e-12  # of the largest energy, up to which a motion is only rounding
_SLOPE = (3 / 4, -3 / 20, 1 / 60)  # weights of I(x + k) - I(x - k), k = 1, 2, 3: differences of sixth order

# Velocities v(x, y), linear about the centre, x to the right and y down: rows are (v_x, v_y) over (1, x, y).
_VELOCITIES = {
    "x-shift": ((1, 0, 0), (0, 0, 0)),
    "y-shift": ((0, 0, 0), (1, 0, 0)),
    "rotation": ((0, 0, 1), (0, -1, 0)),  # counter-clockwise, as the eye sees it
    "scaling": ((0, 1, 0), (0, 0, 1)),
    "horizontal shear": ((0, 0, 1), (0, 0, 0)),
    "vertical shear": ((0, 0, 0), (0, 1, 0)),
    "horizontal stretch": ((0, 1, 0), (0, 0, 0)),
    "vertical stretch": ((0, 0, 0), (0, 0, 1)),
}
FIELDS = tuple(_VELOCITIES)
GROUPS = {
    "translation": ("x-shift", "y-shift"),
    "rotation and scaling": ("rotation", "scaling"),
    "rotation and stretch": ("rotation", "horizontal stretch", "vertical stretch"),
    "all linear motions": FIELDS,
}


class FactorFit(NamedTuple):
    """How a true factor shows in the poses: medians over the templates, and the worst of them."""

    name: str
    direction: tuple[float, ...]  # how far s moves for one unit of the factor, the others held
    share: float  # of the factor's variance that a linear function of the pose explains (R²)
    correlation: float  # circular, between that prediction and the truth, both as angles on the torus
    worst_share: float  # of the template that explains least: one that stands for two shapes has two origins
    n_templates: int


class AxisFit(NamedTuple):
    """What moving along one torus axis does to images."""

    axis: int
    name: str
    shares: dict[str, float]  # of the energy of ∂I/∂s_j explained by each field alone, and by each group of fields
    rates: dict[str, float]  # pixels, radians or logarithms of size for one radian of s_j, fitted together


class PureDirection(NamedTuple):
    """The direction on the torus that is most like one known field."""

    field: str
    direction: tuple[float, ...]  # how far s moves for one pixel, radian or logarithm of size
    share: float  # of the energy of the motion in that direction explained by the field


class GroupFit(NamedTuple):
    """The learned group compared with known motions."""

    axes: tuple[AxisFit, ...]
    purest: tuple[PureDirection, ...]  # one for each field, best first


def fit_factors(
    codes: Codes, poses: Poses, factors: Factors, names: tuple[str, ...], *, min_images: int = MIN_IMAGES
) -> tuple[FactorFit, ...]:
    """Fit poses and true factors linearly to each other, for each template by itself.

    Each shape has its own origin on the torus, so each template takes the images whose largest code it is, and its
    poses are turned to their circular mean. A factor called a scale counts by its logarithm. Without a template that
    has ``min_images`` images there is no fit, and the result is empty.
    """
    if factors.shape != (len(poses), len(names)):
        reject("factors", f"shape ({len(poses)}, {len(names)})", str(tuple(factors.shape)), "Give a column per name.")
    check_count("min_images", min_images, poses.shape[1] + len(names) + 2)
    truth = count_factors(factors, names)
    fits = [_fit_template(poses[mine].double(), truth[mine]) for mine in _split_by_template(codes, min_images)]
    if not fits:
        return ()
    found = torch.stack(fits)
    middle, worst = found.median(dim=0).values.tolist(), found[..., -2].amin(dim=0).tolist()
    return tuple(
        FactorFit(name, tuple(row[:-2]), row[-2], row[-1], least, len(fits))
        for name, row, least in zip(names, middle, worst, strict=True)
    )


def predict_factors(codes: Codes, poses: Poses, truth: Factors) -> Factors:
    """Return what a linear function of the pose, one for each template, says of the factors; NaN where there is none.

    ``truth`` is as :func:`count_factors` gives it.
    """
    prediction = torch.full_like(truth, math.nan)
    for mine in _split_by_template(codes, MIN_IMAGES):
        prediction[mine] = truth[mine].mean(dim=0) + _predict(poses[mine].to(truth), truth[mine])[2]
    return prediction


def count_factors(factors: Factors, names: tuple[str, ...]) -> Factors:
    """Return the factors in float64, a scale by its logarithm unless it is one already."""
    columns = []
    for name, values in zip(names, factors.double().unbind(dim=1), strict=True):
        is_scale = "scale" in name.lower() and "log" not in name.lower() and bool((values > 0).all())
        columns.append(values.log() if is_scale else values)
    return torch.stack(columns, dim=1)


def largest_code(codes: Codes) -> Int[Tensor, " batch"]:
    """Return the template that each image is made of most; -1 for an image without codes."""
    return codes.argmax(dim=1).masked_fill(codes.amax(dim=1) <= 0, -1)


def pose_ranges(codes: Codes, poses: Poses) -> Float[Tensor, "component torus 3"]:
    """Return where the poses of each template lie: the middle one, and the 2nd and 98th percentile about it.

    A template of few images takes the median width of the others.
    """
    largest, ends = largest_code(codes), torch.tensor([0.02, 0.98]).to(poses)
    found = poses.new_zeros(codes.shape[1], poses.shape[1], 3)
    for template in largest[largest >= 0].unique().tolist():
        mine = poses[largest == template]
        found[template, :, 0] = middle = middle_pose(mine)
        found[template, :, 1:] = torus.wrap(mine - middle).quantile(ends, dim=0).T
    many = torch.stack([largest == template for template in range(len(found))]).sum(dim=1) >= MIN_IMAGES
    if bool(many.any()):
        found[~many, :, 1:] = found[many][..., 1:].median(dim=0).values
    return found


def centred_poses(poses: Poses) -> Poses:
    """Return the poses as seen from their circular mean, in [-π, π]."""
    return torus.wrap(poses - circular_mean(poses))


def middle_pose(poses: Poses) -> Float[Tensor, " torus"]:
    """Return the pose that lies nearest to all others.

    Unlike their mean it is one of them: poses of one motion may lie on a curve, and beside it no picture is.
    """
    x, y = poses.cos(), poses.sin()
    return poses[(x @ x.sum(dim=0) + y @ y.sum(dim=0)).argmax()]


def circular_mean(angles: Float[Tensor, "image *rest"]) -> Float[Tensor, "*rest"]:
    """Return the direction of the sum of the unit vectors."""
    return torch.atan2(angles.sin().mean(dim=0), angles.cos().mean(dim=0))


def circular_correlation(first: Float[Tensor, " image"], second: Float[Tensor, " image"]) -> float:
    """Return the correlation of the sines of two angles about their circular means (Jammalamadaka and SenGupta)."""
    a, b = ((angles - circular_mean(angles)).sin() for angles in (first, second))
    scale = (a.square().sum() * b.square().sum()).sqrt()
    return float((a * b).sum() / scale) if float(scale) > 0 else 0.0


def _split_by_template(codes: Tensor, min_images: int) -> list[Tensor]:
    """Return which images have each template as their largest, for templates with enough images."""
    largest = largest_code(codes)
    groups = [largest == template for template in range(codes.shape[1])]
    return [mine for mine in groups if int(mine.sum()) >= min_images]


def _predict(poses: Tensor, truth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return poses and factors about their means, and what a linear function of the first says of the second."""
    seen, known = centred_poses(poses), truth - truth.mean(dim=0)
    seen = seen - seen.mean(dim=0)  # the circular mean is not quite the mean
    return seen, known, seen @ torch.linalg.lstsq(seen, known, driver="gelsd").solution


def _fit_template(poses: Tensor, truth: Tensor) -> Tensor:
    """Return a row (direction, share, correlation) for each factor."""
    seen, known, prediction = _predict(poses, truth)
    direction = torch.linalg.lstsq(known, seen, driver="gelsd").solution  # ds for each factor
    variance = known.square().sum(dim=0)
    share = 1 - (known - prediction).square().sum(dim=0) / variance.clamp(min=1e-300)
    angles = direction.norm(dim=1)  # how far a unit of the factor goes on the torus
    columns = zip(prediction.T, known.T, angles, strict=True)
    circular = [circular_correlation(guess * angle, true * angle) for guess, true, angle in columns]
    return torch.cat((direction, share[:, None], share.new_tensor(circular)[:, None]), dim=1)


def apply_generator(parameters: Parameters, images: Images, axis: int) -> Images:
    """Return G_j I = W diag(ω_lj J) Wᵀ I, the derivative of T(s) I along axis j at s = 0 [Chau20, eq. 1].

    Of two groups each axis has the generator of its own.
    """
    if not 0 <= axis < parameters.torus_dim:
        reject("axis", f"0 <= axis < torus_dim = {parameters.torus_dim}", str(axis), "Axes count from 0.")
    check_matrix("images", images, ("batch", None), ("n_pixels", parameters.n_pixels), parameters.dtype)
    inner = axis >= parameters.outer_dim
    basis, frequencies = parameters.actions[-1 if inner else 0]
    omega = frequencies[:, axis - inner * parameters.outer_dim, None]
    turned = torus.quarter(torus.to_planes(basis, images)) * omega.to(images)
    return turned.flatten(1) @ basis.T


def apply_fields(images: Pictures) -> Float[Tensor, "field batch height width *colour"]:
    """Return -v·∇I for each of ``FIELDS``: how an image of constant norm changes as its content moves with velocity v.

    T(s) keeps the norm, and so does the scaling of every image to norm 1: the part along the image itself is taken
    out. Beyond the frame the image goes on as at its edge.
    """
    coloured = images.ndim == 4
    images = images.movedim(3, 1) if coloured else images[:, None]
    height, width = images.shape[2:]
    slope_y, slope_x = _slope(images.mT).mT, _slope(images)
    y = torch.arange(height).to(images)[:, None] - (height - 1) / 2
    x = torch.arange(width).to(images)[None, :] - (width - 1) / 2
    places = torch.stack(torch.broadcast_tensors(torch.ones_like(x), x, y))
    velocities = torch.tensor([_VELOCITIES[name] for name in FIELDS]).to(images)
    v_x, v_y = torch.einsum("fdp,phw->dfhw", velocities, places)
    changes = -(v_x[:, None, None] * slope_x + v_y[:, None, None] * slope_y)
    units = torch.nn.functional.normalize(images.flatten(1), dim=1).view_as(images)
    changes = changes - (changes * units).sum(dim=(-3, -2, -1), keepdim=True) * units
    return changes.movedim(2, 4) if coloured else changes[:, :, 0]


def _slope(images: Tensor) -> Tensor:
    """Return the derivative along the last dimension; by differences of pairs, so that a constant has exactly 0."""
    last = images.shape[-1] - 1
    places = torch.arange(last + 1, device=images.device)
    slope = torch.zeros_like(images)
    for distance, weight in enumerate(_SLOPE, start=1):
        after, before = (places + distance).clamp(max=last), (places - distance).clamp(min=0)
        slope += weight * (images[..., after] - images[..., before])
    return slope


def fit_fields(
    parameters: Parameters, images: Images, image_shape: tuple[int, ...], axes: range | None = None
) -> GroupFit:
    """Name the learned generators, of some axes or of all, by least squares against known fields, over all pixels.

    ``images`` are best the model's own reconstructions. All shares follow from one small matrix of inner products.
    """
    if math.prod(image_shape) != parameters.n_pixels:
        reject("image_shape", f"a product of {parameters.n_pixels}", str(image_shape), "Give (height, width).")
    axes = range(parameters.torus_dim) if axes is None else axes
    moved = torch.stack([apply_generator(parameters, images, axis) for axis in axes])
    known = apply_fields(images.reshape(-1, *image_shape)).flatten(2)
    columns = torch.cat((moved, known)).flatten(1).double()
    gram = columns @ columns.T
    energies = gram.diagonal()
    moving = energies > NOTHING * energies.max()  # shares have no scale, and would make something of rounding errors
    gram = gram * moving[:, None] * moving
    n, purest = len(axes), []
    before, after = [0.0] * axes.start, [0.0] * (parameters.torus_dim - axes.stop)
    for place, field in enumerate(FIELDS):
        # The largest cos² between a field and a motion in the span of the generators is the share of this fit.
        share, direction = _explained(gram, n + place, list(range(n)))
        purest.append(PureDirection(field, (*before, *direction.tolist(), *after), share))
    fits = tuple(_fit_axis(gram, place, n)._replace(axis=axis) for place, axis in enumerate(axes))
    return GroupFit(fits, tuple(sorted(purest, key=lambda found: -found.share)))


def fit_motions(parameters: Parameters, codes: Codes, poses: Poses, image_shape: tuple[int, ...]) -> GroupFit:
    """Name the generators of a model by what it makes of codes and poses.

    Of two groups each is seen on what it moves: the outer one on the pictures, the inner one on T₁(s₁)Φα.
    """
    pictures, n = reconstruct(parameters, codes, poses), parameters.outer_dim
    if parameters.outer is None:
        return fit_fields(parameters, pictures, image_shape)
    turned = reconstruct(replace(parameters, outer=None), codes, poses[:, n:])
    outer = fit_fields(parameters, pictures, image_shape, range(n))
    inner = fit_fields(parameters, turned, image_shape, range(n, parameters.torus_dim))
    best = {found.field: found for found in sorted(outer.purest + inner.purest, key=lambda found: found.share)}
    return GroupFit(outer.axes + inner.axes, tuple(sorted(best.values(), key=lambda found: -found.share)))


def known_motion(rates: dict[str, float], images: Pictures) -> Pictures:
    """Return how images change under the known motions with the rates of an :class:`AxisFit`."""
    shear, stretch = rates["shear"], rates["stretch"]
    rest = {"horizontal shear": shear, "vertical shear": shear}
    rest |= {"horizontal stretch": stretch, "vertical stretch": -stretch}
    weights = images.new_tensor([{**rates, **rest}[name] for name in FIELDS])
    return torch.einsum("f,f...->...", weights, apply_fields(images))


def _explained(gram: Tensor, target: int, by: list[int]) -> tuple[float, Tensor]:
    """Return the share of the energy of one column that others explain, and their coefficients."""
    inner = gram[by, target]
    # Fields depend on each other (rotation is two shears): the smallest coefficients of all that fit.
    coefficients = torch.linalg.pinv(gram[by][:, by], hermitian=True, rtol=1e-10) @ inner
    energy = float(gram[target, target])
    return (float(inner @ coefficients) / energy if energy > 0 else 0.0), coefficients


def _fit_axis(gram: Tensor, axis: int, n: int) -> AxisFit:
    place = {name: n + j for j, name in enumerate(FIELDS)}
    shares = {name: _explained(gram, axis, [place[name]])[0] for name in FIELDS}
    shares |= {group: _explained(gram, axis, [place[name] for name in parts])[0] for group, parts in GROUPS.items()}
    _, fitted = _explained(gram, axis, list(place.values()))
    # Two shears make a rotation, two stretches a scaling: take the six rates that do not depend on each other.
    velocity = torch.einsum("f,fdp->dp", fitted, torch.tensor(list(_VELOCITIES.values()), dtype=fitted.dtype))
    (x_shift, x_by_x, x_by_y), (y_shift, y_by_x, y_by_y) = velocity.tolist()
    rates = {
        "x-shift": x_shift,
        "y-shift": y_shift,
        "rotation": (x_by_y - y_by_x) / 2,
        "scaling": (x_by_x + y_by_y) / 2,
        "shear": (x_by_y + y_by_x) / 2,
        "stretch": (x_by_x - y_by_y) / 2,
    }
    return AxisFit(axis, name_motion(shares), shares, rates)


def name_motion(shares: dict[str, float]) -> str:
    """Say in a few words which known motion an axis is: the simplest that explains nearly all that can be."""
    name = max(FIELDS, key=lambda field: shares[field])
    if shares["all linear motions"] < CLEAR:
        return f"no motion that has a name (nearest: {name}, {100 * shares[name]:.0f} %)"
    for group in GROUPS:
        if shares[name] < NEARLY * shares[group]:
            name = group
    measured = f"{name} ({100 * shares[name]:.0f} %)"
    return measured if shares[name] >= PURE else f"mostly {measured}"
