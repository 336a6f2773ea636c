"""What the dashboard costs: bytes of the page, first paint, and the gateway's CPU with viewers, on a hundred instances.

Usage: python -m tests.browser.measure [--viewers 5] [--seconds 30] [--rounds 3]      prints one JSON object

What a viewer costs: the kernel's count of the gateway's CPU, with and without ten times the viewers in turns on the same
gateway, because what five cost is less than what its prober and controller vary by. What the one look a second and the one
frame cost: CPU time of this process, which builds the same gateway without serving. First paint is Chromium's own
first-contentful-paint over loopback."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

from core.clock import SystemClock
from core.recorder import NullRecorder
from gateway.board import Board
from gateway.board_events import BoardEvents
from gateway.config_file import load_config
from gateway.wiring import build
from tests.browser.conftest import LIVE, WIDE, chromium
from tests.browser.many import Many
from tests.e2e.process import ROOT, Gateway, service, write_config

PAINTS = 7
LOOKS = 200
TIMES = 10
FCP = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def one_service(many: Many) -> dict[str, Any]:
    pools = [{"name": name, "serves": list(serves), "slots": 64, "tp": 4, "urls": urls} for name, serves, urls in
             (("short", "S", many.urls[:40]), ("long", "ML", many.urls[40:]))]  # fmt: skip
    return service(*pools, profile="llama-3.1-70b", context_tokens=8192)


def started(folder: Path, many: Many) -> Gateway:
    return Gateway(
        write_config(folder, {"m": one_service(many)}, health={"interval_s": 2.0}, controller={"interval_s": 1.0})
    )


class Viewers:
    """`count` readers of the stream."""

    def __init__(self, url: str, count: int) -> None:
        self.bytes = 0
        self.frames = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(url,)) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _read(self, url: str) -> None:
        with httpx.stream("GET", f"{url}/admin/dashboard/stream", timeout=10) as answer:
            for part in answer.iter_raw():
                self.bytes += len(part)
                self.frames += part.count(b"data: ")
                if self._stop.is_set():
                    return

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def cpu_share(process: psutil.Process, seconds: float) -> float:
    """Share of a core that the process uses over the next `seconds`."""
    before, began_s = process.cpu_times(), time.monotonic()
    time.sleep(seconds)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - began_s)


def looking(folder: Path, many: Many) -> tuple[float, float]:
    """CPU-seconds of one look and of one frame."""
    config = load_config(write_config(folder, {"m": one_service(many)}, energy={"path": None}), {})
    events = BoardEvents(NullRecorder())
    board = Board(build(config, SystemClock(), events, {}), events)
    spent = [0.0, 0.0]
    for _ in range(LOOKS):
        for place, work in enumerate((board.look, lambda: msgspec.json.encode(board.snapshot()))):
            began_s = time.process_time()
            work()
            spent[place] += time.process_time() - began_s
    return spent[0] / LOOKS, spent[1] / LOOKS


def paints(url: str) -> list[float]:
    from playwright.sync_api import sync_playwright

    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        for _ in range(PAINTS):
            context = browser.new_context(viewport=WIDE)  # nothing is cached
            page = context.new_page()
            page.goto(f"{url}/dashboard")
            page.wait_for_selector(LIVE)
            found.append(round(page.evaluate(FCP), 1))
            context.close()
        browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    page = {path.name: path.stat().st_size for path in (ROOT / "gateway" / "page").iterdir()}
    many = Many(100)
    with tempfile.TemporaryDirectory() as folder:
        gateway = started(Path(folder), many)
        try:
            gateway.wait_ready()
            process = psutil.Process(gateway.process.pid)
            without, watched, frame_bytes = [], [], 0.0
            for _ in range(options.rounds):
                without.append(cpu_share(process, options.seconds))
                viewers = Viewers(gateway.url, TIMES * options.viewers)
                watched.append(cpu_share(process, options.seconds))
                viewers.end()
                frame_bytes = viewers.bytes / max(1, viewers.frames)
            first_paint_ms = paints(gateway.url)
        finally:
            gateway.stop()
        look_s, frame_s = looking(Path(folder), many)
    viewers_share = (statistics.median(watched) - statistics.median(without)) / TIMES
    json.dump({
        "page_bytes": sum(page.values()), "page": page, "frame_bytes": round(frame_bytes),
        "first_paint_ms": first_paint_ms, "first_paint_median_ms": statistics.median(first_paint_ms),
        "cpu_without": [round(one, 4) for one in without], "cpu_with": [round(one, 4) for one in watched],
        "look_ms": round(1000 * look_s, 3), "frame_ms": round(1000 * frame_s, 3),
        "cpu_of_viewers": round(viewers_share, 4), "cpu_of_dashboard": round(viewers_share + look_s + frame_s, 4),
        "viewers": options.viewers, "instances": 100,
    }, sys.stdout, indent=1)  # fmt: skip
    print()
    many.close()


if __name__ == "__main__":
    main()
