import subprocess
import sys

import numpy as np
import pytest

from rlvla3.video import VideoWriter, read_video, write_video


def grey(level):
    return np.full((32, 48, 3), level, np.uint8)


def test_frames_come_back_in_order(tmp_path):
    path = tmp_path / "new" / "a.mp4"
    write_video(path, [grey(level) for level in range(0, 250, 10)])
    frames = read_video(path)
    assert frames.shape == (25, 32, 48, 3)
    np.testing.assert_allclose(frames[:, 5, 5, 0], np.arange(0, 250, 10), atol=3)


def test_all_but_the_last_frame_can_be_read_while_writing(tmp_path):
    with VideoWriter(tmp_path / "a.mp4") as writer:
        for level in range(10):
            writer.add(grey(level))
        assert len(read_video(tmp_path / "a.mp4")) == 9


@pytest.mark.live
def test_a_killed_writer_leaves_a_readable_file(tmp_path):
    code = (
        "import os, numpy as np, pathlib, sys\nfrom rlvla3.video import VideoWriter\n"
        "writer = VideoWriter(pathlib.Path(sys.argv[1]))\n"
        "for level in range(12): writer.add(np.full((32, 48, 3), level, np.uint8))\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.mp4")]).returncode == -9
    assert len(read_video(tmp_path / "a.mp4")) == 11


@pytest.mark.parametrize("shape", [(32, 48), (31, 48, 3)])
def test_bad_frames_are_refused(tmp_path, shape):
    with VideoWriter(tmp_path / "a.mp4") as writer, pytest.raises(ValueError, match="frame"):
        writer.add(np.zeros(shape, np.uint8))
