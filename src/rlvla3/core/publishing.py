"""Publishing: which buffer a version is written into, and who serves which version.

The Trainer never waits for a Generator and no Generator reads a torn version: a buffer is written
only while it is neither the newest published one nor being read. With three buffers and one
Generator such a buffer always exists; with more Generators a publish may have to wait for a load
of a few milliseconds to end.
"""

from rlvla3.messages import Channel, Member, Version

NONE = Version(-1)
"""No version at all."""


class Publisher:
    """Buffers and serving versions of one channel."""

    def __init__(self, channel: Channel, buffers: int, generators: tuple[Member, ...]) -> None:
        self.channel = channel
        self._buffers = buffers
        self._reading: dict[Member, int] = {}
        self._writing: int | None = None
        self._due: Version | None = None
        self.newest = NONE
        self._newest_buffer: int | None = None
        """None while nothing was published: Generators of a pure evaluation load a checkpoint."""
        self.serving: dict[Member, Version] = dict.fromkeys(generators, NONE)
        self._lowest = NONE

    @property
    def lowest(self) -> Version:
        """Lowest version over the serving Generators; never decreases."""
        return self._lowest

    @property
    def pending(self) -> bool:
        """Whether a version waits to be written or is being written."""
        return self._due is not None or self._writing is not None

    def request(self, version: Version) -> None:
        """The Trainer holds ``version`` and should write it.

        Raises:
            RuntimeError: the version goes backwards.
        """
        if version < self.newest:
            raise RuntimeError(f"version {version} published after version {self.newest}")
        if self._due not in (None, version):
            raise RuntimeError(f"version {version} is due while version {self._due} is not written yet")
        self._due = version

    def next_write(self) -> tuple[Version, int] | None:
        """The version and buffer to write now, if one is due and a buffer is free."""
        if self._due is None or self._writing is not None:
            return None
        taken = {self._newest_buffer, *self._reading.values()}
        free = [b for b in range(self._buffers) if b not in taken]
        if not free:
            return None
        version, self._due = self._due, None
        self._writing = free[0]
        return version, free[0]

    def published(self, version: Version, buffer: int) -> None:
        """The buffer is complete."""
        self._writing = None
        self.newest, self._newest_buffer = version, buffer

    def next_load(self, member: Member) -> tuple[Version, int] | None:
        """Version and buffer that this idle Generator should load, if it serves another version."""
        if self._newest_buffer is None or self.serving[member] == self.newest:
            return None
        return self.newest, self._newest_buffer

    def reads(self, member: Member, buffer: int) -> None:
        """The Generator was told to read ``buffer``."""
        self._reading[member] = buffer

    def loading(self, member: Member) -> bool:
        """Whether the Generator is reading a buffer."""
        return member in self._reading

    def loaded(self, member: Member, version: Version) -> None:
        """The Generator serves ``version``.

        Raises:
            RuntimeError: it served a newer one before.
        """
        if version < self.serving[member]:
            raise RuntimeError(f"{member} went from version {self.serving[member]} back to {version}")
        self._reading.pop(member, None)
        self.serving[member] = version
        self.newest = max(self.newest, version)
        self._update_lowest()

    def gone(self, member: Member) -> None:
        """The Generator's process is gone: it reads and serves nothing."""
        self._reading.pop(member, None)
        self.serving[member] = NONE
        self._update_lowest()

    def _update_lowest(self) -> None:
        serving = [version for version in self.serving.values() if version != NONE]
        if serving:
            self._lowest = max(self._lowest, min(serving))
