"""Which part of a batch is whose, when several ranks train on it together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """One of `count` equal parts: rank r has rows r·b/count to (r + 1)·b/count of a batch of b.

    Equal parts make the mean over ranks the mean over the batch.
    """

    rank: int = 0
    count: int = 1

    def of(self, batch: int) -> slice:
        """The rows of this share.

        Raises:
            ValueError: The batch cannot be divided.
        """
        if batch % self.count:
            raise ValueError(
                f"--batch is that of all ranks together and must be divisible by their number "
                f"({self.count}), got {batch}"
            )
        rows = batch // self.count
        return slice(self.rank * rows, (self.rank + 1) * rows)
