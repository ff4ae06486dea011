"""Random numbers named by what they are for: any can be drawn again without the ones before it."""

from __future__ import annotations

import hashlib

import torch


def generator(*key: int | str) -> torch.Generator:
    """A generator that is a function of its key alone, such as ("crop", seed, epoch, step).

    Keys that differ in one number give unrelated generators, because a hash of the key is the seed;
    seeds like seed + epoch would make epoch 1 of one run equal epoch 0 of the next.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))
