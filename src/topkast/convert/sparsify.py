"""`sparsify`: swaps a model's layers for sparse ones, in place, all or nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import torch
from torch import nn

from topkast.convert.handle import Handle
from topkast.convert.huggingface import inform
from topkast.convert.origin import AsDrawn, AsGiven, Init, Initialise, Origin
from topkast.core.build import Start, first_moment, make_weight, scale_start
from topkast.core.distribution import Distribution, spread
from topkast.core.floor import Grid
from topkast.core.loading import check_states
from topkast.core.select import derive_key
from topkast.core.sets import Counts, Sets
from topkast.core.weight import SparseWeight
from topkast.kernels.engines import check_engine, why_not
from topkast.methods.base import Method
from topkast.nn.base import SparseLayer
from topkast.nn.belongings import tags, take_over
from topkast.nn.find import Findings, Skip, WeightGroup, find, wanted_groups
from topkast.nn.registry import belongings


def sparsify(
    model: nn.Module,
    method: Method,
    *,
    skip: Skip | None = None,
    keep_dense: Collection[str] | str = (),
    distribution: Distribution = "uniform",
    budget: Literal["layers", "model"] = "layers",
    reservoir: Literal["stored", "implicit"] = "stored",
    engine: str = "auto",
    seed: int | None = None,
    init: Init | None = None,
    initialise: Initialise | None = None,
    device: torch.device | str = "cpu",
) -> Handle:
    """Makes a model sparse, in place, and returns the handle to it.

    Every Linear, Conv1d/2d/3d, Embedding, attention projection and Hugging Face Conv1D is swapped for its
    sparse counterpart, tied weights stay tied; biases, norms and everything else stay dense. So do weights
    that are frozen (``requires_grad=False``). Create the optimizer afterwards and pass it to `Handle.attach`.

    Args:
        model: Changed in place. If anything is wrong it is left as it was.
        method: Which sets, and when; for example ``TopKAST(0.9, 0.8)``.
        skip: Layers to leave dense: names, globs, names of modules that contain them, or a callable
            ``(name, layer) -> bool``.
        keep_dense: Any of "first", "last" (in module order; the paper's ResNet-50 keeps both dense) and
            "embeddings".
        distribution: "uniform", "er", "erk", or a mapping from names or globs to a sparsity or a
            (forward, backward) pair.
        budget: What the sparsities count. "layers": the weights of the sparse layers. "model": all of the
            model's parameters, biases, norms and skipped layers included; the sparse layers make up for
            those, so that an 80 % model has exactly 20 % of its parameters.
        reservoir: How C is kept. "stored" keeps it as given. "implicit" keeps a key instead: for a model
            built on the meta device, whose weights are then drawn without ever being there.
        engine: "native" (our kernels, CPU), "csr" (torch.sparse), "masked" (dense kernels, any device), or
            "auto": for each layer the one that is the fastest in the first training pass.
        seed: For random choices (`Static`, random exploration). By default drawn from torch's generator,
            so that `torch.manual_seed` fixes it. It also decides what is drawn for `init`, and with an
            implicit reservoir θ⁰ and the dense rest, by the names of the layers.
        init: How θ⁰ is drawn: a name ("kaiming_normal", "lecun_normal", "xavier_uniform", …),
            `topkast.Normal(0.02)` and the like, a start that makes up for sparsity ("keep_variance", "supar",
            "keep_variance:lecun_normal", `topkast.Scaled`), "own", or a mapping from names or globs to these.
            By default each layer's own: what is there, or with an implicit reservoir what torch would draw.
            Stored and implicit weights of one seed start alike.
        initialise: With an implicit reservoir, called with each module that stays dense and was on the meta
            device, after its own `reset_parameters`; then with the modules that contain a frozen one.
        device: With an implicit reservoir, where the model comes to life.

    Raises:
        TypeError: `model` or `method` is of the wrong type.
        ValueError: A pattern that matches nothing, an unknown option, a weight that is not finite, or no
            layer to make sparse.
        RuntimeError: The model is already sparse.
    """
    _check_arguments(model, method, budget, reservoir, engine)
    if reservoir == "stored" and initialise is not None:
        raise ValueError(
            '`initialise` is for reservoir="implicit": what stays dense beside stored weights has its values'
        )
    findings = find(model)
    if "" in findings.attentions or any("" in group.names for group in findings.groups):
        raise ValueError(
            "the model is itself a single layer, which cannot be swapped in place: wrap it in nn.Sequential"
        )
    groups = wanted_groups(findings, skip, keep_dense)
    if not groups:
        raise ValueError(_nothing_to_do(findings))
    counts = spread(
        distribution,
        {group.name: tuple(group.parameter.shape) for group in groups},
        method.forward_sparsity,
        method.backward_sparsity,
        num_dense=_num_dense(model, groups) if budget == "model" else None,
        aliases={group.name: group.names for group in groups},
    )
    if seed is None:
        seed = int(torch.randint(2**62, ()))
    origin = AsDrawn(init, initialise, device) if reservoir == "implicit" else AsGiven(init)
    origin.check(model, groups)
    starts = {group.name: _start(origin, group, method, counts[group.name], seed) for group in groups}
    sets = _first_sets(method, starts, counts, seed)
    replacements: dict[int, nn.Module] = {}
    fallbacks: dict[str, str] = {}
    for group in groups:
        name = group.name
        weight = _make_weight(group, starts[name], method, counts[name], seed, sets.get(name))
        vars(weight.values).update(tags(group.parameter))
        for member in group.members:
            replacements[id(member.layer)] = _make_layer(member.sparse_type, member.layer, weight)
        _choose_engine(weight, group, replacements, engine, fallbacks)

    # Nothing below can fail for a reason of the caller's: from here on the model changes.
    _swap(model, findings, replacements)
    inform(model)
    origin.finish(model, seed)
    model.register_load_state_dict_pre_hook(check_states)
    return Handle(model, method, left_dense=findings.left_dense, fallbacks=fallbacks)


def _check_arguments(model: nn.Module, method: Method, budget: str, reservoir: str, engine: str) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(method, Method):
        raise TypeError(f"`method` must be a method such as topkast.TopKAST(0.9, 0.8), got {method!r}")
    if budget not in ("layers", "model"):
        raise ValueError(f"`budget` must be 'layers' or 'model', got {budget!r}")
    if reservoir not in ("stored", "implicit"):
        raise ValueError(f"`reservoir` must be 'stored' or 'implicit', got {reservoir!r}")
    check_engine(engine)
    sparse = [name for name, m in model.named_modules() if isinstance(m, SparseLayer)]
    if sparse:
        raise RuntimeError(
            f"the model is already sparse ({', '.join(sparse[:4])}{', …' if len(sparse) > 4 else ''}); "
            "use `topkast.densify` first to start over, or `topkast.Handle(model, method)` to go on with it"
        )


def _nothing_to_do(findings: Findings) -> str:
    if not findings.left_dense:
        return "the model has no layer that could be sparse (Linear, Conv, Embedding, attention)"
    reasons = "; ".join(f"{name}: {why}" for name, why in list(findings.left_dense.items())[:8])
    return f"no layer is left to make sparse: {reasons}"


def _num_dense(model: nn.Module, groups: list[WeightGroup]) -> int:
    """How many parameters stay dense."""
    total = sum(p.numel() for p in model.parameters())
    return total - sum(group.parameter.numel() for group in groups)


def _start(origin: Origin, group: WeightGroup, method: Method, counts: Counts, seed: int) -> Start:
    name, key = group.name, derive_key(seed, group.name)
    start = origin.start(group, key)
    try:
        by, grid = origin.scaling(group), _grid(group)
        return scale_start(start, by, method, counts, name=name, key=key, grid=grid)
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from None


def _first_sets(
    method: Method, starts: dict[str, Start], counts: dict[str, Counts], seed: int
) -> dict[str, Sets]:
    """The first sets of a method that chooses those of all layers together; nothing for others."""
    if not method.is_global:
        return {}
    return method.choose_together(
        {
            name: first_moment(start, counts[name], name=name, key=derive_key(seed, name))
            for name, start in starts.items()
        }
    )


def _grid(group: WeightGroup) -> Grid:
    """Tied layers share one: that of the first."""
    member = group.members[0]
    return member.sparse_type.grid_of(member.layer)


def _make_weight(
    group: WeightGroup, start: Start, method: Method, counts: Counts, seed: int, sets: Sets | None
) -> SparseWeight:
    name, key = group.name, derive_key(seed, group.name)
    try:
        return make_weight(start, method, counts, name=name, key=key, sets=sets, grid=_grid(group))
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from None


def _make_layer(sparse_type: type[SparseLayer], dense: nn.Module, weight: SparseWeight) -> SparseLayer:
    layer = sparse_type.from_dense(dense, weight)
    take_over(layer, dense, belongings(dense))
    return layer.train(dense.training)


def _choose_engine(
    weight: SparseWeight,
    group: WeightGroup,
    replacements: dict[int, nn.Module],
    wanted: str,
    fallbacks: dict[str, str],
) -> None:
    """One engine per weight: tied layers share it, so it must suit all of them."""
    for member in group.members:
        layer = replacements[id(member.layer)]
        assert isinstance(layer, SparseLayer)
        reason = why_not(wanted, layer.kind, layer.geometry, weight.device.type)
        if reason is not None:
            weight.engine = "masked"
            fallbacks[member.name] = f"masked: {reason}"
            return
    weight.engine = wanted


def _swap(model: nn.Module, findings: Findings, replacements: dict[int, nn.Module]) -> None:
    for path, attention in findings.attentions.items():
        if any(id(child) in replacements for child in attention.children()):
            original = model.get_submodule(path)
            take_over(attention, original, belongings(original))
            replacements[id(original)] = attention
            _replace_children(attention, replacements)
    for parent in list(model.modules()):
        _replace_children(parent, replacements)


def _replace_children(parent: nn.Module, replacements: dict[int, nn.Module]) -> None:
    # By name and not once per module: a layer that stands in two places is replaced in both.
    for name, child in list(parent._modules.items()):
        if child is not None and id(child) in replacements:
            setattr(parent, name, replacements[id(child)])
