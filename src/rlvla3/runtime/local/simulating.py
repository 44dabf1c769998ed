"""A Simulator's part, and its role made from it, in the member's own process.

The part holds all that such a process needs, so that it reads no configuration and imports nothing of
policies, algorithms or learners: it may run in another Python environment, which has none of their packages.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlvla3.messages import Member
from rlvla3.plugins import guarded
from rlvla3.roles.lane import Emit
from rlvla3.roles.lane_slots import SlotPlan
from rlvla3.roles.simulator import SimulatorRole
from rlvla3.runtime.payloads import SlabLayout, map_slab
from rlvla3.simulators.egl_devices import choose, render_on
from rlvla3.simulators.registry import simulator_class

if TYPE_CHECKING:
    from rlvla3.assembly import Assembly


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorPart:
    """What a Simulator is told at its start."""

    member: Member
    kind: str
    """Its adapter: a built-in name or ``module:attribute``."""
    options: str
    """The adapter's settings as JSON."""
    plans: tuple[SlotPlan, ...]
    """Its slots."""
    round_s: float
    """See ``Lane``."""
    renders: bool
    """Whether MuJoCo renders its frames."""
    number: int
    """Which of the Simulators it is, from 0."""
    render_devices: tuple[int, ...]
    """CUDA numbers of the GPUs that render; empty: the visible ones."""
    layout: SlabLayout
    slab: int
    """File descriptor of the trajectory slab."""
    replan: int
    """See ``Lane``."""


def simulator_part(assembly: "Assembly", member: Member, slab: int) -> SimulatorPart:
    """The part of one Simulator."""
    config, together = assembly.config.simulator, assembly.topology.together
    mine = [s for s in assembly.topology.slots if s.member == member]
    return SimulatorPart(
        member=member,
        kind=config.kind,
        options=config.options.model_dump_json(),
        plans=tuple(
            SlotPlan(
                slot=s.slot, envs=s.envs, lane=(s.stage if together else i) % config.lanes, batch=s.stage
            )
            for i, s in enumerate(mine)
        ),
        round_s=config.round_ms / 1000,
        renders=assembly.spec.needs_gl,
        number=assembly.topology.simulators.index(member),
        render_devices=config.render_devices,
        layout=assembly.layout,
        slab=slab,
        replan=0 if assembly.training else assembly.config.evaluation.replan,
    )


def build_simulator(part: SimulatorPart, emit: Emit) -> SimulatorRole:
    """The role; its lanes are not started yet."""
    with guarded("simulator.kind", part.kind):
        adapter = simulator_class(part.kind)
        simulator = adapter(adapter.Settings.model_validate_json(part.options))
    if part.renders:
        render_on(choose(part.number, part.render_devices))
    return SimulatorRole(
        member=part.member,
        simulator=simulator,
        slots=part.plans,
        slab=map_slab(part.slab, part.layout),
        emit=emit,
        round_s=part.round_s,
        replan=part.replan,
    )
