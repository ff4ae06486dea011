"""Methods: which sets, and when. One file each."""

from topkast.methods.base import Method
from topkast.methods.deepr import DeepR
from topkast.methods.dnw import DNW
from topkast.methods.dsr import DSR
from topkast.methods.evolution import SET
from topkast.methods.fixed import Dense, Static
from topkast.methods.hard_concrete import L0
from topkast.methods.pruning import Pruning
from topkast.methods.rigl import RigL
from topkast.methods.snfs import SNFS
from topkast.methods.threshold import STR
from topkast.methods.topkast import TopKAST
from topkast.methods.variational import VariationalDropout

__all__ = [
    "DNW",
    "DSR",
    "L0",
    "SET",
    "SNFS",
    "STR",
    "DeepR",
    "Dense",
    "Method",
    "Pruning",
    "RigL",
    "Static",
    "TopKAST",
    "VariationalDropout",
]
