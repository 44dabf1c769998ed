"""The engine's rules, watched from outside: nothing but events, commands and ``accounting``."""

import json
from collections import defaultdict

from rlvla3.core.engine import Engine
from rlvla3.messages import ObservationReady, RunInference, Stop
from rlvla3.runtime.virtual import Report, VirtualRuntime

EPSILON_S = 1e-9


class Rules:
    """A ``watch`` of the virtual runtime that raises AssertionError when a rule is broken."""

    def __init__(self, settings):
        self.settings = settings
        self.engine: Engine
        topology, self.training = settings.topology, settings.training
        self.unanswered: dict[int, int] = {}
        self.slot_member = {s.slot: s.member for s in topology.slots}
        self.env_slot = {e: s.slot for s in topology.slots for e in s.envs}
        self.waiting: dict[tuple, float] = {}
        """Requests in a queue by arrival time; (kind, row, chunk) names one."""
        self.asked: dict[int, list[tuple]] = {}
        """Requests of each slot's present observation."""
        self.running: dict[str, dict[tuple, float]] = {}
        self.loading: set[str] = set()
        self.serving: set[str] = set()
        self.serving_since: dict[str, float] = {}
        self.row_slot: dict[int, int] = {}
        self.up: set[str] = set()
        self.last_s = 0.0
        self.awaited, self.deadline_s = float("inf"), 0.0
        self.ending = False
        self.oldest: dict[int, int] = {}
        self.channel: dict[int, str] = {}
        self.owner: dict[int, str] = {}
        self.batch_of: dict[str, RunInference] = {}
        self.started_at: list[tuple[float, int]] = []
        """(time, episode) of every training trajectory's start."""
        self.finished: dict[str, list[float]] = defaultdict(list)
        """Times at which each Simulator finished a trajectory."""
        self.starts: list[tuple[int, int, int, str]] = []
        """(env, episode, first chunk, channel) of everything started."""
        self.updates: list[tuple[int, ...]] = []
        """Episodes of each update that was handed to the Trainer."""
        self.update: list[int] = []
        self.groups: dict[int, list] = {}
        """Trajectories of each group that was handed to the Trainer."""
        self.told: dict[str, list[tuple]] = {t: [] for t in topology.trainers}
        """What each Trainer member was told since the last event, without its name and its trajectories."""
        self.reports = 0
        """Ends of the present update that Trainer members reported."""
        self.start_of: dict[int, object] = {}
        """Start of each training episode."""
        self.loaded: dict[str, int] = {}
        self.flying: set[int] = set()
        """Rows whose trajectory has not ended."""

    # --- events first, then the commands they led to -----------------------------------------

    def __call__(self, now_s, event, commands):
        if self.engine.stopped and not any(isinstance(c, Stop) for c in commands):
            return
        self.check_promise(now_s)
        self.check_awaited(now_s, event, commands)
        self.last_s = now_s
        self.take_event(now_s, event)
        for command in commands:
            self.take_command(now_s, command)
        self.check_trainers()
        self.check_accounting()

    def take_event(self, now_s, event):
        handler = getattr(self, "on_" + type(event).__name__, None)
        if handler is not None:
            handler(now_s, event)

    def on_ObservationReady(self, now_s, event):  # noqa: N802
        assert event.slot not in self.unanswered
        self.unanswered[event.slot] = event.seq
        self.asked[event.slot] = [("act", r, c) for r, c in zip(event.rows, event.chunks, strict=True)]
        self.waiting |= dict.fromkeys(self.asked[event.slot], now_s)

    def on_TrajectoryReady(self, now_s, event):  # noqa: N802
        self.finished[event.member].append(now_s)
        self.flying.discard(event.row)
        bootstrap = self.training.bootstrap == "generator" and event.end != "terminated"
        if bootstrap and self.channel[event.row] == "rollout" and not self.ending:
            self.waiting["value", event.row, event.chunks] = now_s

    def on_MemberReady(self, now_s, event):  # noqa: N802
        self.up.add(event.member)

    def on_WeightsLoaded(self, now_s, event):  # noqa: N802
        self.loading.discard(event.member)
        # It served nothing either while it lacked the weights of an evaluation.
        if event.member not in self.serving or event.channel == "evaluation":
            self.serving_since[event.member] = now_s
        self.serving.add(event.member)
        if event.channel == "rollout":
            assert event.version >= self.loaded.get(event.member, 0)
            self.loaded[event.member] = event.version

    def on_UpdateDone(self, now_s, event):  # noqa: N802
        self.reports += 1
        if self.reports == len(self.told):
            self.updates.append(tuple(self.update))
            self.update, self.reports = [], 0

    def on_StopRequested(self, now_s, event):  # noqa: N802
        self.ending = True

    def on_MemberReaped(self, now_s, event):  # noqa: N802
        self.waiting |= self.running.pop(event.member, {})

    def on_InferenceDone(self, now_s, event):  # noqa: N802
        self.running.pop(event.member)
        batch = self.batch_of.pop(event.member)
        for request in batch.requests:
            if request.kind == "act":
                for row in request.rows:
                    self.oldest[row] = min(self.oldest.get(row, event.version), event.version)

    def take_command(self, now_s, command):
        handler = getattr(self, "do_" + type(command).__name__, None)
        if handler is not None:
            handler(now_s, command)

    def answered(self, now_s, command):
        for slot, seq in command.slots:
            assert self.unanswered.pop(slot) == seq

    do_ApplyActions = answered  # noqa: N815

    def do_CancelRequests(self, now_s, command):  # noqa: N802
        self.answered(now_s, command)
        for slot, _ in command.slots:
            for key in self.asked[slot]:
                self.waiting.pop(key, None)

    def do_LoadWeights(self, now_s, command):  # noqa: N802
        self.loading.add(command.member)

    def do_TrainMicroBatch(self, now_s, command):  # noqa: N802
        first = command.member == next(iter(self.told))
        assert first <= len(command.trajectories) <= self.training.micro_batch
        self.told[command.member].append(("micro-batch", command.update))
        groups = defaultdict(list)
        for trajectory in command.trajectories:
            self.update.append(trajectory.episode)
            assert trajectory.oldest_version == self.oldest[trajectory.row]
            groups[trajectory.group].append(trajectory)
        for number, members in groups.items():
            self.check_group(number, members)

    def check_group(self, number, members):
        """Groups are trained whole and once, and their members are different episodes of one start."""
        assert number not in self.groups
        self.groups[number] = members
        assert len(members) == self.training.group_size
        assert len({t.episode for t in members}) == len(members)
        assert {t.start for t in members} == {self.start_of[members[0].episode]}

    def do_FinishUpdate(self, now_s, command):  # noqa: N802
        assert len(self.update) == self.training.batch
        self.told[command.member].append(("finish", command.update))

    def do_PublishWeights(self, now_s, command):  # noqa: N802
        self.told[command.member].append(("publish", command.channel, command.version, command.buffer))

    def do_SaveCheckpoint(self, now_s, command):  # noqa: N802
        self.told[command.member].append(("save", command.version, command.engine_state))

    def do_RunInference(self, now_s, command):  # noqa: N802
        keys = {}
        samples = 0
        for request in command.requests:
            samples += len(request.rows)
            for row, chunk in zip(request.rows, request.chunks, strict=True):
                assert self.channel[row] == command.channel
                key = (request.kind, row, chunk)
                keys[key] = self.waiting.pop(key)
        assert samples <= self.settings.batching.max_batch_size
        self.check_oldest_first(now_s, keys)
        self.running[command.member] = keys
        self.batch_of[command.member] = command

    def check_oldest_first(self, now_s, taken):
        """A batch holds the oldest of the requests that have waited too long."""
        batching = self.settings.batching
        one_queue = batching.routing == "any" or len(self.settings.topology.generators) == 1
        if batching.lockstep or not one_queue:
            return
        oldest_s = min(self.waiting.values(), default=now_s)
        if now_s >= oldest_s + batching.batch_timeout_s:
            assert min(taken.values()) <= oldest_s

    def do_ReplaceMember(self, now_s, command):  # noqa: N802
        member = command.member
        self.up.discard(member)
        self.serving.discard(member)
        self.loading.discard(member)
        self.loaded.pop(member, None)
        for slot in [s for s in self.unanswered if self.slot_member[s] == member]:
            del self.unanswered[slot]
        lost = {row for row, owner in self.owner.items() if owner == member}
        self.flying -= lost
        for waiting in (self.waiting, *self.running.values()):
            for key in [k for k in waiting if k[0] == "act" and k[1] in lost]:
                del waiting[key]
        if member in self.batch_of:
            del self.batch_of[member]

    def do_RecycleMember(self, now_s, command):  # noqa: N802
        """Only what is idle is replaced, and what it had begun has ended."""
        member = command.member
        assert member in self.up
        self.up.discard(member)
        assert not [s for s in self.unanswered if self.slot_member[s] == member]
        assert not [row for row in self.flying if self.owner[row] == member]

    def do_StartTrajectories(self, now_s, command):  # noqa: N802
        for credit in command.starts:
            assert self.slot_member[self.env_slot[credit.env]] == command.member
            self.channel[credit.row] = credit.channel
            self.owner[credit.row] = command.member
            self.flying.add(credit.row)
            self.row_slot[credit.row] = self.env_slot[credit.env]
            self.oldest.pop(credit.row, None)
            self.starts.append((credit.env, credit.episode, credit.first_chunk, credit.channel))
            if credit.channel == "rollout":
                assert self.start_of.setdefault(credit.episode, credit.start) == credit.start
                self.started_at.append((now_s, credit.episode))

    def do_ReportEvaluation(self, now_s, command):  # noqa: N802
        starts = [t.start for t in command.trajectories]
        assert starts == [e.start for e in self.settings.evaluation.starts]
        assert all(t.oldest_version == command.version for t in command.trajectories)

    # --- the rules ---------------------------------------------------------------------------

    def free(self, generator):
        return (
            generator in self.up
            and generator in self.serving
            and generator not in self.running
            and generator not in self.loading
        )

    def check_awaited(self, now_s, event, commands):
        """One observation starts no batch where more are awaited."""
        starts = any(isinstance(command, RunInference) for command in commands)
        if isinstance(event, ObservationReady) and now_s < self.deadline_s and starts:
            assert self.awaited <= 1, f"{self.awaited} were awaited when one started a batch"
        self.awaited, self.deadline_s = self.engine.inference.awaited(), self.engine.next_deadline_s()

    def check_promise(self, now_s):
        """No request waited past its timeout while a Generator could have started."""
        batching = self.settings.batching
        if batching.lockstep or not self.waiting or now_s - self.last_s < EPSILON_S:
            return
        generators = self.settings.topology.generators
        free = [g for g in generators if self.free(g)]
        for (_, row, _), arrival_s in self.waiting.items():
            if max(arrival_s + batching.batch_timeout_s, self.last_s) < now_s - EPSILON_S:
                able = [g for g in free if batching.routing != "pinned" or self.is_pinned(row, arrival_s, g)]
                assert not able, f"a request of {arrival_s:.4f} s waits at {now_s:.4f} s, {able} could start"

    def is_pinned(self, row, arrival_s, generator):
        """Whether the request went to the Generator that its slot is pinned to, and that is this one.

        What arrived before that one served (or in the same moment) was routed to another, which may be busy.
        """
        index = self.settings.batching.pins[self.row_slot[row]]
        pinned = self.settings.topology.generators[index] == generator
        return pinned and self.serving_since[generator] < arrival_s

    def check_trainers(self):
        """After each event all Trainer members have been told the same, in the same order."""
        first, *others = self.told.values() or ([],)
        for told in others:
            assert told == first
            told.clear()
        first.clear()

    def check_accounting(self):
        books = self.engine.accounting()
        assert books["started"] == sum(n for name, n in books.items() if name != "started"), books
        # A group that was given up has given its credit back, though members of it may still fly.
        outstanding = books["started"] - books["trained"] - books["dropped"] - books["given_up"]
        assert outstanding <= self.training.batch * (self.training.max_lag + 1), books
        assert min(books.values()) >= 0, books


def run(settings, costs, workload, **options) -> tuple[Report, Rules, VirtualRuntime]:
    """Run to the end under all rules."""
    rules = Rules(settings)
    runtime = VirtualRuntime(settings, costs, workload, watch=rules, **options)
    rules.engine = runtime.engine
    report = runtime.run(until_s=10_000.0)
    assert report.stop is not None, "the run never ended"
    assert not rules.unanswered, f"never answered: {rules.unanswered}"
    training = settings.training
    assert all(0 <= lag <= training.max_lag for lag in report.lags), report.lags
    assert training.group_size * len(rules.groups) == len(report.trained)
    keys = [(t.episode, t.first_chunk) for t in report.trained]
    assert len(keys) == len(set(keys))
    return report, rules, runtime


def resume(report, settings, costs, workload, **options):
    """Continue from the last checkpoint of a report."""
    return resume_from(report, -1, settings, costs, workload, **options)


def resume_from(report, index, settings, costs, workload, **options):
    """Continue from a checkpoint of a report."""
    _, state = report.checkpoints[index]
    return run(settings, costs, workload, state=json.loads(state), **options)
