"""Training one sparse model on several processes; see docs/scaling.md.

With DistributedDataParallel nothing of this has to be called: it is for starts that differ and for larger
modules around a sparse one.
"""

from topkast.core.agreement import RanksDiffer
from topkast.core.local import broadcast, keep_local

__all__ = ["RanksDiffer", "broadcast", "keep_local"]
