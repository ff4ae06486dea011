"""Schedules: how a fraction or a sparsity depends on the step. Pure arithmetic."""

from __future__ import annotations

import math


def cosine(step: int, end: int, initial: float) -> float:
    """f(t) = f₀/2·(1 + cos(π·t/T_end)), and 0 from T_end on (Evci et al. 2020, equation 1)."""
    return 0.5 * initial * (1 + math.cos(math.pi * step / end)) if step < end else 0.0


def cubic(step: int, begin: int, end: int, initial: float, final: float) -> float:
    """s(t) = s_f + (s_i - s_f)·(1 - (t - t₀)/(t₁ - t₀))³, s_i before, s_f after (Zhu and Gupta 2017)."""
    if step < begin:
        return initial
    if step >= end:
        return final
    return final + (initial - final) * (1 - (step - begin) / (end - begin)) ** 3


def check_steps(name: str, value: int, *, at_least: int) -> None:
    """Raises unless `value` is a number of steps."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number of steps, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value!r}")


def check_count(name: str, value: int) -> None:
    """Raises unless `value` is a number of elements."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number of elements, got {value!r}")
    if value < 0:
        raise ValueError(f"{name} must be at least 0, got {value!r}")


def check_fraction(name: str, value: float) -> None:
    """Raises unless 0 ≤ value < 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number in [0, 1), got {value!r}")
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must be in [0, 1), got {value!r}")


def check_share(name: str, value: float) -> None:
    """Raises unless 0 ≤ value ≤ 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number in [0, 1], got {value!r}")
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], got {value!r}")


def check_amount(name: str, value: float, *, at_least: int = 0) -> None:
    """Raises unless at_least ≤ value < ∞."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not at_least <= value < math.inf:
        raise ValueError(f"{name} must be at least {at_least} and finite, got {value!r}")


def check_interval(begin_name: str, begin: int, end_name: str, end: int) -> None:
    """Raises unless the schedule begins before it ends."""
    check_steps(begin_name, begin, at_least=0)
    check_steps(end_name, end, at_least=1)
    if end <= begin:
        raise ValueError(f"{end_name} must be after {begin_name} ({begin}), got {end}")
