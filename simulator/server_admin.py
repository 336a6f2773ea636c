"""Everything that generates nothing: models, tokens, embeddings, health, metrics, pause and sleep, the emulator's own.

Owns the small answers. Routes the real server opens only in dev mode are always open here.
"""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from typing import Any

from simulator.server_errors import bad_request, invalid, missing, too_long
from simulator.server_fields import check_types
from simulator.server_generate import Generation
from simulator.server_http import Exchange, Fault, answer_json, parse_object
from simulator.server_loop import EngineLoop
from simulator.server_metrics import Page
from simulator.server_prompt import chat_prompt, text_prompts

VERSION = "0.32.0+emulated"
EMBEDDING_SIZE = 256
FAULTS = ("stall", "garbage", "status500", "cut", "exit")
PAUSE_MODES = ("abort", "wait", "keep")


class Admin:
    def __init__(self, loop: EngineLoop, generation: Generation, root: str) -> None:
        self._loop = loop
        self._generation = generation
        self._root = root

    async def models(self, exchange: Exchange) -> None:
        created = int(self._loop.clock.wall_s())
        permission = {
            "id": f"modelperm-{os.urandom(8).hex()}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = {
            "id": self._generation.model,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": self._root,
            "parent": None,
            "max_model_len": self._loop.engine.context_limit,
            "permission": [permission],
        }
        await answer_json(exchange, {"object": "list", "data": [model]})

    async def health(self, exchange: Exchange) -> None:
        await exchange.answer(200, b"", b"")

    async def version(self, exchange: Exchange) -> None:
        await answer_json(exchange, {"version": VERSION})

    async def load(self, exchange: Exchange) -> None:
        # The real server answers 0 without --enable-server-load-tracking.
        await answer_json(exchange, {"server_load": 0})

    async def tokenize(self, exchange: Exchange) -> None:
        body = await exchange.json_object()
        check_types(body)
        self._generation.check_model(body)
        tokenizer = self._generation.tokenizer
        if body.get("messages") is None and not isinstance(body.get("prompt"), str):
            raise invalid([missing("body.prompt", body), missing("body.messages", body)])
        ids = tokenizer.encode(body["prompt"]) if body.get("messages") is None else chat_prompt(tokenizer, body)
        pieces = [tokenizer.decode([one]) for one in ids] if body.get("return_token_strs") else None
        limit = self._loop.engine.context_limit
        await answer_json(exchange, {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": pieces})

    async def detokenize(self, exchange: Exchange) -> None:
        body = await exchange.json_object()
        self._generation.check_model(body)
        if not isinstance(body.get("tokens"), list):
            raise invalid([missing("body.tokens", body)])
        tokenizer = self._generation.tokenizer
        ids = text_prompts(tokenizer, {"prompt": body["tokens"]})[0] if body["tokens"] else []
        await answer_json(exchange, {"prompt": tokenizer.decode(ids)})

    async def embeddings(self, exchange: Exchange) -> None:
        body = await exchange.json_object()
        check_types(body)
        self._generation.check_model(body)
        if body.get("input") is None:
            raise invalid([missing("body.input", body)])
        prompts = text_prompts(self._generation.tokenizer, {"prompt": body["input"]})
        limit = self._loop.engine.context_limit
        for prompt in prompts:
            if len(prompt) > limit:
                raise too_long(limit, len(prompt))
        size = int(body.get("dimensions") or EMBEDDING_SIZE)
        as_text = body.get("encoding_format") == "base64"
        vectors = [embedding(prompt, size) for prompt in prompts]
        data = [
            {"index": index, "object": "embedding", "embedding": _packed(vector) if as_text else vector}
            for index, vector in enumerate(vectors)
        ]
        tokens = sum(map(len, prompts))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}
        own = exchange.header(b"x-request-id") or os.urandom(8).hex()
        answer = {"id": f"embd-{own}", "object": "list", "created": int(self._loop.clock.wall_s())}
        await answer_json(exchange, answer | {"model": self._generation.model, "data": data, "usage": usage})

    # --- pause and sleep

    async def pause(self, exchange: Exchange) -> None:
        mode = _mode(exchange)
        await self._loop.pause(mode)
        await answer_json(exchange, {"status": "paused"})

    async def resume(self, exchange: Exchange) -> None:
        self._loop.resume()
        await answer_json(exchange, {"status": "resumed"})

    async def is_paused(self, exchange: Exchange) -> None:
        await answer_json(exchange, {"is_paused": self._loop.paused})

    async def sleep(self, exchange: Exchange) -> None:
        level = exchange.query("level", "1")
        if level not in ("0", "1", "2"):
            raise bad_request("level must be 0, 1 or 2", "level", level)
        await self._loop.sleep(int(level), _mode(exchange))
        await answer_json(exchange, {"status": "sleeping", "level": int(level)})

    async def wake_up(self, exchange: Exchange) -> None:
        tag = exchange.query("tags", "")
        awake = self._loop.wake_up([tag] if tag else ())
        await answer_json(exchange, {"status": "awake" if awake else "sleeping", "tags": [tag] if tag else None})

    async def collective_rpc(self, exchange: Exchange) -> None:
        """Nothing but the call that a wake from level 2 needs."""
        method = parse_object(await exchange.body()).get("method")
        if method != "reload_weights":
            raise bad_request("only reload_weights is emulated", "method", method)
        await answer_json(exchange, {"results": [None]})

    async def is_sleeping(self, exchange: Exchange) -> None:
        await answer_json(exchange, {"is_sleeping": self._loop.sleep_level > 0})

    async def abort_requests(self, exchange: Exchange) -> None:
        running = len(self._loop.engine.running) + self._loop.engine.waiting_count
        self._loop.abort_all()
        await answer_json(exchange, {"status": "aborted", "aborted": running})

    # --- the emulator's own

    async def set_clock(self, exchange: Exchange) -> None:
        clock_mhz = parse_object(await exchange.body()).get("clock_mhz")
        if not isinstance(clock_mhz, int) or clock_mhz <= 0:
            raise bad_request("clock_mhz must be a positive integer", "clock_mhz", clock_mhz)
        if self._loop.gpus is not None:
            raise bad_request("this engine follows the clock of its GPUs: set it through the node agent", "clock_mhz")
        self._loop.engine.set_clock(clock_mhz)
        await answer_json(exchange, {"clock_mhz": clock_mhz})

    async def state(self, exchange: Exchange) -> None:
        engine, now_s = self._loop.engine, self._loop.engine_s()
        self._loop.follow_clock()
        state: dict[str, Any] = {
            "joules": engine.joules(now_s),
            "watts": engine.watts(now_s),
            "clock_mhz": engine.clock_mhz,
            "gpus": list(self._loop.gpus.uuids) if self._loop.gpus is not None else [],
            "tp": engine.tp,
            "running": len(engine.running),
            "waiting": engine.waiting_count,
            "steps": engine.counters.steps,
            "prompt_tokens": engine.counters.prompt_tokens,
            "generation_tokens": engine.counters.generation_tokens,
            "preemptions": engine.counters.preemptions,
            "kv_used_tokens": engine.kv_used,
            "kv_tokens": engine.kv_tokens,
            "engine_s": now_s,
            "speed": self._loop.speed,
            "dropped_s": self._loop.dropped_s,
        }
        await answer_json(exchange, state)

    async def fault(self, exchange: Exchange) -> None:
        body = parse_object(await exchange.body())
        kind, after, times = body.get("kind"), body.get("after_chunks", 0), body.get("times", 1)
        if kind not in FAULTS or not isinstance(after, int) or not isinstance(times, int):
            raise bad_request(f"kind must be one of {', '.join(FAULTS)}; after_chunks and times are integers", "kind")
        self._generation.inject(Fault(str(kind), after), times)
        await answer_json(exchange, {"kind": kind, "after_chunks": after, "times": times})

    async def die(self, exchange: Exchange) -> None:
        """As a kill -9 of EngineCore: running answers end with an error, the server refuses and then ends."""
        self._loop.die()
        await answer_json(exchange, {"dead": True})

    async def metrics(self, exchange: Exchange) -> None:
        await exchange.answer(200, self._page().encode(), b"text/plain; version=0.0.4; charset=utf-8")

    def _page(self) -> Page:
        loop, engine, now_s = self._loop, self._loop.engine, self._loop.engine_s()
        page = Page(self._generation.model)
        # As with the real server, a frozen engine looks idle.
        running, waiting = (0, 0) if loop.frozen else (len(engine.running), engine.waiting_count)
        page.gauge("vllm:num_requests_running", running, "Number of requests in model execution batches.")
        page.gauge("vllm:num_requests_waiting", waiting, "Number of requests waiting to be processed.")
        for reason, value in (("capacity", waiting), ("deferred", 0)):
            label = f'reason="{reason}"'
            page.gauge("vllm:num_requests_waiting_by_reason", value, "Number of waiting requests by reason.", label)
        page.gauge("vllm:kv_cache_usage_perc", engine.kv_used / engine.kv_tokens, "KV-cache usage. 1 means 100 %.")
        sizes = f'block_size="16",num_gpu_blocks="{engine.kv_tokens // 16}",kv_cache_size_tokens="{engine.kv_tokens}"'
        page.gauge("vllm:cache_config_info", 1, "Information of the LLMEngine CacheConfig", sizes)
        for state, on in (("awake", not loop.sleep_level), ("weights_offloaded", loop.sleep_level == 1)):
            page.gauge("vllm:engine_sleep_state", on, "Engine sleep state", f'sleep_state="{state}"')
        counters = engine.counters
        page.counter("vllm:num_preemptions_total", counters.preemptions, "Cumulative number of preemptions.")
        page.counter("vllm:prompt_tokens_total", counters.prompt_tokens, "Number of prefill tokens processed.")
        page.counter("vllm:generation_tokens_total", counters.generation_tokens, "Number of generated tokens.")
        page.counter("vllm:prefix_cache_queries_total", counters.prompt_tokens, "Prefix cache queries, in tokens.")
        page.counter("vllm:prefix_cache_hits_total", 0, "Prefix cache hits, in tokens.")
        for reason, count in loop.meters.finished.items():
            label = f'finished_reason="{reason}"'
            page.counter("vllm:request_success_total", count, "Count of successfully processed requests.", label)
        for name, histogram, text in loop.meters.histograms():
            page.histogram(name, histogram, text)
        page.gauge("emulated_watts", engine.watts(now_s), "Power of the whole emulated instance.")
        page.counter("emulated_joules_total", engine.joules(now_s), "Energy of the emulated instance since its start.")
        return page


def embedding(ids: list[int], size: int) -> list[float]:
    """A unit vector that depends on nothing but the ids."""
    seed = struct.pack(f"<{len(ids)}H", *ids)
    raw = hashlib.shake_128(seed).digest(2 * size)
    values = [value / 32768 for value in struct.unpack(f"<{size}h", raw)]
    norm = sum(value * value for value in values) ** 0.5 or 1.0
    return [value / norm for value in values]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _mode(exchange: Exchange) -> str:
    mode = exchange.query("mode", "abort")
    if mode not in PAUSE_MODES:
        raise bad_request(f"mode must be one of {', '.join(PAUSE_MODES)}", "mode", mode)
    return mode
