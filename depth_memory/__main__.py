"""`python -m depth_memory` is the command `depth-memory`."""

import sys

from depth_memory.cli import main

sys.exit(main())
