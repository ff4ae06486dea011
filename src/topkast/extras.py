"""Packages that need not be installed, loaded when they are wanted."""

from __future__ import annotations

from typing import Any


def load_matplotlib() -> tuple[Any, Any]:
    """The Figure and ticker of matplotlib: no window system, no global state.

    Raises:
        ImportError: It is not installed; the message says how to install it.
    """
    try:
        from matplotlib import ticker
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"plots need matplotlib: `pip install topkast[plots]` ({error})") from error
    return Figure, ticker
