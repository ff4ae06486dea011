"""``python -m topkast`` is ``topkast``."""

import sys

from topkast.cli.main import main

sys.exit(main())
