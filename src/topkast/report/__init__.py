"""What a run folder shows: its record as data, figures, and one page that needs nothing else."""

from topkast.report.comparison import write_comparison
from topkast.report.page import write_report
from topkast.store.record import read_run
from topkast.store.run import Run

__all__ = ["Run", "read_run", "write_comparison", "write_report"]
