"""The engines there are, and which one a layer gets."""

from __future__ import annotations

from topkast.kernels.csr import CSREngine
from topkast.kernels.engine import ConvGeometry, Engine
from topkast.kernels.masked import MaskedEngine

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (MaskedEngine(), CSREngine())}

# `csr` overtakes dense kernels between 80 and 90 % sparsity (measured with MKL, one and two threads);
# unfolding costs convolutions their gain, so `auto` leaves those to `masked`.
_AUTO_CSR_DENSITY = 0.15


def check_engine(name: str) -> None:
    """Raises ValueError unless `name` is an engine or "auto"."""
    if name != "auto" and name not in ENGINES:
        known = ", ".join(repr(n) for n in ["auto", *ENGINES])
        raise ValueError(f"`engine` must be one of {known}, got {name!r}")


def choose_engine(
    name: str, kind: str, geometry: ConvGeometry | None, backward_density: float, device_type: str
) -> tuple[Engine, str | None]:
    """The engine for one layer, and why it is not the one asked for (None if it is).

    Args:
        name: What the user asked for.
        kind: "linear", "conv" or "embedding".
        geometry: Of a convolution.
        backward_density: D + M of the layer.
        device_type: Where the weight is, such as "cpu".
    """
    if name == "auto":
        use_csr = device_type == "cpu" and kind != "conv" and backward_density <= _AUTO_CSR_DENSITY
        return ENGINES["csr" if use_csr else "masked"], None
    engine = ENGINES[name]
    reason = engine.refusal(kind, geometry)
    return (engine, None) if reason is None else (ENGINES["masked"], reason)
