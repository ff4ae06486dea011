"""Whether all ranks have the same sparse weights, and what they agree on.

Each rank chooses sets by itself, from the same numbers, and so comes to the same sets: nothing but gradients
has to be sent. That it is so is checked by hashes: of everything before the first step, of sets and values at
each refresh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from topkast.core.gradient import Tape
from topkast.core.ranks import Ranks
from topkast.core.weight import SparseWeight
from topkast.kernels.positions import fingerprint

_REMEDY = (
    "Start all ranks alike: the same seed before the model is built (`torch.manual_seed`, or `seed` of "
    "sparsify), the same checkpoint loaded on each; or call `topkast.distributed.broadcast(model)`, which "
    "gives all ranks what the first one has"
)
_REMEDIES = {
    "values": (
        "DistributedDataParallel keeps them equal: wrap the model in it, call the wrapper and not the model, "
        "and add up gradients in every step that is taken"
    )
}
_IF_ALONE = 'If each process trains a model of its own, say so: `attach(optimizer, process_group="alone")`'


_PLURAL = ("sets", "values")


class RanksDiffer(RuntimeError):
    """Ranks that should have the same sparse weights do not."""


def compare_all(weights: Mapping[str, SparseWeight], ranks: Ranks) -> None:
    """Raises RanksDiffer, with the layer, unless all of every weight's state is the same on all ranks."""
    # Ranks with other layers would not even send as many hashes.
    layers = [(name, weight.engine == "auto") for name, weight in weights.items()]
    names = torch.tensor(_of_bytes(str(layers).encode()), device=_device(weights))
    if any(not torch.equal(names, theirs) for theirs in ranks.gather(names)):
        raise RanksDiffer(f"the sparse layers are not the same on all ranks. {_REMEDY}. {_IF_ALONE}")
    _compare({name: _everything(weight) for name, weight in weights.items()}, ranks, _device(weights))


def compare_sets(weights: Mapping[str, SparseWeight], ranks: Ranks) -> None:
    """The same for what a refresh has just changed: the sets, and the values on them."""
    _compare({name: _sets(weight) for name, weight in weights.items()}, ranks, _device(weights))


def _sets(weight: SparseWeight) -> dict[str, int]:
    sets = fingerprint(weight.indices, weight.active, weight.numel())
    return {"step": weight.steps, "sets": sets, "values": _hash([weight.values])}


def _everything(weight: SparseWeight) -> dict[str, int]:
    companion = [] if weight.companion is None else list(weight.companion.state_dict().values())
    return {
        "random key": int(weight.key),
        **_sets(weight),
        "reservoir": _hash(weight.reservoir.buffers()),
        "companion": _hash(companion),
    }


def _hash(tensors: Iterable[Tensor]) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        flat = tensor.detach().contiguous().reshape(-1).cpu()
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(flat.view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest(), "little", signed=True)


def _of_bytes(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


def _compare(mine: Mapping[str, Mapping[str, int]], ranks: Ranks, device: torch.device) -> None:
    parts = [(name, part) for name, hashes in mine.items() for part in hashes]
    numbers = [_signed(number) for hashes in mine.values() for number in hashes.values()]
    everyone = torch.stack(ranks.gather(torch.tensor(numbers, dtype=torch.int64, device=device))).cpu()
    differs = everyone != everyone[0]
    if not differs.any():
        return
    name, part = parts[int(differs.any(0).nonzero()[0])]
    column = differs[:, parts.index((name, part))]
    others = ", ".join(str(rank) for rank in column.nonzero().flatten().tolist())
    verb = "are not those" if part in _PLURAL else "is not that"
    raise RanksDiffer(
        f"layer {name!r}: its {part} on rank {others} {verb} of rank 0: the ranks do not train one model. "
        f"{_REMEDIES.get(part, _REMEDY)}. {_IF_ALONE}"
    )


def _signed(number: int) -> int:
    """A 64-bit number as torch holds it."""
    return (number + 2**63) % 2**64 - 2**63


def _device(weights: Mapping[str, SparseWeight]) -> torch.device:
    """Where ranks can reach each other: where the weights are."""
    return next(iter(weights.values())).device


def share_choices(weights: Mapping[str, SparseWeight], ranks: Ranks) -> None:
    """Engine "auto" computes alike on all ranks: what the first rank that has decided chose.

    Each measures by itself in the first pass; from here on they go by one of them, and a checkpoint is
    everybody's.
    """
    if all(weight.engine != "auto" for weight in weights.values()):
        return
    choices = torch.stack([weight.choices for weight in weights.values()]).to(_device(weights))
    agreed = torch.zeros_like(choices)
    for theirs in ranks.gather(choices):
        agreed = torch.where(agreed == 0, theirs, agreed)
    for weight, row in zip(weights.values(), agreed.cpu(), strict=True):
        if not torch.equal(weight.choices, row):
            weight.choices.copy_(row)


def join_tapes(weights: Mapping[str, SparseWeight], ranks: Ranks) -> None:
    """Makes the dense gradient of each weight the mean over ranks, as DistributedDataParallel does it.

    A layer that took no part in the step on one rank may have done so on another.
    """
    used = [int(bool(weight.tape)) for weight in weights.values()]
    for weight, is_used in zip(weights.values(), ranks.largest(used, _device(weights)), strict=True):
        if is_used:
            weight.tape = weight.tape or Tape(tuple(weight.shape))
            weight.tape.join(ranks, weight.values)
