"""Plain torch networks, without any sparse code inside: sparsity comes from `topkast.sparsify`."""

from topkast.models.decoder import Decoder
from topkast.models.mlp import MLP
from topkast.models.resnet import ResNet50
from topkast.models.transformer_xl import TransformerXL

__all__ = ["MLP", "Decoder", "ResNet50", "TransformerXL"]
