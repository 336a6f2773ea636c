"""The controller's checkpoint on disk: read at the start, written now and then and at the end.

Owns the file and when it is written; what it holds is controller/checkpoint.py's. A file that cannot be read or written
is told of in the log and harms nothing: the controller learns anew."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import structlog

from controller.checkpoint import Saved, restored
from controller.loop import Controller
from core.clock import Clock
from core.files import write_whole
from core.service import ServiceSpec

EVERY_S = 30.0
LOOK_S = 1.0  # how old an override may be before it is on disk
log = structlog.get_logger("joulegate")


class Checkpoint:
    def __init__(self, path: Path, controller: Controller, clock: Clock) -> None:
        self._path = path
        self._controller = controller
        self._clock = clock

    def restore(self, services: dict[str, ServiceSpec]) -> bool:
        """Before the controller runs. False: there was nothing to go on from."""
        try:
            plain = msgspec.json.decode(self._path.read_bytes())
            self._controller.state = restored(plain, self._clock.now_s(), self._clock.wall_s(), services)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            log.warning("the controller's checkpoint is of no use", path=str(self._path), error=str(error))
            return False
        return True

    async def run(self) -> None:
        """For ever: every EVERY_S, and soon after operators have ordered something."""
        written_s, overrides = self._clock.now_s(), self._controller.state.overrides
        while True:
            await self._clock.sleep(LOOK_S)
            now = self._controller.state.overrides
            if now != overrides or self._clock.now_s() - written_s >= EVERY_S:
                written_s, overrides = self._clock.now_s(), now
                await asyncio.to_thread(self.write)

    def write(self) -> None:
        saved = Saved(self._clock.now_s(), self._clock.wall_s(), self._controller.state)
        try:
            write_whole(self._path, msgspec.json.encode(saved))
        except OSError as error:
            log.warning("the controller's checkpoint cannot be written", path=str(self._path), error=str(error))
