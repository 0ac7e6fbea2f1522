"""One process or many: who we are, what we say to one another, and how the weights are spread.

Under `torchrun` the model is sharded layer by layer with `fully_shard`; a single process uses no
communication at all. Everything above this module is the same for both.
"""

from __future__ import annotations

import json
import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from depth_memory import streams
from depth_memory.errors import UserError, invalid
from depth_memory.tensors import Part

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

    from depth_memory.models import DepthForCausalLM

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class World:
    """This process among all."""

    rank: int
    size: int
    device: torch.device

    @property
    def main(self) -> bool:
        """Whether this is the one process that writes files and speaks."""
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """The sum of `value` over all processes."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def gather(self, value: int) -> list[int]:
        """Every process's `value`."""
        all_values = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        all_values[self.rank] = value
        return self.sum(all_values).tolist()

    def most(self, value: int) -> int:
        """The largest `value` of all processes, passed around on the CPU."""
        if self.size == 1:
            return value
        found = torch.tensor(value)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def together(self, parts: Sequence[Part], action: Callable[[Sequence[Part]], T]) -> T:
        """`do(action)` with parts that take all processes to load.

        Args:
            parts: The same on every process.
            action: Given `parts`, loads each of them once and in this order. Should it fail midway,
                the rest is loaded all the same, as the others wait in it to hear of the failure.

        Raises:
            UserError: As `do`.
        """
        waiting = deque(parts)

        def load(part: Part) -> Tensor:
            waiting.popleft()
            return part.load()

        def whole() -> T:
            try:
                return action([part._replace(load=partial(load, part)) for part in parts])
            finally:
                while waiting and self.size > 1:
                    waiting.popleft().load()

        if not self.main:
            for part in parts:
                part.load()
        return self.do(whole)

    def do(self, action: Callable[[], T]) -> T:
        """What `action`, run by the main process alone, returns (JSON values), on every process.

        Raises:
            UserError: The main process raised one; all processes then do.
        """
        if self.size == 1:
            return action()
        outcome = None
        if self.main:
            try:
                outcome = {"value": action()}
            except UserError as error:
                outcome = {"error": str(error)}
        outcome = _broadcast(outcome)
        if "error" in outcome:
            raise UserError(outcome["error"])
        return outcome["value"]


@contextmanager
def connect(device: str = "auto", timeout: float = 1800) -> Generator[World]:
    """Join the processes that `torchrun` started, or be alone.

    Args:
        device: `auto`, `cpu` or `cuda`.
        timeout: Seconds that one exchange may take.

    Raises:
        UserError: There is no such device, or the environment is not one that `torchrun` sets.
    """
    size = _number_of_torchrun("WORLD_SIZE", 1)
    chosen = choose_device(device)
    if size == 1:
        yield World(rank=0, size=1, device=chosen)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    ours = not dist.is_initialized()
    if ours:
        _check_torchrun(size)
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    try:
        with warnings.catch_warnings():
            # a stream's state may hold views; streams never write into a state in place
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
            yield World(rank=dist.get_rank(), size=dist.get_world_size(), device=chosen)
    finally:
        if ours:
            dist.destroy_process_group()


def choose_device(device: str) -> torch.device:
    """The device of this process.

    Raises:
        UserError: `cuda` was asked for and there is none.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise invalid("device", device, "auto or cpu (torch finds no GPU)")
    if device == "cpu" or not available:
        return torch.device("cpu")
    return torch.device("cuda", _number_of_torchrun("LOCAL_RANK", 0))


def _number_of_torchrun(name: str, least: int) -> int:
    """A number of the environment, `least` where there is none."""
    text = os.environ.get(name, str(least))
    if not (text.isdecimal() and int(text) >= least):
        raise invalid(name, text, f"a whole number of at least {least}, as torchrun sets it")
    return int(text)


def _check_torchrun(size: int) -> None:
    """Refuse to wait for processes that nobody started."""
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise UserError(f"WORLD_SIZE: got {size}, but no {name}; allowed: what torchrun sets")
    rank = _number_of_torchrun("RANK", 0)
    if rank >= size:
        raise invalid("RANK", rank, f"0 to WORLD_SIZE - 1 = {size - 1}")
    _number_of_torchrun("MASTER_PORT", 0)


def mesh_of(world: World, replicas: int = 1) -> DeviceMesh | None:
    """The processes as a grid: `replicas` rows, along each of which a whole model is spread.

    Returns:
        None for one process, which has all of it.

    Raises:
        UserError: The processes cannot be divided so.
    """
    if world.size % replicas:
        allowed = f"a divisor of the number of processes, which is {world.size}"
        raise invalid("replicas", replicas, allowed)
    if world.size == 1:
        return None
    from torch.distributed.device_mesh import init_device_mesh

    kind, shards = world.device.type, world.size // replicas
    if replicas == 1:
        return init_device_mesh(kind, (shards,))
    return init_device_mesh(kind, (replicas, shards), mesh_dim_names=("replica", "shard"))


def shard_(model: DepthForCausalLM, mesh: DeviceMesh, compute: torch.dtype) -> None:
    """Spread a float32 causal language model over a mesh of processes, in place.

    Each layer is gathered when it runs. The modules named in `streams.FLOAT32_MODULES` are gathered
    on their own, in float32 whatever `compute` is, and no activation is cast on the way into a
    layer: the state of a stream holds float32 beside `compute`.

    Args:
        model: The same on every process, or on the meta device; its layers are
            `model.model.layers`.
        mesh: Of one dimension, or of two: copies, and the processes over which each is spread.
        compute: dtype in which layers see their parameters. Gradients are summed in float32.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    exact, rounded = (
        MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        for dtype in (torch.float32, compute)
    )
    for module in exact_modules(model):
        fully_shard(module, mesh=mesh, mp_policy=exact)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=rounded)
    fully_shard(model, mesh=mesh, mp_policy=rounded)


def place_(model: DepthForCausalLM, device: torch.device) -> None:
    """Give the tensors of a sharded model on the meta device memory, and no values yet."""
    model.to_empty(device=device)
    model.tie_weights()


def exact_modules(model: nn.Module) -> list[nn.Module]:
    """The modules whose parameters are never rounded."""
    return [
        module
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in streams.FLOAT32_MODULES and len(list(module.parameters()))
    ]


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether each process holds a part, which takes several processes."""
    if not dist.is_initialized():
        return False  # and the import below would take half a second
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def full(tensor: Tensor) -> Tensor:
    """The whole of a plain or sharded tensor; every process must ask."""
    tensor = tensor.detach()
    return tensor.full_tensor() if is_sharded(tensor) else tensor


@torch.no_grad()
def fill_(target: Tensor, source: Tensor) -> None:
    """Copy the main process's whole `source` into a plain or sharded `target`."""
    if is_sharded(target):
        from torch.distributed.tensor import distribute_tensor

        source = source.to(target.device, target.dtype)
        source = distribute_tensor(source, target.device_mesh, target.placements)
    target.copy_(source)


def _broadcast(value: Any) -> Any:
    """The main process's JSON value, on every process."""
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    length = torch.tensor(len(text))
    dist.broadcast(length, 0)
    if dist.get_rank():
        text = torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(text, 0)
    return json.loads(bytes(text.tolist()))
