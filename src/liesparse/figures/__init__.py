"""Pictures: arrays in, a matplotlib Figure out; nothing is shown or saved here."""

from liesparse.figures.demo import DemoPanels, demo_figure
from liesparse.figures.growth import growth_figure
from liesparse.figures.paper import (
    InferencePanels,
    PlainPanels,
    RowPanels,
    columns_figure,
    comparison_figure,
    results_figure,
    samples_figure,
)
from liesparse.figures.sheets import (
    FRAME,
    INK,
    SIGNED,
    Array,
    draw_sheet,
    mosaic,
    paint,
    to_pdf,
    to_png,
    to_small_png,
    to_unit_peak,
)
from liesparse.figures.walks import before_and_after, sheet_figure, walk_figure

__all__ = [
    "FRAME",
    "INK",
    "SIGNED",
    "Array",
    "DemoPanels",
    "InferencePanels",
    "PlainPanels",
    "RowPanels",
    "before_and_after",
    "columns_figure",
    "comparison_figure",
    "demo_figure",
    "draw_sheet",
    "growth_figure",
    "mosaic",
    "paint",
    "results_figure",
    "samples_figure",
    "sheet_figure",
    "to_pdf",
    "to_png",
    "to_small_png",
    "to_unit_peak",
    "walk_figure",
]
