"""Who ran where, for how long: the books from which joules are attributed to requests.

Owns two small records. A bill is a request's, a stint is one attempt of it at one instance: a stream that goes on
elsewhere has one bill and several stints. The hot path makes them and notes three moments; everything else happens in
the meter's own time (pools/attribution.py)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct


class Ended(Struct, frozen=True, gc=False):  # it refers to nothing
    """How a request ended, as its row in the run log says. `wall_s` is Unix time."""

    wall_s: float
    pool: str
    outcome: str
    input_tokens: int
    output_tokens: int
    attained: bool


class Bill(Struct, eq=False):
    """The joules of one request so far. `open`: stints that are not settled to their end. `modelled`: a part of it was
    read from no counter."""

    request_id: str
    key: str
    service: str
    size_class: str
    prefill_j: float = 0.0
    decode_j: float = 0.0
    open: int = 0
    modelled: bool = False
    ended: Ended | None = None
    on_settled: Callable[[Bill], None] | None = None  # told once, when all of it is known

    @property
    def joules(self) -> float:
        return self.prefill_j + self.decode_j


class Stint(Struct, eq=False, gc=False):
    """One attempt at one instance; monotonic seconds, 0 = not yet. `prefill_tokens` are to be prefilled there, which
    for the rest of a stream are those of the prompt and of what was said before; `prefilled` of them are billed."""

    bill: Bill
    instance_id: str
    prefill_tokens: int
    sequences: int
    from_s: float
    first_s: float = 0.0
    end_s: float = 0.0
    prefilled: float = 0.0
