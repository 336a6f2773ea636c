"""What was learnt of answers' lengths, on disk: read at the start, written now and then and at the end.

Owns the file and when it is written; what it holds is predictor/kept.py's. A file that cannot be read or written is
told of in the log and harms nothing: the predictors learn anew. Templates are copied a few at a time, so that no stream
waits for a thousand of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import structlog

from core.clock import Clock
from core.files import write_whole
from gateway.service import Service
from predictor.blend import Blend, TemplateState
from predictor.kept import LARGEST_FILE, TEMPLATES, Learnt, assemble, dump, learnt_of, load, restore

EVERY_S = 60.0
AT_ONCE = 32  # templates copied between two turns of the loop: 0.3 ms
log = structlog.get_logger("joulegate")


def beside(checkpoint: Path) -> Path:
    """The file of the lengths, beside the controller's."""
    return checkpoint.with_name(f"{checkpoint.stem}.lengths{checkpoint.suffix}")


class LearntFile:
    """`services` may change while it runs: what is there is kept."""

    def __init__(self, path: Path, services: Mapping[str, Service], clock: Clock) -> None:
        self._path = path
        self._services = services
        self._clock = clock

    def restore(self) -> list[str]:
        """Before the first request: names of the services that go on from what they knew."""
        try:
            if self._path.stat().st_size > LARGEST_FILE:
                raise ValueError(f"larger than {LARGEST_FILE >> 20} MiB")
            held = load(self._path.read_bytes(), self._clock.wall_s())
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            log.warning("what was learnt of lengths is of no use", path=str(self._path), error=str(error))
            return []
        known = {(one.service, one.model): one for one in held}
        found = []
        for name, service, blend in self._blends():
            if (one := known.get((name, blend.model_name))) is None:
                continue
            restore(blend, one)
            if blend is service.predictor:
                service.estimate.bytes_per_token = one.bytes_per_token
                found.append(name)
        return found

    async def run(self) -> None:
        while True:
            await self._clock.sleep(EVERY_S)
            held = [await self._copied(*one) for one in list(self._blends())]
            await asyncio.to_thread(self._write, held)

    def write(self) -> None:
        """At the end, when nobody waits any more."""
        wall_s = self._clock.wall_s()
        self._write([learnt_of(b, name, wall_s, s.estimate.bytes_per_token) for name, s, b in self._blends()])

    def _blends(self) -> Iterator[tuple[str, Service, Blend]]:
        """Those that serve and those that would: a challenger goes on, too."""
        for name, service in self._services.items():
            yield name, service, service.predictor
            if service.challenger is not None:
                yield name, service, service.challenger.blend

    async def _copied(self, name: str, service: Service, blend: Blend) -> Learnt:
        names = blend.recent(TEMPLATES)
        states: list[TemplateState] = []
        for at in range(0, len(names), AT_ONCE):
            states += [state for one in names[at : at + AT_ONCE] if (state := blend.template(one)) is not None]
            await self._clock.sleep(0)
        return assemble(blend, name, self._clock.wall_s(), service.estimate.bytes_per_token, states)

    def _write(self, held: list[Learnt]) -> None:
        try:
            write_whole(self._path, dump(held))
        except OSError as error:
            log.warning("what was learnt of lengths cannot be written", path=str(self._path), error=str(error))
