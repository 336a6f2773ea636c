"""A TCP relay before an instance that misbehaves when told to: it stalls, drips, lies, half-closes, cuts or refuses."""

from __future__ import annotations

import asyncio
import contextlib

READ_SIZE = 1 << 16
SLOW_S = 0.05
GARBAGE = b"\x00\xff garbage \r\n\r\n{]"
KINDS = ("stall", "slow", "garbage", "half_close", "cut", "refuse")


class Proxy:
    """`mode` holds for all connections until `heal`. `cut`, `garbage` and `half_close` strike what is open now."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.mode = ""
        self._server: asyncio.Server | None = None
        self._answers: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=READ_SIZE)
        self.port = self._server.sockets[0].getsockname()[1]

    async def strike(self, kind: str) -> None:
        if kind == "refuse":
            assert self._server is not None
            self._server.close()
        if kind in ("stall", "slow", "refuse"):
            self.mode = kind
        for client in list(self._answers):
            if kind in ("cut", "refuse"):
                client.transport.abort()
            elif kind == "garbage":
                with contextlib.suppress(RuntimeError):  # half-closed before
                    client.write(GARBAGE)
            elif kind == "half_close" and client.can_write_eof():
                with contextlib.suppress(OSError, RuntimeError):
                    client.write_eof()

    async def heal(self) -> None:
        if self.mode == "refuse":
            await self.open()
        self.mode = ""

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        behind: asyncio.StreamWriter | None = None
        try:
            behind_reader, behind = await asyncio.open_connection("127.0.0.1", self.target_port, limit=READ_SIZE)
            self._answers[writer] = behind
            up = asyncio.create_task(self._pump(reader, behind, answers=False))
            down = asyncio.create_task(self._pump(behind_reader, writer, answers=True))
            try:
                await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                up.cancel()
                down.cancel()
                await asyncio.gather(up, down, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._answers.pop(writer, None)
            self._tasks.discard(task)
            for side in (writer, behind):
                if side is not None:
                    side.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            while data := await reader.read(READ_SIZE):
                if answers and self.mode == "slow":
                    await asyncio.sleep(SLOW_S)
                while answers and self.mode == "stall":
                    await asyncio.sleep(0.02)
                writer.write(data)
                await writer.drain()
