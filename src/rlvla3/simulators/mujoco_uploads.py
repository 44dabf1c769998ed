"""What is uploaded to GL for pictures of few pixels: coarser meshes and smaller textures than a model's."""

import copy
from typing import Any

import numpy as np
import numpy.typing as npt

_CUBE_FACES = 6


def shrink_textures(model: Any, most: int) -> None:
    """Halve a model's textures in place until no side is longer than ``most`` pixels.

    A halved pixel is the mean of four, as in the levels that GL makes of a texture: pictures in which a
    texture's pixels are smaller than the picture's hardly change. Textures with odd sides stay.
    """
    for texture in range(model.ntex):
        while _shrinks(model, texture, most):
            _halve(model, texture)


def _faces(model: Any, texture: int) -> int:
    """Square pictures on top of each other: 6 in a cube's texture."""
    height, width = int(model.tex_height[texture]), int(model.tex_width[texture])
    return _CUBE_FACES if height == _CUBE_FACES * width else 1


def _shrinks(model: Any, texture: int, most: int) -> bool:
    height = int(model.tex_height[texture]) // _faces(model, texture)
    width = int(model.tex_width[texture])
    return max(height, width) > most and height % 2 == 0 and width % 2 == 0


def _halve(model: Any, texture: int) -> None:
    height, width = int(model.tex_height[texture]), int(model.tex_width[texture])
    channels, first = int(model.tex_nchannel[texture]), int(model.tex_adr[texture])
    pixels: npt.NDArray[np.uint8] = model.tex_data[first : first + height * width * channels]
    # Faces have even heights, so no block of four reaches over two of them.
    rows = pixels.reshape(height, width, channels)
    total = rows[::2, ::2].astype(np.uint16) + rows[::2, 1::2] + rows[1::2, ::2] + rows[1::2, 1::2]
    small = ((total + 2) // 4).astype(np.uint8)
    model.tex_data[first : first + small.size] = small.ravel()
    model.tex_height[texture], model.tex_width[texture] = height // 2, width // 2


def merge_vertices(model: Any, cell_m: float) -> Any:
    """A copy of ``model`` whose meshes have vertices merged on a grid of ``cell_m`` metres.

    Faces that collapse or coincide are dropped. Only for uploading to GL: collision data of the
    copy is inconsistent.
    """
    model = copy.copy(model)
    for mesh in range(model.nmesh):
        _merge_mesh(model, mesh, cell_m)
    return model


def _merge_mesh(model: Any, mesh: int, cell_m: float) -> None:
    vertices = slice(model.mesh_vertadr[mesh], model.mesh_vertadr[mesh] + model.mesh_vertnum[mesh])
    first, count = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
    cells = np.round(model.mesh_vert[vertices] / cell_m).astype(np.int64)
    _, kept_vertex, cell_of = np.unique(_packed(cells), return_index=True, return_inverse=True)
    faces = kept_vertex[cell_of.ravel()][model.mesh_face[first : first + count]]
    corners = np.sort(faces, axis=1)
    _, unique = np.unique(_packed(corners), return_index=True)
    unique.sort()
    kept = unique[(corners[unique, 0] != corners[unique, 1]) & (corners[unique, 1] != corners[unique, 2])]
    if len(kept) < 4:
        return
    end = first + len(kept)
    model.mesh_face[first:end] = faces[kept]
    for corner_index in (model.mesh_facenormal, model.mesh_facetexcoord):
        corner_index[first:end] = corner_index[first : first + count][kept]
    model.mesh_facenum[mesh] = len(kept)


def _packed(triples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Triples [n, 3] as numbers [n] in the same order: sorting these is ten times faster."""
    small = triples.astype(np.int64) - triples.min(axis=0, initial=0)
    first, second, third = small.T
    packed: npt.NDArray[np.int64] = (first << 42) | (second << 21) | third
    return packed
