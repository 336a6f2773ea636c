"""What clients say of their own answers, weighed by how right each has been.

Owns a bounded record per client. A client that is new is not believed; one that says twice the truth every time is
believed, at half of what it says."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import log2

from msgspec import Struct

from core.service import Edges
from predictor.distribution import NORMAL_BELOW, NORMAL_GRID, Distribution
from predictor.said import Said, said_of
from predictor.track import Chances, Mean, Track

MEMORY = 100.0  # answers
SPREAD_PRIOR = 3.0  # a hint is taken to be a doubling off, until as many answers say otherwise
NARROWEST = 0.1  # doublings
MEAN_OF_SPREAD = 0.8  # mean absolute deviation of a normal distribution with spread 1


class Client(Struct):
    """`shift` and `off` in doublings: what the answers are of the hint on average, and how far from that."""

    shift: Mean
    off: Mean
    track: Track


class ClientState(Struct, frozen=True):
    """What is known of a client, to be kept: `name` is that of its key."""

    name: bytes
    shift: Mean
    off: Mean
    track: Track


class Hint(Struct, frozen=True):
    """What one client's hint says of one answer, and with what weight."""

    client: bytes
    tokens: int
    shape: Distribution
    said: Said
    weight: float


class Hints:
    """At most `clients` are kept, least recently used go first."""

    def __init__(self, clients: int = 1024) -> None:
        self._limit = clients
        self._clients: OrderedDict[bytes, Client] = OrderedDict()

    def read(self, client: bytes, tokens: int, edges: Edges) -> Hint:
        known = self._clients.get(client)
        shift, off, weight = 0.0, 1.0, 0.0
        if known is not None:
            shift, off, weight = known.shift.value, known.off.value, known.track.trust()
        spread = max(NARROWEST, off / MEAN_OF_SPREAD)
        shape = Distribution(NORMAL_GRID, NORMAL_BELOW, log2(max(1, tokens)) + shift, spread)
        return Hint(client, tokens, shape, said_of(shape, edges), weight)

    def recent(self, most: int) -> list[ClientState]:
        """From the one used longest ago to the newest."""
        names = list(self._clients)[-most:]
        return [ClientState(n, (own := self._clients[n]).shift, own.off, own.track) for n in names]

    def restore(self, clients: Sequence[ClientState]) -> None:
        for one in clients[-self._limit :]:
            self._clients[one.name] = Client(one.shift, one.off, one.track)

    def learn(self, hint: Hint, against: Chances, edges: Edges, output_tokens: int) -> None:
        """`against`: what was said of the sizes without the hint."""
        known = self._clients.get(hint.client)
        if known is None:
            known = self._clients[hint.client] = Client(
                Mean(0.0, 1.0, MEMORY), Mean(1.0, SPREAD_PRIOR, MEMORY), Track()
            )
            if len(self._clients) > self._limit:
                self._clients.popitem(last=False)
        else:
            self._clients.move_to_end(hint.client)
        known.track.judge(hint.said.p, against, edges, output_tokens)
        known.track.answers += 1
        actual = log2(max(1, output_tokens)) - log2(max(1, hint.tokens))
        known.off.add(abs(actual - known.shift.value))
        known.shift.add(actual)
