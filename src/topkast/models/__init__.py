"""Plain torch networks, without any sparse code inside: sparsity comes from `topkast.sparsify`."""

from topkast.models.decoder import Decoder
from topkast.models.mlp import MLP

__all__ = ["MLP", "Decoder"]
