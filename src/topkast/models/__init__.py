"""Plain torch networks, without any sparse code inside: sparsity comes from `topkast.sparsify`."""

from topkast.models.decoder import Decoder
from topkast.models.mlp import MLP
from topkast.models.presets import PRESETS, Preset, preset
from topkast.models.resnet import ResNet50, resnet50
from topkast.models.resnet_small import BasicResNet, resnet18, resnet20
from topkast.models.transformer_xl import TransformerXL

__all__ = [
    "MLP",
    "PRESETS",
    "BasicResNet",
    "Decoder",
    "Preset",
    "ResNet50",
    "TransformerXL",
    "preset",
    "resnet18",
    "resnet20",
    "resnet50",
]
