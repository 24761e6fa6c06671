"""The how-to for the layers runs, learns, and writes its picture."""

import importlib.util
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "docs" / "howto" / "layer.py"


@pytest.fixture(scope="module")
def layer():
    spec = importlib.util.spec_from_file_location("howto_layer", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_short_run_finds_the_rotation(layer, tmp_path, capsys):
    outcomes = layer.main(tmp_path, seeds=(0,), n_steps=150, n_pairs=200)
    assert outcomes[0].correlation > 0.95
    assert f"seed 0: |correlation of pose and angle| = {outcomes[0].correlation:.4f}" in capsys.readouterr().out
    assert (tmp_path / "howto-layer.png").read_bytes().startswith(b"\x89PNG")


def test_the_true_angle_is_counter_clockwise(layer):
    picture = torch.zeros(1, 28, 28)
    picture[0, 13:15, 20:24] = 1.0  # on the right
    turned = layer.turn(picture, torch.tensor([torch.pi / 2])).view(28, 28)
    assert turned[4:8, 13:15].sum() > 0.9 * picture.sum()  # at the top


def test_pairs_differ_by_the_angle_they_state(layer):
    pairs = layer.draw_pairs(20, blend=False, generator=torch.Generator().manual_seed(0))
    again = layer.turn(pairs.first.view(-1, 28, 28), pairs.turns)
    back = layer.turn(pairs.first.view(-1, 28, 28), -pairs.turns)
    assert (again - pairs.second).square().mean() < 0.1 * (back - pairs.second).square().mean()
