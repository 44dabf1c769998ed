"""Videos that can be watched whenever the writer stops, even by kill -9."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt


class VideoWriter:
    """Writes H.264 (yuv420p) into a fragmented mp4, one fragment for each frame.

    There is no index to write at the end and nothing to flush: at any moment the file holds every
    frame added so far but the last one, whatever happens to the process (about 100 bytes a frame).

    Args:
        path: the file; its folder is made. An existing file is replaced.
        fps: frames per second.
    """

    def __init__(self, path: Path, fps: int = 20) -> None:
        import av

        path.parent.mkdir(parents=True, exist_ok=True)
        self._av = av
        self._fps = fps
        self._file = path.open("wb", buffering=0)
        self._container: Any = av.open(
            self._file,
            "w",
            format="mp4",
            options={"movflags": "empty_moov+default_base_moof+frag_every_frame", "flush_packets": "1"},
        )
        self._stream: Any = None
        self._shape: tuple[int, ...] = ()
        self._count = 0

    def add(self, picture: npt.NDArray[np.uint8]) -> None:
        """Append one frame [H, W, 3]; all frames have the first one's shape, with even H and W.

        Raises:
            ValueError: another shape or dtype.
        """
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise ValueError(f"a frame must be uint8 [H, W, 3]; it is {picture.dtype} {picture.shape}")
        if self._stream is None:
            self._open_stream(picture.shape)
        if picture.shape != self._shape:
            raise ValueError(f"frames must all be {self._shape}; this one is {picture.shape}")
        frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        frame.pts = self._count
        self._count += 1
        self._container.mux(self._stream.encode(frame))

    def _open_stream(self, shape: tuple[int, ...]) -> None:
        height, width = shape[:2]
        if height % 2 or width % 2:
            raise ValueError(f"frames need an even height and width; they are {height} x {width}")
        self._shape = shape
        self._stream = self._container.add_stream("libx264", rate=self._fps)
        self._stream.height, self._stream.width = height, width
        self._stream.pix_fmt = "yuv420p"
        self._stream.time_base = Fraction(1, self._fps)
        # zerolatency: the encoder holds no frame back.
        self._stream.options = {"preset": "veryfast", "tune": "zerolatency", "crf": "20"}
        self._stream.thread_count = 1

    def close(self) -> None:
        """Write the last frame and end the file."""
        if self._file.closed:
            return
        if self._stream is not None:
            self._container.mux(self._stream.encode(None))
        self._container.close()
        self._file.close()

    def __enter__(self) -> "VideoWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_video(path: Path, pictures: Sequence[npt.NDArray[np.uint8]], fps: int = 20) -> None:
    """Write all pictures [H, W, 3] as one video."""
    with VideoWriter(path, fps) as writer:
        for picture in pictures:
            writer.add(picture)


def read_video(path: Path) -> npt.NDArray[np.uint8]:
    """All frames [n, H, W, 3] that can be decoded."""
    import av

    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return np.stack(frames)
