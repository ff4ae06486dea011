"""The engines there are, and which one a layer gets."""

from __future__ import annotations

import warnings

from topkast.kernels.csr import CSREngine
from topkast.kernels.engine import ConvGeometry, Engine
from topkast.kernels.masked import MaskedEngine
from topkast.kernels.native import NativeEngine

# A new engine is one line here: its own file says all that others need to know of it.
ENGINES: dict[str, Engine] = {e.name: e for e in (MaskedEngine(), CSREngine(), NativeEngine())}


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


def why_not(name: str, kind: str, geometry: ConvGeometry | None, device_type: str) -> str | None:
    """Why an engine cannot do a layer, which `masked` then does; None if it can.

    Of "auto" it says why `native`, which it would rather use, is not among its choices.

    Args:
        name: What the user asked for.
        kind: "linear", "conv" or "embedding".
        geometry: Of a convolution.
        device_type: Where the weight is, such as "cpu".
    """
    if name == "auto" and device_type != "cpu":
        return None
    return ENGINES["native" if name == "auto" else name].refusal(kind, geometry, device_type)
