"""Groups that are known: shifts and rotations of pictures, or one's own. W is given, and only the shapes are learned.

Where a user knows how the pictures move, W need not be found: fewer images are enough, and the pose has units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from liesparse import stiefel
from liesparse._checks import check_choice, check_count, check_frequencies, check_group_basis, reject
from liesparse.devices import to_cpu

RADIANS = "radians"  # of what has no unit of its own
Waves = Complex[Tensor, "pixel wave"]
MOST_RINGS = 0.9  # of the angular frequencies that a ring of pixels can tell apart
LEAST_RING = 1e-3  # of the largest eigenvalue of the rings' overlaps; what is below is no wave of its own


class Coordinate(NamedTuple):
    """One number of the pose in its own units: so many of them are one turn of the torus."""

    name: str
    unit: str
    per_turn: float


class Basis(NamedTuple):
    """W and ω of a group."""

    group_basis: Float[Tensor, "pixel column"]
    frequencies: Int[Tensor, "irrep torus"]


@runtime_checkable
class KnownGroup(Protocol):
    """What a group must tell; ``name`` is that of ``group=`` in :class:`liesparse.LieSparseCoder`."""

    name: ClassVar[str]

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """The numbers of the pose."""

    def make_basis(self, images: Float[Tensor, "image pixel"], n_irreps: int) -> Basis:
        """Return W and ω with up to ``n_irreps`` planes, those that hold most of the energy of the images."""


class Composable:
    """Groups can stand one after the other: ``Translations(28, 28) @ Rotations(28, 28)`` turns, then shifts."""

    def __matmul__(self, inner: Any) -> Composition:
        return Composition(self, inner)


@dataclass(frozen=True)
class LearnedTorus(Composable):
    """A torus action that is learned, with so many axes: what ``group="learned"`` is, or a part of a composition."""

    torus_dim: int = 2
    name: ClassVar[str] = "learned"

    def __post_init__(self) -> None:
        check_count("torus_dim", self.torus_dim)

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """The learned pose, in radians."""
        return _radians(self.torus_dim)


@dataclass(frozen=True)
class Composition:
    """Two groups: the inner one moves a shape, then the outer one moves what came out.

    An outer group that is to be learned is learned first, alone and with more shapes, and then held.
    """

    outer: Any  # each a known group or a learned torus
    inner: Any

    def __post_init__(self) -> None:
        if not all(isinstance(part, KnownGroup | LearnedTorus) for part in (self.outer, self.inner)):
            fix = "Write Translations(28, 28) @ Rotations(28, 28), or with LearnedTorus(1) in the place of either."
            reject("group", "two groups", f"{self.outer!r} @ {self.inner!r}", fix)

    @property
    def name(self) -> str:
        """The names of both, as ``translation@rotation``."""
        return f"{self.outer.name}@{self.inner.name}"

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """The numbers of the pose, the outer ones first."""
        every = enumerate((*self.outer.coordinates, *self.inner.coordinates), start=1)
        return tuple(each._replace(name=f"pose_{i}") if each.unit == RADIANS else each for i, each in every)


Group = KnownGroup | LearnedTorus | Composition


@dataclass(frozen=True)
class Translations(Composable):
    """Pictures shifted to the right and down, round the edges: the Fourier basis."""

    height: int
    width: int
    name: ClassVar[str] = "translation"

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """Two shifts, in pixels."""
        return Coordinate("shift_x", "pixels", self.width), Coordinate("shift_y", "pixels", self.height)

    def make_basis(self, images: Float[Tensor, "image pixel"], n_irreps: int) -> Basis:
        """Return the waves below half of each size that hold most energy, and what cannot move.

        That is the constant and, where a size is even, the wave that alternates from pixel to pixel along it.
        """
        shape, sizes = (self.height, self.width), torch.tensor([self.width, self.height])
        _check_shape(images, *shape)
        omega = torch.cartesian_prod(*(torch.arange(-((size - 1) // 2), (size + 1) // 2) for size in sizes.tolist()))
        omega = omega[len(omega) // 2 + 1 :]  # in this order -ω comes before ω, and 0 is in the middle
        still = [torch.ones(images.shape[1], dtype=torch.float64)]
        if (even := sizes % 2 == 0).any():
            still.append(1 - 2 * grid_places(shape)[:, even].sum(dim=1).remainder(2))
        return _most_energy(fourier_waves(shape, omega), omega, torch.stack(still, dim=1), images, n_irreps)


@dataclass(frozen=True)
class Shifts(Composable):
    """Signals shifted round a circle: the Fourier basis of one dimension, all of it.

    The constant and, at even length, the wave that alternates have one dimension: the second column of their plane is
    zero. So shifts by whole samples are exact; in between, the alternating wave fades as its samples do. Orthonormal
    columns alone could not do it: a shift of even length has the determinant -1, and no rotation has.
    """

    length: int
    name: ClassVar[str] = "shift"

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """A shift, in samples."""
        return (Coordinate("shift", "samples", self.length),)

    def make_basis(self, images: Float[Tensor, "image pixel"], n_irreps: int) -> Basis:
        """Return the up to ``n_irreps`` waves that hold most of the energy of the signals, and those of one column."""
        _check_shape(images, self.length)
        omega = torch.arange(self.length // 2 + 1)[:, None]
        waves = fourier_waves((self.length,), omega)
        columns = torch.stack((waves.real, waves.imag), dim=-1)
        sizes = columns.norm(dim=0)
        columns = columns / sizes.clamp(min=0.5) * (sizes > 0.5)  # each is 1, √½ or nothing but rounding
        energies = _energies(columns, images).masked_fill(sizes[:, 1] <= 0.5, torch.inf)
        n_single = int(energies.isinf().sum())
        best = energies.argsort(descending=True, stable=True)[: n_single + n_irreps]
        return Basis(columns[:, best].flatten(1).to(images), omega[best])


@dataclass(frozen=True)
class Rotations(Composable):
    """Pictures turned about their middle, x towards y: exact waves in the angle, radial parts taken from the images."""

    height: int
    width: int
    name: ClassVar[str] = "rotation"

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """An angle, in degrees."""
        return (Coordinate("angle", "degrees", 360.0),)

    def make_basis(self, images: Float[Tensor, "image pixel"], n_irreps: int) -> Basis:
        """Return for each angular frequency the radial parts that hold most energy: a steerable principal basis."""
        _check_shape(images, self.height, self.width)
        rows, columns = torch.meshgrid(
            torch.arange(self.height) - (self.height - 1) / 2,
            torch.arange(self.width) - (self.width - 1) / 2,
            indexing="ij",
        )
        radius, angle = torch.hypot(rows, columns).flatten().double(), torch.atan2(rows, columns).flatten().double()
        rings = torch.arange(math.ceil(float(radius.max())) + 1).double()
        away = (radius[:, None] - rings).abs()  # cubic splines, on rings one pixel apart
        splines = (2 - away).clamp(min=0) ** 3 / 6 - 4 * (1 - away).clamp(min=0) ** 3 / 6
        waves, omega, still = [], [], torch.zeros(len(radius), 0).double()
        for frequency in range(int(MOST_RINGS * math.pi * min(self.height, self.width) / 2) + 1):
            told_apart = frequency <= MOST_RINGS * math.pi * rings
            turned = splines[:, told_apart] * torch.polar(torch.ones_like(angle), frequency * angle)[:, None]
            found = _principal(turned, images)
            if frequency == 0:
                still = found.real
            else:
                waves.append(found)
                omega += [frequency] * found.shape[1]
        return _most_energy(torch.cat(waves, dim=1), torch.tensor(omega)[:, None], still, images, n_irreps)


@dataclass(frozen=True, eq=False)
class Fixed(Composable):
    """One's own W and ω; the pose is in radians."""

    group_basis: Float[Tensor, "pixel column"]
    frequencies: Int[Tensor, "irrep torus"]
    name: ClassVar[str] = "fixed"

    def __post_init__(self) -> None:
        check_frequencies(self.frequencies)
        check_group_basis(self.group_basis)
        if self.group_basis.shape[1] != 2 * len(self.frequencies):
            sizes = f"{self.group_basis.shape[1]} columns and {len(self.frequencies)} frequencies"
            reject("group_basis", "two columns for each frequency", sizes, "Give as many of each.")

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """The pose as it is."""
        return _radians(self.frequencies.shape[1])

    def make_basis(self, images: Float[Tensor, "image pixel"], n_irreps: int) -> Basis:  # noqa: ARG002
        """Return W and ω, all of them."""
        _check_shape(images, len(self.group_basis))
        return Basis(self.group_basis.to(images), self.frequencies)


def _radians(n_axes: int) -> tuple[Coordinate, ...]:
    return tuple(Coordinate(f"pose_{axis + 1}", RADIANS, 2 * math.pi) for axis in range(n_axes))


NAMES = ("learned", "translation", "shift", "rotation")
COMPOSED = tuple(f"{outer}@{inner}" for outer in NAMES for inner in NAMES if outer != inner or outer == "learned")


def find_group(name: Any, image_shape: tuple[int, ...], torus_dim: int = 2) -> Group:
    """Return the group of a name, as ``translation@rotation``, for images of some shape."""
    check_choice("group", name, (*NAMES, *COMPOSED))
    outer, composed, inner = name.partition("@")
    if composed:
        learned = 1 if outer == "learned" else torus_dim  # two learned axes outside, one inside
        return Composition(find_group(outer, image_shape), find_group(inner, image_shape, learned))
    if name == "learned":
        return LearnedTorus(torus_dim)
    if name == "shift":
        return Shifts(math.prod(image_shape))
    if len(image_shape) != 2:
        fix = "Give grey pictures (no colour=yes), (n, height, width), or group='shift' for signals."
        reject("images", f"pictures of one channel for group={name!r}", f"the shape {image_shape}", fix)
    return (Translations if name == "translation" else Rotations)(*image_shape)


def _check_shape(images: Float[Tensor, "image pixel"], *sizes: int) -> None:
    for size in sizes:
        check_count("size of the group", size)
    if images.shape[1] != math.prod(sizes):
        expected = " × ".join(map(str, sizes)) + f" = {math.prod(sizes)} pixels"
        reject("images", f"images of the group's size, {expected}", f"{images.shape[1]} pixels", "Change one of them.")


def grid_places(shape: tuple[int, ...]) -> Float[Tensor, "pixel axis"]:
    """Return where each pixel lies, x before y."""
    places = torch.cartesian_prod(*(torch.arange(size, dtype=torch.float64) for size in shape))
    return places.view(-1, len(shape)).flip(1)


def fourier_waves(shape: tuple[int, ...], omega: Int[Tensor, "wave axis"]) -> Waves:
    """Return waves of norm 1 that turn ω times over the whole picture, x before y."""
    turns = (grid_places(shape) / torch.tensor(shape).flip(0)) @ omega.double().T
    waves = torch.polar(torch.ones_like(turns), 2 * math.pi * turns)
    return waves / waves.abs().norm(dim=0)


def _principal(turned: Waves, images: Float[Tensor, "image pixel"]) -> Complex[Tensor, "pixel kept_wave"]:
    """Return orthonormal combinations of waves of one frequency, by the energy that images have in them."""
    sizes, axes = torch.linalg.eigh(turned.mH @ turned)
    kept: Bool[Tensor, " wave"] = sizes > LEAST_RING * sizes.amax()
    basis = turned @ (axes[:, kept] / sizes[kept].sqrt())
    coords = to_cpu(images).to(turned) @ basis.conj()
    return basis @ torch.linalg.eigh(coords.mH @ coords).eigenvectors.conj().flip(1)


def _most_energy(
    waves: Waves,
    omega: Int[Tensor, "wave torus"],
    still: Float[Tensor, "pixel column"],
    images: Float[Tensor, "image pixel"],
    n_irreps: int,
) -> Basis:
    """Return planes from waves, and from columns that do not move; those in which images have most energy.

    Two columns are a plane of ω = 0; if one is left, the wave of least energy gives way to it.
    """
    columns = torch.stack((waves.real, waves.imag), dim=-1)
    columns = columns / columns.norm(dim=0).clamp(min=1e-12)
    order = _energies(columns, images).argsort(descending=True, stable=True)
    if still.shape[1] % 2:
        still, order = torch.cat((still, columns[:, order[-1], :1]), dim=1), order[:-1]
    planes = torch.cat(((still / still.norm(dim=0)).unflatten(1, (-1, 2)), columns[:, order]), dim=1)
    every = torch.cat((torch.zeros(still.shape[1] // 2, omega.shape[1], dtype=torch.int64), omega[order]))
    best = _energies(planes, images).argsort(descending=True, stable=True)[: min(n_irreps, images.shape[1] // 2)]
    return Basis(stiefel.polar(planes[:, best].flatten(1)).to(images), every[best])


def _energies(planes: Float[Tensor, "pixel irrep 2"], images: Float[Tensor, "image pixel"]) -> Float[Tensor, " irrep"]:
    return (to_cpu(images).double() @ planes.flatten(1)).square().sum(dim=0).unflatten(0, (-1, 2)).sum(dim=1)
