"""``rlvla3 train``: what it says at the start."""

from pathlib import Path

import pytest
from live import Command
from refusals import SMALL


@pytest.mark.live
def test_options_that_a_kind_drops_are_told_at_the_start(tmp_path: Path) -> None:
    other = ("policy.kind=echo:DigestPolicy", f"policy.options.folder={tmp_path}")
    command = Command(tmp_path, "train", *SMALL, *other, "--folder", str(tmp_path / "run"))
    try:
        assert command.wait() == 0, command.text
    finally:
        command.close()
    lost = "policy.options.base_ms=20, policy.options.per_sample_ms=1; give again what should hold"
    told = f"leaves out what schedule-benchmark sets for the kind emulated: {lost}"
    assert f"notice: policy.kind=echo:DigestPolicy {told}" in command.text.splitlines()
