"""``suggest``: signals of which the number and the motion are known, and what is refused."""

import pytest
import torch

from liesparse import suggest
from liesparse.reproduce.battery import shifted_signals


@pytest.mark.slow
def test_no_fewer_templates_are_recommended_than_there_are_signals():
    signals = shifted_signals(1500, torch.Generator().manual_seed(2), n_signals=2, length=24).images
    seen = []
    found = suggest(signals, torus_dims=(1,), callback=seen.append)
    best = max(found.trials, key=lambda trial: trial.evidence)
    assert (found.torus_dim, found.n_components) == (1, best.n_components)
    assert found.n_components in (2, 4)  # never too few: a template too many is harmless, two shapes in one are not
    sizes = [trial.n_components for trial in found.trials]
    assert sizes[:3] == [1, 2, 4]
    assert found.n_components < max(sizes)  # where the most is the best, twice as many are tried too
    assert seen == list(found.trials)
    assert 0.4 < found.trials[0].pair_share < 0.6
    assert found.noise_std == pytest.approx(0.1)
    assert found == suggest(signals.numpy(), torus_dims=(1,))


def test_too_few_images_are_refused():
    with pytest.raises(ValueError, match="images: expected at least 266 images"):
        suggest(torch.ones(30, 4))
