"""Requests that an instance was given and has not begun: taken back where the ladder says so, by the router's rule.

As live, they are looked at twice a second. Here it is known what an engine has begun; live only that no token came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.sequence import WAITING
from simulator.world import World

if TYPE_CHECKING:
    from simulator.request_life import RequestLife

LOOK_S = 0.5
MOST_ATTEMPTS = 8


class Unbegun:
    def __init__(self, world: World, life: RequestLife) -> None:
        self._world = world
        self._life = life
        self._looks = False

    def look(self) -> None:
        """The ladder moved. It is looked for as long as it says so."""
        if self._life.router.moving and not self._looks:
            self._looks = True
            self._world.at(self._world.now_s + LOOK_S, self._once)

    def _once(self) -> None:
        self._looks = False
        life, now_s = self._life, self._world.now_s
        for flight in list(life.flights):
            slot, seq, member = flight.slot, flight.seq, flight.member
            if slot is None or seq is None or member is None or member.engine is None:
                continue
            held = seq.state == WAITING and seq.first_s is None and not seq.preemptions
            if held and flight.attempts < MOST_ATTEMPTS and life.router.lets_go(slot, now_s):
                member.engine.abort(seq, now_s)
                member.touch()
                life.goes_elsewhere(flight, member)
        self.look()
