"""Who has had how much of a service lately: tokens by key, halved every ten seconds. Pure; takes `now_s`.

Max-min fairness in the long run (Bertsekas and Gallager, Data Networks, 6.5.2): where requests have to wait, a key that
had more than an equal part waits for those that had less. A key alone has no part to exceed."""

from __future__ import annotations

HALF_LIFE_S = 10.0
STEP_S = 0.5  # between two decays
LEAST_TOKENS = 1.0  # of a key that still counts as one


class Shares:
    def __init__(self) -> None:
        self._tokens: dict[str, float] = {}
        self._decayed_s = 0.0

    def served(self, key: str, tokens: int, now_s: float) -> None:
        self._decay(now_s)
        self._tokens[key] = self._tokens.get(key, 0.0) + tokens

    def over(self, key: str, now_s: float) -> bool:
        """Whether it had more than its part, with the others that had any."""
        self._decay(now_s)
        others = len(self._tokens.keys() | {key})
        return others > 1 and self._tokens.get(key, 0.0) * others > sum(self._tokens.values())

    def _decay(self, now_s: float) -> None:
        passed_s = now_s - self._decayed_s
        if passed_s < STEP_S:
            return
        left = 0.5 ** (passed_s / HALF_LIFE_S)
        self._tokens = {key: tokens * left for key, tokens in self._tokens.items() if tokens * left > LEAST_TOKENS}
        self._decayed_s = now_s
