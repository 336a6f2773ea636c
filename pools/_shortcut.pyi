from collections.abc import Callable
from typing import Any

class Shortcut:
    heard: bool
    at_boundary: bool
    def data_received(self, data: bytes) -> None: ...
    def on_chunk_header(self) -> None: ...
    def on_chunk_complete(self) -> None: ...
    def open(
        self,
        write: Callable[[bytes], object],
        now_s: Callable[[], float],
        answer: Any,
        mark: bytes,
        bounds: tuple[float, ...],
        room: int,
        fold_at: int,
        last_s: float,
        limit_s: float,
        total_s: float,
    ) -> None: ...
    def shut(self) -> tuple[int, float, float, int, int, list[int]] | None: ...
