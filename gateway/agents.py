"""The node agents of this gateway: one lease on each, its GPUs, and what readiness says of it.

Owns the tasks that renew leases. An agent that is dead, or refuses, turns knobs off; it never stops a service."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from core.clock import Clock
from gateway.config_agents import AgentConfig
from pools.agent_client import AgentClient, AgentClocks, Inventory
from pools.clocks import ClockRefused
from pools.emulated_agent import STOP_S, EmulatedAgent
from pools.gpu_book import GpuBook, Islands, islands_of
from pools.instance import Instance

KNOWN_WITHIN_S = 10.0  # at the start: an emulated agent makes its library first
log = structlog.get_logger("joulegate.agents")


class HostAgent:
    """One agent. `book` knows its GPUs as soon as it has told them, or from the configuration."""

    def __init__(
        self, name: str, config: AgentConfig, clock: Clock, node_gpus: int, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.inventory: Inventory | None = None
        self.known = asyncio.Event()
        self.book = GpuBook(config.islands)
        self._config = config
        self._clock = clock
        self._node_gpus = node_gpus
        self._child = (
            EmulatedAgent(name, config.emulate, config.folder, config.lease_s, environment) if config.emulate else None
        )
        token = environment.get(config.token_env) if config.token_env else None
        try:
            self._client = AgentClient(self._child.address if self._child else config.url, token, config.ca or None)
        except OSError as error:
            raise ValueError(f"agents.{name}.ca: {config.ca} cannot be used: {error}") from None
        holder = f"joulegate on {socket.gethostname()}, process {os.getpid()}"
        uuids = [uuid for island in config.islands for uuid in island]
        self.clocks = AgentClocks(self._client, clock, holder, uuids, config.lease_s, self._told)

    @property
    def state_file(self) -> str:
        """Where its GPUs are emulated; empty for real ones, and while nobody knows."""
        return self.inventory.state_file if self.inventory is not None else ""

    async def readings(self, uuids: Sequence[str]) -> dict[str, Any]:
        """Counters of real GPUs. Emulated ones tell what a model says, and the engines on them say it themselves."""
        if self.inventory is None or self.inventory.emulation:
            raise ClockRefused(f"the agent {self.name} has no real GPUs", code="emulated")
        return await self._client.readings(uuids)

    def uuids_of(self, instance: Instance) -> tuple[str, ...]:
        """Its GPUs, where they are real ones of this agent."""
        told = self.inventory
        return (
            instance.gpus if told is not None and not told.emulation and set(instance.gpus) <= set(told.uuids) else ()
        )

    async def run(self) -> None:
        """Renews the lease, and keeps an agent of our own alive."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.clocks.run())
            group.create_task(self._kept())

    async def close(self) -> None:
        """Default clocks now, and the end of an agent of our own."""
        await self.clocks.close()
        child = self._child
        if child is None:
            return
        child.terminate()
        deadline_s = self._clock.now_s() + STOP_S
        while child.alive and self._clock.now_s() < deadline_s:
            await self._clock.sleep(0.05)
        child.kill()

    def view(self) -> dict[str, Any]:
        """What /readiness says: whether clocks can be set, why not, and on what."""
        why, refused = self.clocks.why_off, self.clocks.refused()
        row: dict[str, Any] = {"ready": why is None and not refused, "why": why, "off": refused}
        if self.inventory is not None:
            row |= {"gpus": len(self.inventory.gpus), "emulated": self.inventory.emulation or None}
        return row

    def _told(self, inventory: Inventory) -> None:
        if inventory != self.inventory:
            self.inventory = inventory
            if not self._config.islands:
                self.book.know(islands_of(inventory.uuids, self._node_gpus))
            emulated = inventory.emulation or "no, they are real"
            log.info("GPUs of this host", agent=self.name, gpus=len(inventory.gpus), emulated=emulated)
        self.known.set()

    async def _kept(self) -> None:
        while self._child is not None:
            try:
                self._child.keep()
            except OSError as error:
                log.warning("the emulated agent cannot be started", agent=self.name, why=str(error))
            await self._clock.sleep(1.0)


async def known_soon(agents: Mapping[str, HostAgent]) -> None:
    """Until every agent has told its GPUs, or KNOWN_WITHIN_S: instances that need them fail to start until it does."""
    waiting = [asyncio.create_task(agent.known.wait()) for agent in agents.values()]
    if waiting:
        _, late = await asyncio.wait(waiting, timeout=KNOWN_WITHIN_S)
        for task in late:
            task.cancel()


def gpus_of(configured: int, agents: Mapping[str, HostAgent]) -> int:
    """What instances may use in all: as configured, else what the agents have. 0: nobody counts them."""
    return configured or sum(sum(map(len, agent.book.islands or ())) for agent in agents.values())


def islands_seen(agents: Mapping[str, HostAgent]) -> Islands:
    """Of the one agent that this host has; with more, which service may use which is not the controller's to know."""
    books = [agent.book for agent in agents.values()]
    return (books[0].islands or ()) if len(books) == 1 else ()
