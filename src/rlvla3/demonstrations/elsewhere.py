"""Workers that demonstrate in another Python environment (``simulator.python``)."""

import contextlib
import dataclasses
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from rlvla3.demonstrations import working
from rlvla3.demonstrations.collecting import Episode, Job
from rlvla3.elsewhere import interpreter
from rlvla3.errors import UserError
from rlvla3.lifetime import kill_with_children


def demonstrate_elsewhere(parts: Sequence[Sequence[Job]], workers: int) -> list[Episode]:
    """The episodes of all jobs, in their order.

    Args:
        parts: jobs that are done by one worker, one after the other; all have the same ``python``.
        workers: processes.

    Raises:
        UserError: an episode cannot be demonstrated, or a worker died.
    """
    started: list[_Worker] = []
    idle: SimpleQueue[_Worker] = SimpleQueue()

    def run(part: Sequence[Job]) -> list[Episode]:
        worker = idle.get()
        try:
            return worker.do(part)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(workers)
    try:
        for _ in range(min(workers, len(parts))):
            started.append(_Worker(parts[0][0][0].python))
            idle.put(started[-1])
        futures = [threads.submit(run, part) for part in parts]
        return [episode for future in futures for episode in future.result()]
    finally:
        for worker in started:
            worker.end()
        threads.shutdown(cancel_futures=True)


class _Worker:
    """One process; started by the thread that must outlive it."""

    def __init__(self, python: str) -> None:
        try:
            self._process = subprocess.Popen(
                interpreter.command(python, "rlvla3.demonstrations.working", str(os.getpid())),
                env=interpreter.environment(python),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"simulator.python = {python!r}: cannot be started ({error.strerror})") from error

    def do(self, jobs: Sequence[Job]) -> list[Episode]:
        """Have it do them.

        Raises:
            UserError: it cannot, or it died.
        """
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        # There the simulator is an ordinary one. Not ``replace``: the copy would look for it here.
        own = [({**dataclasses.asdict(plan), "python": ""}, task, first) for plan, task, first in jobs]
        try:
            working.write(process.stdin, own)
            result = working.read(process.stdout, working.Result)
        except OSError:
            result = None
        if result is None:
            raise UserError(
                "demonstrations: a worker process died (out of memory, or a crash of the simulator); "
                "set imitation.demonstrations.workers lower"
            )
        if result.fault:
            raise UserError(result.fault)
        return [working.unpacked(episode) for episode in result.episodes]

    def end(self) -> None:
        """Kill it and whatever it started, in the middle of an episode if need be."""
        kill_with_children(self._process)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
