"""Digits sorted into ten clusters without labels: by templates, and by a graph of the images that a motion joins.

In the graph each image is tied to those that are most like it. What likeness is differs: overlap of pixels, of plain
codes, or how well a motion, learned or known, carries the one image into the other. All graphs are cut alike, so that
only the likeness differs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn.functional import normalize

from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.model import Parameters, narrow_prior
from liesparse.posterior import Evidence, engine_of
from liesparse.reproduce.recognition import N_PLAIN, Digits, Found, Images, Labels

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

    n, n_ties = nearest.shape
    rows = np.repeat(np.arange(n), n_ties)
    ties = csr_matrix((np.full(n * n_ties, 0.5), (rows, nearest.flatten().numpy())), shape=(n, n))
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
