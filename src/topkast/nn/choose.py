"""Which of the layers found become sparse: `skip` and `keep_dense`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from torch import nn

from topkast.core.distribution import matches, nearest
from topkast.nn.find import Findings, WeightGroup

Skip = Iterable[str] | Callable[[str, nn.Module], bool] | str
_KEEP_DENSE = ("first", "last", "embeddings")


def choose(findings: Findings, skip: Skip | None, keep_dense: Collection[str] | str) -> list[WeightGroup]:
    """The groups to make sparse; the reasons for the others are added to `findings.left_dense`.

    A weight shared by several layers stays dense if any of them is to.
    """
    reasons = _kept_dense(findings, keep_dense)
    reasons.update(_skipped(findings.groups, skip))
    for group in findings.groups:
        hits = [name for name in group.names if name in reasons]
        for name in group.names:
            if name in reasons:
                findings.left_dense[name] = reasons[name]
            elif hits:
                findings.left_dense[name] = f"shares its weight with {hits[0]}"
    return [g for g in findings.groups if g.name not in findings.left_dense]


def _kept_dense(findings: Findings, keep_dense: Collection[str] | str) -> dict[str, str]:
    wanted = [keep_dense] if isinstance(keep_dense, str) else list(keep_dense)
    for word in wanted:
        if word not in _KEEP_DENSE:
            known = ", ".join(repr(w) for w in _KEEP_DENSE)
            raise ValueError(f"`keep_dense` takes {known}, got {word!r}")
    layers = findings.candidates  # in module order; a group stands where its first member does
    reasons: dict[str, str] = {}
    if "embeddings" in wanted:
        for layer in layers:
            if layer.sparse_type.kind == "embedding":
                reasons[layer.name] = "keep_dense: embedding"
    if "first" in wanted and layers:
        reasons[layers[0].name] = "keep_dense: first layer"
    if "last" in wanted and layers:
        reasons[layers[-1].name] = "keep_dense: last layer"
    return reasons


def _skipped(groups: list[WeightGroup], skip: Skip | None) -> dict[str, str]:
    members = [member for group in groups for member in group.members]
    if skip is None:
        return {}
    if callable(skip):
        return {m.name: "skip" for m in members if skip(m.name, m.layer)}
    reasons: dict[str, str] = {}
    for pattern in [skip] if isinstance(skip, str) else skip:
        hits = [m.name for m in members if matches(pattern, m.name)]
        if not hits:
            raise ValueError(
                f"`skip` names {pattern!r}, which matches no layer that could be sparse; "
                f"there are {nearest(pattern, [m.name for m in members])}"
            )
        reasons.update(dict.fromkeys(hits, f"skip: {pattern}"))
    return reasons
