"""What can be turned on an instance while it runs: its clock, and sleep. Owns the requests to its server; what to do
and when, is the controller's. A knob that refuses is told as KnobRefused and turned no more on that instance."""

from __future__ import annotations

from typing import Protocol

import httpx

from pools.instance import Instance

READ_S = 2.0


class KnobRefused(Exception):
    """It was not turned; the sentence says why."""


class Knobs(Protocol):
    """`clock` and `sleeps` say which knobs there are at all."""

    clock: bool
    sleeps: bool

    async def set_clock(self, instance: Instance, clock_mhz: int) -> None: ...

    async def sleep(self, instance: Instance) -> None: ...

    async def wake(self, instance: Instance) -> None: ...

    async def joules(self, instance: Instance) -> float | None: ...


class NoKnobs:
    """Instances that somebody else runs."""

    clock = False
    sleeps = False

    async def set_clock(self, instance: Instance, clock_mhz: int) -> None:
        raise KnobRefused("its clock is not ours")

    async def sleep(self, instance: Instance) -> None:
        raise KnobRefused("its sleep is not ours")

    async def wake(self, instance: Instance) -> None:
        raise KnobRefused("its sleep is not ours")

    async def joules(self, instance: Instance) -> float | None:
        return None


class EngineKnobs:
    """Through the instance's own server: vLLM's sleep and wake (level 1: weights go to host memory), and of an emulated
    engine also the clock and the energy counter."""

    def __init__(self, client: httpx.AsyncClient, *, emulated: bool, sleeps: bool) -> None:
        self.clock = emulated
        self.sleeps = sleeps
        self._client = client
        self._emulated = emulated

    async def set_clock(self, instance: Instance, clock_mhz: int) -> None:
        if not self._emulated:
            raise KnobRefused("no node agent sets the clocks of this service")
        await self._post(f"{instance.url}/emulated/clock", {"clock_mhz": clock_mhz})

    async def sleep(self, instance: Instance) -> None:
        await self._post(f"{instance.url}/sleep?level=1&mode=wait")

    async def wake(self, instance: Instance) -> None:
        await self._post(f"{instance.url}/wake_up")

    async def joules(self, instance: Instance) -> float | None:
        """The counter of an emulated engine since its start; None where there is none, or no answer now."""
        if not self._emulated:
            return None
        try:
            answer = await self._client.get(f"{instance.url}/emulated/state", timeout=READ_S)
            return float(answer.json()["joules"])
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError):
            return None

    async def _post(self, url: str, body: dict[str, int] | None = None) -> None:
        try:
            answer = await self._client.post(url, json=body, timeout=READ_S)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise KnobRefused(f"{type(error).__name__}: {error}") from None
        if answer.status_code >= 300:
            raise KnobRefused(f"it answered {answer.status_code}")
