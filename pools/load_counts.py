"""What the requests of one service come to, by class: the counts that a controller reads. Owned by whoever serves the
requests, the gateway or a simulation; a class is (input size, predicted output size)."""

from __future__ import annotations

from core.instances import ClassCount
from core.service import CLASSES

PLACES = {name: place for place, name in enumerate(CLASSES)}


class _Cell:
    __slots__ = ("asked", "attained", "done", "input_tokens", "judged", "output_tokens")

    def __init__(self) -> None:
        self.asked = self.input_tokens = self.done = self.output_tokens = self.attained = self.judged = 0


class LoadCounts:
    """Only ever grows; a reader takes differences."""

    def __init__(self) -> None:
        self._cells = tuple(_Cell() for _ in CLASSES)

    def asked(self, place: int, input_tokens: int) -> None:
        cell = self._cells[place]
        cell.asked += 1
        cell.input_tokens += input_tokens

    def completed(self, place: int, output_tokens: int, attained: bool) -> None:
        cell = self._cells[place]
        cell.done += 1
        cell.output_tokens += output_tokens
        cell.judged += 1
        cell.attained += attained

    def missed(self, place: int) -> None:
        """Shed, failed or cut: judged, and not attained."""
        self._cells[place].judged += 1

    def seen(self) -> tuple[ClassCount, ...]:
        return tuple(
            ClassCount(c.asked, c.input_tokens, c.done, c.output_tokens, c.attained, c.judged) for c in self._cells
        )
