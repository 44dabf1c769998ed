"""Image fields, named alike by every adapter that has cameras."""

from collections.abc import Sequence

from rlvla3.transforms.meaning import Camera


def image_field(index: int) -> str:
    """Name of the observation field of a camera: ``image``, ``image_2``, …"""
    return "image" if index == 0 else f"image_{index + 1}"


def cameras(roles: Sequence[str], size: int) -> tuple[Camera, ...]:
    """What square image fields mean.

    Args:
        roles: what the camera of each field looks at; they differ.
        size: pixels of a side.
    """
    return tuple(
        Camera(field=image_field(i), role=role, height=size, width=size) for i, role in enumerate(roles)
    )
