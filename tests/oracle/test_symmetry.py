"""The learned group in words, against brute force and against groups that are known."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from liesparse import embedded_digits, symmetry, translations
from liesparse.initialization import known_translation
from liesparse.model import Parameters, apply_transform, uniform_prior

F64 = torch.float64


@pytest.fixture(scope="module")
def shifted():
    """Half-size digits under the known group of cyclic shifts."""
    shapes = torch.nn.functional.avg_pool2d(embedded_digits()[None], 2)[0].double()
    model = known_translation(shapes, n_irreps=60)
    data = translations(160, max_shift=3.5, wrap=True, sources=shapes.float(), generator=torch.Generator())
    return model, data


def rotation_group(side: int = 24, n_angular: int = 4, n_radial: int = 3) -> Parameters:
    """Angular harmonics on rings: T(s) turns images counter-clockwise by s."""
    y, x = torch.meshgrid(*[torch.arange(side, dtype=F64) - (side - 1) / 2] * 2, indexing="ij")
    radius, angle = (x.square() + y.square()).sqrt(), torch.atan2(-y, x)
    columns, frequencies = [], []
    for m in range(1, n_angular + 1):
        for ring in torch.linspace(4, side / 2 - 5, n_radial).tolist():
            weight = torch.exp(-((radius - ring) ** 2) / 8)
            columns += [weight * (m * angle).cos(), weight * (m * angle).sin()]
            frequencies.append([m])
    u, _, vh = torch.linalg.svd(torch.stack(columns, dim=-1).flatten(0, 1), full_matrices=False)
    basis = u @ vh  # the nearest orthonormal columns
    return Parameters(
        group_basis=basis,
        dictionary=torch.nn.functional.normalize(basis @ torch.ones(len(basis.T), 1, dtype=F64), dim=0),
        frequencies=torch.tensor(frequencies),
        noise_std=0.1,
        sparsity=10.0,
        pose_prior=uniform_prior(len(frequencies), dtype=F64),
    )


# ---- generators and fields


@pytest.mark.parametrize("torus_dim", [1, 2, 3])
def test_generator_is_the_derivative_of_the_transform(make_model, draw, torus_dim):
    model = make_model(torus_dim=torus_dim)
    images, _, poses = draw(model)
    for axis in range(torus_dim):
        step = torch.zeros_like(poses)
        step[:, axis] = 1e-6
        slope = (apply_transform(model, images, step) - apply_transform(model, images, -step)) / 2e-6
        assert_close(symmetry.apply_generator(model, images, axis), slope, atol=1e-8, rtol=0)
        # It commutes with the group, so it is the derivative at any pose.
        moved = apply_transform(model, images, poses)
        slope = (apply_transform(model, images, poses + step) - apply_transform(model, images, poses - step)) / 2e-6
        assert_close(symmetry.apply_generator(model, moved, axis), slope, atol=1e-8, rtol=0)


def test_generator_is_the_matrix_of_the_paper(make_model, draw):
    model = make_model()
    images, _, _ = draw(model)
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=F64)
    for axis in range(2):
        blocks = torch.block_diag(*[float(omega) * turn for omega in model.frequencies[:, axis]])
        matrix = model.group_basis @ blocks @ model.group_basis.T
        assert_close(symmetry.apply_generator(model, images, axis), images @ matrix.T)


def test_generator_rejects_an_axis_it_does_not_have(make_model, draw):
    model = make_model()
    with pytest.raises(ValueError, match="axis: expected 0 <= axis < torus_dim = 2, got 2"):
        symmetry.apply_generator(model, draw(model)[0], 2)


def blob(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.exp(-((x - 2) ** 2 + 2 * (y + 1) ** 2) / 24) - 0.6 * torch.exp(-((x + 3) ** 2 + (y - 2) ** 2) / 16)


@pytest.mark.parametrize("field", symmetry.FIELDS)
def test_fields_are_what_moving_a_function_does(field):
    place = symmetry.FIELDS.index(field)
    linear, shift = torch.zeros(2, 2, dtype=F64), torch.zeros(2, dtype=F64)
    {
        "x-shift": lambda: shift[0].fill_(1),
        "y-shift": lambda: shift[1].fill_(1),
        "rotation": lambda: linear.copy_(torch.tensor([[0, 1], [-1, 0]])),
        "scaling": lambda: linear.copy_(torch.eye(2)),
        "horizontal shear": lambda: linear[0, 1].fill_(1),
        "vertical shear": lambda: linear[1, 0].fill_(1),
        "horizontal stretch": lambda: linear[0, 0].fill_(1),
        "vertical stretch": lambda: linear[1, 1].fill_(1),
    }[field]()
    y, x = torch.meshgrid(torch.arange(34.0, dtype=F64) - 16.5, torch.arange(42.0, dtype=F64) - 20.5, indexing="ij")

    def moved(time: float) -> torch.Tensor:
        back = torch.matrix_exp(-time * linear)
        image = blob(
            back[0, 0] * x + back[0, 1] * y - time * shift[0], back[1, 0] * x + back[1, 1] * y - time * shift[1]
        )
        return image / image.norm()  # as all images are

    slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
    found = symmetry.apply_fields(moved(0.0)[None])[place, 0]
    assert_close(found, slope, atol=2e-3 * float(slope.abs().max()), rtol=0)


def test_shares_are_those_of_a_plain_least_squares_fit(make_model, rng):
    model = make_model(n_pixels=30, n_irreps=8)
    images = torch.randn(7, 30, generator=rng, dtype=F64)
    fit = symmetry.fit_fields(model, images, (5, 6))
    known = symmetry.apply_fields(images.reshape(7, 5, 6)).flatten(1).numpy()
    moved = np.stack([symmetry.apply_generator(model, images, axis).flatten().numpy() for axis in range(2)])

    def share(target, columns):
        solution = np.linalg.lstsq(np.stack(columns, axis=1), target, rcond=None)[0]
        return 1 - np.sum((target - np.stack(columns, axis=1) @ solution) ** 2) / np.sum(target**2)

    for axis, found in enumerate(fit.axes):
        for place, name in enumerate(symmetry.FIELDS):
            assert found.shares[name] == pytest.approx(share(moved[axis], [known[place]]))
        assert found.shares["translation"] == pytest.approx(share(moved[axis], known[:2]))
        assert found.shares["all linear motions"] == pytest.approx(share(moved[axis], known))
        fitted = symmetry.known_motion(found.rates, images.reshape(7, 5, 6)).flatten().numpy()
        rest = np.sum((moved[axis] - fitted) ** 2) / np.sum(moved[axis] ** 2)
        assert 1 - rest == pytest.approx(share(moved[axis], known))
    for found in fit.purest:
        place = symmetry.FIELDS.index(found.field)
        angles = np.linspace(0, np.pi, 2001)
        best = max(share(np.cos(a) * moved[0] + np.sin(a) * moved[1], [known[place]]) for a in angles)
        assert found.share == pytest.approx(best, abs=1e-5)
        pure = np.array(found.direction) @ moved
        assert share(pure, [known[place]]) == pytest.approx(best, abs=1e-5)


def test_known_translation_is_named(shifted):
    model, data = shifted
    images = model.from_planes(model.to_planes(data.images.double()))
    fit = symmetry.fit_fields(model, images, (14, 14))
    assert fit.axes[0].name.startswith("x-shift")
    assert fit.axes[1].name.startswith("y-shift")
    assert fit.axes[0].shares["x-shift"] > 0.93
    assert fit.axes[1].shares["y-shift"] > 0.93
    assert fit.axes[0].rates["x-shift"] == pytest.approx(14 / (2 * math.pi), rel=0.15)
    assert {found.field for found in fit.purest[:2]} == {"x-shift", "y-shift"}
    assert fit.purest[2].share < 0.1


def test_a_rotation_group_is_named():
    model = rotation_group()
    images = torch.randn(20, model.n_irreps, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    fit = symmetry.fit_fields(model, model.from_planes(images), (24, 24))
    assert fit.axes[0].name.startswith("rotation (")
    assert fit.axes[0].shares["rotation"] > 0.97
    assert fit.axes[0].rates["rotation"] == pytest.approx(1, rel=0.05)
    assert abs(fit.axes[0].rates["scaling"]) < 0.02
    assert fit.purest[0].field == "rotation"
    assert fit.purest[0].direction[0] == pytest.approx(1, rel=0.05)


def test_a_random_group_has_no_name(make_model, rng):
    model = make_model(n_pixels=144, n_irreps=20)
    fit = symmetry.fit_fields(model, torch.randn(30, 144, generator=rng, dtype=F64), (12, 12))
    assert all(axis.name.startswith("no motion that has a name (nearest: ") for axis in fit.axes)


def test_one_row_of_pixels_knows_no_vertical_motion(make_model, rng):
    model = make_model(n_pixels=30)
    fit = symmetry.fit_fields(model, torch.randn(9, 30, generator=rng, dtype=F64), (1, 30))
    for axis in fit.axes:
        assert axis.shares["y-shift"] == axis.shares["rotation"] == 0
        assert math.isfinite(axis.shares["all linear motions"])


def test_what_is_constant_up_to_rounding_does_not_move(make_model, rng):
    model = make_model(n_pixels=30)
    row = torch.randn(9, 1, 6, generator=rng, dtype=F64)
    images = row + 1e-16 * torch.randn(9, 5, 6, generator=rng, dtype=F64)
    fit = symmetry.fit_fields(model, images.flatten(1), (5, 6))
    for axis in fit.axes:
        assert axis.shares["y-shift"] == axis.shares["vertical stretch"] == 0
        assert axis.shares["x-shift"] > 0
    assert {found.field: found.share for found in fit.purest}["y-shift"] == 0


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_constant_image_does_not_move(dtype, rng):
    levels = torch.rand(200, 1, 1, generator=rng, dtype=dtype)
    assert not symmetry.apply_fields(levels.expand(200, 7, 9)).any()


def test_image_shape_must_fit(make_model, draw):
    model = make_model()
    with pytest.raises(ValueError, match="image_shape: expected a product of 14"):
        symmetry.fit_fields(model, draw(model)[0], (3, 5))


def shares(**given: float) -> dict[str, float]:
    return dict.fromkeys((*symmetry.FIELDS, *symmetry.GROUPS), 0.0) | {
        name.replace("_", " ").replace("x shift", "x-shift").replace("y shift", "y-shift"): value
        for name, value in given.items()
    }


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (shares(rotation=0.81, all_linear_motions=0.85), "mostly rotation (81 %)"),
        (shares(rotation=0.93, all_linear_motions=0.95), "rotation (93 %)"),
        (shares(x_shift=0.5, y_shift=0.45, translation=0.95, all_linear_motions=0.95), "translation (95 %)"),
        (
            shares(vertical_shear=0.23, all_linear_motions=0.3),
            "no motion that has a name (nearest: vertical shear, 23 %)",
        ),
        (shares(x_shift=0.3, rotation=0.3, all_linear_motions=0.6), "mostly all linear motions (60 %)"),
    ],
)
def test_names(given, name):
    assert symmetry.name_motion(given) == name


# ---- known factors


@pytest.fixture
def linear_poses(rng):
    """Poses that are exactly a linear map of the factors, with an own origin for each of three templates."""
    factors = torch.rand(300, 2, generator=rng, dtype=F64) - 0.5
    directions = torch.tensor([[1.5, -0.4], [0.3, 2.0]], dtype=F64)
    labels = torch.arange(300) % 3
    origins = torch.tensor([[0.0, 3.1], [3.0, -3.0], [-1.5, 1.0]], dtype=F64)
    poses = torch.remainder(factors @ directions + origins[labels] + math.pi, 2 * math.pi) - math.pi
    codes = torch.nn.functional.one_hot(labels, 4).double()
    return codes, poses, factors, directions


def test_a_linear_map_is_found_from_wrapped_poses(linear_poses):
    codes, poses, factors, directions = linear_poses
    fits = symmetry.fit_factors(codes, poses, factors, ("angle", "size"))
    for fit, direction in zip(fits, directions, strict=True):
        assert fit.direction == pytest.approx(direction.tolist())
        assert fit.share == pytest.approx(1)
        assert fit.correlation == pytest.approx(1)
        assert fit.n_templates == 3


def test_predictions_are_those_of_the_fit(linear_poses):
    codes, poses, factors, _ = linear_poses
    few = codes.clone()
    few[6:, 2] = 0
    found = symmetry.predict_factors(few, poses, factors)
    fitted = few[:, :2].amax(dim=1) > 0
    assert_close(found[fitted], factors[fitted])
    assert found[few.amax(dim=1) == 0].isnan().all()
    assert found[[2, 5]].isnan().all()  # two images of a template are too few


def test_scales_count_by_their_logarithm(linear_poses):
    codes, poses, factors, directions = linear_poses
    raw = torch.stack((factors[:, 0], factors[:, 1].exp()), dim=1)
    fits = symmetry.fit_factors(codes, poses, raw, ("angle", "scale"))
    assert fits[1].direction == pytest.approx(directions[1].tolist())
    assert fits[1].share == pytest.approx(1)
    assert symmetry.fit_factors(codes, poses, factors, ("angle", "log_scale"))[1].share == pytest.approx(1)


def test_share_is_r_squared(linear_poses, rng):
    codes, poses, factors, _ = linear_poses
    noisy = factors + 0.3 * torch.randn(300, 2, generator=rng, dtype=F64)
    fit = symmetry.fit_factors(codes, poses, noisy, ("a", "b"))[0]
    expected = []
    for template in range(3):
        mine = codes[:, template] > 0
        turned = np.exp(1j * poses[mine].numpy())
        centred = np.angle(turned / turned.mean(axis=0))
        design = np.c_[centred, np.ones(len(centred))]
        truth = noisy[mine, 0].numpy()
        residual = truth - design @ np.linalg.lstsq(design, truth, rcond=None)[0]
        expected.append(1 - residual.var() / truth.var())
    assert fit.share == pytest.approx(np.median(expected))
    assert fit.worst_share == pytest.approx(min(expected))
    assert 0.2 < fit.share < 0.7
    assert fit.correlation == pytest.approx(math.sqrt(fit.share), abs=0.05)


def test_unrelated_factors_are_not_explained(linear_poses, rng):
    codes, poses, factors, _ = linear_poses
    noise = torch.randn(factors.shape, generator=rng, dtype=F64)
    assert all(fit.share < 0.1 for fit in symmetry.fit_factors(codes, poses, noise, ("a", "b")))


def test_templates_with_few_images_are_left_out(linear_poses):
    codes, poses, factors, _ = linear_poses
    assert symmetry.fit_factors(codes, poses, factors, ("a", "b"), min_images=101) == ()
    codes = codes.clone()
    codes[0::3] = 0  # images without a code belong to nobody
    assert symmetry.fit_factors(codes, poses, factors, ("a", "b"))[0].n_templates == 2


def test_factors_need_a_name_each(linear_poses):
    codes, poses, factors, _ = linear_poses
    with pytest.raises(ValueError, match=r"factors: expected shape \(300, 1\), got \(300, 2\)"):
        symmetry.fit_factors(codes, poses, factors, ("a",))


def test_circular_correlation_forgets_the_origin(rng):
    angles = torch.rand(50, generator=rng, dtype=F64)
    assert symmetry.circular_correlation(angles, angles + 5) == pytest.approx(1)
    assert symmetry.circular_correlation(angles, 3 - angles) == pytest.approx(-1)
    assert symmetry.circular_correlation(angles, torch.zeros_like(angles)) == 0


def test_true_shifts_are_found_by_inference(shifted):
    from liesparse import LieSparseCoder

    model, data = shifted
    codes, poses = LieSparseCoder.from_model(model, (14, 14)).infer(data.images.double())
    fits = symmetry.fit_factors(codes, poses, data.factors, data.factor_names, min_images=15)
    for axis, fit in enumerate(fits):
        expected = [0.0, 0.0]
        expected[axis] = 2 * math.pi / 14
        assert fit.direction == pytest.approx(expected, abs=0.01)
        assert fit.share > 0.99
        assert fit.correlation > 0.99
