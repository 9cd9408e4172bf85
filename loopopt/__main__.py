"""``python -m loopopt`` is the same as ``loopopt``."""

from __future__ import annotations

import sys

from loopopt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
