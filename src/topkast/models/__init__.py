"""Plain torch networks, without any sparse code inside: sparsity comes from `topkast.sparsify`."""

from topkast.models.presets import PRESETS, Preset, preset
from topkast.models.resnet import BasicResNet, ResNet9, ResNet50, resnet18, resnet20, resnet50
from topkast.models.simple import MLP, Decoder
from topkast.models.transformer_xl import TransformerXL

__all__ = [
    "MLP",
    "PRESETS",
    "BasicResNet",
    "Decoder",
    "Preset",
    "ResNet9",
    "ResNet50",
    "TransformerXL",
    "preset",
    "resnet18",
    "resnet20",
    "resnet50",
]
