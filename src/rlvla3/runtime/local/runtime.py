"""The local runtime: one process for each member, one machine.

The controller's loop: wait for messages or the engine's next deadline, hand events to the engine,
carry its commands out. It computes nothing and imports no torch.
"""

import contextlib
import os
import signal
import time
from collections import deque
from pathlib import Path

import msgspec

from rlvla3.assembly import Assembly, Part
from rlvla3.core.engine import Engine
from rlvla3.core.health import Up
from rlvla3.elsewhere import asking
from rlvla3.errors import UserError, too_many_files
from rlvla3.learner import checkpoint
from rlvla3.messages import (
    Command,
    Event,
    Member,
    MemberLost,
    MemberReady,
    MemberReaped,
    RecycleMember,
    ReplaceMember,
    ReportEvaluation,
    SaveBest,
    Stop,
    StopRequested,
    Tick,
)
from rlvla3.runtime.local.clock import Clock
from rlvla3.runtime.local.goodbye import end_members
from rlvla3.runtime.local.meeting import meeting_place
from rlvla3.runtime.local.observer import Observer
from rlvla3.runtime.local.processes import Process
from rlvla3.runtime.local.signals import waking_signals
from rlvla3.runtime.local.simulating import simulator_part
from rlvla3.runtime.local.sockets import READ, WRITE, Sockets, hold_s
from rlvla3.runtime.local.timers import Timers
from rlvla3.runtime.local.transport import Assignment, Shutdown, Telemetry
from rlvla3.runtime.payloads import create_memory
from rlvla3.timeline import Timeline

_STACKS_S = 0.3
"""Time a hanging member gets to write its stacks before it is killed."""
_SAME_S = 0.5
"""Signals this close are one: wrappers pass on what the terminal or the scheduler sent to all."""
_GRACE_S = 6.0
"""Time the last checkpoint may take after Ctrl-C; the previous one stays if it takes longer."""
_GOODBYE_S = 2.0
"""Time members get to end by themselves."""
_LAST_WRITE_S = 60.0
"""Time the Trainer gets after a regular end: the best weights may still be on their way to disk."""
_REAP_S = 0.05
"""Longest wait for a killed process at a time; one that the kernel still holds is asked again."""
_WATCH_S = 0.25
"""Longest time between two looks at the observer."""


class LocalRuntime:
    """Runs an assembly to its end."""

    def __init__(
        self,
        assembly: Assembly,
        folder: Path,
        observer: Observer,
        *,
        resume: tuple[Path, dict[str, object]] | None = None,
        weights: str = "",
        averaged: bool = True,
        timeline: Timeline | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``resume``: a checkpoint and the engine's state in it. ``weights``: what a pure
        evaluation evaluates; ``averaged``: its averaged weights where it has both. ``timeline``:
        records who did what when. ``clock``: the time of engine, observer and timeline."""
        self._clock = clock or Clock()
        self._timeline = timeline
        self._assembly = assembly
        self._folder = folder
        self._observer = observer
        self._resume = resume
        self._weights = weights
        self._averaged = averaged
        self._sockets = Sockets(assembly.settings.topology.simulators)
        self._processes: dict[Member, Process] = {}
        self._events: deque[Event] = deque()
        self._timers = Timers(self._clock)
        self._stop: Stop | None = None
        self._refused: dict[Member, str] = {}
        self._signal = 0
        self._interrupts = 0
        self._interrupted_s = 0.0
        self._budgeted = False
        self._memory: list[int] = []
        self._store = ""
        self.engine: Engine | None = None

    # --- the whole run -------------------------------------------------------------------------

    def run(self) -> Stop:
        """Run to the end; every process and memory is gone when this returns.

        Raises:
            UserError: shared memory cannot be reserved, or a member met a fault that the user can mend.
        """
        layout = self._assembly.layout
        if self._resume:
            path = self._resume[0]
            stored = checkpoint.describe(path).fingerprint
            checkpoint.check_resume(path, stored, self._assembly.fingerprint())
        with contextlib.ExitStack() as stack:
            for name, size in (("slab", layout.size), ("rollout-weights", 0), ("evaluation-weights", 0)):
                fd = create_memory(name, size)
                self._memory.append(fd)
                stack.callback(os.close, fd)
            if len(self._assembly.settings.topology.trainers) > 1:
                self._store = str(stack.enter_context(meeting_place(self._folder)))
            stack.callback(self._sockets.close)
            stack.enter_context(waking_signals(self._sockets.add_waker, self._on_signal))
            stack.callback(self._end_members)
            state = self._resume[1] if self._resume else None
            self.engine = Engine(self._assembly.settings, self._clock.now_s(), state)
            topology = self._assembly.settings.topology
            for member in topology.simulators + topology.generators + topology.trainers:
                self._spawn(member)
            self._loop(self.engine)
            self._show_lost_trainers(self.engine)
        for reason in self._refused.values():
            raise UserError(reason)
        assert self._stop is not None
        return self._stop

    def pids(self) -> list[int]:
        """Process ids of the members that are up."""
        return [process.pid for process in self._processes.values()]

    @property
    def signal(self) -> int:
        """Number of the signal that asked the run to end; 0: none did."""
        return self._signal

    def _on_signal(self, number: int) -> None:
        self._signal = self._signal or number
        self.request_stop(signal.Signals(number).name)

    def request_stop(self, reason: str) -> None:
        """Checkpoint, then end; from the thread that runs the loop or a signal handler."""
        now_s = time.monotonic()
        if self._interrupts and now_s < self._interrupted_s + _SAME_S:
            return
        self._interrupts += 1
        self._interrupted_s = now_s
        if self._interrupts > 1:
            self._stop = Stop(reason=f"{reason}, twice", failed=True)
            return
        self._events.append(StopRequested(reason=reason))
        self._timers.after(_GRACE_S, self._give_up)

    def _give_up(self) -> None:
        if self._stop is None:
            reason = f"no checkpoint within {_GRACE_S:.0f} s; the previous one is the newest"
            self._stop = Stop(reason=reason, failed=True)

    # --- the loop ------------------------------------------------------------------------------

    def _loop(self, engine: Engine) -> None:
        watch_s = 0.0
        while self._stop is None:
            now_s = self._clock.now_s()
            while self._events and self._stop is None:
                self._feed(engine, self._events.popleft())
            if now_s >= watch_s:
                self._observer.on_watch(engine, now_s)
                watch_s = now_s + _WATCH_S
            due_s = min(engine.next_deadline_s(), watch_s, self._timers.next_s())
            for process, mask in self._wait(engine, due_s):
                self._exchange(engine, process, mask)
            self._timers.run()
            if engine.next_deadline_s() <= self._clock.now_s():
                self._feed(engine, Tick())

    def _wait(self, engine: Engine, due_s: float) -> list[tuple[Process, int]]:
        wait_s = max(due_s - self._clock.now_s(), 0.0)
        self._clock.expect(wait_s)
        ready = self._sockets.wait(wait_s, hold_s(engine.inference.awaited()))
        self._clock.now_s()
        if lost_s := self._clock.untold_s():
            self._observer.on_stood_still(lost_s)
        return ready

    def _exchange(self, engine: Engine, process: Process, mask: int) -> None:
        if self._processes.get(process.member) is not process:
            return
        if mask & WRITE:
            process.connection.flush()
            self._sockets.watch_room(process)
        if not mask & READ:
            return
        messages = process.connection.receive()
        if messages is None:
            self._sockets.remove(process)
            self._events.append(MemberLost(member=process.member, reason=self._ending(process)))
            return
        for message in messages:
            if self._processes.get(process.member) is not process or self._stop is not None:
                return
            if isinstance(message, Telemetry):
                self._observer.on_telemetry(message, self._clock.now_s())
            else:
                self._feed(engine, message)

    def _ending(self, process: Process) -> str:
        """How a member that closed its connection ended."""
        return process.wait(_STACKS_S) or "closed its connection"

    def _feed(self, engine: Engine, event: Event) -> None:
        now_s = self._clock.now_s()
        if isinstance(event, MemberLost) and event.refused:
            self._refused[event.member] = event.reason
        commands = engine.on(event, now_s)
        self._observer.on_event(event, engine, now_s)
        if self._timeline is not None:
            self._timeline.event(event, now_s)
            for command in commands:
                self._timeline.command(command, now_s)
        for command in commands:
            self._execute(command)
        if isinstance(event, MemberReady):
            self._start_budget(engine)

    def _start_budget(self, engine: Engine) -> None:
        """Time counts from the moment when every member that is left is ready."""
        budget_s, state = self._assembly.config.budget_s, engine.health.state
        if self._assembly.training and budget_s and not self._budgeted and Up.STARTING not in state.values():
            self._budgeted = True
            reason = f"the time budget of {budget_s:g} s is used up"
            self._timers.after(budget_s, lambda: self._events.append(StopRequested(reason=reason)))

    def _execute(self, command: Command) -> None:
        if isinstance(command, ReplaceMember):
            self._replace(command)
        elif isinstance(command, RecycleMember):
            self._send(command.member, Shutdown())
            self._recycle(command, self._clock.now_s() + _GOODBYE_S)
        elif isinstance(command, ReportEvaluation):
            self._judge(command)
        elif isinstance(command, Stop):
            self._stop = command
        else:
            self._send(command.member, command)

    def _send(self, member: Member, message: Command | Shutdown | Assignment) -> None:
        process = self._processes.get(member)
        if process is not None:
            process.connection.send(message)
            if process.connection.unsent:
                self._sockets.watch_room(process)

    def _judge(self, command: ReportEvaluation) -> None:
        score = self._observer.on_evaluation(command, self._clock.now_s())
        for trainer in self._assembly.settings.topology.trainers:
            if score is not None:
                self._send(trainer, SaveBest(member=trainer, version=command.version, score=score))

    # --- members -------------------------------------------------------------------------------

    def _spawn(self, member: Member) -> None:
        config = self._assembly.config
        role = member.rpartition("-")[0]
        simulates = role == "simulator"
        part = simulator_part(self._assembly, member, self._memory[0]) if simulates else self._part(member)
        memory = self._memory[:1] if simulates else self._memory
        threads = {"generator": config.generator.threads, "trainer": config.trainer.threads}.get(role, 1)
        log = self._folder / "logs" / f"{member}.log"
        try:
            process = Process(member, log, memory, threads, config.simulator.python if simulates else "")
        except OSError as error:
            line = too_many_files(error)
            reason = line or f"its process cannot be started: {error.strerror}"
            self._events.append(MemberLost(member=member, reason=reason, refused=bool(line)))
            return
        self._processes[member] = process
        self._sockets.add(process)
        self._send(member, Assignment(text=msgspec.json.encode(part).decode()))

    def _part(self, member: Member) -> Part:
        """The part of a Generator or of a member of the Trainer."""
        slab, rollout, evaluation = self._memory
        trainers = self._assembly.settings.topology.trainers
        trains = member in trainers
        return Part(
            role="trainer" if trains else "generator",
            member=member,
            rank=trainers.index(member) if trains else 0,
            ranks=len(trainers) if trains else 1,
            store=self._store if trains else "",
            config=self._assembly.config.model_dump_json(),
            asked=asking.known(),
            training=self._assembly.training,
            folder=str(self._folder),
            resume=str(self._resume[0]) if self._resume else "",
            weights=self._weights,
            averaged=self._averaged,
            slab=slab,
            rollout=rollout,
            evaluation=evaluation,
        )

    def _replace(self, command: ReplaceMember) -> None:
        """Let a member that hangs show where; then kill, reap and maybe start it anew."""
        process = self._processes.get(command.member)
        if process is None:
            self._succeed(command, "")
        elif process.wait(0) or "Traceback" in command.reason or command.member in self._refused:
            self._bury(command, process)
        else:
            process.ask_for_stacks()
            self._timers.after(_STACKS_S, lambda: self._bury(command, process))

    def _recycle(self, command: RecycleMember, until_s: float) -> None:
        """Wait for an idle member, told to end, until it has freed what it held; then start it anew."""
        process = self._processes[command.member]
        if process.wait(0) or self._clock.now_s() >= until_s:
            self._bury(command, process)
        else:
            process.connection.flush()
            self._timers.after(_REAP_S, lambda: self._recycle(command, until_s))

    def _bury(self, command: ReplaceMember | RecycleMember, process: Process) -> None:
        process.kill()
        if not process.wait(_REAP_S):
            self._timers.after(_REAP_S, lambda: self._bury(command, process))
            return
        self._sockets.remove(process)
        process.close()
        del self._processes[command.member]
        self._succeed(command, process.log_tail())

    def _succeed(self, command: ReplaceMember | RecycleMember, log: str) -> None:
        """The member's process is gone: say so, and start the next one if there is to be one."""
        restart = True
        if isinstance(command, ReplaceMember):
            restart = command.restart
            if command.member not in self._refused:
                self._observer.on_lost(command.member, command.reason, log)
        self._events.append(MemberReaped(member=command.member))
        if restart and self._stop is None:
            self._spawn(command.member)

    def _show_lost_trainers(self, engine: Engine) -> None:
        """A lost Trainer ends the run and is not replaced: show where it was, unless it said so."""
        assert self._stop is not None
        for member in self._assembly.settings.topology.trainers:
            process = self._processes.get(member)
            if process is None or engine.health.state[member] is not Up.LOST:
                continue
            if "Traceback" in self._stop.reason or member in self._refused:
                continue
            if not process.wait(0):
                process.ask_for_stacks()
                process.wait(_STACKS_S)
            reason = self._stop.reason.removeprefix(f"{member} was lost: ")
            self._observer.on_lost(member, reason, process.log_tail())

    def _end_members(self) -> None:
        try:
            end_members(
                list(self._processes.values()),
                patience_s=self._patience_s,
                drain=self._drain,
                interrupts=lambda: self._interrupts,
            )
        finally:
            self._processes.clear()

    def _patience_s(self, process: Process) -> float:
        """How long a member may take to end; one that was lost would not."""
        if self.engine is not None and self.engine.health.state[process.member] is Up.LOST:
            return 0.0
        regular = self._stop is not None and not self._stop.failed and not self._interrupts
        writes = process.member in self._assembly.settings.topology.trainers
        return _LAST_WRITE_S if regular and writes else _GOODBYE_S

    def _drain(self, process: Process) -> None:
        """Read on, so that a member that is sending can come to its end."""
        process.connection.flush()
        for message in process.connection.receive() or ():
            if isinstance(message, Telemetry):
                self._observer.on_telemetry(message, self._clock.now_s())
            elif isinstance(message, MemberLost) and not message.refused:
                self._observer.on_lost(message.member, message.reason, "")
