"""The engines there are, and which one a layer gets."""

from __future__ import annotations

from topkast.kernels.csr import CSREngine
from topkast.kernels.engine import ConvGeometry, Engine
from topkast.kernels.masked import MaskedEngine

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (MaskedEngine(), CSREngine())}

# Where `csr` is reliably faster than dense kernels (two threads, MKL): 1.7× at 95/90 % and 2.4× at 98/95 %
# for 1024 × 1024 with 512 tokens, but half as fast as dense at 90/90 % for 128 × 512. Unfolding costs
# convolutions their gain. Between the two, `auto` prefers not to lose.
_AUTO_CSR_DENSITY = 0.1
_AUTO_CSR_NUMEL = 512 * 512


def check_engine(name: str) -> None:
    """Raises ValueError unless `name` is an engine or "auto"."""
    if name != "auto" and name not in ENGINES:
        known = ", ".join(repr(n) for n in ["auto", *ENGINES])
        raise ValueError(f"`engine` must be one of {known}, got {name!r}")


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
        is_large_and_sparse = numel >= _AUTO_CSR_NUMEL and num_backward <= _AUTO_CSR_DENSITY * numel
        use_csr = device_type == "cpu" and kind != "conv" and is_large_and_sparse
        return ENGINES["csr" if use_csr else "masked"], None
    engine = ENGINES[name]
    reason = engine.refusal(kind, geometry)
    return (engine, None) if reason is None else (ENGINES["masked"], reason)
