"""FISTA: a fixed-point iteration made faster by momentum."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def fista(advance: Callable[[Tensor], Tensor], start: Tensor, n_steps: int) -> Tensor:
    """Accelerate the fixed-point iteration x ← advance(x) by Nesterov's momentum [Beck09, eq. 4.1-4.3]."""
    current = ahead = start
    momentum = 1.0
    for _ in range(n_steps):
        previous, current = current, advance(ahead)
        next_momentum = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = torch.lerp(previous, current, 1 + (momentum - 1) / next_momentum)
        momentum = next_momentum
    return current
