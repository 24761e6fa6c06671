"""The report's sections, in the order in which a person asks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from liesparse import symmetry
from liesparse.figures import Array, to_unit_peak
from liesparse.model import apply_transform, compose
from liesparse.report import page
from liesparse.report.findings import (
    Findings,
    Numbers,
    examples,
    one_of_each,
    plane_energies,
    posterior_of,
    traversal,
)
from liesparse.report.page import direction, draw_sheet, escape, figure, grid, how, image, number, percent, subscript

Files = dict[str, bytes]  # pictures that become files beside the page, by their names
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


def summary(found: Findings) -> str:
    """Say the whole report in a few sentences."""
    ours, theirs = found.ours, found.theirs
    text = f"Held-out images are explained with an SNR of {number(ours.snr)}"
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
    return f'<p class="lead">{escape(text)}</p>'


def numbers(found: Findings, n_given: int) -> str:
    """Show the headline numbers beside the baseline."""
    ours, theirs = found.ours, found.theirs
    entries = [
        ("SNR", number(ours.snr), _beside(theirs, "snr")),
        ("active codes", number(ours.active_codes), _beside(theirs, "active_codes")),
        ("templates in use", f"{ours.templates_alive} of {ours.n_templates}", _beside(theirs, "templates_alive")),
        ("mean ln P(I|α̂)", number(ours.log_likelihood), _beside(theirs, "log_likelihood")),
        ("posterior width, rad", number(ours.posterior_width, 2), f"{math.degrees(ours.posterior_width):.1f}°"),
    ]
    cards = [
        f'<div class="card"><span>{escape(name)}</span><b>{escape(value)}</b><span>{escape(beside)}</span></div>'
        for name, value, beside in entries
    ]
    used = f"{len(found.images):,}" + (f" of {n_given:,}" if n_given > len(found.images) else "")
    text = (
        f"From {used} held-out images: SNR is ‖I‖² / ‖I - Î‖², linear, larger is better; a code is active above 0.05 "
        "for an image of norm 1; the posterior width says how surely the pose is known."
    )
    return how(text) + grid("cards", cards)


def _beside(theirs: Numbers | None, name: str) -> str:
    return "" if theirs is None else f"sparse coding: {number(getattr(theirs, name))}"


def templates(found: Findings, files: Files) -> str:
    """Show the dictionary, most used shapes first."""
    shown = found.order[:MOST_TEMPLATES]
    shapes = to_unit_peak(found.pixels(found.model.dictionary.T[shown]))
    files["templates.png"] = draw_sheet(shapes, min(10, len(shown)), signed=found.signed)
    tiles = [
        figure(_tile(shape, found, f"template {template + 1}"), f"{percent(found.use[template])}")
        for shape, template in zip(shapes, shown, strict=True)
    ]
    left = len(found.order) - len(shown)
    more = f" The {left} least used ones are left out." if left else ""
    text = f"Each shape at its own origin, s = 0, with its share in the sum of all codes, most used first.{more}"
    return how(text) + grid("tiles", tiles)


def _tile(pixels: Array, found: Findings, alt: str) -> str:
    return image(page.draw_pixels(pixels, signed=found.signed), alt)


# ---- the transformation


def transformation(found: Findings, files: Files) -> str:
    """Say what the learned motions are: by the true factors if they are known, and by known motions."""
    return _by_factors(found, files) + _by_fields(found, files)


def _by_factors(found: Findings, files: Files) -> str:
    if found.truth is None or found.prediction is None:
        return ""
    if not found.factors:
        return f"<p>No template has the {symmetry.MIN_IMAGES} images from which true factors could be fitted.</p>"
    sentence = " ".join(
        f"One unit of {fit.name} moves s by {direction(fit.direction)}; the pose explains {percent(fit.share)}."
        for fit in found.factors
    )
    rows = [
        [
            fit.name,
            direction(fit.direction),
            page.share_cell(fit.share),
            page.share_cell(fit.worst_share),
            f"{fit.correlation:.3f}",
        ]
        for fit in found.factors
    ]
    head = ("factor", "direction in s", "explained (R²)", "worst template", "circular correlation")
    text = (
        "A straight line through a template's poses, wrapped about their mean, is fitted to the factors that made "
        f"the images; the table has the median over {found.factors[0].n_templates} templates, and the worst of them: "
        "one that stands for two shapes has two origins."
    )
    plots = []
    for place, fit in enumerate(found.factors):
        truth, read = found.truth[:, place].numpy(), found.prediction[:, place].numpy()
        content = files[f"factor-{place + 1}.png"] = page.draw_scatter(truth, read, fit.name)
        plots.append(image(content, f"{fit.name} as read from the pose against the true one", name="plot"))
    return (
        f"<h3>Against the true factors</h3><p>{escape(sentence)}</p>{how(text)}{page.table(head, rows)}"
        + how("One dot for each image: on the grey line, the pose gives the true factor exactly.")
        + grid("plots", plots)
    )


def _by_fields(found: Findings, files: Files) -> str:
    axes, purest = found.group.axes, {fit.field: fit for fit in found.group.purest}
    sentences = " ".join(f"Axis {fit.axis + 1} is {fit.name}{_rates(fit)}." for fit in axes)
    best = found.group.purest[0]
    sentences += f" The purest motion is {best.field}, {percent(best.share)}, along {direction(best.direction)}."
    names = [*symmetry.FIELDS, "translation", "all linear motions"]
    rows = []
    for name in names:
        row = [name, *(page.share_cell(fit.shares[name]) for fit in axes)]
        if len(axes) > 1:
            pure = purest.get(name)
            row.append("" if pure is None else page.share_cell(pure.share))
            row.append("" if pure is None or pure.share < FAINT else direction(pure.direction))
        rows.append(row)
    head = ["motion", *(f"axis {fit.axis + 1}" for fit in axes)]
    head += ["best direction", "in s, for one unit"] if len(axes) > 1 else []
    text = (
        "How much of the change of an image along a torus axis is what a known motion does to the same image; 100 % "
        "is exactly that motion, and motions that look alike share."
    )
    if len(axes) > 1:
        text += " The best direction is the combination of axes most like the motion."
    parts = [f"<h3>Against known motions</h3><p>{escape(sentences)}</p>", how(text), page.table(head, rows)]
    coloured = len(found.shape) == 3
    change = (
        "Lighter than grey where light comes" if coloured else "Ink comes where it is red and goes where it is blue"
    )
    text = (
        f"{change}: the learned change ∂I/∂s, the combination of known motions that is best for all images together, "
        "and what is left."
    )
    parts.append(how(text))
    parts += [_changes(found, fit, files) for fit in axes]
    return "".join(parts)


def _rates(fit: symmetry.AxisFit) -> str:
    """Say how far one radian goes, by the motions that matter."""
    words = []
    for name, unit in UNITS.items():
        if fit.shares[name] >= 0.05:
            rate = math.degrees(fit.rates[name]) if unit == "degrees" else fit.rates[name]
            words.append(f"{rate:+.2g} {unit} of {name}")
    return f", one radian being {' and '.join(words)}" if words and fit.shares["all linear motions"] >= 0.5 else ""


def _changes(found: Findings, fit: symmetry.AxisFit, files: Files) -> str:
    images = found.reconstructions[one_of_each(found, N_CHANGES)]
    learned = symmetry.apply_generator(found.model, images, fit.axis)
    known = symmetry.known_motion(fit.rates, images.reshape(-1, *found.shape)).flatten(1)
    changes = to_unit_peak(np.stack([found.pixels(part) for part in (learned, known, learned - known)]), 1)
    shown = to_unit_peak(found.pixels(images))
    labels = ("learned ∂I/∂s", "known motions", "what is left")
    strips = [page.strip("image", image(draw_sheet(shown, len(shown), signed=found.signed), "images"))]
    strips += [
        page.strip(label, image(draw_sheet(part, len(part), signed=True), f"{label}, axis {fit.axis + 1}"))
        for label, part in zip(labels, changes, strict=True)
    ]
    sheet = changes.reshape(-1, *changes.shape[2:])
    files[f"change-{fit.axis + 1}.png"] = draw_sheet(sheet, len(shown), signed=True)
    return f"<h3>Axis {fit.axis + 1}: {escape(fit.name)}</h3>" + "".join(strips)


def traversals(found: Findings, files: Files) -> str:
    """Move shapes once around each axis of the torus."""
    text = (
        "The most used shapes go once around each circle, from the middle of the poses they have in the data; "
        "in the strips below, frames beyond those poses are pale: there the model has seen nothing."
    )
    parts = [how(text)]
    for fit in found.group.axes:
        axis = fit.axis
        title = f"Axis {axis + 1}, s{subscript(axis)}: {fit.name}"
        frames = _frames(found, axis, torch.arange(N_FRAMES) * (2 * math.pi / N_FRAMES))
        loop = files[f"axis-{axis + 1}.gif"] = page.draw_loop(frames.swapaxes(0, 1), signed=found.signed)
        still = draw_sheet(frames[:, 0], len(frames), signed=found.signed)
        steps = torch.linspace(-math.pi, math.pi, N_STEPS)
        walk = _frames(found, axis, steps)
        pale = np.abs(steps.numpy()) > math.pi * found.reach[axis] + 1e-6
        walk[:, pale] *= 0.35
        sheet = draw_sheet(walk.reshape(-1, *walk.shape[2:]), N_STEPS, signed=found.signed)
        files[f"axis-{axis + 1}.png"] = sheet
        moving = image(loop, f"shapes moving once around axis {axis + 1}", kind="gif")
        quiet = f'<source media="(prefers-reduced-motion: reduce)" srcset="{page.data_uri(still)}">'
        parts.append(
            f'<h3>{escape(title)}</h3><div class="loop"><picture>{quiet}{moving}</picture></div>'
            + figure(
                image(sheet, f"{N_STEPS} steps from -π to π along axis {axis + 1}"),
                f"-π … 0 … π; the data fill about {percent(found.reach[axis])} of this circle",
            )
        )
    return "".join(parts)


def _frames(found: Findings, axis: int, values: torch.Tensor) -> Array:
    moved = traversal(found, axis, values)
    frames = found.pixels(moved.flatten(0, 1))
    return to_unit_peak(frames.reshape(*moved.shape[:2], *frames.shape[1:]))


def planes(found: Findings, files: Files) -> str:
    """Show the planes of W that hold most of the data's energy."""
    energies = plane_energies(found)
    chosen = energies.argsort(descending=True, stable=True)[:MOST_PLANES].tolist()
    model = found.model
    columns = model.group_basis.T.unflatten(0, (-1, 2))[chosen]
    pairs = found.pixels(columns.flatten(0, 1))
    pairs = to_unit_peak(pairs.reshape(len(chosen), 2, *pairs.shape[1:]))
    files["planes.png"] = draw_sheet(pairs.reshape(-1, *pairs.shape[2:]), 12, signed=True)
    tiles = []
    for pair, plane in zip(pairs, chosen, strict=True):
        omega = ", ".join(map(str, model.frequencies[plane].tolist()))
        tile = (image(page.draw_pixels(side, signed=True), f"column of plane {plane + 1}") for side in pair)
        tiles.append(figure(grid("two", tile), f"ω = ({omega}) · {percent(float(energies[plane]))}"))
    text = (
        f"The {len(chosen)} of {model.n_irreps} planes with most energy, which together hold "
        f"{percent(float(energies[chosen].sum()))} of the images' (all planes: {percent(float(energies.sum()))}); "
        "R(s) turns the two patterns of a plane into each other by the angle ω·s."
    )
    return how(text) + grid("pairs", tiles)


# ---- examples and history


def inference(found: Findings, files: Files) -> str:
    """Show what the model makes of the images it explains best and worst."""
    kind = {1: "its density", 2: "a map, coloured where probable, on a logarithmic scale"}
    density = kind.get(found.model.torus_dim, "the density of each coordinate")
    text = (
        "For each image what the model makes of it, its shape brought to s = 0, the largest codes as bars, "
        f"and the posterior of the pose: {density}."
    )
    parts = [how(text)]
    for name, rows in zip(("Best", "Worst"), examples(found), strict=True):
        if rows:
            cards = [_example(found, row, f"{name.lower()}-{place + 1}", files) for place, row in enumerate(rows)]
            parts.append(f"<h3>{name} by SNR</h3>{grid('examples', cards)}")
    return "".join(parts)


def _example(found: Findings, row: int, name: str, files: Files) -> str:
    canonical = apply_transform(found.model, compose(found.model, found.codes[[row]]), 0 * found.poses[[row]])[0]
    triple = torch.stack((found.images[row], found.reconstructions[row], canonical))
    shown = to_unit_peak(found.pixels(triple), None)
    labels = ("input", "model", "canonical")
    tiles = [figure(_tile(pixels, found, label), label) for pixels, label in zip(shown, labels, strict=True)]
    codes = found.codes[row]
    largest = [k for k in codes.argsort(descending=True, stable=True).tolist()[:MOST_CODES] if float(codes[k]) > 1e-3]
    bars = []
    for template in largest:
        value = float(codes[template])
        shape = to_unit_peak(found.pixels(found.model.dictionary.T[[template]]))[0]
        bar = f'<i style="width: {100 * value / max(1.0, float(codes.max())):.0f}%"></i>'
        bars.append(f'<div class="code">{_tile(shape, found, f"template {template + 1}")}{bar}{value:.2f}</div>')
    posterior = posterior_of(found.model, found.images[[row]], found.codes[[row]])
    plot = files[f"posterior-{name}.png"] = page.draw_posterior(posterior)
    return (
        f'<div class="card"><span>SNR {number(float(found.ratios[row]))}</span>{grid("three", tiles)}{"".join(bars)}'
        f'<div class="posterior">{image(plot, "posterior of the pose", name="plot")}</div></div>'
    )


def curves(history: Sequence[Mapping[str, Any]], files: Files) -> str:
    """Show how learning went."""
    plots = []
    for name, label in CURVES.items():
        values = [float(entry[name]) for entry in history if name in entry]
        if values:
            picture = page.draw_curve(values, label, from_zero=name == "templates_alive")
            files[f"curve-{name.replace('_', '-')}.png"] = picture
            plots.append(image(picture, f"{label} after each epoch, last {number(values[-1])}", name="plot"))
    if not plots:
        return "<p>This model has no record of its training.</p>"
    text = (
        "After each epoch, on a few of the training images by the paper's shorter inference: learning is a sudden "
        "rise of the SNR after a plateau, and a posterior that stays broad has found no motion."
    )
    return how(text) + grid("plots", plots)


def run(facts: Mapping[str, str], metrics: Mapping[str, float]) -> str:
    """Show what made this model, and the numbers that the run itself wrote."""
    parts = []
    if facts:
        parts.append(page.table((), facts.items(), name="facts"))
    if metrics:
        rows = [(name, number(float(value), 4)) for name, value in metrics.items()]
        parts.append("<h3>Numbers of the run</h3>" + page.table((), rows, name="facts"))
    return "".join(parts)
