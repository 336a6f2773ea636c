"""`joulegate serve` as it is, but that files in the folder `faults` beside its configuration break what only its own
process can lack: the host names of instances, which are resolved here, and its controller.

    dns-N    instance-N.chaos does not resolve: `gone` = it is said at once, `silent` = the resolver does not answer
    controller-dead    the controller's task raises, again and again;    controller-hung    its next round never ends"""

from __future__ import annotations

import asyncio
import functools
import socket
import sys
from pathlib import Path
from typing import Any

import uvloop

import gateway.run
import joulegate
from controller.loop import Controller

ZONE = ".chaos"
SILENCE_S = 5.0  # a resolver's own patience
HANGS_S = 2.0  # of a round of the controller, before it is started anew; 30 s in real life
LOOK_S = 0.1


class Loop(uvloop.Loop):
    """Resolves the names of instances itself."""

    folder: Path

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        return await super().create_connection(factory, await self._address(host), port, **more)

    async def getaddrinfo(self, host: Any, port: Any, **more: Any) -> Any:
        return await super().getaddrinfo(await self._address(host), port, **more)

    async def _address(self, host: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if not isinstance(name, str) or not name.endswith(ZONE):
            return host
        fault = self.folder / f"dns-{name.removesuffix(ZONE).rpartition('-')[2]}"
        if fault.exists():
            if fault.read_text() == "silent":
                await asyncio.sleep(SILENCE_S)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return "127.0.0.1"


def loop_in(folder: Path) -> Loop:
    made = Loop()
    made.folder = folder
    return made


def break_controller(folder: Path) -> None:
    live, once = Controller.run, Controller._once
    dead, hung = folder / "controller-dead", folder / "controller-hung"

    async def mortal(self: Controller) -> None:
        task = asyncio.ensure_future(live(self))
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=LOOK_S)
                if dead.exists():
                    raise RuntimeError("killed by the chaos run")
        finally:
            task.cancel()

    async def mute(self: Controller) -> float:
        if hung.exists():
            await asyncio.get_running_loop().create_future()
        return await once(self)

    Controller.run = mortal
    Controller._once = mute
    gateway.run.alive.__defaults__ = (HANGS_S,)


def main() -> None:
    folder = Path(sys.argv[2]).parent / "faults"
    break_controller(folder)
    uvloop.run = functools.partial(uvloop.run, loop_factory=lambda: loop_in(folder))
    joulegate.app()


if __name__ == "__main__":
    main()
