"""The state of a run: all that the next update depends on, and what a callback sees of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from liesparse import em, stiefel
from liesparse.devices import aligned, to_cpu
from liesparse.model import Parameters
from liesparse.parallel import Group


class State(NamedTuple):
    """All that decides how a run goes on: from equal states come bit-identical models.

    Between steps every tensor is as :func:`liesparse.devices.aligned` makes it, new or loaded.
    """

    parameters: Parameters
    adam: stiefel.AdamState
    averages: em.Averages
    step: int  # batches seen
    place: int  # batches seen in this epoch
    epoch: int  # epochs that are over
    random: UInt8[Tensor, " byte"]  # of the generator, as this epoch began
    code_sum: float  # of the mean over each batch of this epoch
    last_good: Parameters

    @classmethod
    def begin(cls, parameters: Parameters, generator: torch.Generator) -> State:
        """Return the state before the first batch."""
        adam, averages = stiefel.AdamState.zero(parameters.group_basis), em.Averages.zero(parameters)
        return cls(parameters, adam, averages, 0, 0, 0, generator.get_state(), 0.0, parameters).map(aligned)

    def to(self, device: torch.device) -> State:
        """Return the state on another device; that of the generator stays on the CPU."""
        return self.map(lambda tensor: tensor.to(device) if tensor.is_floating_point() else tensor)

    def map(self, function: Callable[[Tensor], Tensor]) -> State:
        """Return the state with a function applied to each tensor."""
        return self._replace(
            parameters=self.parameters.map(function),
            adam=stiefel.AdamState(self.adam.step, *map(function, self.adam[1:])),
            averages=em.Averages(*map(function, self.averages)),
            random=function(self.random),
            last_good=self.last_good.map(function),
        )

    def agreed(self, group: Group) -> State:
        """Return the first process's state, where no batch has been seen since the last good model.

        Equal sums give equal updates; this is for the start, and against bits that part.
        """
        if group.size == 1:
            return self
        state = group.broadcast(self._replace(last_good=self.parameters).map(to_cpu))
        return state.to(self.parameters.device).map(aligned)


class Progress(NamedTuple):
    """What a callback sees after each batch; ``codes`` are those of this process's part of it."""

    step: int
    n_steps: int | None  # None where nobody knows how long the stream is
    epoch: int
    end_of_epoch: bool
    state: State
    codes: Float[Tensor, "batch component"]

    @property
    def parameters(self) -> Parameters:
        """The model so far."""
        return self.state.parameters

    @property
    def share(self) -> float:
        """How much is done; 0 where nobody knows how long the stream is."""
        return self.step / self.n_steps if self.n_steps else 0.0


Callback = Callable[[Progress], None]
