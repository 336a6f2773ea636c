"""The one hand that writes to GPUs: whole groups, only on change, marked before they are touched, off when refused."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from agent.hardware import Hardware, NotObeyed
from agent.lease import LeaseLost
from agent.link import NoWatchdog
from core.errors import BadRequest
from pools.gpu import DriverReloaded, GpuError, GpuLost, NoGpu, NotPermitted, NotSupported
from simulator.fake_gpu import FakeGpu
from tests.gpus import Gpus, of

UUIDS = [f"GPU-{n}" for n in range(8)]
FOUR = UUIDS[:4]


class Marks:
    """What a watchdog would undo."""

    def __init__(self) -> None:
        self.uuids: set[str] = set()
        self.up = True

    def will_change(self, uuids: Iterable[str]) -> None:
        if not self.up:
            raise NoWatchdog("down")
        self.uuids |= set(uuids)

    def undone(self, uuids: Iterable[str]) -> None:
        self.uuids -= set(uuids)


class Rig:
    def __init__(self, path: Path, only: list[str] | None = None, limit_w: float | None = None) -> None:
        self.gpus = Gpus(path, [of(uuid) for uuid in UUIDS])
        self.marks = Marks()
        self.gpu = FakeGpu(self.gpus.state)
        self.gpu.__enter__()
        self.hardware = Hardware(self.gpu, self.marks, only or (), limit_w)

    def set(self, uuids: list[str], mhz: int) -> int:
        return self.hardware.lock(uuids, mhz, lambda: True).mhz

    def locks(self) -> list[int]:
        return [gpu.locked_max_mhz for gpu in self.gpus.state.gpus()]

    def writes(self) -> int:
        return sum(gpu.writes for gpu in self.gpus.state.gpus())


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    made = Rig(tmp_path / "gpus")
    made.hardware.open()
    return made


def test_an_opened_node_has_undone_what_was_left(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "gpus")
    rig.gpus.state.edit(UUIDS, lambda gpu: gpu.locked(345, 600))
    rig.hardware.open()
    assert rig.locks() == [0] * 8
    assert rig.hardware.off == {}


def test_a_group_is_set_to_the_next_lower_clock_of_the_table(rig: Rig) -> None:
    assert rig.set(UUIDS, 1001) == 990
    assert rig.locks() == [990] * 8
    assert all(gpu.locked_min_mhz == 345 for gpu in rig.gpus.state.gpus())
    assert rig.marks.uuids == set(UUIDS)
    with pytest.raises(BadRequest):
        rig.set(FOUR, 344)


def test_writes_only_on_change(rig: Rig) -> None:
    rig.set(FOUR, 990)
    before = rig.writes()
    rig.set(FOUR, 1000)
    assert rig.writes() == before
    rig.set(UUIDS[:5], 990)
    assert rig.writes() == before + 1
    rig.hardware.unlock(UUIDS)
    assert rig.writes() == before + 6
    rig.hardware.unlock(UUIDS)
    assert rig.writes() == before + 6
    assert rig.marks.uuids == set()


@pytest.mark.parametrize(
    ("fault", "error"),
    [({"write_error": 4}, NotPermitted), ({"write_error": 3}, NotSupported), ({"read_error": 15}, GpuLost)],
)
def test_a_member_that_refuses_undoes_its_group_and_turns_off(
    rig: Rig, fault: dict[str, int], error: type[GpuError]
) -> None:
    rig.set(FOUR, 1200)
    rig.gpus.put(FOUR[2], **fault)
    with pytest.raises(error):
        rig.set(FOUR, 990)
    assert [lock for place, lock in enumerate(rig.locks()) if place != 2] == [0] * 7
    assert type(rig.hardware.off[FOUR[2]]) is error
    assert FOUR[2] in rig.marks.uuids  # its clock is still to be undone
    with pytest.raises(error):
        rig.set(FOUR, 990)
    assert rig.set(UUIDS[4:], 990) == 990  # the others are not concerned
    rig.gpus.put(FOUR[2], read_error=0, write_error=0)
    rig.hardware.recheck()
    assert rig.hardware.off == {}
    assert FOUR[2] not in rig.marks.uuids
    assert rig.locks()[:4] == [0] * 4


def test_without_permission_the_knobs_are_off_from_the_start_and_reads_work(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "gpus")
    rig.gpus.put(*UUIDS, write_error=4)
    rig.hardware.open()
    assert {error.code for error in rig.hardware.off.values()} == {"gpu_not_permitted"}
    assert len(rig.hardware.read(UUIDS)) == 8


def test_a_reloaded_driver_turns_all_knobs_off_until_it_is_opened_again(rig: Rig) -> None:
    rig.set(FOUR, 990)
    rig.gpus.state.reload_driver()
    with pytest.raises(DriverReloaded):
        rig.set(FOUR, 1200)
    assert set(rig.hardware.off) == set(UUIDS)
    rig.hardware.recheck()
    assert rig.hardware.off == {}
    assert rig.hardware.applied == {}  # what was set is gone, so it is written again
    assert rig.set(FOUR, 990) == 990
    assert rig.locks()[:4] == [990] * 4


def test_a_lease_that_ended_while_waiting_for_the_driver_writes_nothing(rig: Rig) -> None:
    before = rig.writes()
    with pytest.raises(LeaseLost):
        rig.hardware.lock(FOUR, 990, lambda: False)
    assert rig.writes() == before


def test_nothing_is_set_that_nobody_would_undo(rig: Rig) -> None:
    before = rig.writes()
    rig.marks.up = False
    with pytest.raises(NoWatchdog):
        rig.set(FOUR, 990)
    assert rig.writes() == before


def test_what_a_look_says_of_each_member(rig: Rig) -> None:
    at, near, hot, idle, free = UUIDS[:5]
    rig.gpus.put(at, near, hot, free, load=1.0)
    rig.set([at, near, hot, idle], 990)
    rig.gpus.state.edit([near], lambda gpu: gpu.locked(345, 1005))
    rig.gpus.put(hot, throttle_mhz=700, throttle_reasons=0x40)
    states = [(member.state, member.clock_mhz) for member in rig.hardware.look(UUIDS[:5], 990)]
    assert states == [("at", 990), ("at", 1005), ("throttled", 700), ("idle", 345), ("above", 1980)]
    rig.gpus.state.edit([near], lambda gpu: gpu.locked(345, 1020))
    assert rig.hardware.look([near], 990)[0].state == "above"  # two bins


def test_a_card_that_does_not_obey_is_found_once_it_works(rig: Rig) -> None:
    rig.gpus.put(FOUR[1], deaf=1)
    rig.set(FOUR, 990)
    assert rig.hardware.verify() == []  # idle
    rig.gpus.put(*FOUR, load=1.0)
    assert rig.hardware.verify() == [FOUR[1]]
    rig.hardware.refuse(FOUR, FOUR[1], NotObeyed("no"))
    assert rig.hardware.applied == {}
    rig.hardware.recheck()
    assert rig.hardware.off[FOUR[1]].code == "gpu_clock_not_obeyed"  # an undo that works proves nothing


def test_a_reading_of_a_lost_gpu_is_refused_and_of_the_others_not(rig: Rig) -> None:
    rig.gpus.put(FOUR[0], read_error=15)
    with pytest.raises(GpuLost):
        rig.hardware.read(FOUR)
    reading = rig.hardware.read(FOUR[1:2])[0]
    assert (reading.clock_mhz, reading.reasons, reading.watts.instant_w) == (345, ("gpu_idle",), 70.0)


def test_the_power_limit_is_a_guard(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "gpus", FOUR, 500.0)
    rig.hardware.open()
    assert [gpu.limit_w for gpu in rig.gpus.state.gpus()] == [500.0] * 4 + [700.0] * 4
    with pytest.raises(ValueError, match="200 to 700 W"):
        Rig(tmp_path / "gpus", FOUR, 900.0).hardware.open()


def test_a_gpu_that_is_not_here_cannot_be_owned(tmp_path: Path) -> None:
    with pytest.raises(NoGpu, match="GPU-elsewhere"):
        Rig(tmp_path / "gpus", ["GPU-elsewhere"]).hardware.open()
