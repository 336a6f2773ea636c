"""Which output size a request is taken for: the likely one, or a longer one where that is expected to cost less. Pure.

An answer that outgrows its size's pool is either borne there (its KV may find no room, and the joules already spent on
it are then lost) or moved (its prompt and what is out are prefilled anew where such answers belong), whichever is less;
pools/overrun.py decides the same of the single answer once it happens. Against that stand the joules that a longer
pool takes more. That it takes fewer is no reason to go there: its room is planned for those who need it, and requests
never go to a shorter pool than theirs. (With cheapness as a reason all requests crowd where it is cheap: of five
minutes of the Azure conversation trace, twice over, on two TP8 pools and a cheaper TP4 one for long answers, 12 %
attained instead of 99 %.) Prices are modelled, at half of an instance's slots: marginal ones would keep an empty pool
empty."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from core.request import Prediction
from core.service import SIZES, Edges
from profiles.engine_model import EngineModel

INDIFFERENT = 0.05  # modelled watts and step times are no better than this (docs/validation.md): less decides nothing
# The likely size is the smallest that holds the answer with this probability. At 0.6 14 % of held-out answers outgrow
# it, at 0.5 20 %, and as many sizes are right (docs/predictor.md).
USUAL = 0.6
CHUNK = 512  # prompt tokens, by which prefill is priced


class Price(Struct, frozen=True):
    """Joules of one prompt token and of one output token; `room_tokens`: KV for each sequence at the load that this
    holds for, 0 = not known."""

    prompt_j: float
    token_j: float
    room_tokens: float = 0.0


def price_of(model: EngineModel, tp: int, clock_mhz: int, slots: int, kv_tokens: int) -> Price:
    running = max(1, slots // 2)
    context = running * model.context_tokens
    if kv_tokens:
        running = max(1, min(running, kv_tokens // (2 * model.context_tokens)))
        context = min(context, kv_tokens // 2)
    step_s = model.decode_step_s(tp, clock_mhz, running, context)
    token_j = model.watts(tp, clock_mhz, running) * step_s / running
    prompt_j = model.watts(tp, clock_mhz, running, CHUNK) * model.prefill_s(tp, clock_mhz, CHUNK) / CHUNK
    return Price(prompt_j, token_j, kv_tokens / running)


def usual_size(prediction: Prediction) -> int:
    p = prediction.p
    return 0 if p[0] >= USUAL else 1 if p[0] + p[1] >= USUAL else 2


def choose_size(prediction: Prediction, input_tokens: int, edges: Edges, prices: Sequence[Price | None]) -> str:
    """`prices` of the pools that serve S, M and L answers; None where nothing is known."""
    usual = usual_size(prediction)
    known = [price for price in prices if price is not None]
    if usual == len(SIZES) - 1 or len(known) < len(SIZES) or known[0] == known[1] == known[2]:
        return SIZES[usual]
    least = known[usual]
    for size in range(usual + 1, len(SIZES)):
        dear = known[size]
        known[size] = Price(max(least.prompt_j, dear.prompt_j), max(least.token_j, dear.token_j), dear.room_tokens)
    lengths = _lengths(prediction, edges)
    costs = [_expected_j(at, prediction, input_tokens, edges, lengths, known) for at in range(usual, len(SIZES))]
    if costs[0] <= (1.0 + INDIFFERENT) * min(costs):
        return SIZES[usual]
    return SIZES[usual + costs.index(min(costs))]


def _lengths(prediction: Prediction, edges: Edges) -> tuple[float, float, float]:
    """What an answer of each size comes to: the upper edge of S and M, which is on the safe side; L as foretold."""
    small, medium = edges.output
    longest = prediction.q90_tokens if prediction.q90_tokens > medium else max(prediction.q99_tokens, medium + 1)
    return small, medium, longest


def _expected_j(
    size: int, prediction: Prediction, input_tokens: int, edges: Edges,
    lengths: tuple[float, float, float], prices: Sequence[Price],
) -> float:  # fmt: skip
    price = prices[size]
    expected = 0.0
    for actual, chance in enumerate(prediction.p):
        tokens = lengths[actual]
        here_j = input_tokens * price.prompt_j + tokens * price.token_j
        stay_j = here_j + _unborne(price, input_tokens + tokens) * here_j
        if actual <= size:
            expected += chance * stay_j
            continue
        there, out = prices[actual], edges.output[size]
        move_j = input_tokens * price.prompt_j + out * price.token_j
        move_j += (input_tokens + out) * there.prompt_j + (tokens - out) * there.token_j
        move_j += _unborne(there, input_tokens + tokens) * move_j
        expected += chance * min(stay_j, move_j)
    return expected


def _unborne(price: Price, tokens: float) -> float:
    """The share of such an answer that finds no KV room of its own."""
    if not price.room_tokens or tokens <= price.room_tokens:
        return 0.0
    return 1.0 - price.room_tokens / tokens
