"""Published tasks on images: a square on a torus, recognition of digits, and other tools."""

from __future__ import annotations

import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import normalize, pad

from liesparse.data import LoadedData, embedded_digits, load_data, translations, warp
from liesparse.data.downloads import SIZES, find_files
from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.metrics import ACTIVE_THRESHOLD, active_codes, d_lsbd, snr

Images = Float[Tensor, "_ _"]  # of several sizes and numbers
Labels = Int[Tensor, " _"]
Found = dict[str, dict[str, float]]  # by line and column of the table
LEARNED = "learned from the images alone"
PADDING, N_PLAIN = 6, 64  # pixels around a shifted digit; templates of plain sparse codes
GROUPS: dict[str, dict[str, dict[str, Any]]] = {  # of digits that are shifted, or turned
    "shifted": {"known": {"group": "translation"}, "learned": {"torus_dim": 2}},
    "turned": {"known": {"group": "rotation"}, "learned": {"torus_dim": 1}},
}
SQUARE_STARTS = 4  # of which the best by the model's own objective goes on: one may close only in part
CONVOLUTION_STEPS = 50  # of ADMM, for each image


class Digits(NamedTuple):
    """Where handwritten digits come from: all of MNIST, or the 2,000 that ship with the package."""

    name: str
    folder: Path | None

    def load(self, n: int, n_test: int, seed: int) -> LoadedData:
        """Return up to so many images with their labels."""
        if self.name == "mnist-mini":
            n, n_test = min(n, 1000), min(n_test, 1000)
        options: dict[str, Any] = {"download": False} if self.name == "mnist" else {}
        return load_data(self.name, data_dir=self.folder, n=n, n_test=n_test, seed=seed, **options)


def find_digits(folder: Path | None) -> Digits:
    """Return all of MNIST if its files with labels are here, else what ships; a folder that is given must have them."""
    if folder or set(SIZES) <= find_files("mnist").keys():
        find_files("mnist", folder, SIZES)
        return Digits("mnist", folder)
    return Digits("mnist-mini", None)


def measure_square(seed: int, size: int = 64, block: int = 16, n_epochs: int | None = None) -> Found:
    """Learn a block that is rolled over all shifts of a picture, and measure how its pose is encoded."""
    picture = torch.zeros(size, size)
    picture[:block, :block] = 1
    images = torch.stack([picture.roll((down, right), (0, 1)) for down in range(size) for right in range(size)])
    began = time.monotonic()
    how: dict[str, Any] = {"n_epochs": n_epochs, "settings": {"n_init": SQUARE_STARTS}, "random_state": seed}
    coder = LieSparseCoder(1, torus_dim=2, **how).fit(images)
    seconds = time.monotonic() - began
    poses = coder.infer(images).poses
    encoding = torch.cat((poses.cos(), poses.sin()), dim=1).reshape(size, size, -1)
    quality = float(snr(images.flatten(1), coder.reconstruct(images).flatten(1)).mean())
    return {LEARNED: {"D_LSBD": d_lsbd(encoding), "SNR": quality, "s": seconds}}


def move_digits(images: Images, kind: str, generator: torch.Generator) -> Images:
    """Shift digits by up to 6 pixels on 40 × 40, or turn them by any angle."""
    n, sources = len(images), images.unflatten(1, (28, 28))
    if kind == "shifted":
        shifts = PADDING * (2 * torch.rand(n, 2, generator=generator) - 1)
        still = torch.eye(2).expand(n, 2, 2)
        return warp(still, shifts, {"x": shifts[:, 0]}, pad(sources, (PADDING,) * 4)).images
    angles = 2 * torch.pi * torch.rand(n, generator=generator)
    matrices = torch.stack((angles.cos(), -angles.sin(), angles.sin(), angles.cos()), dim=1).unflatten(1, (2, 2))
    return warp(matrices, None, {"angle": angles}, sources).images


def make_features(coder: LieSparseCoder, train: Images, test: Images, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return what a model makes of images: codes, canonical images, and plain sparse codes of these."""
    pictures = [part.unflatten(1, coder.image_shape_) for part in (train, test)]
    found = [coder.infer(part) for part in pictures]
    upright = [
        coder.canonicalize(part, poses=each.poses).flatten(1) for part, each in zip(pictures, found, strict=True)
    ]
    plain = SparseCoder(N_PLAIN, random_state=seed).fit(upright[0])
    return {
        "codes": (found[0].codes, found[1].codes),
        "canonical codes": (plain.transform(upright[0]), plain.transform(upright[1])),
        "canonical pixels": (upright[0], upright[1]),
    }


def classify(features: tuple[Tensor, Tensor], labels: tuple[Labels, Labels], chosen: Labels) -> dict[str, float]:
    """Return the accuracy in % of 1-NN and of logistic regression that see the labels of some training images."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    scale = features[0].square().mean().sqrt()
    known, unknown = (features[0][chosen] / scale).numpy(), (features[1] / scale).numpy()
    tools = {"1-NN": KNeighborsClassifier(1), "linear": LogisticRegression(tol=1e-3, max_iter=500)}
    answers, truth = labels[0][chosen].numpy(), labels[1].numpy()
    return {
        name: 100 * float((tool.fit(known, answers).predict(unknown) == truth).mean()) for name, tool in tools.items()
    }


def measure_recognition(
    seed: int,
    digits: Digits,
    kind: str = "turned",
    n_images: int = 2000,
    n_test: int = 1000,
    n_labels: tuple[int, ...] = (10, 100, 1000),
    n_components: int = 10,
    draws: int = 5,
    n_epochs: int | None = None,
) -> Found:
    """Recognize moved digits from few labels: by pixels, plain codes, and through a known and a learned group."""
    data, generator = digits.load(n_images, n_test, seed), torch.Generator().manual_seed(seed)
    assert data.labels is not None
    assert data.test_labels is not None
    order = torch.stack([torch.randperm(len(data.train), generator=generator) for _ in range(draws)])
    train, test = (move_digits(part, kind, generator) for part in (data.train, data.test))
    plain, side = SparseCoder(N_PLAIN, random_state=seed).fit(train), round(train.shape[1] ** 0.5)
    features = {"pixels": (train, test), "plain codes": (plain.transform(train), plain.transform(test))}
    for name, how in GROUPS[kind].items():
        coder = LieSparseCoder(n_components, n_epochs=n_epochs, random_state=seed, **how)
        own = make_features(coder.fit(train.unflatten(1, (side, side))), train, test, seed)
        features |= {f"{name} {each}": pair for each, pair in own.items()}
    found: Found = {}
    for n in n_labels:
        for column, pair in features.items():
            scores = []
            for one in order if n < 1000 else order[:1]:  # as many of each digit
                chosen = torch.cat([one[data.labels[one] == digit][: n // 10] for digit in range(10)])
                scores.append(classify(pair, (data.labels, data.test_labels), chosen))
            for tool in scores[0]:
                mean = float(np.mean([score[tool] for score in scores]))
                found.setdefault(f"{tool}, {n} labels", {})[column] = mean
    return dict(sorted(found.items(), key=lambda line: line[0].split(",")[0]))


def match_shapes(templates: Images, shapes: Images) -> Tensor:
    """Return the correlation of each shape with its template, one to one, each at its best shift."""
    both = [torch.fft.rfft2(normalize(part, dim=1).unflatten(1, (28, 28)), s=(56, 56)) for part in (shapes, templates)]
    overlaps = torch.fft.irfft2(both[0][:, None] * both[1].conj(), s=(56, 56)).flatten(2).amax(dim=2)
    return overlaps[linear_sum_assignment(-overlaps.numpy())]


def learn_by_scikit_learn(
    name: str, train: Images, n_components: int, seed: int, alpha: float = 0.1
) -> Float[Tensor, "component pixel"]:
    """Learn templates by a tool of scikit-learn, one a row; ``alpha`` is what a dictionary's positive codes cost."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import NMF, MiniBatchDictionaryLearning
    from sklearn.exceptions import ConvergenceWarning

    coding: dict[str, Any] = {"alpha": alpha, "fit_algorithm": "cd", "positive_code": True, "batch_size": 200}
    passes: dict[str, Any] = {"max_iter": 3, "tol": 0.0, "max_no_improvement": None}  # all three
    tools = {
        "dictionary learning": MiniBatchDictionaryLearning(n_components, **coding, **passes, random_state=seed),
        "k-means": KMeans(n_components, n_init=3, random_state=seed),
        "NMF": NMF(n_components, init="nndsvda", max_iter=100, tol=1e-3, random_state=seed),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # they have had their passes
        tool = tools[name].fit(train.double().numpy())
    rows = tool.cluster_centers_ if name == "k-means" else tool.components_
    return torch.from_numpy(rows).float()


def _learn_convolutional(train: Images, test: Images, n_components: int) -> tuple[Images, Images, float]:
    """Learn templates by sporco's convolutional sparse coding, and draw the test images by them: λ and σ as ours."""
    from sporco.admm.cbpdn import ConvBPDN
    from sporco.dictlrn.onlinecdl import OnlineConvBPDNDictLearn

    def canvas(images: Images) -> Any:  # room at the edges, as its convolutions go round
        return pad(images.unflatten(1, (28, 28)), (PADDING,) * 4).double().numpy()

    coding: dict[str, Any] = {"NonNegCoef": True, "MaxMainIter": CONVOLUTION_STEPS, "Verbose": False}
    start = train[:n_components].unflatten(1, (28, 28)).permute(1, 2, 0).double().numpy()
    learner = OnlineConvBPDNDictLearn(start, 0.1, OnlineConvBPDNDictLearn.Options({"CBPDN": coding}))
    for image in canvas(train):
        learner.solve(image)
    templates = learner.getdict().squeeze()
    drawn, n_codes = [], []
    for image in canvas(test):
        solver = ConvBPDN(templates, image, 0.1, ConvBPDN.Options(coding), dimK=0)
        n_codes.append(float((solver.solve() > ACTIVE_THRESHOLD).sum()))
        drawn.append(solver.reconstruct().squeeze()[PADDING:-PADDING, PADDING:-PADDING])
    rows = torch.from_numpy(templates).permute(2, 0, 1).flatten(1).float()
    return normalize(rows, dim=1), torch.from_numpy(np.stack(drawn)).flatten(1).float(), float(np.mean(n_codes))


def measure_peers(
    seed: int,
    n_images: int = 2000,
    n_test: int = 1000,
    n_irreps: int = 128,
    n_convolved: int = 100,
    n_epochs: int | None = None,
) -> Found:
    """Learn shifted digits by scikit-learn's tools, with as many templates or as many free numbers as ours.

    Where sporco is installed, convolutional sparse coding learns from ``n_convolved`` of the images, and is tested on
    as many: it takes longer for each.
    """
    generator = torch.Generator().manual_seed(seed)
    train, test = (translations(n, generator=generator).images for n in (n_images, n_test))
    train = train[torch.randperm(n_images, generator=generator)]  # digits came in turn
    shapes, n_pixels = normalize(embedded_digits().flatten(1), dim=1), train.shape[1]
    in_basis = n_pixels * 2 * n_irreps - n_irreps * (2 * n_irreps + 1)  # of an orthonormal W
    many = 10 + -(-in_basis // n_pixels)
    found: Found = {}

    def keep(line: str, numbers: int, templates: Images, drawn: Images, codes: float, seconds: float) -> None:
        match, quality = match_shapes(templates, shapes), float(snr(test[: len(drawn)], drawn).mean())
        good = {"match": float(match.mean()), "of 10 above 0.9": float((match > 0.9).sum())}
        found[line] = {"free numbers": numbers, "SNR": quality, "codes": codes, **good, "s": seconds}

    for line, how, numbers in (
        ("ours, known group", {"group": "translation"}, 10 * n_pixels),
        ("ours, learned group", {"n_irreps": n_irreps}, 10 * n_pixels + in_basis),
    ):
        began = time.monotonic()
        coder = LieSparseCoder(10, n_epochs=n_epochs, random_state=seed, **how).fit(train.unflatten(1, (28, 28)))
        seconds = time.monotonic() - began
        codes, poses = coder.infer(test.unflatten(1, (28, 28)))
        drawn = coder.inverse_transform(codes, poses).flatten(1)
        keep(line, numbers, torch.from_numpy(coder.components_), drawn, active_codes(codes), seconds)
    for n_components in (10, many):
        for name in ("dictionary learning", "k-means", "NMF"):
            began = time.monotonic()
            templates = normalize(learn_by_scikit_learn(name, train, n_components, seed), dim=1)
            seconds = time.monotonic() - began
            if name == "k-means":  # one template an image, at its best scale
                best = (test @ templates.T).max(dim=1)
                drawn, n_codes = best.values[:, None] * templates[best.indices], 1.0
            else:  # codes as ours: the same λ and σ
                codes = SparseCoder.from_dictionary(templates.T, (784,)).transform(test)
                drawn, n_codes = codes @ templates, active_codes(codes)
            keep(f"{name}, {n_components} templates", n_components * n_pixels, templates, drawn, n_codes, seconds)
    if find_spec("sporco") is not None:
        began = time.monotonic()
        learned = _learn_convolutional(train[:n_convolved], test[:n_convolved], 10)
        keep("convolutional (sporco), 10 templates", 10 * n_pixels, *learned, time.monotonic() - began)
    return found
