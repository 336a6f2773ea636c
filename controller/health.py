"""Whether the promises are kept, by what is measured: the trim of the plan and the guard that does no harm. Pure."""

from __future__ import annotations

from dataclasses import replace

from controller.knowledge import Settings
from controller.state import Health
from core.instances import ClassCount

MINUTE_S = 60.0
TELLING = 20  # judged requests of a minute from which it says something
UP, DOWN = 1.06, 0.98  # the trim after a minute under the promise, and after one with half of the budget left
TRIMS = (0.8, 1.6)
UP_PER_SHARE, MOST_UP = 3.0, 1.3  # a minute that lost a tenth of its requests is no rounding error of the price
HARMED_S = 300.0
MINUTES_KEPT = 60


def judged(
    health: Health, before: tuple[ClassCount, ...] | None, now: tuple[ClassCount, ...], now_s: float, settings: Settings
) -> Health:
    """Counters that fell belong to a new process and start the minute anew."""
    if before is None:
        return replace(health, minute_s=now_s)
    more = sum(c.judged for c in now) - sum(c.judged for c in before)
    kept = sum(c.attained for c in now) - sum(c.attained for c in before)
    if more < 0:
        return replace(health, minute_s=now_s, judged=0, attained=0)
    health = replace(health, judged=health.judged + more, attained=health.attained + kept)
    return _minute(health, now_s, settings) if now_s - health.minute_s >= MINUTE_S else health


def _minute(health: Health, now_s: float, settings: Settings) -> Health:
    """The trim spends what of the error budget is left, and stops at once when a minute has overspent."""
    minutes = (*health.minutes, (health.judged, health.attained))[-MINUTES_KEPT:]
    fresh = replace(health, minute_s=now_s, judged=0, attained=0, minutes=minutes)
    if health.judged < TELLING:
        return fresh
    share = health.attained / health.judged
    if share >= 1 - (1 - settings.promised) / 2:
        return replace(fresh, bad=0, trim=max(TRIMS[0], health.trim * DOWN))
    if share >= settings.promised:
        return replace(fresh, bad=0)
    bad = health.bad + 1
    harmed_s = now_s + HARMED_S if bad >= settings.harm_windows else health.harmed_until_s
    up = min(MOST_UP, UP + UP_PER_SHARE * (settings.promised - share))
    return replace(fresh, bad=bad, trim=min(TRIMS[1], max(1.0, health.trim) * up), harmed_until_s=harmed_s)
