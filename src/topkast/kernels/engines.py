"""The engines there are, and which one a layer gets."""

from __future__ import annotations

import warnings

from topkast.kernels.csr import CSREngine
from topkast.kernels.engine import ConvGeometry, Engine
from topkast.kernels.masked import MaskedEngine
from topkast.kernels.native import NativeEngine

ENGINES: dict[str, Engine] = {e.name: e for e in (MaskedEngine(), CSREngine(), NativeEngine())}

# Where `native` is faster than dense kernels on two cores with AVX2: from half of the weights in B downwards,
# once the layer is large enough to pay for the call and for packing its input.
_AUTO_DENSITY = 0.5
_AUTO_NUMEL = 128 * 128


def check_engine(name: str) -> None:
    """Raises ValueError unless `name` is an engine or "auto", RuntimeError if it cannot be used here."""
    if name != "auto" and name not in ENGINES:
        known = ", ".join(repr(n) for n in ["auto", *ENGINES])
        raise ValueError(f"`engine` must be one of {known}, got {name!r}")
    reason = ENGINES["native"].unavailable()
    if reason is not None and name == "native":
        raise RuntimeError(f"`engine` 'native' cannot be used: {reason}")
    if reason is not None and name == "auto":
        warnings.warn(f"engine 'auto' does without 'native': {reason}", RuntimeWarning, stacklevel=3)


def choose_engine(
    name: str, kind: str, geometry: ConvGeometry | None, num_backward: int, numel: int, device_type: str
) -> tuple[Engine, str | None]:
    """The engine for one layer, and why it is not the one asked for (None if it is).

    Args:
        name: What the user asked for.
        kind: "linear", "conv" or "embedding".
        geometry: Of a convolution.
        num_backward: |B| of the layer.
        numel: Elements of the dense weight.
        device_type: Where the weight is, such as "cpu".
    """
    if name == "auto":
        native = ENGINES["native"]
        is_usable = native.unavailable() is None and native.refusal(kind, geometry, device_type) is None
        pays_off = numel >= _AUTO_NUMEL and num_backward <= _AUTO_DENSITY * numel
        return (native if is_usable and pays_off else ENGINES["masked"]), None
    engine = ENGINES[name]
    reason = engine.refusal(kind, geometry, device_type)
    return (engine, None) if reason is None else (ENGINES["masked"], reason)
