"""Figures: arrays in, a Figure out."""

import io
import math

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from PIL import Image

from liesparse import figures
from liesparse.figures import paper
from liesparse.figures.paper import AXIS_COLOURS, TEXT_WIDTH


def test_mosaic_puts_images_in_rows_with_gaps():
    images = np.arange(3.0)[:, None, None] * np.ones((3, 2, 2)) + 1
    sheet = figures.mosaic(images, 2, gap=1)
    assert sheet.shape == (7, 7)
    assert sheet[1, 1] == 1
    assert sheet[1, 4] == 2
    assert sheet[4, 1] == 3
    assert np.isnan(sheet[[0, 3, 6]]).all()
    assert np.isnan(sheet[4:, 4:]).all()


def test_peaks_become_one_and_blank_stays_blank():
    scaled = figures.to_unit_peak(np.array([[[2.0, -4.0]], [[0.0, 0.0]]]))
    assert scaled.tolist() == [[[0.5, -1.0]], [[0.0, 0.0]]]


N_EXAMPLES, N_STEPS, SIDE = 5, 5, 8


def make_model(rng, *, posed=True):
    densities = rng.random((N_EXAMPLES, 12, 12)) if posed else None
    inputs, reconstructions = rng.random((2, N_EXAMPLES, SIDE, SIDE))
    return paper.ModelPanels(
        rng.random((10, SIDE, SIDE)), inputs, 1.3 * rng.random((N_EXAMPLES, 10)), densities, reconstructions
    )


def make_row(rng, title="digits", span=(-math.pi, math.pi)):
    return paper.RowPanels(
        title=title,
        samples=rng.random((80, SIDE, SIDE)),
        columns=rng.normal(size=(100, SIDE, SIDE)),
        model=make_model(rng),
        traversals=tuple(3 * rng.random((2, N_EXAMPLES, N_STEPS, SIDE, SIDE))),
        span=span,
    )


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def words(figure):
    return [text.get_text() for text in figure.texts]


@pytest.mark.parametrize(("signed", "limits", "n_rows"), [(False, (0, 1), 8), (True, (-1, 1), 10)])
def test_sheets_of_all_data_sets(rng, signed, limits, n_rows):
    images = {title: rng.random((10 * n_rows, SIDE, SIDE)) for title in ("one", "two", "three")}
    figure = paper.sheets_figure(images, signed=signed)
    assert words(figure) == ["one", "two", "three"]
    assert figure.get_size_inches()[0] == pytest.approx(TEXT_WIDTH, abs=0.01)
    for axes in figure.axes:
        (image,) = axes.images
        assert image.get_clim() == limits
        assert image.get_array().shape == (n_rows * (SIDE + 2) + 2, 10 * (SIDE + 2) + 2)
        assert np.abs(image.get_array()).max() == 1


def test_pixels_of_digits_are_two_dots_wide(rng):
    """Ten digits of 28 pixels with their frames: nothing is blurred, and neighbours are equal."""
    figure = paper.sheets_figure(dict.fromkeys(("one", "two"), rng.random((10, 28, 28))), signed=False)
    pixels = np.asarray(Image.open(io.BytesIO(figures.to_png(figure, dpi=int(figure.dpi)))).convert("RGB"))
    for axes in figure.axes:
        box = axes.get_window_extent()
        left, bottom = round(box.x0), len(pixels) - round(box.y1)
        sheet = pixels[bottom : bottom + round(box.height), left : left + round(box.width)]
        assert sheet.shape == (64, 604, 3)
        assert (sheet[::2] == sheet[1::2]).all()
        assert (sheet[:, ::2] == sheet[:, 1::2]).all()


def test_results_have_every_panel(rng):
    rows = [make_row(rng, "left"), make_row(rng, "right")]
    figure = paper.results_figure(rows)
    assert len(figure.axes) == 2 * (4 * N_EXAMPLES + 1 + 2)
    shown = words(figure)
    for text in ("left", "right"):
        assert text in shown
    assert sum("input" in text for text in shown) == 2
    assert sum("P(" in text for text in shown) == 2
    assert sum("dictionary" in text and "10" in text for text in shown) == 2
    for axis in (1, 2):
        assert sum(f"s_{axis}$ from $-\\pi$ to $\\pi$" in text for text in shown) == 2


def test_inference_is_drawn_as_it_is(rng):
    row = make_row(rng)
    cells = paper.results_figure([row]).axes[: 4 * N_EXAMPLES]
    for example in range(N_EXAMPLES):
        first, bars, density, last = cells[4 * example : 4 * example + 4]
        assert [bar.get_height() for bar in bars.patches] == row.model.codes[example].tolist()
        assert bars.get_ylim()[1] > row.model.codes.max()
        (heat,) = density.images
        assert heat.get_array().tolist() == row.model.densities[example].T.tolist()  # s₂ upwards
        assert heat.origin == "lower"
        assert heat.get_clim() == (0, row.model.densities[example].max())
        peak = np.unravel_index(row.model.densities[example].argmax(), (12, 12))
        ring = density.collections[0].get_offsets()[0]
        np.testing.assert_allclose(ring, [2 * math.pi * place / 12 - math.pi for place in peak], atol=1e-12)
        shown = [axes.images[0].get_array() for axes in (first, last)]
        largest = max(row.model.inputs[example].max(), row.model.reconstructions[example].max())
        np.testing.assert_allclose(shown[0] * largest, row.model.inputs[example])
        np.testing.assert_allclose(shown[1] * largest, row.model.reconstructions[example])
        assert first.images[0].get_clim() == last.images[0].get_clim() == (0, 1)


def test_traversals_are_scaled_by_the_unmoved_image(rng):
    row = make_row(rng, span=(-1.5, 0.5))  # 0 is the fourth of five steps
    figure = paper.results_figure([row])
    assert any("from $-1.5$ to $0.5$" in text for text in words(figure))
    for axis, axes in enumerate(figure.axes[-2:]):
        (image,) = axes.images
        sheet = image.get_array().filled(np.nan)
        unmoved = sheet[2 : 2 + SIDE, 3 * (SIDE + 2) + 2 : 4 * (SIDE + 2)]
        assert unmoved.max() == 1
        np.testing.assert_allclose(unmoved, row.traversals[axis][0, 3] / row.traversals[axis][0, 3].max())
        assert tuple(image.get_cmap().get_bad()) == to_rgba(AXIS_COLOURS[axis])


def test_comparison_shows_both_models_on_the_same_page(rng):
    row = make_row(rng, "MNIST", span=(-1.5, 1.0))
    plain = make_model(rng, posed=False)
    figure = paper.comparison_figure(row, plain)
    assert len(figure.axes) == (4 * N_EXAMPLES + 1) + (3 * N_EXAMPLES + 1) + 2
    assert "MNIST: Lie Group Sparse Coding" in words(figure)
    assert "MNIST: plain sparse coding" in words(figure)
    boxes = [axes.get_position() for axes in figure.axes]
    assert min(min(box.x0, box.y0) for box in boxes) > 0
    assert max(max(box.x1, box.y1) for box in boxes) < 1
    assert not any(first.overlaps(other) for place, first in enumerate(boxes) for other in boxes[:place])


def test_print_is_seven_points_at_least(rng):
    row = make_row(rng)
    plain = make_model(rng, posed=False)
    for figure in (
        paper.sheets_figure({"digits": row.samples}, signed=False),
        paper.results_figure([row]),
        paper.comparison_figure(row, plain),
    ):
        labels = [label for axes in figure.axes for label in axes.get_xticklabels() + axes.get_yticklabels()]
        assert min(text.get_fontsize() for text in [*figure.texts, *labels]) >= 7


def columns_figure(rng):
    return paper.sheets_figure({"digits": make_row(rng).columns}, signed=True)


def test_files_of_a_figure(rng):
    figure = columns_figure(rng)
    pdf = figures.to_pdf(figure)
    assert pdf.startswith(b"%PDF")
    assert b"/Type0" in pdf  # TrueType
    assert pdf == figures.to_pdf(columns_figure(np.random.default_rng(0)))


@pytest.mark.parametrize(
    ("draw", "mode"), [(columns_figure, "P"), (lambda rng: paper.results_figure([make_row(rng)]), "RGB")]
)
def test_small_png_shows_the_same(rng, draw, mode):
    figure = draw(rng)
    small, large = (
        Image.open(io.BytesIO(content))
        for content in (figures.to_small_png(figure), figures.to_png(figure, dpi=int(figure.dpi)))
    )
    assert small.mode == mode
    assert small.size == large.size == tuple(np.round(figure.get_size_inches() * figure.dpi))
    apart = np.asarray(small.convert("RGB"), dtype=float) - np.asarray(large.convert("RGB"), dtype=float)
    assert np.abs(apart).max() <= (0 if mode == "RGB" else 12)


def test_figures_are_ink_photos_are_light_and_signed_values_are_signed(rng):
    photos = 0.3 + 0.5 * rng.random((4, 6, 6))
    drawings = np.where(rng.random((4, 6, 6)) < 0.2, 1.0, 0.0)
    assert figures.look_of(photos) == "light"
    assert figures.look_of(photos, inverted=True) == "ink"  # dark strokes on grey paper
    assert figures.look_of(drawings) == "ink"
    assert figures.look_of(rng.normal(size=(4, 6, 6))) == "signed"
    shown = figures.to_contrast(photos, "light")
    for image, drawn in zip(photos, shown, strict=True):
        assert drawn.flat[image.argmax()] == 0  # no ink where light is
        assert drawn.flat[image.argmin()] == 1  # each frame has all of the contrast
    assert figures.to_contrast(drawings, "ink").max() == 1
    assert not figures.to_contrast(drawings - 1e-3, "ink")[drawings == 0].any()  # ripples leave the paper white
    assert figures.to_contrast(-2 * drawings, "signed").min() == -1


@pytest.mark.parametrize("n_steps", [5, 25])
def test_a_walk_shows_every_step(rng, n_steps):
    walks = rng.random((2, 3, n_steps, 8, 6))
    figure = figures.walk_figure(walks, ["first", "second"])
    for panel, title in zip(figure.axes, ("first", "second"), strict=True):
        assert panel.get_title(loc="left") == title
        height, width = panel.images[0].get_array().shape
        assert (height, width) == (3 * 10 + 2, n_steps * 8 + 2)


def test_no_title_is_cut_off(rng):
    title = "photos: 1,000 images to learn from and 100 to test; " * 5
    figure = figures.sheet_figure(rng.random((40, 8, 8)), 20, title)
    figure.draw_without_rendering()
    box = figure.axes[0].get_tightbbox()
    assert box.x1 <= figure.bbox.x1 + 1
    assert box.y1 <= figure.bbox.y1 + 1
