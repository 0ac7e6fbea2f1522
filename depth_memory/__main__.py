"""`python -m depth_memory` is the command `depth-memory`."""

import os
import signal
import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command; Ctrl-C ends it quietly even before it has begun."""
    begun_by = signal.getsignal(signal.SIGINT)
    if begun_by is signal.default_int_handler:  # an import may lose or disguise what is raised
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from depth_memory import cli

    signal.signal(signal.SIGINT, begun_by)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
