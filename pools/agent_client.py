"""The node agent's clocks, as a gateway sees them: one lease on one agent, kept alive by a task of its own.

Owns the epoch and the knobs known to be off. Renewal runs apart from ticks and solver: when this process hangs or dies,
the agent undoes every clock within the lease's time. A lease that is lost is asked for again, and what was set is then
for the caller to set again, because the clocks are at their default."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import structlog

from core.clock import Clock
from pools.clocks import ClockRefused, ClockSet, GpuGroup, GroupReading

UNIX = "unix:"
TIMEOUT_S = 5.0
RETRY_S = 0.5
log = structlog.get_logger("joulegate.clocks")


@dataclass(frozen=True, slots=True)
class Gpu:
    uuid: str
    name: str
    clocks_mhz: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """`emulation`: how the GPUs are emulated, empty for real ones; `state_file`: where emulated ones live."""

    gpus: tuple[Gpu, ...]
    emulation: str = ""
    state_file: str = ""

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self.gpus)


class AgentClient:
    """The agent's API, one call each. Every refusal is a ClockRefused with the agent's code."""

    def __init__(self, address: str, token: str | None = None, ca: str | None = None) -> None:
        """`address`: unix:PATH, http://HOST:PORT or https://HOST:PORT; `ca`: PEM of who signed the agent."""
        self.address = address
        path = address.removeprefix(UNIX) if address.startswith(UNIX) else None
        verify = ssl.create_default_context(cafile=ca) if address.startswith("https") else False
        self._http = httpx.AsyncClient(
            base_url="http://agent" if path else address,
            headers={"authorization": f"Bearer {token}"} if token else {},
            transport=httpx.AsyncHTTPTransport(uds=path, verify=verify),
            timeout=TIMEOUT_S,
        )

    async def inventory(self) -> Inventory:
        told = await self._ask("GET", "/v1/gpus")
        rows = [Gpu(row["uuid"], row["name"], tuple(row["clocks_mhz"])) for row in told["gpus"]]
        return Inventory(tuple(rows), str(told.get("emulation", "")), str(told.get("state_file", "")))

    async def acquire(self, holder: str, uuids: Sequence[str], lease_s: float | None = None) -> dict[str, Any]:
        return await self._ask("POST", "/v1/leases", {"holder": holder, "uuids": list(uuids), "lease_s": lease_s})

    async def renew(self, epoch: int) -> dict[str, Any]:
        return await self._ask("POST", f"/v1/leases/{epoch}/renew")

    async def release(self, epoch: int) -> None:
        await self._ask("DELETE", f"/v1/leases/{epoch}")

    async def set_clock(self, epoch: int, uuids: Sequence[str], mhz: int) -> dict[str, Any]:
        return await self._ask("POST", f"/v1/leases/{epoch}/clock", {"uuids": list(uuids), "mhz": mhz})

    async def reset(self, epoch: int, uuids: Sequence[str]) -> None:
        await self._ask("POST", f"/v1/leases/{epoch}/reset", {"uuids": list(uuids)})

    async def readings(self, uuids: Sequence[str]) -> dict[str, Any]:
        return await self._ask("GET", f"/v1/readings?uuids={','.join(uuids)}")

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        try:
            answer = await self._http.request(method, path, json=body)
            told = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            why = f"the agent at {self.address} does not answer: {type(error).__name__}"
            raise ClockRefused(why, code="agent_unreachable") from None
        if answer.status_code != 200:
            error_row = told.get("error", {})
            raise ClockRefused(
                str(error_row.get("message", f"{path} answered {answer.status_code}")),
                code=error_row.get("code"),
                retry_after_s=error_row.get("retry_after_s"),
            )
        return dict(told)


class AgentClocks:
    """`Clocks` on one agent. `run` must run for as long as clocks are set. `holder` names this process in logs and in
    refusals; two processes that hold the same GPUs at once are refused, whatever their names. Without `uuids` it holds
    all GPUs of the agent. `told` hears what there is, each time before a lease is asked for."""

    leased_anew = True  # a clock is as its last user left it, or at its default after a lost lease

    def __init__(
        self, client: AgentClient, clock: Clock, holder: str, uuids: Sequence[str] = (), lease_s: float | None = None,
        told: Callable[[Inventory], None] = lambda inventory: None,
    ) -> None:  # fmt: skip
        self.epoch: int | None = None
        self.quality = "modelled"  # until it has said that its GPUs are real
        self.leased = asyncio.Event()
        self._told = told
        self._client = client
        self._clock = clock
        self._holder = holder
        self._uuids = tuple(uuids)
        self._lease_s = lease_s
        self._renew_s = RETRY_S
        self._ends_s = 0.0  # without renewal the agent has undone all clocks by then
        self._off: dict[str, str] = {}
        self._why = "no_lease_yet"

    async def run(self) -> None:
        """Acquires and renews until it is cancelled; then `close` gives the lease back."""
        while True:
            try:
                await self._renew()
            except ClockRefused as error:
                self._lost(error)
            await self._clock.sleep(self._renew_s if self.epoch else RETRY_S)

    async def set_clock(self, group: GpuGroup, mhz: int) -> ClockSet:
        try:
            done = await self._client.set_clock(self._held(), group.uuids, mhz)
        except ClockRefused as error:
            self._refused(group, error)
            raise
        states = tuple((row["uuid"], row["state"]) for row in done["gpus"])
        return ClockSet(done["mhz"], done["changed"], states)

    async def reset(self, group: GpuGroup) -> None:
        await self._client.reset(self._held(), group.uuids)

    async def read(self, group: GpuGroup) -> GroupReading:
        told = await self._client.readings(group.uuids)
        rows = told["gpus"]
        watts = [row["average_w"] if row["average_w"] is not None else row["instant_w"] for row in rows]
        clock_mhz = min(row["clock_mhz"] for row in rows)
        return GroupReading(told["at_s"], sum(row["energy_j"] for row in rows), sum(watts), clock_mhz)

    @property
    def why_off(self) -> str | None:
        """Why no clock can be set at all; None while the lease is held."""
        return None if self.epoch is not None else self._why

    def refused(self) -> dict[str, str]:
        """GPUs whose knob is off, with the agent's code."""
        return dict(self._off)

    def off(self, group: GpuGroup) -> str | None:
        if self.epoch is None:
            return self._why
        return next((self._off[uuid] for uuid in group.uuids if uuid in self._off), None)

    async def close(self) -> None:
        """Default clocks now. If the agent does not hear it, its lease ends by itself."""
        epoch, self.epoch = self.epoch, None
        try:
            if epoch is not None:
                await self._client.release(epoch)
        except ClockRefused as error:
            log.warning("the lease could not be given back and will end by itself", why=str(error))
        await self._client.close()

    async def _renew(self) -> None:
        asked_s = self._clock.now_s()
        if self.epoch is None:
            inventory = await self._client.inventory()
            self.quality = "modelled" if inventory.emulation else "measured"
            self._told(inventory)
            uuids = self._uuids or inventory.uuids
            lease = await self._client.acquire(self._holder, uuids, self._lease_s)
            log.info("clocks leased", agent=self._client.address, epoch=lease["epoch"], gpus=len(uuids))
        else:
            lease = await self._client.renew(self.epoch)
        self.epoch, self._renew_s = int(lease["epoch"]), float(lease["renew_s"])
        self._ends_s = asked_s + float(lease["lease_s"])
        self._off = {uuid: str(row["code"]) for uuid, row in lease["off"].items()}
        self.leased.set()

    def _lost(self, error: ClockRefused) -> None:
        """A renewal that was not heard is tried again with the same epoch until the lease's time is over."""
        if self.epoch is not None:
            if error.code == "agent_unreachable" and self._clock.now_s() < self._ends_s:
                return
            log.warning("lease lost; clocks are at their default", agent=self._client.address, why=str(error))
        self.epoch, self._why = None, error.code
        self.leased.clear()

    def _held(self) -> int:
        if self.epoch is None:
            raise ClockRefused(f"no lease on {self._client.address}", code=self._why)
        return self.epoch

    def _refused(self, group: GpuGroup, error: ClockRefused) -> None:
        if error.code == "lease_lost":
            self._lost(error)
        elif error.code != "agent_unreachable":
            log.warning("clock refused", gpus=list(group.uuids), why=str(error), code=error.code)
