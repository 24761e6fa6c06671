"""Distinct modes from any start: also from minima, saddles and points of inflection."""

import math

import torch

from liesparse import torus
from liesparse.posterior.interface import find_modes


def test_from_any_start_only_maxima_are_found():
    frequencies = torch.tensor([[2]])
    natural = torch.tensor([[[98.0, 0.0]]], dtype=torch.float64)  # maxima at 0 and π
    slack = 1e-13  # beside a point of inflection, where Newton's step has hardly an end
    starts = [0.1, math.pi / 2, math.pi / 4 + slack, 3 * math.pi / 4 - slack, math.pi + 0.2, 3 * math.pi / 2]
    found = find_modes(natural, frequencies, torch.tensor(starts, dtype=torch.float64)[None, :, None], 6)
    kept = found.log_density[0] > -torch.inf
    assert kept.tolist() == [True, True, False, False, False, False]
    assert found.poses.abs().max() < 10
    places = sorted(torus.wrap(found.poses[0, kept, 0]).abs().tolist())
    torch.testing.assert_close(places, [0.0, math.pi], atol=1e-6, rtol=0)


def test_a_start_on_a_saddle_is_no_mode():
    frequencies = torch.tensor([[1, 0], [0, 1]])
    natural = torch.tensor([[[-30.0, 0.0], [20.0, 0.0]]], dtype=torch.float64)  # one maximum, at (π, 0)
    starts = torch.tensor([[[3.0, 0.1], [0.0, 0.0], [0.0, math.pi], [math.pi, math.pi]]], dtype=torch.float64)
    found = find_modes(natural, frequencies, starts, 4)
    assert (found.log_density[0] > -torch.inf).tolist() == [True, False, False, False]
    torch.testing.assert_close(found.poses[0, 0], torch.tensor([math.pi, 0.0], dtype=torch.float64), atol=1e-6, rtol=0)
