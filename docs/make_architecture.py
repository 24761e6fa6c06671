"""Draw docs/images/architecture.svg from the layers in pyproject.toml: ``python docs/make_architecture.py``.

The suite checks that the picture is up to date. A new room needs a line in ``ROOMS``.
"""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
ROOMS = {
    "cli": "the command line",
    "web": "the explorer",
    "reproduce": "demo, bench, Table 1, figures",
    "report": "page on what was learned",
    "run_directory": "the folder of a run",
    "canonical": "pictures in one pose",
    "estimators": "the scikit-learn interface",
    "figures": "pictures",
    "suggestion": "which size of a model fits",
    "training": "epochs, record, checkpoints, resume",
    "confidence": "how sure of each image?",
    "verdict": "was a motion found?",
    "start": "where learning starts",
    "motions": "how far known motions go",
    "checkpoint": "models on disk",
    "data": "images in",
    "learning": "Algorithm 1",
    "baselines": "sparse coding",
    "metrics": "SNR, health",
    "nn": "torch layers",
    "symmetry": "group in words",
    "reseed": "wasted templates",
    "pairs": "the motion from pairs of images",
    "pose_coordinates": "of which the lattice makes most",
    "settings": "sizes, rates, recipes",
    "state": "of a run; its batches",
    "em": "M-step in closed form",
    "inference": "codes, poses, gradients",
    "initialization": "starting models",
    "posterior": "P(s | I, α): engines and kernels",
    "model": "parameters, densities",
    "groups": "motions that are known",
    "lattice": "frequencies ω",
    "torus": "R(s)",
    "stiefel": "orthonormal W",
    "files": "sealed, tables",
    "parallel": "processes",
    "devices": "where to compute",
    "_checks": "readable errors",
}
FLOWS = {
    "Training": [
        ("cli", "train DATA --out RUN"),
        ("data", "images, scaled to norm 1"),
        ("estimators", "LieSparseCoder.fit"),
        ("start", "motion and shapes, from pairs"),
        ("training", "epochs and checkpoints"),
        ("learning", "one update per batch:"),
        ("inference", "codes, by FISTA"),
        ("posterior", "mean of R(s) over poses"),
        ("em", "new Φ and W"),
        ("metrics", "health after each epoch"),
        ("run_directory", "the run, written to disk"),
    ],
    "Inference": [
        ("estimators", "LieSparseCoder.infer"),
        ("inference", "codes, then the pose"),
        ("posterior", "moments and modes"),
        ("model", "the image drawn again"),
        ("files", "a table, from the shell"),
    ],
    "Explorer": [
        ("web", "an image from the page"),
        ("estimators", "LieSparseCoder"),
        ("inference", "codes, then the pose"),
        ("posterior", "density of the pose"),
        ("web", "numbers; the page draws"),
    ],
}
COLOURS = {"Training": "#1f6f8b", "Inference": "#b4552d", "Explorer": "#5b7f2b"}
ROW, TOP, LEFT, ROOMS_WIDTH, LANE = 44, 56, 16, 660, 196


def layers() -> list[list[str]]:
    """Read the layers of the import contract, highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[room.strip() for room in row.split("|")] for row in rows]


def text(x: float, y: float, content: str, **style: str) -> str:
    """Return a line of text."""
    given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:g}" y="{y:g}"{given}>{escape(content)}</text>'


def draw_rooms(row: list[str], y: float) -> list[str]:
    """Draw the rooms of one layer, side by side."""
    width = ROOMS_WIDTH / len(row)
    parts = []
    for place, room in enumerate(row):
        x = LEFT + place * width
        size = f'width="{width - 6:g}" height="{ROW - 8}" rx="4"'
        parts += [
            f'<rect x="{x:g}" y="{y:g}" {size} fill="#f3f5f7" stroke="#c5ccd3"/>',
            text(x + 8, y + 15, room, font_weight="600", font_size="13"),
            text(x + 8, y + 29, ROOMS[room], fill="#4a5560", font_size="10.5"),
        ]
    return parts


def draw_flow(name: str, x: float, heights: dict[str, float]) -> list[str]:
    """Draw the way of an image through the rooms: numbered steps, each at the height of its room."""
    colour, places = COLOURS[name], []
    parts = [text(x, 34, name, font_weight="600", font_size="15", fill=colour)]
    steps = [heights[room] for room, _ in FLOWS[name]]
    for place, height in enumerate(steps):  # two steps of one row share it
        offset = 18 * (steps[:place].count(height) - (steps.count(height) - 1) / 2)
        places.append((x + 9, height + ROW / 2 - 4 + offset))
    line = " ".join(f"{across:g},{down:g}" for across, down in places)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-opacity="0.35"/>')
    for number, ((_, label), (across, down)) in enumerate(zip(FLOWS[name], places, strict=True), 1):
        parts += [
            f'<circle cx="{across:g}" cy="{down:g}" r="8.5" fill="{colour}"/>',
            text(across, down + 3.5, str(number), fill="#fff", font_size="10", text_anchor="middle"),
            text(across + 14, down + 4, label, font_size="11.5"),
        ]
    return parts


def make() -> str:
    """Return the picture."""
    rows = layers()
    missing = {room for row in rows for room in row} ^ set(ROOMS)
    if missing:
        raise ValueError(f"ROOMS in docs/make_architecture.py and the layers in pyproject.toml differ in {missing}.")
    heights = {room: TOP + ROW * place for place, row in enumerate(rows) for room in row}
    width, height = LEFT + ROOMS_WIDTH + 3 * LANE + 24, TOP + ROW * len(rows) + 28
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" fill="#1b2733">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        text(LEFT, 34, "Rooms: each imports only from rows below", font_weight="600", font_size="15"),
    ]
    for place, row in enumerate(rows):
        parts += draw_rooms(row, TOP + ROW * place)
    for place, name in enumerate(FLOWS):
        parts += draw_flow(name, LEFT + ROOMS_WIDTH + 20 + LANE * place, heights)
    parts.append(text(LEFT, height - 10, "Numbers: the way of an image.", font_size="11.5", fill="#4a5560"))
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(make(), encoding="utf-8")
