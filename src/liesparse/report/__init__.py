"""One page that answers what a model has learned: numbers, shapes, motions, examples, and how it came about."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from liesparse import symmetry
from liesparse.data import LoadedData
from liesparse.devices import to_cpu
from liesparse.figures import Array, draw_pixels, to_unit_peak
from liesparse.files import write_atomically
from liesparse.model import apply_transform, compose
from liesparse.report import page
from liesparse.report.findings import Findings
from liesparse.report.page import draw_sheet
from liesparse.run_directory import Run

Files = dict[str, bytes]  # pictures that become files beside the page, by their names
MOST_TEMPLATES, MOST_PLANES, MOST_CODES = 60, 24, 4
FAINT = 0.1  # share below which the direction of a motion means nothing
N_FRAMES, N_STEPS, N_CHANGES = 32, 13, 6
AROUND = 0.9  # share of the circle from which a walk goes round and round
CURVES = {
    "snr": "SNR",
    "objective": "objective, ln P(I|α̂) + ln P(α̂)",
    "active_codes": "active codes per image",
    "templates_alive": "templates in use",
    "posterior_width": "posterior width, radians",
}
UNITS = {"x-shift": "pixels", "y-shift": "pixels", "rotation": "degrees", "scaling": "log size"}


@torch.no_grad()
def write_report(run: Run, data: LoadedData, *, title: str = "What the model has learned") -> Path:
    """Write ``report.html``, one self-contained page, and its pictures into a folder beside it; return its path.

    Parameters
    ----------
    run : Run
        A fitted model, what it is compared with, how it was made, and the folder to write to, made if need be.
    data : LoadedData
        Held-out images of any scale, of which the first 1000 that are not blank are used, and what is known of them:
        their files, labels, and the factors that made them. An image of shape (n_pixels,) is drawn as one row.
    title : str
        Headline of the page.
    """
    found = Findings(run, data)
    pictures: Files = {}
    facts = {name: str(run.settings.get(name, "-")) for name in ("data_summary", "recipe", "seed")}
    told = {"title": title, "facts": facts, "metrics": run.metrics, "n_given": len(data.test)}
    sections = _sections(found, run.coder.history_, pictures)
    content = page.render(names=run.coder.coordinate_names(), **told, **sections)
    for name, picture in pictures.items():
        write_atomically(run.folder / "report" / name, picture)
    write_atomically(run.folder / "report.html", content.encode())  # last, so that it is only there when all is
    return run.folder / "report.html"


def _sections(found: Findings, history: Sequence[Mapping[str, Any]], pictures: Files) -> dict[str, Any]:
    """Return what stands in the blanks of the page, by their names."""
    templates = _templates(found, pictures)
    return {
        "found": found,
        "min_images": symmetry.MIN_IMAGES,
        "motions": (*symmetry.FIELDS, "translation", "all linear motions"),
        "faint": FAINT,
        "n_steps": N_STEPS,
        "rates": [_rates(fit) for fit in found.group.axes],
        "templates": templates,
        "template_pictures": dict(zip(found.order, templates, strict=False)),
        "factor_plots": _factor_plots(found, pictures),
        "changes": [_changes(found, fit, pictures) for fit in found.group.axes],
        "traversals": [_traversal(found, *each, pictures) for each in enumerate(found.reach())],
        "doubtful": [
            (found.names[row], found.doubt(row), _tile(found.shown(found.images[row]), found))
            for row in found.doubtful()[:24]
        ],
        "examples": _examples(found, pictures),
        "curves": _curves(history, pictures),
        **_planes(found, pictures),
    }


# ---- the pictures of each section, in the order in which a person asks; some are also files beside the page


def _tile(pixels: Array, found: Findings) -> bytes:
    return draw_pixels(pixels, signed=found.signed)


def _flat(images: Array) -> Array:
    """Return rows of images as one row."""
    return images.reshape(-1, *images.shape[2:])


def _templates(found: Findings, files: Files) -> list[bytes]:
    """Draw the dictionary, most used shapes first."""
    shown = found.order[:MOST_TEMPLATES]
    shapes = found.shown(found.templates[shown])
    files["templates.png"] = draw_sheet(shapes, min(10, len(shown)), signed=found.signed)
    return [_tile(shape, found) for shape in shapes]


def _factor_plots(found: Findings, files: Files) -> list[bytes]:
    """Draw each true factor as the pose gives it."""
    if found.truth is None or found.prediction is None:
        return []
    columns = zip(found.factors, found.truth.T.numpy(), found.prediction.T.numpy(), strict=False)
    plots = [page.draw_scatter(truth, read, fit.name) for fit, truth, read in columns]
    files |= {f"factor-{place}.png": plot for place, plot in enumerate(plots, 1)}
    return plots


def _rates(fit: symmetry.AxisFit) -> str:
    """Say how far one radian goes, by the motions that matter."""
    words = []
    for name, unit in UNITS.items():
        if fit.shares[name] >= 0.05:
            rate = math.degrees(fit.rates[name]) if unit == "degrees" else fit.rates[name]
            words.append(f"{rate:+.2g} {unit} of {name}")
    return f", one radian being {' and '.join(words)}" if words and fit.shares["all linear motions"] >= 0.5 else ""


def _changes(found: Findings, fit: symmetry.AxisFit, files: Files) -> dict[str, bytes]:
    """Draw what a small step along an axis does to images, beside what known motions do."""
    images = found.reconstructions[found.one_of_each(N_CHANGES)]
    learned = symmetry.apply_generator(found.model, images, fit.axis)
    known = symmetry.known_motion(fit.rates, images.reshape(-1, *found.shape)).flatten(1)
    changes = to_unit_peak(found.pixels(torch.stack((learned, known, learned - known))), 1)
    files[f"change-{fit.axis + 1}.png"] = draw_sheet(_flat(changes), len(images), signed=True)
    strips = {"image": draw_sheet(found.shown(images), len(images), signed=found.signed)}
    for label, part in zip(("learned ∂I/∂s", "known motions", "what is left"), changes, strict=True):
        strips[label] = draw_sheet(part, len(images), signed=True)
    return strips


def _traversal(found: Findings, axis: int, reach: float, files: Files) -> dict[str, Any]:
    """Move shapes along an axis of the torus as far as the poses of the data go, there and back, or all the way."""
    places = torch.arange(N_FRAMES) / N_FRAMES
    there = places if reach > AROUND else (1 - torch.cos(2 * math.pi * places)) / 2
    frames = found.shown(found.traversal(axis, there))
    loop = page.draw_loop(frames.swapaxes(0, 1), signed=found.signed)
    still = draw_sheet(frames[:, N_FRAMES // 4], len(frames), signed=found.signed)
    walk = found.shown(found.traversal(axis, torch.linspace(0, 1, N_STEPS)))
    sheet = draw_sheet(_flat(walk), N_STEPS, signed=found.signed)
    files |= {f"axis-{axis + 1}.gif": loop, f"axis-{axis + 1}.png": sheet}
    return {"loop": loop, "still": still, "sheet": sheet, "reach": reach}


def _planes(found: Findings, files: Files) -> dict[str, Any]:
    """Draw the planes of W that hold most of the data's energy, and where it is on the lattice."""
    model, energies = found.model, found.plane_energies()
    chosen = energies.argsort(descending=True, stable=True)[:MOST_PLANES].tolist()
    pairs = to_unit_peak(found.pixels(model.group_basis.T.unflatten(0, (-1, 2))[chosen]))
    files["planes.png"] = draw_sheet(_flat(pairs), 12, signed=True)
    files["lattice.png"] = page.draw_lattice(to_cpu(model.frequencies).numpy(), to_cpu(energies).numpy())
    planes = [
        {
            "number": plane,
            "pair": [draw_pixels(side, signed=True) for side in pair],
            "frequencies": model.frequencies[plane].tolist(),
            "energy": float(energies[plane]),
        }
        for pair, plane in zip(pairs, chosen, strict=True)
    ]
    return {"planes": planes, "all_energy": float(energies.sum()), "lattice": files["lattice.png"]}


def _examples(found: Findings, files: Files) -> dict[str, list[dict[str, Any]]]:
    """Show what the model makes of the images it is surest of, and least sure."""
    return {
        name: [_example(found, row, f"{name.split()[0].lower()}-{place}", files) for place, row in enumerate(rows, 1)]
        for name, rows in zip(("Surest", "Least sure"), found.examples(), strict=True)
    }


def _example(found: Findings, row: int, name: str, files: Files) -> dict[str, Any]:
    middle = found.ranges[found.largest[[row]].clamp(min=0), :, 0]
    canonical = apply_transform(found.model, compose(found.model, found.codes[[row]]), middle)[0]
    triple = found.shown(torch.stack((found.images[row], found.reconstructions[row], canonical)))
    labels = ("picture", "model", "usual pose")
    values, codes = found.codes[row].tolist(), []
    for template in found.codes[row].argsort(descending=True, stable=True).tolist()[:MOST_CODES]:
        if values[template] > 1e-3:
            picture = _tile(found.shown(found.templates[template]), found)
            share = values[template] / max(1.0, *values)
            codes.append({"template": template, "picture": picture, "value": values[template], "share": share})
    posterior = files[f"posterior-{name}.png"] = page.draw_posterior(found.posterior[row])
    pictures = {label: _tile(pixels, found) for label, pixels in zip(labels, triple, strict=True)}
    sure = {key: float(values[row]) for key, values in found.confidence._asdict().items()}
    known = {"name": found.names[row], "snr": float(found.ratios[row]), "sure": sure, "doubt": found.doubt(row)}
    return known | {"pictures": pictures, "codes": codes, "posterior": posterior}


def _curves(history: Sequence[Mapping[str, Any]], files: Files) -> list[dict[str, Any]]:
    """Draw how learning went."""
    curves = []
    for name, label in CURVES.items():
        values = [float(entry[name]) for entry in history if isinstance(entry.get(name), int | float)]
        if values:
            picture = page.draw_curve(values, label, from_zero=name == "templates_alive")
            files[f"curve-{name.replace('_', '-')}.png"] = picture
            curves.append({"label": label, "last": values[-1], "picture": picture})
    return curves
