"""``python -m topkast`` is ``topkast``."""

from topkast.cli.main import process

process()
