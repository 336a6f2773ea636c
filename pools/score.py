"""What placing a request on an instance would cost. Pure. With an engine model the price is joules and the two
objectives are predicted; without one only the slots speak, and the fuller instance is taken (consolidation)."""

from __future__ import annotations

from msgspec import Struct

from core.request import Ask
from pools.instance import Instance


class Price(Struct, frozen=True):
    """`added_j`: modelled joules that the request adds over its expected life; `ttft_s`: predicted seconds from now to
    its first token; `keeps_others`: nobody already admitted loses the TBT objective."""

    added_j: float
    ttft_s: float
    keeps_others: bool


def price(instance: Instance, ask: Ask) -> Price:
    model = instance.model
    if model is None:
        return Price(added_j=-instance.sequences / instance.limits.slots, ttft_s=0.0, keeps_others=True)
    tp, mhz = instance.tp, instance.clock_mhz
    before, after = instance.sequences, instance.sequences + ask.sequences
    context = instance.kv_tokens + ask.kv_tokens
    step_s = model.decode_step_s(tp, mhz, after, context)
    prefill_s = model.prefill_s(tp, mhz, instance.prefill_tokens + ask.input_tokens)
    added_w = model.watts(tp, mhz, after) - model.watts(tp, mhz, before)
    own_prefill_j = model.watts(tp, mhz, after, ask.input_tokens) * model.prefill_s(tp, mhz, ask.input_tokens)
    slower_s = step_s - model.decode_step_s(tp, mhz, before, instance.kv_tokens) if before else 0.0
    decode_j = ask.q50_tokens * (
        added_w * step_s + model.watts(tp, mhz, before) * slower_s if before else added_w * step_s
    )
    return Price(
        added_j=own_prefill_j + decode_j,
        ttft_s=prefill_s + step_s,
        keeps_others=step_s <= ask.tbt_limit_s,
    )
