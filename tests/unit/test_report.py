"""The report: one page that needs nothing else, for any torus and any image shape."""

import base64
import io
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from liesparse import LieSparseCoder, SparseCoder, embedded_digits, translations
from liesparse.data import LoadedData
from liesparse.figures import draw_pixels
from liesparse.initialization import known_translation
from liesparse.model import apply_transform, reconstruct
from liesparse.report import page, write_report
from liesparse.report.findings import Findings
from liesparse.run_directory import Run
from liesparse.verdict import Verdict

VOID = {"meta", "img", "source", "br"}
HISTORY = [
    {"epoch": k, "snr": 3.0 * k, "objective": 1.0, "active_codes": 2.0, "templates_alive": 9, "posterior_width": 0.1}
    for k in (1, 2, 3)
]


class Page(HTMLParser):
    """Collects what a page holds, and checks that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] or "" for _, attributes in self.tags if name in attributes]


def held_out(images, shape=(14, 14), **known):
    return LoadedData("some", images[:0], images, shape, **known)


def look(coder, *data, **known):
    return Findings(Run(Path(), coder, None, {}, {}), held_out(*data, **known))


def report(folder, coder, *data, metrics=None, **known):
    return write_report(Run(folder, coder, None, {}, metrics or {}), held_out(*data, **known))


@pytest.fixture(scope="module")
def digits():
    shapes = torch.nn.functional.avg_pool2d(embedded_digits()[None], 2)[0]
    return shapes, translations(230, max_shift=3, wrap=True, sources=shapes, generator=torch.Generator())


@pytest.fixture(scope="module")
def coder(digits):
    coder = LieSparseCoder.from_model(known_translation(digits[0], n_irreps=50), (14, 14))
    coder.history_ = HISTORY
    return coder


@pytest.fixture(scope="module")
def written(tmp_path_factory, coder, digits):
    folder = tmp_path_factory.mktemp("run")
    data = digits[1]
    run = Run(
        folder,
        coder,
        baseline=SparseCoder(10, n_epochs=1, random_state=0).fit(data.images),
        settings={"data_summary": "<img src=x onerror=y>", "seed": 7},
        metrics={"snr & more": 12.345, "missing": math.nan},
    )
    known = {"test_factors": data.factors, "factor_names": ("<b>shift</b>", "shift $_y")}
    path = write_report(run, held_out(255 * data.images, **known), title='Digits <script>alert("1")</script>')
    return path, Page(path.read_text())


def test_the_page_is_one_file_that_needs_no_other(written):
    path, found = written
    assert path.name == "report.html"
    text = path.read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert len(found.attributes("src")) > 50
    assert all(source.startswith("data:image/") for source in found.attributes("src") + found.attributes("srcset"))
    assert all(link.startswith("#part-") for link in found.attributes("href"))
    assert not {tag for tag, _ in found.tags} & {"script", "link", "iframe", "object", "video"}
    for source in found.attributes("src"):
        Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))).verify()


def test_every_picture_has_an_alternative_text(written):
    for tag, attributes in written[1].tags:
        if tag == "img":
            assert attributes["alt"]


def test_each_template_tells_of_how_many_pictures_it_is(written, coder, digits):
    """Those of which it has the largest code, under the number that ``infer`` gives."""
    counts = np.bincount(coder.infer(digits[1].images.numpy()).codes.argmax(axis=1), minlength=10)
    shown = re.findall(r"T(\d+) · (\d+) pictures?", written[1].text)
    assert {(int(template), int(n)) for template, n in shown} == set(enumerate(counts.tolist()))
    assert sum(int(n) for _, n in shown) == 2 * 230  # on the first page, and with all templates


def test_text_from_outside_is_escaped(written):
    path, found = written
    text = path.read_text()
    assert "<script" not in text
    assert "<b>shift" not in text
    assert "<img src=x" not in text
    assert 'Digits <script>alert("1")</script>' in found.text
    assert "<img src=x onerror=y>" in found.text
    assert "<b>shift</b>" in found.text
    assert "snr & more" in found.text


def test_the_page_has_the_numbers(written, coder, digits):
    images = digits[1].images
    codes = coder.transform(images)
    error = (coder.reconstruct(images) - images).square().sum(dim=1)
    text = written[1].text
    for number in (
        page.number(float((1 / error).mean())),
        page.number(float((codes > 0.05).sum(dim=1).float().mean())),
        page.number(coder.score(images)),
        page.number(float(coder.pose_posterior(images[:200]).width.mean()), 2),
        "10 of 10",
        "12.35",
    ):
        assert number in text
    assert "plain sparse coding: 10 templates, still" in text
    assert "Axis 1 is x-shift" in text
    told = re.search(r"Shapes are shifted by up to about (\S+) pixels to the left and right and (\S+) pixels", text)
    assert [float(number) for number in told.groups()] == pytest.approx([3, 3], rel=0.15)
    assert re.search(r"One unit of <b>shift</b> moves s by \(\+0\.45, [+-]0\.00\)", text)


def test_pictures_are_files_too(written):
    folder = written[0].parent / "report"
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "templates.png",
        "lattice.png",
        "planes.png",
        "change-1.png",
        "factor-2.png",
        "axis-2.png",
        "posterior-surest-1.png",
    }
    assert {name for name in names if name.startswith("curve-")} == {
        f"curve-{name}.png" for name in ("snr", "objective", "active-codes", "templates-alive", "posterior-width")
    }
    for path in folder.iterdir():
        Image.open(path).verify()
        assert not path.name.startswith(".")


def test_loops_go_round_for_ever(written):
    with Image.open(written[0].parent / "report" / "axis-1.gif") as loop:
        assert loop.n_frames == 32
        assert loop.info["loop"] == 0
        frames = []
        for place in range(loop.n_frames):
            loop.seek(place)
            frames.append(np.asarray(loop.convert("L"), dtype=float))
    steps = [np.abs(frames[place] - frames[place - 1]).mean() for place in range(32)]  # the first closes the circle
    assert 0 < steps[0] < 1.5 * max(steps[1:])


@pytest.mark.slow
@pytest.mark.parametrize(("torus_dim", "shape"), [(1, (4, 6)), (3, (1, 24)), (2, (24,))])
def test_any_torus_and_any_shape(tmp_path, make_model, draw, torus_dim, shape):
    model = make_model(n_pixels=24, torus_dim=torus_dim, n_irreps=6)
    images = draw(model, batch=3)[0]
    images[1] = 0
    path = report(tmp_path / "deep" / "run", LieSparseCoder.from_model(model), images, shape)
    found = Page(path.read_text())
    assert "no record of its training" in found.text
    assert f"Axis {torus_dim} of the learned torus is" in found.text
    assert (path.parent / "report" / f"axis-{torus_dim}.gif").exists()
    assert "do not move do as well" not in found.text  # there is nothing to compare with
    assert "nan" not in found.text.lower()


def test_missing_numbers_are_left_out(tmp_path, make_model, draw):
    model = make_model(n_pixels=24)
    history = [{"epoch": 1, "snr": None}, {"epoch": 2, "snr": 3.5}]
    coder = LieSparseCoder.from_model(model, history=history)
    metrics = {"lsc_snr": None, "n_test_images": 3}
    text = Page(report(tmp_path, coder, draw(model, batch=3)[0], (4, 6), metrics=metrics).read_text()).text
    assert "lsc_snr" in text
    assert "–" in text


def test_one_image_is_enough(tmp_path, make_model, draw):
    model = make_model(n_pixels=24)
    known = {"test_factors": torch.ones(1, 1), "factor_names": ("angle",)}
    path = report(tmp_path, LieSparseCoder.from_model(model), draw(model, batch=1)[0], (4, 6), **known)
    assert "No template has the 20 images" in path.read_text()


def test_bad_input_is_told(tmp_path, coder, digits):
    with pytest.raises(
        ValueError, match=r"image_shape: expected \(height, width\) or \(height, width, 3\) with 196 pixels"
    ):
        report(tmp_path, coder, digits[1].images, (14, 15))
    with pytest.raises(ValueError, match="test: expected images, got 2 blank rows"):
        report(tmp_path, coder, torch.zeros(2, 196))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def findings(coder, digits):
    return look(coder, digits[1].images)


def test_shares_add_up_and_are_sorted(findings):
    assert sum(findings.use) == pytest.approx(1, abs=1e-5)
    assert sorted(findings.use, reverse=True) == [findings.use[template] for template in findings.order]
    energies = findings.plane_energies()
    inside = findings.model.from_planes(findings.model.to_planes(findings.images)).square().sum(dim=1).mean()
    assert float(energies.sum()) == pytest.approx(float(inside), rel=1e-4)


def test_examples_are_the_surest_and_the_least_sure(findings):
    surest, doubted = findings.examples()
    sure = findings.confidence.confidence
    assert float(sure[surest[0]]) == float(sure.max())
    assert float(sure[doubted[0]]) == float(sure.min())
    assert len({int(findings.largest[row]) for row in surest}) == 3  # of several templates
    assert not set(surest) & set(doubted)


def test_a_traversal_goes_where_the_data_is(findings):
    there = findings.traversal(0, torch.tensor([0.0, 0.5, 1.0]))
    assert there.shape == (4, 3, 196)
    codes = torch.eye(10)[findings.order[0]].repeat(3, 1)
    middle, low, high = findings.ranges[findings.order[0]].unbind(dim=1)
    poses = torch.stack((low, (low + high) / 2, high)) + middle
    poses[:, 1] = middle[1]
    assert torch.allclose(there[0], reconstruct(findings.model, codes, poses), atol=1e-5)


def test_the_data_reach_over_a_part_of_the_circle(findings):
    assert findings.reach() == pytest.approx([0.96 * 6 / 14] * 2, abs=0.06)  # shifts up to 3 of 14 pixels both ways


def test_labels_tell_what_the_templates_are(tmp_path, coder, digits):
    data = digits[1]
    labels = data.labels % 2
    known = {"test_labels": labels, "label_names": ("even", "odd & so")}
    names = tuple(f"folder/{row}.png" for row in range(230))
    text = Page(report(tmp_path, coder, data.images, test_names=names, **known).read_text()).text
    assert "in 100 % of the pictures the label" in " ".join(text.split())
    assert "odd & so" in text
    assert "folder/" in text
    found = look(coder, data.images, test_labels=labels, label_names=("even", "odd")).labels
    assert found.purity == 1
    assert found.after > found.before
    counts = torch.tensor(found.counts)
    assert counts.sum() == 230
    assert ((counts > 0).sum(dim=1) == 1).all()
    assert look(coder, data.images, test_labels=0 * labels).labels is None


def test_what_is_not_to_be_trusted_is_shown_first(tmp_path, coder, digits):
    noise = torch.rand(3, 196, generator=torch.Generator().manual_seed(0))
    test, names = torch.cat((digits[1].images[:20], noise)), tuple(f"{row}.png" for row in range(23))
    found = look(coder, test, test_names=names)
    assert {found.names[row] for row in found.doubtful()} == {"20.png", "21.png", "22.png"}
    text = Page(report(tmp_path, coder, test, test_names=names).read_text()).text
    assert "20 of 23" in text
    assert "Do not trust these" in text
    assert re.search(r"2\d\.png: like no template", text)


def test_templates_that_were_never_seen_moving_are_named(tmp_path, coder, digits):
    verdict = Verdict(True, 2, 2, 0.97, (0.5, 0.5), 30.0, 4.0, unmoved=(4, 99))
    doubted = LieSparseCoder.from_model(coder.model_, (14, 14), verdict=verdict)
    text = Page(report(tmp_path, doubted, digits[1].images[:60]).read_text()).text
    assert re.search(r"never seen moving, to trust their\s+poses:\s+T4\s+\(6 pictures\)\.", text)
    assert "54 of 60" in text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.9732, "97 %"), (0.004, "0.4 %"), (0.99957, "99.96 %"), (1.0, "100 %"), (0.0, "0 %"), (math.nan, "–")],
)
def test_percentages(share, text):
    assert page.percent(share) == text


@pytest.mark.parametrize(("value", "text"), [(26.24, "26.2"), (1234.5, "1,234"), (10.0, "10"), (math.inf, "–")])
def test_numbers(value, text):
    assert page.number(value) == text


def test_pixels_keep_their_colours():
    drawn = Image.open(io.BytesIO(draw_pixels(np.array([[0.0, 1.0, np.nan]])))).convert("RGB")
    assert [drawn.getpixel((x, 0)) for x in range(3)] == [(255, 255, 255), (0, 0, 0), (0xDF, 0xE3, 0xE8)]
    drawn = Image.open(io.BytesIO(draw_pixels(np.array([[-1.0, 1.0]]), signed=True))).convert("RGB")
    (left, _, right), (red, _, blue) = drawn.getpixel((0, 0)), drawn.getpixel((1, 0))
    assert right > left
    assert red > blue


def test_templates_are_shown_where_the_data_has_them(make_model, draw):
    model = make_model(n_pixels=24, torus_dim=1, n_irreps=6)
    coder = LieSparseCoder.from_model(model, (4, 6))
    coder.pose_ranges_ = np.zeros((3, 1, 3)) + np.array([2.0, -0.1, 0.1])
    found = look(coder, draw(model, batch=3)[0], (4, 6))
    torch.testing.assert_close(
        found.templates, apply_transform(model, model.dictionary.T, torch.full((3, 1), 2.0, dtype=torch.float64))
    )
    assert float((found.templates - model.dictionary.T).abs().max()) > 0.1
