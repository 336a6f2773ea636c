"""What can be turned on an instance while it runs: its clock, and sleep. Owns what a refusal comes to; what to do is
the controller's, and when a clock is written is pools/clock_keeper.py's."""

from __future__ import annotations

from typing import Any, Protocol

import httpx

from pools.clocks import ClockRefused, Clocks, GpuGroup
from pools.instance import Instance


class KnobRefused(Exception):
    """It was not turned; the sentence says why. `silent`: no answer came, so it may have been turned after all."""

    silent = False


class KnobSilent(KnobRefused):
    silent = True


class Knobs(Protocol):
    """`clock` says whether there is a clock to turn at all; `leased` and `epoch` are as in `Clocks`."""

    clock: bool
    leased: bool

    @property
    def quality(self) -> str:
        """Of `joules`: measured or modelled."""
        ...

    async def joules(self, instance: Instance) -> float | None:
        """The counters of its GPUs, added up; None where there are none to read now."""
        ...

    @property
    def epoch(self) -> int | None: ...

    def off(self, instance: Instance) -> str | None:
        """Why its clock cannot be turned now, as a code; then it runs at its default. None while it can."""
        ...

    async def set_clock(self, instance: Instance, clock_mhz: int) -> None:
        """0: its default."""
        ...

    async def sleep(self, instance: Instance) -> None: ...

    async def wake(self, instance: Instance) -> None: ...


class NoKnobs:
    """Instances that somebody else runs."""

    clock = False
    leased = False
    epoch = None
    quality = "modelled"

    async def joules(self, instance: Instance) -> float | None:
        return None

    def off(self, instance: Instance) -> str | None:
        return "not_ours"

    async def set_clock(self, instance: Instance, clock_mhz: int) -> None:
        raise KnobRefused("its clock is not ours")

    async def sleep(self, instance: Instance) -> None:
        raise KnobRefused("its sleep is not ours")

    async def wake(self, instance: Instance) -> None:
        raise KnobRefused("its sleep is not ours")


class EngineKnobs:
    """Clocks where there are any; vLLM's sleep and wake through the instance's own server. `level` 1: weights go to
    host memory; 2: they are dropped, and read again from disk at the wake (docs.vllm.ai, features/sleep_mode).
    `patience_s`: for either, as they move the weights."""

    def __init__(
        self, http: httpx.AsyncClient, clocks: Clocks | None, level: int = 1, patience_s: float = 120.0
    ) -> None:
        self.clock = clocks is not None
        self.leased = clocks is not None and clocks.leased_anew
        self._level = level
        self._patience_s = patience_s
        self._http = http
        self._clocks = clocks

    @property
    def quality(self) -> str:
        return self._clocks.quality if self._clocks is not None else "modelled"

    async def joules(self, instance: Instance) -> float | None:
        if self._clocks is None or (self.leased and not instance.gpus):
            return None
        try:
            return (await self._clocks.read(_group(instance))).joules
        except ClockRefused:
            return None

    @property
    def epoch(self) -> int | None:
        return None if self._clocks is None else self._clocks.epoch

    def off(self, instance: Instance) -> str | None:
        return "no_agent" if self._clocks is None else self._clocks.off(_group(instance))

    async def set_clock(self, instance: Instance, clock_mhz: int) -> None:
        if self._clocks is None:
            raise KnobRefused("no node agent sets the clocks of this service")
        try:
            if clock_mhz:
                await self._clocks.set_clock(_group(instance), clock_mhz)
            else:
                await self._clocks.reset(_group(instance))
        except ClockRefused as refused:
            raise KnobRefused(f"{refused.code}: {refused}") from None

    async def sleep(self, instance: Instance) -> None:
        await self._ask(instance, f"/sleep?level={self._level}&mode=wait")

    async def wake(self, instance: Instance) -> None:
        """One that is awake is left alone: reading weights anew would be no small matter."""
        if not (await self._ask(instance, "/is_sleeping", "GET")).get("is_sleeping"):
            return
        if self._level == 1:
            await self._ask(instance, "/wake_up")
            return
        await self._ask(instance, "/wake_up?tags=weights")
        await self._ask(instance, "/collective_rpc", body={"method": "reload_weights"})
        await self._ask(instance, "/wake_up?tags=kv_cache")

    async def _ask(self, instance: Instance, path: str, method: str = "POST", body: object = None) -> dict[str, Any]:
        try:
            answer = await self._http.request(method, instance.url + path, json=body, timeout=self._patience_s)
            if answer.status_code >= 300:
                raise KnobRefused(f"{path} answered {answer.status_code}")
            told = answer.json() if answer.content else {}
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise KnobSilent(f"{path}: {type(error).__name__}: {error}") from None
        return told if isinstance(told, dict) else {}


def _group(instance: Instance) -> GpuGroup:
    return GpuGroup(instance.gpus, instance.url)
