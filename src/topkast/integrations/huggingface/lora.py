"""LoRA adapters of peft beside sparse layers: y = x·αᵀ + s·x·AᵀBᵀ, with a sparse α and dense A and B."""

from __future__ import annotations

from typing import Any, NoReturn

try:
    from peft import LoraConfig
    from peft.tuners.lora import Linear as LoraLinear
except ImportError as error:
    raise ImportError(
        f"topkast.integrations.huggingface.lora needs peft ({error}): pip install peft"
    ) from error

from torch import nn

from topkast.nn.base import SparseLayer
from topkast.nn.layers import Conv1D, Linear

_PLAIN_STARTS = (True, False, "gaussian")  # which draw A and B alone, without looking at the weight


def sparse_lora(config: LoraConfig) -> LoraConfig:
    """Lets peft put the adapters of this config on sparse Linear and Conv1D layers.

    peft freezes the model below the adapters: the sparse layers then stay as they are, and there is nothing
    to attach. To train both, unfreeze them with ``weight.requires_grad_(True)`` and attach the optimizer.

    Returns:
        The config it was given.
    """
    # peft calls what it finds for the first class that fits.
    adapters: dict[Any, Any] = {Linear: SparseLora, Conv1D: SparseLora, SparseLayer: _refuse}
    config._register_custom_module(adapters)
    return config


def _refuse(layer: Any, *_: Any, **__: Any) -> NoReturn:
    while not isinstance(layer, SparseLayer):  # a second adapter: peft has wrapped the layer already
        layer = layer.get_base_layer()
    raise TypeError(
        f"LoRA can adapt sparse Linear and Conv1D layers, got layer {layer.weight.name!r} ({layer.label}): "
        "take it out of `target_modules`, or leave it dense with `skip` in sparsify"
    )


class SparseLora(LoraLinear):
    """peft's adapter on a sparse layer. It becomes an ordinary one when `topkast.densify` made this dense."""

    def __init__(self, base_layer: nn.Module, adapter_name: str, config: LoraConfig, **options: Any) -> None:
        super().__init__(base_layer, adapter_name, config, **options)
        self.fan_in_fan_out = isinstance(self.get_base_layer(), Conv1D)  # whose weight is transposed

    def _get_in_out_features(self, module: nn.Module) -> tuple[int, int] | tuple[None, None]:
        if isinstance(module, Conv1D):
            return module.nx, module.nf
        return super()._get_in_out_features(module)

    def resolve_lora_variant(self, *, config: LoraConfig, **options: Any) -> Any:
        variant = super().resolve_lora_variant(config=config, **options)
        if variant is not None:
            self._check_dense(f"{type(variant).__name__} computes with")
        if config.init_lora_weights not in _PLAIN_STARTS:
            self._check_dense(f"init_lora_weights={config.init_lora_weights!r} starts from")
        return variant

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        self._check_dense("merging changes")
        super().merge(safe_merge, adapter_names)

    def _check_dense(self, what: str) -> None:
        layer = self.get_base_layer()
        if isinstance(layer, SparseLayer):
            raise TypeError(
                f"{what} the dense weight of layer {layer.weight.name!r}, which is sparse: "
                "`topkast.densify` the model first"
            )
