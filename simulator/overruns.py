"""Answers that outgrow their prediction, weighed in simulated time by the code that weighs them live: pools/overrun.py.

Owns when it is asked: the simulator knows which answers will outgrow their size and looks at those alone; what it
decides knows no more than the gateway would."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.service import SIZES, ServiceSpec
from pools.overrun import Choice, Stream, asked_again, asked_from, choose, elsewhere, site
from predictor.distribution import lognormal
from simulator.sequence import DECODING, GONE, Seq
from simulator.world import World

if TYPE_CHECKING:
    from simulator.member import Member
    from simulator.request_life import Flight, RequestLife

SOON_S = 0.02  # before an answer that is short of its edge is looked at again, at least


class Overruns:
    def __init__(self, spec: ServiceSpec, world: World, life: RequestLife) -> None:
        self._spec = spec
        self._world = world
        self._life = life

    def watch(self, flight: Flight, member: Member) -> None:
        """Its first token at this instance is out."""
        seq = flight.seq
        assert seq is not None
        edge = asked_from(self._spec, SIZES[flight.predicted % 3])
        if seq.generated >= edge:
            edge = asked_again(self._spec, seq.generated)
        self._await(flight, seq, member, edge, seq.generated)

    def _await(self, flight: Flight, seq: Seq, member: Member, edge: float, generated: int) -> None:
        if seq.end <= edge or member.instance.model is None:
            return
        instance, model = member.instance, member.instance.model
        assert model is not None
        step_s = model.decode_step_s(instance.tp, instance.clock_mhz, max(1, instance.sequences), instance.kv_tokens)
        wait_s = max(SOON_S, (edge - generated) * step_s)
        self._world.at(self._world.now_s + wait_s, lambda: self._look(flight, seq, member, edge))

    def _look(self, flight: Flight, seq: Seq, member: Member, edge: float) -> None:
        engine, now_s = member.engine, self._world.now_s
        if engine is None or flight.seq is not seq or flight.member is not member or seq.state == GONE:
            return
        out = engine.generated(seq, now_s)
        if out < edge or seq.state != DECODING:
            self._await(flight, seq, member, edge, out)
            return
        if self._weigh(flight, seq, member, out).action != "move":
            self._await(flight, seq, member, asked_again(self._spec, out), out)
            return
        engine.abort(seq, now_s)
        member.touch()
        world = self._world

        def dropped() -> None:
            """The engine takes it out at the end of its step; whatever else that instant brings is done first."""
            world.settle_after(lambda: world.at(world.now_s, lambda: self._left(flight, seq, member)))

        world.at(max(now_s, engine.next_event_s()), dropped)

    def _left(self, flight: Flight, seq: Seq, member: Member) -> None:
        """The step that was under way has ended; the answer may have ended with it."""
        if flight.seq is seq and flight.member is member and seq.state == GONE and seq.finished_s is None:
            self._life.moves(flight, member)

    def _weigh(self, flight: Flight, seq: Seq, member: Member, out: int) -> Choice:
        here, length, now_s = member.instance, flight.length, self._world.now_s
        assert here.model is not None
        room = max(out + 1, self._spec.context_tokens - seq.prompt)
        stream = Stream(
            seq.prompt,
            out,
            room,
            seq.gaps_late,
            flight.ask.tbt_limit_s,
            lognormal(length.q50_tokens, length.q90_tokens),
        )
        others = elsewhere(self._spec, self._life.router.instances.values(), here, stream, now_s)
        return choose(stream, site(here, here.model, 0, 0), others)
