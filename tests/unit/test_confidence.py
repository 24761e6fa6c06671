"""How sure a model is of each image, on digits that a known group moves; and the originals moved back."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from liesparse import LieSparseCoder, embedded_digits, translations
from liesparse.canonical import refine_generators
from liesparse.confidence import BLANK, MIXED, NO_MOTION, POSE, SPREAD, STRANGE, UNMOVED
from liesparse.data import translations_rotations
from liesparse.groups import Rotations, Translations
from liesparse.initialization import known_translation
from liesparse.model import Parameters, reconstruct, uniform_prior
from liesparse.run_directory import Run, save_run
from liesparse.verdict import Verdict
from shell import run


@pytest.fixture(scope="module")
def shapes():
    return torch.nn.functional.avg_pool2d(embedded_digits()[None], 2)[0]


@pytest.fixture(scope="module")
def data(shapes):
    return translations(60, max_shift=2, wrap=True, sources=shapes, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def coder(shapes, data):
    coder = LieSparseCoder.from_model(known_translation(shapes, n_irreps=60), (14, 14))
    coder.pose_ranges_ = coder.pose_ranges(data.images)
    return coder


@pytest.fixture(scope="module")
def folder(coder, data, tmp_path_factory):
    """A run, and a folder with pictures four times as large as the model's, in two sub-folders, and one of noise."""
    folder = tmp_path_factory.mktemp("sure")
    save_run(Run(folder / "run", coder, None, {}, {}))
    for place in range(20):
        pixels = data.images[place].reshape(14, 14).numpy()
        large = np.round(255 * pixels / pixels.max()).astype(np.uint8).repeat(4, axis=0).repeat(4, axis=1)
        (folder / "digits" / "ab"[place % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(large).save(folder / "digits" / "ab"[place % 2] / f"{place:02d}.bmp")
    noise = np.random.RandomState(0).randint(0, 255, (56, 56), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "digits" / "a" / "noise.bmp")
    return folder


def test_pictures_are_prepared_as_those_of_the_run(coder, folder, tmp_path):
    save_run(Run(tmp_path / "run", coder, None, {"data": "elsewhere:n=50,size=14x14,invert=yes"}, {}))
    ink = tmp_path / "ink"
    ink.mkdir()
    for path in sorted((folder / "digits" / "b").iterdir()):
        Image.fromarray(255 - np.asarray(Image.open(path))).save(ink / path.name)
    done = run("infer", tmp_path / "run", ink, "--out", tmp_path / "found.csv")
    assert done.returncode == 0, done.stderr
    assert "inverted" in done.stdout
    with (tmp_path / "found.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["uncertain"] for row in rows} == {"False"}
    assert all(float(row[f"code{row['template']}"]) == max(float(row[f"code{k}"]) for k in range(10)) for row in rows)
    assert run("canonicalize", tmp_path / "run", ink, "--out", tmp_path / "warped", "--warp").returncode == 0
    warped = list((tmp_path / "warped").glob("[0-9]*.png"))
    assert len(warped) == 10
    for path in warped:
        assert np.median(np.asarray(Image.open(path))) > 200  # ink on paper, as it came
    assert run("canonicalize", tmp_path / "run", ink, "--out", tmp_path / "drawn").returncode == 0
    for path in (tmp_path / "drawn").glob("[0-9]*.png"):
        assert np.median(np.asarray(Image.open(path))) > 200  # and so what the model draws
    measured = run("evaluate", tmp_path / "run", "--data", ink)
    assert measured.returncode == 0, measured.stdout + measured.stderr
    assert "inverted" in measured.stdout
    refused = run("infer", tmp_path / "run", f"{ink}:size=7", "--out", tmp_path / "found.csv")  # as is said
    assert "7 × 7" in refused.stdout


def test_moved_shapes_are_trusted_and_noise_is_not(coder, data):
    sure = coder.confidence(data.images)
    assert not sure.uncertain.any()
    assert float(sure.alignment.min()) > 0.9
    assert float(sure.mode_share.min()) > 0.5
    far = (data.factors.abs() > 1).any(dim=1)
    assert float(sure.gain[far].mean()) > 5  # nats over the same shapes held still
    noise = np.random.RandomState(0).rand(20, 14, 14)
    unsure = coder.confidence(noise)
    assert unsure.uncertain.all()
    assert set(unsure.doubt) == {STRANGE}
    assert not sure.doubt.any()
    assert isinstance(unsure.uncertain, np.ndarray)  # as everything that comes from arrays
    assert coder.confidence(np.zeros((1, 14, 14))).doubt.tolist() == [BLANK]


def test_without_a_motion_no_pose_is_trusted(coder, data):
    effects, numbers = (0.0, 0.0), (30.0, 20.0)
    verdict = Verdict(False, 0, 2, 0.9, effects, *numbers)
    doubted = LieSparseCoder.from_model(coder.model_, (14, 14), verdict=verdict)
    assert (doubted.confidence(data.images[:5]).doubt == NO_MOTION).all()
    found = LieSparseCoder.from_model(coder.model_, (14, 14), verdict=verdict._replace(found=True))
    assert not found.confidence(data.images[:5]).uncertain.any()


def test_noise_is_no_doubt_where_all_pictures_have_it(coder, data):
    """As strong as the picture: half of each is left, and the pose is known all the same."""
    noise = torch.randn(data.images.shape, generator=torch.Generator().manual_seed(1)) / 14
    noisy = torch.nn.functional.normalize(data.images + noise, dim=1)
    verdict = Verdict(True, 2, 2, 0.9, (0.5, 0.5), 1.9, 1.7, noise=0.5, least_fit=0.6)
    known = LieSparseCoder.from_model(coder.model_, (14, 14), verdict=verdict)
    assert float(coder.confidence(noisy).uncertain.float().mean()) > 0.3
    assert float(known.confidence(noisy).uncertain.float().mean()) < 0.1
    assert known.confidence(noise).uncertain.all()  # nothing but noise


def test_strangers_are_told_by_what_is_usual(coder, data):
    """Half letter, half something else: more than half is explained, and far less than of any other picture."""
    bar = torch.zeros(14, 14)
    bar[1:13, 6] = 1.0
    odd = torch.nn.functional.normalize(data.images + 0.6 * bar.flatten() / bar.norm(), dim=1)
    verdict = Verdict(True, 2, 2, 0.97, (0.5, 0.5), 30.0, 4.0, least_fit=0.87)
    strict = LieSparseCoder.from_model(coder.model_, (14, 14), verdict=verdict)
    assert not strict.confidence(data.images).uncertain.any()
    assert float(strict.confidence(odd).uncertain.float().mean()) > 0.9
    assert float(coder.confidence(odd).uncertain.float().mean()) < 0.5


def test_a_picture_of_several_templates_is_doubted_unless_that_is_usual(coder, data):
    """Two digits in one picture, all explained in one pose: a surprise where pictures are of one, and else no doubt."""
    pairs = coder.inverse_transform(np.eye(10)[:5] + np.eye(10)[5:], np.zeros((5, 2)))
    one = coder.confidence(data.images)
    assert float(one.template_share.min()) > 0.9
    verdict = Verdict(True, 2, 2, 0.97, (0.5, 0.5), 30.0, 4.0, usual_share=1.0, least_share=0.9)
    single = LieSparseCoder.from_model(coder.model_, (14, 14), verdict=verdict)
    assert not single.confidence(data.images).uncertain.any()
    sure = single.confidence(pairs)
    assert sure.alignment.min() > 0.95  # nothing but the number of templates is wrong with them
    assert sure.mode_share.min() > 0.9
    assert (sure.doubt == SPREAD).all()
    usual = verdict._replace(n_codes=2.0, usual_share=0.7, least_share=0.5)
    several = LieSparseCoder.from_model(coder.model_, (14, 14), verdict=usual)
    assert not several.confidence(pairs).uncertain.any()
    assert (several.confidence(pairs).confidence < 0.9).all()  # lower than that of one template all the same


def test_pictures_of_a_template_that_was_never_seen_moving_are_doubted(coder, data):
    verdict = Verdict(True, 2, 2, 0.97, (0.5, 0.5), 30.0, 4.0, unmoved=(3, 7))
    known = LieSparseCoder.from_model(coder.model_, (14, 14), verdict=verdict)
    doubted = known.confidence(data.images).doubt == UNMOVED
    assert (doubted == np.isin(coder.infer(data.images).codes.argmax(axis=1), (3, 7))).all()
    assert 0 < int(doubted.sum()) < len(data.images)


def test_pictures_of_a_template_that_mixes_shapes_are_doubted(coder, data):
    verdict = Verdict(True, 2, 2, 0.97, (0.5, 0.5), 30.0, 4.0, mixed=(2,), unmoved=(3,))
    doubt = LieSparseCoder.from_model(coder.model_, (14, 14), verdict=verdict).confidence(data.images).doubt
    largest = coder.infer(data.images).codes.argmax(axis=1)
    assert ((doubt == MIXED) == (largest == 2)).all()
    assert ((doubt == UNMOVED) == (largest == 3)).all()
    assert 0 < int((doubt == MIXED).sum()) < len(doubt)


def test_two_poses_that_explain_an_image_equally_share_its_mass():
    twice = torch.zeros(1, 14, 14)
    twice[0, 3:6, 3] = twice[0, 3:6, 10] = 1.0
    bar = torch.zeros(1, 14, 14)
    bar[0, 3:6, 3] = 1.0
    coder = LieSparseCoder.from_model(known_translation(bar, n_irreps=60), (14, 14))
    sure = coder.confidence(twice)
    assert float(sure.mode_share) < 0.6
    product = sure.alignment**2 * sure.mode_share * sure.sharpness * sure.template_share
    assert float(sure.confidence) == pytest.approx(float(product), rel=1e-4)
    assert bool(sure.uncertain)


def test_a_picture_that_any_pose_explains_is_not_trusted():
    """An even ground with a faint spot: all but the spot is explained, and nothing says where that is."""
    spot = torch.zeros(1, 14, 14)
    spot[0, 6, 6] = 0.02
    basis = Translations(14, 14).make_basis((1 + spot).flatten(1), 60)
    shape = torch.nn.functional.normalize((1 + spot).flatten(1), dim=1).T
    model = Parameters(basis.group_basis, shape, basis.frequencies, 0.1, 10.0, uniform_prior(len(basis.frequencies)))
    coder = LieSparseCoder.from_model(model, (14, 14))
    sure = coder.confidence(1 + spot.roll(3, 1))
    assert float(sure.alignment) > 0.99
    assert float(sure.sharpness) < 0.1
    assert bool(sure.uncertain)
    assert int(sure.doubt) == POSE


def test_an_axis_that_changes_nothing_is_no_doubt(shapes):
    model = known_translation(shapes, n_irreps=60)
    still = model.frequencies.clone()
    still[:, 1] = 0
    unmoved = torch.nn.functional.normalize(shapes.flatten(1), dim=1)
    sure = LieSparseCoder.from_model(replace(model, frequencies=still), (14, 14)).confidence(unmoved)
    assert float(sure.mode_share.min()) > 0.9  # many poses, one picture
    assert not sure.uncertain.any()


def test_results_say_whose_they_are(folder):
    done = run("infer", folder / "run", f"{folder / 'digits'}:size=14", "--out", folder / "found.csv")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of them uncertain, do not trust these: 1 like no template." in " ".join(done.stdout.split())
    rows = list(csv.DictReader((folder / "found.csv").read_text().splitlines()))
    assert {row["file"]: row["label"] for row in rows}["b/01.bmp"] == "b"
    assert [row["file"] for row in rows if row["uncertain"] == "True"] == ["a/noise.bmp"]
    assert [row["file"] for row in rows if row["doubt"]] == ["a/noise.bmp"]
    assert run("infer", folder / "run", f"{folder / 'digits'}:size=14", "--out", folder / "found.npz").returncode == 0
    assert np.load(folder / "found.npz")["file"][0] == "a/00.bmp"


def test_canonical_images_keep_their_names_and_doubtful_ones_are_set_apart(folder):
    out, doubtful = folder / "canonical", folder / "doubtful"
    arguments = [folder / "run", f"{folder / 'digits'}:size=14", "--out", out, "--uncertain", doubtful]
    done = run("canonicalize", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (out / "b" / "01.png").is_file()
    assert not (out / "a" / "noise.png").exists()
    assert (doubtful / "a" / "noise.png").is_file()
    index = list(csv.DictReader((out / "canonical.csv").read_text().splitlines()))
    images = np.load(out / "canonical.npy")
    assert len(index) == len(images) == 21
    entry = next(row for row in index if row["file"] == "b/01.bmp")
    with Image.open(out / entry["picture"]) as picture:
        seen = np.asarray(picture) / 255
    stored = images[int(entry["row"])]
    assert np.abs(seen - np.clip(stored / stored.max(), 0, 1)).max() < 0.01


def test_warp_moves_the_original_picture(folder):
    out = folder / "warped"
    done = run("canonicalize", folder / "run", f"{folder / 'digits'}:size=14", "--out", out, "--warp")
    assert done.returncode == 0, done.stdout + done.stderr

    def pixels(root, place, suffix):
        with Image.open(root / "ab"[place % 2] / f"{place:02d}.{suffix}") as picture:
            return np.asarray(picture).astype(float) / 255

    assert pixels(out, 0, "png").shape == (56, 56)  # in its own size
    apart = {}
    for name, root, suffix in (("before", folder / "digits", "bmp"), ("after", out, "png")):
        pairs = [(pixels(root, place, suffix), pixels(root, place + 10, suffix)) for place in range(10)]
        apart[name] = np.mean([np.abs(a - b).mean() for a, b in pairs])  # the same digit, shifted otherwise
    assert apart["after"] < 0.5 * apart["before"]


def test_pictures_that_are_shifted_and_turned_come_to_lie_alike(shapes, tmp_path):
    """Two groups do not commute: the shift must be undone first, and the turn then. Drawn by the model, and warped."""
    turned = {"max_shift": 2, "max_degrees": 180, "sources": shapes[[2, 4]]}
    made = translations_rotations(80, **turned, generator=torch.Generator().manual_seed(0)).images
    upright = torch.nn.functional.normalize(shapes[[2, 4]].flatten(1), dim=1)
    still = translations_rotations(200, **turned | {"max_shift": 0}, generator=torch.Generator().manual_seed(1)).images
    outer, inner = Translations(14, 14).make_basis(made, 98), Rotations(14, 14).make_basis(still, 60)
    prior = uniform_prior(len(inner.frequencies))
    model = Parameters(inner.group_basis, upright.T, inner.frequencies, 0.1, 10.0, prior, outer=outer)
    coder = LieSparseCoder.from_model(model, (14, 14))
    coder.pose_ranges_ = coder.pose_ranges(made)
    usual = torch.tensor([0.9, -0.8, 0.5])  # off the middle, where the order matters
    coder.pose_ranges_[..., 0] = usual
    wanted = reconstruct(model, torch.eye(2), usual.expand(2, 3))
    save_run(Run(tmp_path / "run", coder, None, {}, {}))
    np.save(tmp_path / "made.npy", made.reshape(-1, 14, 14).numpy())

    def likeness(images, templates):
        rows = torch.nn.functional.normalize(torch.as_tensor(images).double().flatten(1), dim=1)
        return float(torch.cosine_similarity(rows, wanted.double()[templates]).mean())

    for option in ((), ("--warp",)):
        out = tmp_path / f"out{len(option)}"
        done = run("canonicalize", tmp_path / "run", tmp_path / "made.npy", "--out", out, *option)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = list(csv.DictReader((out / "canonical.csv").read_text().splitlines()))
        templates = torch.tensor([int(row["template"]) for row in rows])
        assert likeness(np.load(out / "canonical.npy"), templates) > 0.9
        assert likeness(made, templates) < 0.5


def test_originals_are_never_overwritten(folder):
    pictures = folder / "digits"
    before = {path: path.read_bytes() for path in pictures.rglob("*.bmp")}
    for option in (("--out", pictures), ("--out", pictures / "new"), ("--out", folder / "x", "--uncertain", pictures)):
        done = run("canonicalize", folder / "run", f"{pictures}:size=14", *option)
        assert done.returncode == 1
        assert "outside that of the pictures" in done.stdout
    assert {path: path.read_bytes() for path in pictures.rglob("*") if path.is_file()} == before


def test_a_shape_that_looks_the_same_turned_has_no_sure_pose(shapes):
    """A bar, turned by half a turn; beside it a shape that is not symmetric, by which the two poses are told apart."""
    bar = torch.zeros(14, 14)
    bar[6:8, 2:12] = 1.0
    both = torch.stack((bar, shapes[2]))
    made = translations_rotations(
        60, max_shift=0, max_degrees=180, sources=both, generator=torch.Generator().manual_seed(0)
    )
    basis = Rotations(14, 14).make_basis(made.images, 60)
    dictionary = torch.nn.functional.normalize(both.flatten(1), dim=1).T
    prior = uniform_prior(len(basis.frequencies))
    model = Parameters(basis.group_basis, dictionary, basis.frequencies, 0.1, 10.0, prior)
    sure = LieSparseCoder.from_model(model, (14, 14)).confidence(made.images)
    assert float(sure.mode_share[made.labels == 0].max()) < 0.7
    assert float(sure.mode_share[made.labels == 1].min()) > 0.9


def test_warp_keeps_the_greys_and_colours_of_ink_on_paper(coder, folder, tmp_path):
    """Neither stretched to white, nor greyed, nor with specks where ink is darkest."""
    save_run(Run(tmp_path / "run", coder, None, {"data": "elsewhere:n=50,size=14x14,invert=yes"}, {}))
    ink = tmp_path / "ink"
    ink.mkdir()
    paper, colour = np.array([231.0, 220.0, 200.0]), np.array([64.0, 20.0, 90.0])
    for path in sorted((folder / "digits" / "b").iterdir()):
        amount = np.asarray(Image.open(path))[..., None] / 255
        Image.fromarray(np.round(paper + amount * (colour - paper)).astype(np.uint8)).save(ink / f"{path.stem}.png")
    done = run("canonicalize", tmp_path / "run", ink, "--out", tmp_path / "warped", "--warp")
    assert done.returncode == 0, done.stdout + done.stderr
    for path in (tmp_path / "warped").glob("[0-9]*.png"):
        pixels = np.asarray(Image.open(path)).astype(float)
        assert np.median(pixels.reshape(-1, 3), axis=0).tolist() == paper.tolist()
        assert pixels.max() < 250  # a little above the paper, by interpolation
        darkest = pixels.reshape(-1, 3)[pixels.sum(axis=2).argmin()]
        assert np.abs(darkest - colour).max() < 40


def test_a_motion_that_is_a_little_off_is_mended_by_whole_ways(coder, data):
    codes, poses = coder.infer(data.images)
    model, middles = coder.model_, torch.zeros_like(poses)
    moved, middle = (reconstruct(model, codes, pose).reshape(-1, 14, 14) for pose in (poses, middles))
    truth = torch.zeros(2, 3, 3, dtype=torch.float64)
    truth[0, 0, 2] = truth[1, 1, 2] = 14 / (2 * np.pi)  # pixels for each radian
    near = (poses.abs() < 1).all(dim=1)  # no digit goes round the edge
    found = refine_generators(0.9 * truth, poses[near], middles[near], moved[near], middle[near])
    torch.testing.assert_close(found, truth, atol=0.03, rtol=0)


def test_warp_needs_a_known_motion(folder, tmp_path):
    random = torch.linalg.qr(torch.randn(196, 40, generator=torch.Generator().manual_seed(0))).Q
    other = LieSparseCoder.from_model(known_translation(embedded_digits()[:, ::2, ::2], n_irreps=20), (14, 14))
    other.model_.group_basis.copy_(random)
    save_run(Run(tmp_path / "run", other, None, {}, {}))
    done = run("canonicalize", tmp_path / "run", f"{folder / 'digits'}:size=14", "--out", tmp_path / "out", "--warp")
    assert done.returncode == 1
    assert "--warp: expected a known motion" in done.stdout
    assert not (tmp_path / "out").exists()
