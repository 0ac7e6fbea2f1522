"""Child processes for tests: killed ones, and ranks that talk to one another.

They are forked from a server that has imported everything and run nothing, so that each starts in
milliseconds and inherits no threads.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

import depth_memory.models
import depth_memory.train

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.train.processes"])
LIMIT = 60


def start(target: Callable, *args: Any, env: dict[str, str] | None = None):
    """A process that runs `target(*args)`, and the connection on which its result comes."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_child, args=(theirs, env or {}, target, args), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def result(process: Any, connection: Connection) -> Any:
    """What the process returned; fails with its traceback if it raised."""
    if not connection.poll(LIMIT):
        process.kill()
        raise TimeoutError("a child process did not answer")
    outcome, value = connection.recv()
    process.join()
    assert outcome == "returned", value
    return value


def call(target: Callable, *args: Any) -> Any:
    """`target(*args)` in a process of its own."""
    return result(*start(target, *args))


def call_ranks(world: int, target: Callable, *args: Any) -> list[Any]:
    """`target(*args)` in `world` processes with the environment that torchrun gives them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        start(target, *args, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world)
    ]
    return [result(*rank) for rank in ranks]


def _child(connection: Connection, env: dict[str, str], target: Callable, args: tuple) -> None:
    os.environ.update(env)
    torch.set_num_threads(1)
    try:
        outcome = ("returned", target(*args))
    except BaseException:
        outcome = ("raised", traceback.format_exc())
    connection.send(outcome)


__all__ = ["call", "call_ranks", "depth_memory", "result", "start"]
