"""From the command line to a command, and from what it raises to an exit code.

0 is success, 1 a failed check, 2 a mistake in the input (one line on standard error), 130 Ctrl-C.
Whatever else is raised is a bug, and shows its traceback.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from depth_memory import __version__
from depth_memory.cli import (
    arguments,
    bench,
    console,
    convert,
    data,
    doctor,
    evaluate,
    generate,
    inspect,
    presets,
    sweep,
    train,
)
from depth_memory.errors import UserError

COMMANDS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (train, sweep, evaluate, generate, inspect, bench, convert, data, presets, doctor)
}
"""Name -> module with `add(commands)`, which describes the command and says what runs it."""

MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO}
"""Failures of the machine, which no code of ours can prevent."""

USAGE, FAILED, INTERRUPTED, PIPE_CLOSED = 2, 1, 130, 141

EXAMPLES = """\
depth-memory train demo --stream ldm --out runs/ldm
depth-memory evaluate runs/ldm runs/preln
depth-memory generate runs/ldm --prompt "The old house"
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments after the name of the program; those of the process if not given.

    Returns:
        The exit code.
    """
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _fail(str(error), USAGE)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # the reader has gone; keep the interpreter from flushing into the closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        if error.errno not in MACHINE:
            raise
        return _fail(f"{error.filename or 'disk'}: {error.strerror}", FAILED)


def parser() -> arguments.Parser:
    """The parser of the whole command line."""
    result = arguments.Parser(
        prog="depth-memory",
        description="Train, compare and look into models that carry information across depth.",
        epilog=arguments.epilog(EXAMPLES),
    )
    result.add_argument("--version", action="version", version=f"depth-memory {__version__}")
    commands = result.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for module in COMMANDS.values():
        module.add(commands)
    return result


def _run(argv: Sequence[str]) -> int:
    try:
        known, rest = parser().parse_known_args(argv)
    except SystemExit as done:
        return int(done.code or 0)
    if known.takes_fields:
        known.fields = rest
    elif rest:
        raise arguments.unknown(rest[0], f"depth-memory {known.command}")
    return known.run(known) or 0


def _fail(message: str, code: int) -> int:
    console.error(message)
    return code
