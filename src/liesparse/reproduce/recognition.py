"""Published tasks on digits: they are recognized, sorted into clusters, and learned by other tools."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn.functional import normalize, pad

from liesparse.data import LoadedData, embedded_digits, load_data, translations, warp
from liesparse.data.downloads import SIZES, find_files
from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.metrics import ACTIVE_THRESHOLD, active_codes, snr
from liesparse.model import Parameters, narrow_prior
from liesparse.posterior import Evidence, engine_of

Images = Float[Tensor, "_ _"]  # of several sizes and numbers
Labels = Int[Tensor, " _"]
Found = dict[str, dict[str, float]]  # by line and column of the table
PADDING, N_PLAIN = 6, 64  # pixels around a shifted digit; templates of plain sparse codes
GROUPS: dict[str, dict[str, dict[str, Any]]] = {  # of digits that are shifted, or turned
    "shifted": {"known": {"group": "translation"}, "learned": {"torus_dim": 2}},
    "turned": {"known": {"group": "rotation"}, "learned": {"torus_dim": 1}},
}
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
    still = [coder.canonicalize(part, poses=each.poses).flatten(1) for part, each in zip(pictures, found, strict=True)]
    plain = SparseCoder(N_PLAIN, random_state=seed).fit(still[0])
    return {
        "codes": (found[0].codes, found[1].codes),
        "canonical codes": (plain.transform(still[0]), plain.transform(still[1])),
        "canonical pixels": (still[0], still[1]),
    }


def classify(features: tuple[Tensor, Tensor], labels: tuple[Labels, Labels], chosen: Labels) -> dict[str, float]:
    """Return the accuracy in % of 1-NN and of logistic regression that see the labels of some training images."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    scale = features[0].square().mean().sqrt()
    known, unknown = (features[0][chosen] / scale).numpy(), (features[1] / scale).numpy()
    tools = {"1-NN": KNeighborsClassifier(1), "linear": LogisticRegression(tol=1e-3, max_iter=500)}
    answers, truth = labels[0][chosen].numpy(), labels[1].numpy()
    return {name: 100 * float(tool.fit(known, answers).score(unknown, truth)) for name, tool in tools.items()}


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


# ---- digits sorted into ten clusters without labels: by templates, and by a graph of the images that a motion joins
#
# In the graph each image is tied to those that are most like it. What likeness is differs: overlap of pixels, of plain
# codes, or how well a motion, learned or known, carries the one image into the other. All graphs are cut alike, so that
# only the likeness differs.

KMEANS, BY_PIXELS, BY_CODES = "k-means on pixels", "graph by pixels", "graph by plain codes"
LARGEST, GRAPH = "largest code", "graph by the motion"  # of a model of ten templates
WIDTH = 0.3  # radians: how far a pose goes where the prior is narrow
MODELS: dict[str, dict[str, Any]] = {
    "": {"torus_dim": 2},
    ", narrow prior": {"torus_dim": 2, "pose_prior": narrow_prior(WIDTH, 2)},
    ", known rotation, narrow prior": {"group": "rotation", "pose_prior": narrow_prior(WIDTH, 1)},
}
OURS = (LARGEST, f"{LARGEST}, narrow prior", f"{GRAPH}, narrow prior")
N_CLUSTERS = 10
N_TIES, N_TRIED = 10, 40  # neighbours of an image in the graph, and images nearest by pixels that a motion may carry
IMAGES_AT_ONCE = 200
Likeness = Float[Tensor, "image image"]
Near = Int[Tensor, "image neighbour"]


def match_clusters(labels: Labels, clusters: Labels, n_clusters: int = N_CLUSTERS) -> float:
    """Return the share of images, in %, that are in the cluster of their label by the best one-to-one match."""
    counts = torch.zeros(n_clusters, n_clusters)
    counts.index_put_((labels, clusters), torch.ones(len(labels)), accumulate=True)
    return 100 * float(counts[linear_sum_assignment(-counts.numpy())].sum()) / len(labels)


def find_nearest(likeness: Likeness, n: int) -> Near:
    """Return for each image the others that are most like it."""
    others = likeness.clone().fill_diagonal_(-torch.inf)
    return others.topk(min(n, len(others) - 1), dim=1).indices


def cut_graph(nearest: Near, seed: int, n_clusters: int = N_CLUSTERS) -> Labels:
    """Sort images so that few ties between neighbours are cut: spectral clustering by the normalized Laplacian.

    A tie counts one half for each of the two images that has the other among its neighbours.
    """
    from sklearn.cluster import spectral_clustering

    rows = np.repeat(np.arange(len(nearest)), nearest.shape[1])
    ties = csr_matrix((np.full(len(rows), 0.5), (rows, nearest.flatten().numpy())), shape=(len(nearest),) * 2)
    return torch.from_numpy(spectral_clustering(ties + ties.T, n_clusters=n_clusters, random_state=seed)).long()


def carry_likeness(motion: Parameters, images: Images, near: Near) -> Likeness:
    """Return how well each image explains another as its template, with the pose integrated out: the better way round.

    That is σ² ln P(I | I') up to a constant, for those of ``near`` alone; what lies outside of W does not move.
    """
    engine, variance = engine_of(motion), motion.noise_std**2
    planes = motion.to_planes(images)
    still, n_near = images - motion.from_planes(planes), near.shape[1]
    found = images.new_full((len(images), len(images)), -torch.inf)
    for first in range(0, len(images), IMAGES_AT_ONCE):
        own = slice(first, first + IMAGES_AT_ONCE)
        others = near[own].flatten()
        seen = planes[own].repeat_interleave(n_near, dim=0)
        moved = variance * engine.log_evidence(Evidence.of_planes(motion, planes[others], seen))
        unmoved = (still[own].repeat_interleave(n_near, dim=0) * still[others]).sum(dim=1)
        scores = moved + unmoved - still[others].square().sum(dim=1) / 2
        found[own].scatter_(1, near[own], scores.view(-1, n_near))
    return torch.maximum(found, found.T)


def sort_images(images: Images, seed: int, n_epochs: int | None = None) -> Iterator[tuple[str, Labels]]:
    """Yield ten clusters by k-means, by graphs without a motion, by templates, and by the graph of each motion.

    Templates and graph of the same name are of one model.
    """
    from sklearn.cluster import KMeans

    def cut(likeness: Likeness) -> Labels:
        return cut_graph(find_nearest(likeness, N_TIES), seed)

    yield KMEANS, torch.from_numpy(KMeans(N_CLUSTERS, n_init=10, random_state=seed).fit_predict(images.numpy())).long()
    overlaps = images @ images.T
    yield BY_PIXELS, cut(overlaps)
    codes = normalize(SparseCoder(N_PLAIN, random_state=seed).fit(images).transform(images), dim=1)
    yield BY_CODES, cut(codes @ codes.T)
    near, pictures = find_nearest(overlaps, N_TRIED), images.unflatten(1, (28, 28))
    for name, how in MODELS.items():
        coder = LieSparseCoder(N_CLUSTERS, n_epochs=n_epochs, random_state=seed, **how).fit(pictures)
        yield f"{LARGEST}{name}", coder.transform(pictures).argmax(dim=1)
        if "pose_prior" in how:
            yield f"{GRAPH}{name}", cut(carry_likeness(coder.model_, images, near))


def measure_clusters(seed: int, digits: Digits, n_images: int = 5000, n_epochs: int | None = None) -> Found:
    """Sort digits without their labels, on the images that all learned from, and compare with the labels."""
    data = digits.load(n_images, 1, seed)
    assert data.labels is not None
    found: Found = {}
    began = time.monotonic()
    for line, clusters in sort_images(data.train, seed, n_epochs):
        found[line] = {"accuracy, %": match_clusters(data.labels, clusters), "s": time.monotonic() - began}
        began = time.monotonic()
    return found


# ---- other tools


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
