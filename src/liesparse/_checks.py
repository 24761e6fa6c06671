"""Readable errors for bad input: what was wrong, what was expected, what came, and the fix."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

NOISE = {"minimum": 1e-6, "maximum": 1e6}  # σ of images of norm 1: beyond, float32 has no numbers for it
MOST = 1e9  # of λ and of the natural parameters of a prior
MOST_FREQUENCIES = {1: 500, 2: 64}  # |ω| on so many axes; beyond, one sum over the pose takes seconds
MOST_OF_MANY_AXES = 100
TOLERANCE = 1e-4  # of norms and inner products, in what should be orthonormal or of norm 1
Size = tuple[str, int | None]  # the name of a dimension and its required size, or None for any


def plain(text: object, most: int = 600) -> str:
    """Return text from outside for one line of a screen: control characters escaped, the middle of much left out."""
    shown = str(text)
    shown = shown if len(shown) <= most else f"{shown[: most // 2]}…{shown[-most // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def listed(names: Iterable[str], most: int = 10) -> str:
    """Name a few of many, in one line."""
    every = [plain(name, 100) for name in names]
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more or "none"


def reject(argument: str, expected: str, got: str, fix: str) -> NoReturn:
    """Raise the one kind of error this package raises for bad input."""
    raise ValueError(f"{plain(argument)}: expected {plain(expected, 1000)}, got {plain(got)}. {plain(fix)}")


@contextmanager
def refusing(expected: str, where: object, fix: str, errors: Any = Exception, argument: str = "data") -> Iterator[None]:
    """Reject input for what other libraries raise inside, almost anything if a file is damaged, in one line."""
    try:
        yield
    except errors as error:
        said = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
        reject(argument, expected, f"{getattr(error, 'filename', None) or where} ({said.splitlines()[0]})", fix)


def describe(value: Any) -> str:
    """Name a value in an error message without printing a whole array."""
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    if hasattr(value, "shape"):
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r}"


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number of things as one reads it: 1 image, 2,000 images, 2 axes."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def check_count(argument: str, value: Any, minimum: int = 1, maximum: int = 10**9) -> int:
    """Return ``value`` if it is a whole number from ``minimum`` to ``maximum``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        reject(argument, f"a whole number >= {minimum}", describe(value), f"Pass {minimum} or more.")
    if int(value) > maximum:
        reject(argument, f"a whole number <= {maximum:,}", f"{int(value):,}", f"Pass {maximum:,} or less.")
    return int(value)


def check_real(
    argument: str, value: float, *, above: float = -math.inf, minimum: float = -math.inf, maximum: float = math.inf
) -> float:
    """Return ``value`` as a float if it is finite and inside the stated bounds."""
    bounds = [f"> {above:g}"] * (above > -math.inf) + [f">= {minimum:g}"] * (minimum > -math.inf)
    bound = " and ".join(bounds + [f"<= {maximum:g}"] * (maximum < math.inf))
    number = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value <= above or value < minimum or value > maximum:
        reject(argument, f"a finite number {bound}".strip(), describe(value), f"Choose a value {bound or 'in range'}.")
    return float(value)


def check_choice(argument: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    if value not in choices:
        names = " or ".join(repr(choice) for choice in choices)
        near = difflib.get_close_matches(str(value), choices, n=1)
        reject(argument, names, repr(value), f"Did you mean {near[0]!r}?" if near else "Pass one of these.")
    return value


def check_shape(argument: str, value: Tensor, rows: Size, columns: Size, dtype: torch.dtype | None = None) -> None:
    """Reject what is no floating point matrix whose sizes and type fit; values are not read."""
    shape = ", ".join(name if size is None else f"{name} = {size}" for name, size in (rows, columns))
    expected = f"a {'floating point' if dtype is None else dtype} tensor of shape ({shape})"
    if not isinstance(value, Tensor):
        reject(argument, expected, describe(value), "Convert it with torch.as_tensor first.")
    if value.ndim != 2 or rows[1] not in (None, value.shape[0]) or columns[1] not in (None, value.shape[1]):
        reject(argument, expected, describe(value), "Reshape it, or check which model or layer it belongs to.")
    if not value.dtype.is_floating_point or (dtype is not None and value.dtype != dtype):
        how = ".float()" if dtype is None else f".to({dtype})"
        other = ", or the model or layer that takes it" if value.dtype.is_floating_point else ""
        reject(argument, expected, describe(value), f"Convert it with {how}{other}.")


def check_matrix(argument: str, value: Tensor, rows: Size, columns: Size, dtype: torch.dtype | None = None) -> None:
    """Reject what :func:`check_shape` does and, on the CPU, what is not finite: elsewhere to look is to wait."""
    check_shape(argument, value, rows, columns, dtype)
    if value.is_cpu and not math.isfinite(value.detach().sum()):  # a finite sum has finite terms, and is quickly made
        bad = int((~torch.isfinite(value)).sum())
        if bad:
            reject(argument, "finite numbers", f"{bad} NaN or infinite entries", "Remove or repair those entries.")


def check_images(images: Tensor, n_pixels: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Return ``images`` if it is a non-empty (batch, n_pixels) matrix without a blank row."""
    check_matrix("images", images, ("batch", None), ("n_pixels", n_pixels), dtype)
    if len(images) == 0:
        reject("images", "at least one image", "none", "Pass a non-empty batch.")
    # Several times faster than any(), and no copy of them all.
    blank = (images.amax(dim=1) == 0) & (images.amin(dim=1) == 0) if images.is_cpu else None
    if blank is not None and bool(blank.any()):
        got = f"{int(blank.sum())} blank image(s), the first at row {int(blank.nonzero()[0])}"
        fix = "Drop them: a blank image has no shape, no pose and no norm to divide by."
        reject("images", "images that are not blank", got, fix)
    return images


def check_unit_norm(images: Tensor, *, argument: str = "images") -> Tensor:
    """Return ``images`` if every row has L2 norm 1, the paper's "normalized image"."""
    error = float((images.norm(dim=1) - 1).abs().max())
    if not error <= TOLERANCE:
        fix = "Call liesparse.unit_norm(images) first."
        reject(argument, "rows of L2 norm 1", f"norms off by up to {error:.1e}", fix)
    return images


def check_n_pixels(n_pixels: int, n_irreps: int, n_empty: int = 0) -> None:
    """Reject images with no room for ``2 * n_irreps`` orthonormal columns, of which some may be zero.

    The paper asks for an even number, so that all of the image space splits into planes; ours need not fill it.
    """
    check_count("n_pixels", n_pixels, 2)
    if 2 * n_irreps - n_empty > n_pixels:
        fix = f"Use n_irreps <= {n_pixels // 2}, or larger images."
        reject("n_irreps", f"2 * n_irreps <= n_pixels = {n_pixels}", f"n_irreps = {n_irreps}", fix)


def check_frequencies(frequencies: Tensor) -> Tensor:
    """Return ``frequencies`` if it is an (n_irreps, torus_dim) table of integers."""
    if not isinstance(frequencies, Tensor) or frequencies.ndim != 2 or 0 in frequencies.shape:
        expected, fix = "an int64 tensor of shape (n_irreps, torus_dim)", "Make one with liesparse.half_lattice."
        reject("frequencies", expected, describe(frequencies), fix)
    if frequencies.dtype != torch.int64:
        fix = "Round them and convert with .long(), or make them with liesparse.half_lattice."
        reject("frequencies", "integers (int64): R(s) has period 2π only then", describe(frequencies), fix)
    return frequencies


def orthonormality_error(matrix: Tensor) -> float:
    """Return max|WᵀW - 1|; the second column of a plane may also be zero, for what has one dimension only."""
    gram = matrix.T @ matrix
    wanted = torch.ones_like(gram[0])
    wanted[1::2] = matrix[:, 1::2].any(dim=0).to(wanted)
    return float((gram - wanted.diag()).abs().max())


def check_group_basis(group_basis: Tensor) -> None:
    """Reject columns that are not orthonormal."""
    error = orthonormality_error(group_basis)
    if not error <= TOLERANCE:  # also catches NaN
        expected = f"orthonormal columns (max|WᵀW - 1| <= {TOLERANCE:.0e})"
        fix = "Call liesparse.stiefel.orthonormalize(group_basis) first."
        reject("group_basis", expected, f"max|WᵀW - 1| = {error:.1e}", fix)
