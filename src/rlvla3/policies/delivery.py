"""Proof that a Generator acts with the weights that the Trainer published. No torch.

The Trainer adds a checksum to what it publishes; a Generator computes the same of what its model holds
after a load. Only stored numbers are hashed, never computed ones such as the product of adapters: these
differ by rounding from device to device, stored ones are equal bit by bit everywhere.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]

CHECKSUM = "checksum"
"""Name of the checksum among published arrays."""


class DeliveryError(RuntimeError):
    """A Generator holds other weights than those that were published."""


def digest(arrays: Arrays, of_base: bytes = b"") -> bytes:
    """Hash of arrays by name, dtype, shape and bits, in any order.

    Args:
        arrays: what is hashed.
        of_base: digest of arrays that belong to it and were hashed before.
    """
    content = hashlib.sha256(of_base)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        content.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        content.update(array.reshape(-1).view(np.uint8).data)
    return content.digest()


def sealed(weights: Arrays, of_base: bytes) -> dict[str, npt.NDArray[Any]]:
    """Weights with their checksum, as they are published."""
    return {**weights, CHECKSUM: np.frombuffer(digest(weights, of_base), np.uint8)}


def opened(published: Arrays) -> tuple[dict[str, npt.NDArray[Any]], bytes]:
    """Weights, and the checksum that they came with; empty where there is none."""
    weights = dict(published)
    checksum = weights.pop(CHECKSUM, None)
    return weights, b"" if checksum is None else checksum.tobytes()


def verify(held: Arrays, of_base: bytes, expected: bytes, what: str) -> None:
    """Compare what a model holds with the checksum that its weights came with.

    Args:
        held: what the model holds of what was published.
        of_base: digest of the rest.
        expected: the checksum.
        what: names the weights, for the error.

    Raises:
        DeliveryError: they differ.
    """
    found = digest(held, of_base)
    if found != expected:
        raise DeliveryError(
            f"{what}: the weights held after loading have checksum {found.hex()[:16]}, the Trainer published "
            f"{expected.hex()[:16]}; the part that is not published differs (another file behind weights, "
            "another seed?) or the load went wrong"
        )
