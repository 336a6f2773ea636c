"""Progress of a long command on stderr: a bar on a terminal, plain lines elsewhere. Owns how it looks."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """`done` as simulator.compare reports it, `note` for a line of text."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TimeRemainingColumn(), console=self._console, transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task("simulating", total=None)

    def __enter__(self) -> Bar:
        if self._terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._terminal:
            self._progress.stop()

    def note(self, text: str) -> None:
        if self._terminal:
            self._progress.update(self._task, description=text)
        else:
            print(text, file=sys.stderr)  # noqa: T201

    def done(self, number: int, known: int, what: str) -> None:
        if self._terminal:
            self._progress.update(self._task, completed=number, total=known, description=what)
        else:
            print(f"{number}/{known} {what}", file=sys.stderr)  # noqa: T201
