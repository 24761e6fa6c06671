"""One page that answers what a model has learned: numbers, shapes, motions, examples, and how it came about."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import symmetry
from liesparse.devices import to_cpu
from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.figures import Array, to_unit_peak
from liesparse.files import write_atomically
from liesparse.model import apply_transform, compose
from liesparse.report import page
from liesparse.report.findings import Findings
from liesparse.report.page import Html, direction, draw_sheet, element, figure, image, number, percent, share_cell

Files = dict[str, bytes]  # pictures that become files beside the page, by their names
Values = dict[str, str]  # for the blanks of ``page.html``
MOST_TEMPLATES, MOST_PLANES, MOST_CODES = 60, 24, 4
FAINT = 0.1  # share below which the direction of a motion means nothing
N_FRAMES, N_STEPS, N_CHANGES = 32, 13, 6
CURVES = {
    "snr": "SNR",
    "objective": "objective, ln P(I|α̂) + ln P(α̂)",
    "active_codes": "active codes per image",
    "templates_alive": "templates in use",
    "posterior_width": "posterior width, radians",
}
UNITS = {"x-shift": "pixels", "y-shift": "pixels", "rotation": "degrees", "scaling": "log size"}


@torch.no_grad()
def write_report(
    folder: Path,
    coder: LieSparseCoder,
    *,
    test: Float[Tensor, "image pixel"],
    image_shape: tuple[int, ...],
    baseline: SparseCoder | None = None,
    factors: Float[Tensor, "image factor"] | None = None,
    factor_names: tuple[str, ...] = (),
    title: str = "What the model has learned",
    facts: Mapping[str, str] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> Path:
    """Write ``report.html``, one self-contained page, and its pictures as files into ``folder/report``.

    Parameters
    ----------
    folder : Path
        Where to write; it is made if need be.
    coder : LieSparseCoder
        A fitted model.
    test : Tensor of shape (n_images, n_pixels)
        Held-out images, of any scale; the first 1000 that are not blank are used.
    image_shape : tuple of int
        (height, width) of an image, or (height, width, 3) in colour; (n_pixels,) is drawn as one row.
    baseline : SparseCoder, optional
        Plain sparse coding of the same data, to compare with.
    factors : Tensor of shape (n_images, n_factors), optional
        What made the test images, such as shifts; ``factor_names`` has a name for each column.
    title : str
        Headline of the page.
    facts, metrics : mappings, optional
        What made the model (data, recipe, seed, time), and the numbers that the run wrote.

    Returns
    -------
    Path
        The page.
    """
    found = Findings(
        coder, test, image_shape=image_shape, baseline=baseline, factors=factors, factor_names=factor_names
    )
    pictures: Files = {}
    values = {"title": title, "style": page.fill("style.css", {})} | _summary(found) | _numbers(found, len(test))
    for section in (_templates, _by_factors, _by_fields, _traversals, _planes, _inference):
        values |= section(found, pictures)
    values |= _curves(coder.history_, pictures) | _run(facts or {}, metrics or {})
    content = page.fill("page.html", values).encode()
    for name, picture in pictures.items():
        write_atomically(folder / "report" / name, picture)
    write_atomically(folder / "report.html", content)  # last, so that it is only there when all is
    return folder / "report.html"


# ---- the sections, in the order in which a person asks


def _summary(found: Findings) -> Values:
    """Say the whole report in a few sentences."""
    ours, theirs = found.ours, found.theirs
    text = f"{found.verdict} " if found.verdict is not None else ""
    text += f"Held-out images are explained with an SNR of {number(ours.snr)}"
    if theirs is not None:
        text += f", {number(ours.snr / theirs.snr, 2)} times that of plain sparse coding ({number(theirs.snr)})"
    text += f", by {ours.active_codes:.1f} shapes per image"
    text += f" instead of {number(theirs.active_codes, 2)}. " if theirs is not None else ". "
    text += " ".join(f"Axis {fit.axis + 1} of the learned torus is {fit.name}." for fit in found.group.axes)
    if found.factors:
        read = ", ".join(
            f"{percent(fit.share)} of {fit.name} for the median template ({percent(fit.worst_share)} for the worst)"
            for fit in found.factors
        )
        text += f" The pose, never told about the true factors, explains {read}."
    return {"summary": text}


def _numbers(found: Findings, n_given: int) -> Values:
    """Show the headline numbers beside the baseline."""
    ours, theirs, width = found.ours, found.theirs, found.ours.posterior_width
    entries = [
        ("SNR", number(ours.snr), "snr"),
        ("active codes", number(ours.active_codes), "active_codes"),
        ("templates in use", f"{ours.templates_alive} of {ours.n_templates}", "templates_alive"),
        ("mean ln P(I|α̂)", number(ours.log_likelihood), "log_likelihood"),
        ("posterior width, rad", number(width, 2), "degrees"),
    ]
    beside = {name: f"sparse coding: {number(value)}" for name, value in (theirs._asdict() if theirs else {}).items()}
    beside["degrees"] = f"{math.degrees(width):.1f}°"
    cards = [
        element("div.card", element("span", name), element("b", value), element("span", beside.get(key, "")))
        for name, value, key in entries
    ]
    n_images = f"{len(found.images):,}" + (f" of {n_given:,}" if n_given > len(found.images) else "")
    return {"n_images": n_images, "cards": element("div.grid cards", *cards)}


def _templates(found: Findings, files: Files) -> Values:
    """Show the dictionary, most used shapes first."""
    shown = found.order[:MOST_TEMPLATES]
    shapes = to_unit_peak(found.pixels(found.model.dictionary.T[shown]))
    files["templates.png"] = draw_sheet(shapes, min(10, len(shown)), signed=found.signed)
    tiles = [
        figure(_tile(shape, found, f"template {template + 1}"), percent(found.use[template]))
        for shape, template in zip(shapes, shown, strict=True)
    ]
    left = len(found.order) - len(shown)
    left_out = f" The {left} least used ones are left out." if left else ""
    return {"templates": element("div.grid tiles", *tiles), "left_out": left_out}


def _tile(pixels: Array, found: Findings, alt: str) -> Html:
    return image(page.draw_pixels(pixels, signed=found.signed), alt)


# ---- the transformation


def _by_factors(found: Findings, files: Files) -> Values:
    """Say what the learned motions are by the true factors, if they are known."""
    if found.truth is None or found.prediction is None:
        return {"by_factors": ""}
    if not found.factors:
        text = f"No template has the {symmetry.MIN_IMAGES} images from which true factors could be fitted."
        return {"by_factors": element("p", text)}
    sentences, rows, plots = [], [], []
    for fit, truth, read in zip(found.factors, found.truth.T.numpy(), found.prediction.T.numpy(), strict=True):
        way, shares = direction(fit.direction), (share_cell(fit.share), share_cell(fit.worst_share))
        sentences.append(f"One unit of {fit.name} moves s by {way}; the pose explains {percent(fit.share)}.")
        rows.append((fit.name, way, *shares, f"{fit.correlation:.3f}"))
        content = files[f"factor-{len(rows)}.png"] = page.draw_scatter(truth, read, fit.name)
        plots.append(image(content, f"{fit.name} as read from the pose against the true one", name="plot"))
    head = ("factor", "direction in s", "explained (R²)", "worst template", "circular correlation")
    values = {"sentences": " ".join(sentences), "factor_table": page.table(head, rows), "plots": page.join(plots)}
    return {"by_factors": page.fill("factors.html", values | {"n_templates": str(found.factors[0].n_templates)})}


def _by_fields(found: Findings, files: Files) -> Values:
    """Say what the learned motions are by known motions."""
    axes, purest = found.group.axes, {fit.field: fit for fit in found.group.purest}
    several, best = len(axes) > 1, found.group.purest[0]
    sentences = [f"Axis {fit.axis + 1} is {fit.name}{_rates(fit)}." for fit in axes]
    sentences.append(f"The purest motion is {best.field}, {percent(best.share)}, along {direction(best.direction)}.")
    rows = []
    for name in (*symmetry.FIELDS, "translation", "all linear motions"):
        row, pure = [name, *(share_cell(fit.shares[name]) for fit in axes)], purest.get(name)
        if several:
            row.append("" if pure is None else share_cell(pure.share))
            row.append("" if pure is None or pure.share < FAINT else direction(pure.direction))
        rows.append(row)
    head = ["motion", *(f"axis {fit.axis + 1}" for fit in axes)]
    head += ["best direction", "in s, for one unit"] if several else []
    ink = "Ink comes where it is red and goes where it is blue"
    return {
        "motions": " ".join(sentences),
        "motion_table": page.table(head, rows),
        "combined": " The best direction is the combination of axes most like the motion." if several else "",
        "colours": "Lighter than grey where light comes" if len(found.shape) == 3 else ink,
        "changes": page.join(_changes(found, fit, files) for fit in axes),
    }


def _rates(fit: symmetry.AxisFit) -> str:
    """Say how far one radian goes, by the motions that matter."""
    words = []
    for name, unit in UNITS.items():
        if fit.shares[name] >= 0.05:
            rate = math.degrees(fit.rates[name]) if unit == "degrees" else fit.rates[name]
            words.append(f"{rate:+.2g} {unit} of {name}")
    return f", one radian being {' and '.join(words)}" if words and fit.shares["all linear motions"] >= 0.5 else ""


def _changes(found: Findings, fit: symmetry.AxisFit, files: Files) -> Html:
    images = found.reconstructions[found.one_of_each(N_CHANGES)]
    learned = symmetry.apply_generator(found.model, images, fit.axis)
    known = symmetry.known_motion(fit.rates, images.reshape(-1, *found.shape)).flatten(1)
    changes = to_unit_peak(found.pixels(torch.stack((learned, known, learned - known))), 1)
    files[f"change-{fit.axis + 1}.png"] = draw_sheet(_flat(changes), len(images), signed=True)
    strips = {"image": (draw_sheet(to_unit_peak(found.pixels(images)), len(images), signed=found.signed), "images")}
    for label, part in zip(("learned ∂I/∂s", "known motions", "what is left"), changes, strict=True):
        strips[label] = (draw_sheet(part, len(images), signed=True), f"{label}, axis {fit.axis + 1}")
    parts = [element("div.strip", element("span", label), image(*strip)) for label, strip in strips.items()]
    return page.join([element("h3", f"Axis {fit.axis + 1}: {fit.name}"), *parts])


def _flat(images: Array) -> Array:
    """Return rows of images as one row."""
    return images.reshape(-1, *images.shape[2:])


def _traversals(found: Findings, files: Files) -> Values:
    """Move shapes once around each axis of the torus."""
    parts, around = [], torch.arange(N_FRAMES) * (2 * math.pi / N_FRAMES)
    steps = torch.linspace(-math.pi, math.pi, N_STEPS)
    for fit, reach in zip(found.group.axes, found.reach(), strict=True):
        axis, name = fit.axis, f"axis {fit.axis + 1}"
        frames = to_unit_peak(found.pixels(found.traversal(axis, around)))
        loop = page.draw_loop(frames.swapaxes(0, 1), signed=found.signed)
        still = draw_sheet(frames[:, 0], len(frames), signed=found.signed)
        walk = to_unit_peak(found.pixels(found.traversal(axis, steps)))
        walk[:, np.abs(steps.numpy()) > math.pi * reach + 1e-6] *= 0.35
        sheet = draw_sheet(_flat(walk), N_STEPS, signed=found.signed)
        files |= {f"axis-{axis + 1}.gif": loop, f"axis-{axis + 1}.png": sheet}
        quiet = element("source", media="(prefers-reduced-motion: reduce)", srcset=page.data_uri(still))
        moving = image(loop, f"shapes moving once around {name}", kind="gif")
        picture, caption = image(sheet, f"{N_STEPS} steps from -π to π along {name}"), percent(reach)
        parts += [
            element("h3", f"Axis {axis + 1}, s{page.subscript(axis)}: {fit.name}"),
            element("div.loop", element("picture", quiet, moving)),
            figure(picture, f"-π … 0 … π; the data fill about {caption} of this circle"),
        ]
    return {"traversals": page.join(parts)}


def _planes(found: Findings, files: Files) -> Values:
    """Show the planes of W that hold most of the data's energy."""
    model, energies = found.model, found.plane_energies()
    chosen = energies.argsort(descending=True, stable=True)[:MOST_PLANES].tolist()
    pairs = to_unit_peak(found.pixels(model.group_basis.T.unflatten(0, (-1, 2))[chosen]))
    files["planes.png"] = draw_sheet(_flat(pairs), 12, signed=True)
    tiles = []
    for pair, plane in zip(pairs, chosen, strict=True):
        omega = ", ".join(map(str, model.frequencies[plane].tolist()))
        tile = (image(page.draw_pixels(side, signed=True), f"column of plane {plane + 1}") for side in pair)
        tiles.append(figure(element("div.grid two", *tile), f"ω = ({omega}) · {percent(float(energies[plane]))}"))
    lattice = files["lattice.png"] = page.draw_lattice(to_cpu(model.frequencies).numpy(), to_cpu(energies).numpy())
    return {
        "lattice": image(lattice, "share of the energy at each frequency", name="plot"),
        "planes": element("div.grid pairs", *tiles),
        "n_planes": f"{len(chosen)} of {model.n_irreps}",
        "energy": percent(float(energies[chosen].sum())),
        "all_energy": percent(float(energies.sum())),
    }


# ---- examples and history


def _inference(found: Findings, files: Files) -> Values:
    """Show what the model makes of the images it explains best and worst."""
    kind = {1: "its density", 2: "a map, coloured where probable, on a logarithmic scale"}
    parts = []
    for name, rows in zip(("Best", "Worst"), found.examples(), strict=True):
        if rows:
            cards = [_example(found, row, f"{name.lower()}-{place}", files) for place, row in enumerate(rows, 1)]
            parts += [element("h3", f"{name} by SNR"), element("div.grid examples", *cards)]
    density = kind.get(found.model.torus_dim, "the density of each coordinate")
    return {"examples": page.join(parts), "density": density}


def _example(found: Findings, row: int, name: str, files: Files) -> Html:
    canonical = apply_transform(found.model, compose(found.model, found.codes[[row]]), 0 * found.poses[[row]])[0]
    triple = torch.stack((found.images[row], found.reconstructions[row], canonical))
    pictures = zip(to_unit_peak(found.pixels(triple), None), ("input", "model", "canonical"), strict=True)
    tiles = [figure(_tile(pixels, found, label), label) for pixels, label in pictures]
    codes, bars = found.codes[row], []
    for template in codes.argsort(descending=True, stable=True).tolist()[:MOST_CODES]:
        value = float(codes[template])
        if value > 1e-3:
            shape = to_unit_peak(found.pixels(found.model.dictionary.T[[template]]))[0]
            bar = element("i", style=f"width: {100 * value / max(1.0, float(codes.max())):.0f}%")
            bars.append(element("div.code", _tile(shape, found, f"template {template + 1}"), bar, f"{value:.2f}"))
    plot = files[f"posterior-{name}.png"] = page.draw_posterior(found.posterior[row])
    posterior = element("div.posterior", image(plot, "posterior of the pose", name="plot"))
    headline = element("span", f"SNR {number(float(found.ratios[row]))}")
    return element("div.card", headline, element("div.grid three", *tiles), *bars, posterior)


def _curves(history: Sequence[Mapping[str, Any]], files: Files) -> Values:
    """Show how learning went."""
    plots = []
    for name, label in CURVES.items():
        values = [float(entry[name]) for entry in history if name in entry]
        if values:
            picture = page.draw_curve(values, label, from_zero=name == "templates_alive")
            files[f"curve-{name.replace('_', '-')}.png"] = picture
            plots.append(image(picture, f"{label} after each epoch, last {number(values[-1])}", name="plot"))
    if not plots:
        return {"curves": element("p", "This model has no record of its training.")}
    return {"curves": page.fill("curves.html", {"plots": page.join(plots)})}


def _run(facts: Mapping[str, str], metrics: Mapping[str, float]) -> Values:
    """Show what made this model, and the numbers that the run itself wrote."""
    parts = [page.table((), facts.items(), kind="facts")] if facts else []
    if metrics:
        rows = [(name, number(float(value), 4)) for name, value in metrics.items()]
        parts += [element("h3", "Numbers of the run"), page.table((), rows, kind="facts")]
    if not parts:
        return {"run": "", "run_link": ""}
    section = element("section", element("h2", "The run", id="part-7"), *parts)
    return {"run": section, "run_link": element("a", "The run", href="#part-7")}
