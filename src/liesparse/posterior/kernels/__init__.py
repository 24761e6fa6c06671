"""The compiled hot path: one library for each instruction set, built with the package, and how it is called."""

from liesparse.posterior.kernels.grid import GridKernel, Refinement, make_grid_kernel
from liesparse.posterior.kernels.library import KERNEL_NAMES, Choice, Library, choose, load, runnable
from liesparse.posterior.kernels.sampling import Proposal, SamplingKernel, make_sampling_kernel

__all__ = [
    "KERNEL_NAMES",
    "Choice",
    "GridKernel",
    "Library",
    "Proposal",
    "Refinement",
    "SamplingKernel",
    "choose",
    "load",
    "make_grid_kernel",
    "make_sampling_kernel",
    "runnable",
]
