"""Learn from unlabelled images what is in them and how it moves: Lie Group Sparse Coding.

The public names are in ``__init__.pyi`` and load on first use: ``liesparse --help`` answers without torch.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
