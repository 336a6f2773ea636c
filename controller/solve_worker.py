"""Solving outside of the event loop: one child process that imports ortools, asked over pipes, killed when it overruns.

Owns that process and nothing else: what is solved and what an answer is worth is for others to say. A child that dies,
overruns or answers nonsense is gone, and the next problem starts a fresh one; the caller is told by SolveLost and goes
on with the plan it has. The child ends by itself when its pipe closes, so that a killed gateway leaves none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import struct
import sys
from typing import BinaryIO

from controller.problem import Plan, Problem

LENGTH = struct.Struct("!Q")
NICE = 5  # plans can wait, requests can not
GRACE_S = 2.0  # beyond the solver's own limit: it looks at its clock only now and then
IMPORTS_S = 30.0  # a fresh child first imports ortools


class SolveLost(Exception):
    """No answer: the worker was killed at its limit, died, or failed. The message says which."""


class SolveWorker:
    """One solve at a time; a second caller waits for the first."""

    def __init__(self, argv: tuple[str, ...] = (sys.executable, "-m", "controller.solve_worker")) -> None:
        self._argv = argv
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self.started = 0  # children so far

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    async def solve(self, problem: Problem, *, time_s: float, gap: float = 0.001, start: Plan | None = None) -> Plan:
        """The solver's answer within `time_s` and a grace, or SolveLost. Cancelling kills the child."""
        async with self._turn:
            allowed_s = time_s + GRACE_S + (0.0 if self._child is not None else IMPORTS_S)
            try:
                async with asyncio.timeout(allowed_s):
                    answer = await self._asked(pickle.dumps((problem, time_s, gap, start)))
            except TimeoutError:
                await self.close()
                raise SolveLost(f"killed after {allowed_s:.1f} s, its limit was {time_s:g} s") from None
            except (OSError, EOFError, asyncio.IncompleteReadError, pickle.UnpicklingError) as error:
                await self.close()
                raise SolveLost(f"the worker ended: {type(error).__name__}: {error}") from None
            except asyncio.CancelledError:
                await self.close()
                raise
        if not isinstance(answer, Plan):
            raise SolveLost(str(answer))
        return answer

    async def close(self) -> None:
        """Kills the child, if there is one, and waits for its end."""
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _asked(self, question: bytes) -> object:
        child = self._child
        if child is None:
            pipe = asyncio.subprocess.PIPE
            child = await asyncio.create_subprocess_exec(
                *self._argv, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, start_new_session=True
            )
            self._child = child
            self.started += 1
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(LENGTH.pack(len(question)) + question)
        await child.stdin.drain()
        (length,) = LENGTH.unpack(await child.stdout.readexactly(LENGTH.size))
        return pickle.loads(await child.stdout.readexactly(length))


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """The child: solves what comes until the pipe closes. An answer is a Plan, or a sentence where there is none."""
    from controller.solver import Limits, solve

    while header := questions.read(LENGTH.size):
        try:
            problem, time_s, gap, start = pickle.loads(questions.read(LENGTH.unpack(header)[0]))
            answer: Plan | str = solve(problem, Limits(time_s=time_s, gap=gap), start)
        except Exception as error:
            answer = f"the solver failed: {type(error).__name__}: {error}"
        raw = pickle.dumps(answer)
        answers.write(LENGTH.pack(len(raw)) + raw)
        answers.flush()


def main() -> None:
    os.nice(NICE)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a solver prints must not come between the answers
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
