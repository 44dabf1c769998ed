"""The commands of the event that is being handled."""

from rlvla3.messages import Command, Stop


class Outbox:
    """Collects commands in order. Nothing follows a Stop."""

    __slots__ = ("_commands", "closed")

    def __init__(self) -> None:
        self._commands: list[Command] = []
        self.closed = False

    def send(self, command: Command) -> None:
        """Add a command, unless the run is over."""
        if not self.closed:
            self._commands.append(command)
            self.closed = isinstance(command, Stop)

    def take(self) -> list[Command]:
        """What was sent since the last call."""
        commands, self._commands = self._commands, []
        return commands
