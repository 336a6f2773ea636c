"""Whether the promises are kept, by what is measured: the trim of the plan and the guard that does no harm. Pure."""

from __future__ import annotations

from collections.abc import Sequence
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
REMEMBERED = 0.5 ** (1 / 30)  # of a class's record, from minute to minute
CLASS_TELLING = 100.0  # remembered requests of a class from which its attainment counts
SLOW_UP = 1.02  # after a minute that kept its promise but lost requests while a class is under its own


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
    classes = health.classes if len(health.classes) == len(now) else ((0.0, 0.0),) * len(now)
    if more:
        classes = tuple(
            (judged + c.judged - b.judged, attained + c.attained - b.attained)
            for (judged, attained), b, c in zip(classes, before, now, strict=True)
        )
    health = replace(health, judged=health.judged + more, attained=health.attained + kept, classes=classes)
    return _minute(health, now_s, settings) if now_s - health.minute_s >= MINUTE_S else health


def _minute(health: Health, now_s: float, settings: Settings) -> Health:
    """The trim spends what of the error budget is left, of the class that has least of it, and stops at once when a
    minute has overspent."""
    minutes = (*health.minutes, (health.judged, health.attained))[-MINUTES_KEPT:]
    classes = tuple((REMEMBERED * judged, REMEMBERED * attained) for judged, attained in health.classes)
    fresh = replace(health, minute_s=now_s, judged=0, attained=0, minutes=minutes, classes=classes)
    if health.judged < TELLING:
        return fresh
    share, least, budget = health.attained / health.judged, _least(health.classes), 1 - settings.promised
    if share >= settings.promised:
        trim = health.trim
        if min(share, least) >= 1 - budget / 2:
            trim = max(TRIMS[0], trim * DOWN)
        elif share < 1 and least < settings.promised:
            trim = min(TRIMS[1], trim * SLOW_UP)
        return replace(fresh, bad=0, trim=trim)
    bad = health.bad + 1
    harmed_s = now_s + HARMED_S if bad >= settings.harm_windows else health.harmed_until_s
    up = min(MOST_UP, UP + UP_PER_SHARE * (settings.promised - share))
    return replace(fresh, bad=bad, trim=min(TRIMS[1], max(1.0, health.trim) * up), harmed_until_s=harmed_s)


def _least(classes: Sequence[tuple[float, float]]) -> float:
    """Attainment of the class that keeps its promise least, of those that have been asked for often enough."""
    return min((attained / judged for judged, attained in classes if judged >= CLASS_TELLING), default=1.0)
