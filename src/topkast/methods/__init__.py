"""Methods: which sets, and when. One file each."""

from topkast.methods.base import Method
from topkast.methods.static import Static
from topkast.methods.topkast import TopKAST

__all__ = ["Method", "Static", "TopKAST"]
