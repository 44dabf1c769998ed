"""A kitchen for RoboCasa made here: its own assets are downloads that a test machine may not have.

RoboCasa's wheel brings the shapes of walls, counters, cabinets, drawers and handles, and tables of what
they look like. What it lacks is pictures, most fixtures and all objects. This writes a folder for
``simulator.options.assets`` with the wheel's part copied, every picture that part names as one flat
colour, one small room, one style, and two boxes for every kind of object.

Run by RoboCasa's Python: ``python robocasa_kitchen.py FOLDER``.
"""

import ast
import hashlib
import re
import shutil
import struct
import sys
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LAYOUT = 1
STYLE = 1
_COPIED = (
    "arenas",
    "fixtures/cabinets",
    "fixtures/counters",
    "fixtures/handles",
    "fixtures/fixture_registry",
)
_PICTURE = re.compile(r"textures/[\w/.-]+\.png")
_PIXELS = 8

_LAYOUT = """
room:
  walls:
    - {name: wall, type: wall, size: [1.75, 1.5, 0.02], pos: [1.75, 0, 1.5]}
    - {name: wall_left, type: wall, wall_side: left, size: [1.25, 1.5, 0.02], pos: [0, -1.25, 1.5]}
    - {name: wall_right, type: wall, wall_side: right, size: [1.25, 1.5, 0.02], pos: [3.5, -1.25, 1.5]}
  floor:
    - {name: floor, type: floor, size: [1.75, 1.25, 0.02], pos: [1.75, -1.25, 0]}
main_group:
  counters:
    - {name: counter, type: counter, size: [2.5, 0.65, 0.92], pos: [1.75, -0.325, 0.46]}
  drawers:
    - name: stack_left
      type: stack
      levels: [single_cabinet, drawer]
      percentages: [0.7, 0.3]
      size: [0.6, 0.6, 0.84]
      pos: [1.45, -0.30, 0.47]
    - name: stack_right
      type: stack
      levels: [single_cabinet, drawer]
      percentages: [0.7, 0.3]
      size: [0.6, 0.6, 0.84]
      align_to: stack_left
      side: right
"""
_STYLE = """
cabinet: {default: [white, slab, handle_bar]}
counter: {default: default}
floor: default
wall: default
box: default
"""
_OBJECT = """
<mujoco model="box">
  <asset/>
  <worldbody>
    <body>
      <body name="object">
        <geom name="reg_bbox" type="box" size="{size}" pos="0 0 0" group="1" contype="0" conaffinity="0"
              mass="0" rgba="0 1 0 0"/>
        <geom type="box" size="{size}" group="0" rgba="{color} 1"/>
        <geom type="box" size="{size}" group="1" contype="0" conaffinity="0" mass="0" rgba="{color} 1"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


def build(folder: Path) -> Path:
    """Write the kitchen's assets into ``folder``, which is new; the folder."""
    package = _package()
    for part in _COPIED:
        shutil.copytree(package / "models" / "assets" / part, folder / part)
    _write_pictures(folder)
    _write(folder / "scenes/kitchen_layouts/test" / f"layout{LAYOUT:03}.yaml", _LAYOUT)
    _write(folder / "scenes/kitchen_styles/test" / f"style{STYLE:03}.yaml", _STYLE)
    for kind, inside in _kinds_of_objects(package):
        for number in (0, 1):
            _write_object(folder / "objects" / kind / f"box_{number}" / inside / "model.xml", kind)
    return folder


def _package() -> Path:
    spec = find_spec("robocasa")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _write_pictures(folder: Path) -> None:
    """Each picture that a table or a shape names."""
    texts = [
        file.read_text(encoding="utf-8") for file in folder.rglob("*") if file.suffix in (".yaml", ".xml")
    ]
    code = [file.read_text(encoding="utf-8") for file in (_package() / "models" / "fixtures").glob("*.py")]
    for name in sorted({name for text in (*texts, *code) for name in _PICTURE.findall(text)}):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_picture(name))


def _color(name: str) -> tuple[int, int, int]:
    """A colour of its own for each name, never dark."""
    red, green, blue = hashlib.sha256(name.encode()).digest()[:3]
    return 96 + red // 2, 96 + green // 2, 96 + blue // 2


def _picture(name: str) -> bytes:
    """A PNG of one colour."""
    row = b"\0" + bytes(_color(name)) * _PIXELS
    header = struct.pack(">IIBBBBB", _PIXELS, _PIXELS, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(row * _PIXELS)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _kinds_of_objects(package: Path) -> Iterator[tuple[str, str]]:
    """Folders of all kinds of objects, such as ``objaverse/apple``, and the one inside each object's own
    where its model is: that of a part, such as a lid, lies inside the whole's."""
    text = (package / "models/objects/kitchen_objects.py").read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        named = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OBJ_CATEGORIES"
        if not named:
            continue
        for entry in node.value.keywords:
            for registry in entry.value.keywords:
                if registry.arg in ("objaverse", "aigen", "lightwheel"):
                    folders = _given(registry.value, "model_folders")
                    place = "aigen_objs" if registry.arg == "aigen" else registry.arg
                    inside = "part" if _given(registry.value, "is_auxiliary_obj") else ""
                    for kind in folders or [f"{place}/{entry.arg}"]:
                        yield kind, inside


def _given(call: ast.expr, name: str) -> Any:
    assert isinstance(call, ast.Call)
    return next((ast.literal_eval(word.value) for word in call.keywords if word.arg == name), None)


def _write_object(file: Path, kind: str) -> None:
    color = " ".join(f"{part / 255:.2f}" for part in _color(kind))
    _write(file, _OBJECT.format(size="0.02 0.02 0.02", color=color).lstrip())


if __name__ == "__main__":
    build(Path(sys.argv[1]))
