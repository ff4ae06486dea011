"""From a dense model to a sparse one and back; the handle between them."""

from topkast.convert.densify import densify
from topkast.convert.handle import Handle
from topkast.convert.sparsify import sparsify

__all__ = ["Handle", "densify", "sparsify"]
