"""What must be answered: of the emulated engine computed here, from its rule; of vLLM asked before anything breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence

import httpx

from simulator.engine import Ask
from simulator.server_outlet import Outlet
from simulator.server_prompt import chat_prompt
from simulator.speech import HEAD_IDS, Speech, end_threshold, roll
from simulator.tokens import END_ID, TextDecoder, Tokenizer
from tests.chaos.mix import CHAT, Truth, Wish

AT_ONCE = 6


class EmulatedTruths:
    def __init__(self) -> None:
        self._tokenizer = Tokenizer()
        self._speech = Speech.of(self._tokenizer.word_count)
        self._known: dict[str, Truth] = {}

    def of(self, wish: Wish) -> Truth:
        if wish.key not in self._known:
            self._known[wish.key] = self._answer(wish)
        return self._known[wish.key]

    def _answer(self, wish: Wish) -> Truth:
        body = wish.body
        prompt = chat_prompt(self._tokenizer, body) if wish.path == CHAT else self._tokenizer.encode(body["prompt"])
        stops = body.get("stop") or ()
        stops = (stops,) if isinstance(stops, str) else tuple(stops)
        outlet = Outlet(
            0, Ask("a", prompt, body["max_tokens"]), TextDecoder(self._tokenizer, prompt), stops, False, 0.0
        )
        for number, token in enumerate(self._tokens(prompt, bool(body.get("ignore_eos"))), start=1):
            finish = "stop" if token == END_ID else "length" if number == body["max_tokens"] else None
            if outlet.push(token, finish, None) or finish:
                break
        delta = outlet.take()
        assert delta is not None and delta.finish_reason is not None
        return Truth(delta.text, delta.finish_reason, delta.stop_reason, (len(prompt), delta.count))

    def _tokens(self, prompt: Sequence[int], ignore_eos: bool) -> Iterable[int]:
        ids, state = list(prompt), roll(0, prompt)
        threshold = end_threshold(prompt)
        while True:
            token = self._speech.next_id(state, ids[-1], ids[-2], threshold, not ignore_eos)
            yield token
            ids.append(token)
            state = roll(state, (token,))
            if len(ids) <= HEAD_IDS:
                threshold = end_threshold(ids)


class AskedTruths:
    """Greedy answers of a server in fp32, whole, asked for once each. `usage` counts too."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._known: dict[str, Truth] = {}

    def of(self, wish: Wish) -> Truth:
        return self._known[wish.key]

    async def learn(self, wishes: Iterable[Wish]) -> None:
        missing = {wish.key: wish for wish in wishes if wish.key not in self._known}
        gate = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(timeout=120) as client:

            async def one(number: int, wish: Wish) -> None:
                async with gate:
                    body = {k: v for k, v in wish.body.items() if k not in ("stream", "stream_options")}
                    answer = await client.post(self._urls[number % len(self._urls)] + wish.path, json=body)
                said = json.loads(answer.raise_for_status().content)
                choice, usage = said["choices"][0], said["usage"]
                text = choice["message"]["content"] if wish.path == CHAT else choice["text"]
                counts = usage["prompt_tokens"], usage["completion_tokens"]
                self._known[wish.key] = Truth(text, choice["finish_reason"], choice["stop_reason"], counts)

            await asyncio.gather(*(one(number, wish) for number, wish in enumerate(missing.values())))
