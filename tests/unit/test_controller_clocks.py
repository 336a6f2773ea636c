"""The clock of a kind of instance: cheapest that carries the load, up at once, down step by step."""

from controller.clock_prices import ClockPrice
from controller.clocks import wanted_mhz
from controller.planning import Target
from controller.problem import Kind

KIND = Kind("m", "all", "h100", 4)
SHARES = (0.5, 1.0)


def target(*prices: tuple[int, float, float, float]) -> Target:
    """(MHz, instances needed, watts half full, watts full)"""
    clocks = tuple(ClockPrice(mhz, needs, SHARES, (half, full), 400.0) for mhz, needs, half, full in prices)
    return Target(KIND, 10, 1200, clocks)


U_SHAPED = target((800, 14.0, 800.0, 1000.0), (1200, 10.0, 700.0, 900.0), (1980, 7.0, 1200.0, 1500.0))


def test_not_the_slowest_feasible_clock_but_the_cheapest() -> None:
    assert wanted_mhz(U_SHAPED, 0.7, 10, 1200, boost=False, may_fall=True) == 1200
    dear = target((800, 10.0, 990.0, 1000.0), (1200, 8.0, 600.0, 700.0))
    assert wanted_mhz(dear, 0.9, 10, 1200, boost=False, may_fall=True) == 1200, "800 MHz carries it and draws more"


def test_it_rises_at_once_and_falls_one_step_of_the_grid() -> None:
    assert wanted_mhz(U_SHAPED, 1.3, 10, 800, boost=False, may_fall=True) == 1980, "only the fastest carries it"
    assert wanted_mhz(U_SHAPED, 0.3, 10, 1980, boost=False, may_fall=True) == 1200
    assert wanted_mhz(U_SHAPED, 9.0, 10, 1200, boost=False, may_fall=True) == 1980, "more than any carries"


def test_a_boost_goes_before_everything_and_a_filling_cache_holds_the_clock() -> None:
    assert wanted_mhz(U_SHAPED, 0.1, 10, 800, boost=True, may_fall=True) == 1980
    assert wanted_mhz(U_SHAPED, 0.3, 10, 1980, boost=False, may_fall=False) == 1980


def test_a_saving_within_the_noise_is_not_worth_a_write() -> None:
    flat = target((1000, 10.0, 699.0, 899.0), (1200, 9.0, 700.0, 900.0))
    assert wanted_mhz(flat, 0.8, 10, 1200, boost=False, may_fall=True) == 1200


def test_a_flat_top_does_not_keep_it_up() -> None:
    flat = target((1200, 9.0, 600.0, 800.0), (1800, 7.1, 1199.0, 1499.0), (1980, 7.0, 1200.0, 1500.0))
    assert wanted_mhz(flat, 0.3, 10, 1980, boost=False, may_fall=True) == 1800
    assert wanted_mhz(flat, 0.3, 10, 1800, boost=False, may_fall=True) == 1200


def test_the_same_load_settles() -> None:
    for load in (0.2, 0.5, 0.8, 1.0, 1.2):
        clock, seen = 1980, []
        for _ in range(12):
            clock = wanted_mhz(U_SHAPED, load, 10, clock, boost=False, may_fall=True)
            seen.append(clock)
        assert len(set(seen[3:])) == 1, f"load {load} dithers: {seen}"


def test_without_prices_or_instances_the_clock_stays() -> None:
    assert wanted_mhz(target(), 1.0, 10, 1400, boost=False, may_fall=True) == 1400
    assert wanted_mhz(U_SHAPED, 1.0, 0, 1400, boost=True, may_fall=True) == 1400


def test_watts_are_linear_from_idle_through_the_levels() -> None:
    price = ClockPrice(1200, 1.0, SHARES, (700.0, 900.0), 400.0)
    assert [price.watts_at(share) for share in (0.0, 0.25, 0.5, 0.75, 1.0, 2.0)] == [400, 550, 700, 800, 900, 900]
