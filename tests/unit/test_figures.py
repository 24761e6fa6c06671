"""Figures: arrays in, a Figure out."""

import io

import numpy as np
import pytest

from liesparse import figures


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


@pytest.mark.parametrize("torus_dim", [1, 2, 3])
def test_demo_figure_has_every_panel(torus_dim):
    rng = np.random.default_rng(0)
    panels = figures.DemoPanels(
        templates=rng.random((10, 8, 8)),
        planes=rng.normal(size=(24, 8, 8)),
        inputs=rng.random((6, 8, 8)),
        reconstructions=rng.random((6, 8, 8)),
        canonical=rng.random((6, 8, 8)),
        traversals=tuple(rng.random((2, 5, 8, 8)) for _ in range(torus_dim)),
    )
    figure = figures.demo_figure(panels, "headline")
    titles = " ".join(axes.get_title(loc="left") for axes in figure.axes)
    assert "dictionary" in titles
    assert "columns of W" in titles
    assert titles.count("Traversal") == torus_dim
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=40)
    assert buffer.getvalue().startswith(b"\x89PNG")
