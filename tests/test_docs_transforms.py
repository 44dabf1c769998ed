"""The blocks of docs/transforms.md run one after the other, and fit each other."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from rlvla3.simulators.libero import Libero, LiberoSettings
from rlvla3.transforms.expecting import Concessions

PAGE = Path(__file__).parent.parent / "docs" / "transforms.md"
STATISTICS = {"mean": [0.0] * 8, "std": [2.0] * 8}


def test_the_blocks_of_the_page_fit_each_other() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks[:2]:
        exec(block, names)
    meaning = names["meaning"]
    spec = Libero(LiberoSettings()).spec
    assert spec.meaning == meaning  # what the page says of LIBERO is so
    shapes = {field.name: field.shape for field in spec.observation}
    observation = {
        name: np.zeros((2, *shapes[name]), np.uint8 if name != "proprioception" else np.float32)
        for name in ("image", "image_2", "proprioception")
    }
    names |= {
        "interface": SimpleNamespace(meaning=meaning, chunk=5),
        "settings": SimpleNamespace(concessions=Concessions()),
        "found": {"state": STATISTICS, "actions": {"mean": [0.0] * 7, "std": [1.0] * 7}},
        "observation": observation,
        "said": np.ones((2, 50, 32), np.float32),
    }
    exec(blocks[2], names)
    assert names["read"].state.shape == (2, 32)  # type: ignore[attr-defined]
    assert names["actions"].shape == (2, 5, 7)  # type: ignore[attr-defined]
    assert names["said"].shape == (2, 50, 32)  # type: ignore[attr-defined]
