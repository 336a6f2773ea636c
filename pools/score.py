"""What placing a request on an instance would mean. Pure. With an engine model both objectives and the joules are
foretold; without one only the slots speak, and the fuller instance is taken (consolidation).

In two parts, because whoever can not keep the objectives need not be priced."""

from __future__ import annotations

from msgspec import Struct

from core.request import Ask
from pools.instance import Instance


class Forecast(Struct, frozen=True):
    """`ttft_s`: seconds from now to the request's first token. `keeps_others`: the longest step meanwhile, the prompt's
    largest chunk beside everybody who decodes, is within the tightest TBT limit among them and the request. A single
    step counts, not their mean: while prompts keep coming, such steps are far more than one in a hundred. `bearable`:
    the steps without prefill are within the request's own limit at least."""

    ttft_s: float
    keeps_others: bool
    bearable: bool


AT_ONCE = Forecast(0.0, True, True)


def forecast(instance: Instance, ask: Ask, left_tokens: int | None = None) -> Forecast:
    """Prefill is chunked and in order: the prompts that wait there come first, and a step has room for as many of
    their tokens as those who decode leave. `left_tokens` of them are still to be prefilled; all, where nobody says.
    Joining costs the step under way, the whole of it at worst."""
    model = instance.model
    if model is None:
        return AT_ONCE
    tp, mhz, running = instance.tp, instance.clock_mhz, instance.sequences
    waiting = (instance.prefill_tokens if left_tokens is None else left_tokens) + ask.input_tokens
    room = max(1, instance.step_tokens - running)
    if running == 0:
        full, rest = divmod(waiting, room)
        ttft_s = model.prefill_s(tp, mhz, rest)
        return Forecast(full * model.prefill_s(tp, mhz, room) + ttft_s if full else ttft_s, True, True)
    after, context = running + ask.sequences, instance.kv_tokens + ask.kv_tokens
    under_way_s = model.decode_step_s(tp, mhz, running, instance.kv_tokens)
    chunk = min(room, waiting)
    step_s = model.step_s(tp, mhz, chunk, after, context)  # as if it decoded already: a millisecond on the safe side
    ttft_s = under_way_s + step_s
    if waiting > room:
        full, rest = divmod(waiting, room)
        ttft_s = under_way_s + full * step_s + (model.step_s(tp, mhz, rest, after, context) if rest else 0.0)
    limit_s = min(ask.tbt_limit_s, instance.tbt.limit_s)
    if step_s <= limit_s:
        return Forecast(ttft_s, True, True)
    decode_s = model.decode_step_s(tp, mhz, after, context)
    # A chunk that is too long beside a single answer is so wherever it goes: smaller steps mend that, no choice does.
    keeps = decode_s <= limit_s < model.step_s(tp, mhz, chunk, 1, 0)
    return Forecast(ttft_s, keeps, decode_s <= ask.tbt_limit_s)


def added_joules(instance: Instance, ask: Ask) -> float:
    """Modelled joules that the request adds over its expected life: its prefill, its share of the batch's watts, and
    what the others draw longer because their steps grow. Without a model: less for fuller ones."""
    model = instance.model
    if model is None:
        return -instance.sequences / instance.limits.slots
    tp, mhz = instance.tp, instance.clock_mhz
    before, after = instance.sequences, instance.sequences + ask.sequences
    before_w, after_w = model.watts(tp, mhz, before), model.watts(tp, mhz, after)
    step_s = model.decode_step_s(tp, mhz, after, instance.kv_tokens + ask.kv_tokens)
    prefill_j = model.watts(tp, mhz, after, ask.input_tokens) * model.prefill_s(tp, mhz, ask.input_tokens)
    decode_j = (after_w - before_w) * step_s
    if before:
        decode_j += before_w * (step_s - model.decode_step_s(tp, mhz, before, instance.kv_tokens))
    return prefill_j + ask.q50_tokens * decode_j
