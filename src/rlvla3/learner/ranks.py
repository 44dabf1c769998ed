"""The Trainer members that compute an update together, and what they tell each other.

A rank holds its own trajectories. Sums over all of them are made here, so that losses, statistics and
metrics are those of the whole update whatever the number of ranks. Nothing is pickled on the way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn

_BUCKET = 2**24
"""Numbers of gradients that are summed over ranks at a time."""
_TIMEOUT = timedelta(hours=1)
"""Longest wait for another rank: the engine's own deadlines are shorter and name who is late."""


class Ranks:
    """One of ``size`` ranks; alone by default, and then every sum is its own."""

    def __init__(self, rank: int = 0, size: int = 1, *, sharded: bool = False, device: str = "cpu") -> None:
        """``sharded``: whether ranks share the weights between them (FSDP) instead of all holding them."""
        self.rank, self.size, self.device = rank, size, torch.device(device)
        self.sharded = sharded and size > 1

    @classmethod
    def join(cls, rank: int, size: int, store: str, *, sharded: bool, device: str) -> Ranks:
        """Meet the other ranks at the file ``store``; all of them must come.

        Raises:
            RuntimeError: they did not.
        """
        if size > 1:
            if torch.device(device).type == "cuda":
                torch.cuda.set_device(device)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if torch.device(device).type == "cuda" else "gloo",
                store=dist.FileStore(store, size),  # type: ignore[attr-defined]
                rank=rank,
                world_size=size,
                timeout=_TIMEOUT,
            )
        return cls(rank, size, sharded=sharded, device=device)

    @property
    def first(self) -> bool:
        """Whether this rank speaks for all."""
        return self.rank == 0

    def sum(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Sum over ranks, element by element."""
        total = torch.from_numpy(np.array(values, np.float64))
        if self.size > 1:
            dist.all_reduce(total)
        return total.numpy()

    def highest(self, value: int) -> int:
        """The highest value of any rank."""
        found = torch.tensor(value)
        if self.size > 1:
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def gathered(self, array: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Every rank's array, in the order of ranks; lengths of the first axis may differ."""
        parts = self._bytes(np.ascontiguousarray(array).tobytes())
        return [np.frombuffer(part, array.dtype).reshape(-1, *array.shape[1:]) for part in parts]

    def shared(self, value: Any) -> list[Any]:
        """Every rank's JSON value, in the order of ranks."""
        return [json.loads(part) for part in self._bytes(json.dumps(value).encode())]

    def _bytes(self, content: bytes) -> list[bytes]:
        if self.size == 1:
            return [content]
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(content)]))
        longest = max(max(int(length) for length in lengths), 1)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(content)] = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)[
            : len(content)
        ]
        parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        return [p.numpy().tobytes()[: int(n)] for p, n in zip(parts, lengths, strict=True)]

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum gradients over ranks that all hold the weights; once for an optimiser step.

        A parameter that has a gradient on any rank has one on all of them afterwards. Shared weights
        were summed on the way back through the network.
        """
        if self.size == 1 or self.sharded:
            return
        has = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8)
        dist.all_reduce(has, dist.ReduceOp.MAX)
        gradients = []
        for parameter, wanted in zip(parameters, has.tolist(), strict=True):
            if wanted and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                gradients.append(parameter.grad)
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(flat)
            for gradient, total in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
                gradient.copy_(total.view_as(gradient))


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    buckets: list[list[Tensor]] = []
    room = 0
    for tensor in tensors:
        if not buckets or tensor.numel() > room:
            buckets.append([])
            room = _BUCKET
        buckets[-1].append(tensor)
        room -= tensor.numel()
    return buckets
