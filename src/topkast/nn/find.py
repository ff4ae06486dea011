"""Finding the layers of a model that can be sparse, those that share a weight, and which of them to take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from torch import nn

from topkast.core.distribution import matches, nearest
from topkast.nn.attention import PROJECTIONS, MultiheadAttention
from topkast.nn.base import SparseLayer
from topkast.nn.registry import attention_obstacle, counterpart, is_known_kind, obstacle

FROZEN = "frozen (requires_grad=False); unfreeze it before sparsify to make it sparse"


@dataclass
class Candidate:
    """A dense layer that has a sparse counterpart."""

    name: str
    layer: nn.Module
    sparse_type: type[SparseLayer]
    attention: MultiheadAttention | None = None  # the unpacked attention it is a projection of


@dataclass
class WeightGroup:
    """The layers that share one weight. Usually one; an embedding tied to an output layer makes two."""

    parameter: nn.Parameter
    members: list[Candidate]

    @property
    def name(self) -> str:
        return self.members[0].name

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.members]


@dataclass
class Findings:
    """What `find` saw.

    Attributes:
        candidates: All layers with a sparse counterpart, in module order.
        groups: Those that can be sparse, by the weight they share, each where its first member is.
        left_dense: What cannot be sparse, and why.
        attentions: Unpacked attention, by path.
    """

    candidates: list[Candidate] = field(default_factory=list)
    groups: list[WeightGroup] = field(default_factory=list)
    left_dense: dict[str, str] = field(default_factory=dict)
    attentions: dict[str, MultiheadAttention] = field(default_factory=dict)


def find(model: nn.Module) -> Findings:
    """Looks through all nested modules. Changes nothing: attention is unpacked beside the model."""
    findings = Findings()
    candidates = findings.candidates
    handled: set[int] = set()  # parts of a module that was dealt with as a whole
    holders = _parameter_holders(model)
    for name, module in model.named_modules():
        if id(module) in handled:
            continue
        if isinstance(module, nn.MultiheadAttention):
            handled.update(id(child) for child in module.modules())
            reason = attention_obstacle(module) or _shared_projection(module, holders)
            if reason is not None:
                findings.left_dense[name] = reason
                continue
            unpacked = MultiheadAttention(module)
            findings.attentions[name] = unpacked
            for child in PROJECTIONS:
                layer = getattr(unpacked, child)
                path = f"{name}.{child}" if name else child
                candidates.append(_candidate(path, layer, unpacked))
            continue
        reason = obstacle(module)
        if reason is None:
            candidates.append(_candidate(name, module))
        elif is_known_kind(module):
            findings.left_dense[name] = reason
            handled.update(id(child) for child in module.modules())
        else:
            findings.left_dense.update(_own_matrices(name, module, reason))
    _group(holders, findings)
    return findings


def _candidate(name: str, layer: nn.Module, attention: MultiheadAttention | None = None) -> Candidate:
    sparse_type = counterpart(layer)
    assert sparse_type is not None
    return Candidate(name, layer, sparse_type, attention)


def _own_matrices(name: str, module: nn.Module, reason: str) -> dict[str, str]:
    """What to report of a module that is no layer of ours. Biases and norms are not worth a line."""
    matrices = [n for n, p in module.named_parameters(recurse=False) if p.ndim >= 2]
    if not matrices:
        return {}
    if next(module.children(), None) is None:
        return {name: reason}
    prefix = f"{name}." if name else ""
    return {f"{prefix}{n}": f"a Parameter of {type(module).__name__} itself" for n in matrices}


def _parameter_holders(model: nn.Module) -> dict[int, list[tuple[str, int]]]:
    """For each Parameter: the qualified names it goes by, each with the id of the module that holds it."""
    holders: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            holders[id(parameter)].append((f"{path}.{name}" if path else name, id(module)))
    return holders


def _shared_projection(
    module: nn.MultiheadAttention, holders: dict[int, list[tuple[str, int]]]
) -> str | None:
    for parameter in module.parameters():
        names = [name for name, _ in holders[id(parameter)]]
        if len(names) > 1:
            return f"a projection is shared: {', '.join(names)}"
    return None


def _group(holders: dict[int, list[tuple[str, int]]], findings: Findings) -> None:
    """Joins candidates that hold one Parameter; a weight that something else holds too stays dense."""
    groups: dict[int, WeightGroup] = {}
    for candidate in findings.candidates:
        parameter = candidate.layer.weight
        assert isinstance(parameter, nn.Parameter)
        groups.setdefault(id(parameter), WeightGroup(parameter, [])).members.append(candidate)
    for key, group in groups.items():
        known = {id(member.layer) for member in group.members}
        foreign = [name for name, holder in holders[key] if holder not in known]
        # (The projections of an unpacked attention are its own: `_shared_projection` saw to that.)
        if foreign and group.members[0].attention is None:
            for name in group.names:
                findings.left_dense[name] = f"its weight is also {', '.join(foreign)}"
        else:
            findings.groups.append(group)


# ---- which of them become sparse: `skip` and `keep_dense` ----------------------------------------------

Skip = Iterable[str] | Callable[[str, nn.Module], bool] | str
_KEEP_DENSE = ("first", "last", "embeddings")


def wanted_groups(
    findings: Findings, skip: Skip | None, keep_dense: Collection[str] | str
) -> list[WeightGroup]:
    """The groups to make sparse; the reasons for the others are added to `findings.left_dense`.

    A weight shared by several layers stays dense if any of them is to. A weight without a gradient keeps its
    values: sparsity would zero most of a position table.
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
    groups = [g for g in findings.groups if g.name not in findings.left_dense]
    for group in groups:
        if not group.parameter.requires_grad:
            findings.left_dense.update(dict.fromkeys(group.names, FROZEN))
    return [g for g in groups if g.parameter.requires_grad]


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
