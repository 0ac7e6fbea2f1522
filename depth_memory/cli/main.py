"""From the command line to a command, and from what it raises to an exit code.

0 is success, 1 a failed check or a failure of the machine, 2 a mistake in the input, 130 Ctrl-C,
143 a run that SIGTERM stopped. What failed is one line, the last on standard error. Whatever else
is raised is a bug, and shows its traceback.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType

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
from depth_memory.errors import Failure, Stopped, UserError

COMMANDS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (train, sweep, evaluate, generate, inspect, bench, convert, data, presets, doctor)
}
"""Name -> module with `add(commands)`, which describes the command and says what runs it."""

USAGE, FAILED, INTERRUPTED, PIPE_CLOSED = 2, 1, 130, 141

OUT_OF_MEMORY = ("out of memory", "can't allocate memory")
"""What torch says, on a GPU and on the CPU."""

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
    _prepare_output()
    with _noted_interrupts() as interrupts:
        try:
            code = _run(sys.argv[1:] if argv is None else argv)
            console.write("")
            return code
        except UserError as error:
            return _fail(str(error), USAGE)
        except Failure as error:
            return _fail(str(error), FAILED)
        except Stopped as stopped:  # by a signal, and it has said so
            return int(stopped.code or 0)
        except KeyboardInterrupt:
            return _interrupted()
        except BrokenPipeError:
            _give_up_output()
            return PIPE_CLOSED
        except Exception as error:
            # a library may turn the interrupt that it met into an error of its own
            if interrupts:
                return _interrupted()
            message = _failure_of_machine(error)
            if message is None:
                raise
            _give_up_output()
            return _fail(message, FAILED)


def _prepare_output() -> None:
    """Let no stream be closed, and none refuse a character: what it lacks becomes `?`."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(spare)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8"))  # noqa: SIM115 - for good
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def _noted_interrupts() -> Generator[list[int]]:
    """The interrupts so far, each of which is raised as usual."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield seen
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _failure_of_machine(error: Exception) -> str | None:
    """What no code of ours can prevent, in one line; None if it is a bug."""
    if isinstance(error, OSError) and error.errno is not None:
        place = error.filename2 or error.filename or "system"
        return f"{place}: {error.strerror or os.strerror(error.errno)}"
    told = isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)
    if told or isinstance(error, MemoryError):
        return (
            f"memory: got too little ({error}); allowed: a smaller model, or fewer rows at a time"
        )
    return None


def _give_up_output() -> None:
    """Keep the interpreter from flushing into a pipe that is closed or a disk that is full."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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


def _interrupted() -> int:
    # after an interrupt in an exec of text, `python -m` dies of the signal whatever the exit code;
    # the next exec makes it forget
    exec("")
    return _fail("interrupted", INTERRUPTED)
