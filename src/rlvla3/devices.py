"""Torch devices by the name that a setting gives. Torch is imported when a function is called."""

from rlvla3.errors import UserError


def resolve_device(setting: str, device: str) -> str:
    """The device to use: ``auto`` is CUDA where torch sees one, else the CPU.

    Raises:
        UserError: torch cannot use the device that ``setting`` names here.
    """
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    fault = missing_device(device)
    if fault:
        raise UserError(f"{setting} = {device}: {fault}; use auto or cpu")
    return device


def card_of(device: str, rank: int) -> str:
    """The card of the Trainer's member number ``rank``: they take turns where there are fewer cards."""
    if device != "cuda":
        return device
    import torch

    return f"cuda:{rank % torch.cuda.device_count()}"


def has_cuda() -> bool:
    """Whether torch sees a CUDA device; unlike a tensor there, the question takes none of its memory."""
    import torch

    return torch.cuda.is_available()


def missing_device(device: str) -> str:
    """Why torch cannot use a device on this machine; empty if it can."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        return f"torch cannot use it here ({str(error).splitlines()[0].rstrip('.')})"
    return ""
