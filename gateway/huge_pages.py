"""What is loaded moves into huge pages: a gateway touches some of everything between two arrivals of a stream, and with
pages of 4 KiB the processor looks nearly each of them up anew, in a virtual machine twice over. docs/performance.md has
what it is worth.

Linux 6.1 and later, where the system allows transparent huge pages at all; elsewhere nothing happens. Memory that is
taken later stays as it comes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from pathlib import Path

THP = Path("/sys/kernel/mm/transparent_hugepage")
MAPS = Path("/proc/self/maps")
MADV_COLLAPSE = 25  # include/uapi/asm-generic/mman-common.h


def spans(maps: Iterable[str], size: int) -> Iterator[tuple[int, int]]:
    """(address, bytes) of whole huge pages of `size` bytes in private memory of no file, by lines of /proc/PID/maps."""
    for line in maps:
        where, rights, _, _, inode, *name = line.split(maxsplit=5)
        if rights != "rw-p" or inode != "0" or (name and name[0].strip() not in ("[heap]", "[anon]")):
            continue
        begin, end = (int(part, 16) for part in where.split("-"))
        begin, end = -(-begin // size) * size, end // size * size
        if end > begin:
            yield begin, end - begin


def into_huge_pages(thp: Path = THP, maps: Path = MAPS) -> int:
    """Bytes that were asked for and given; 0 where there are none to be had."""
    try:
        size = int((thp / "hpage_pmd_size").read_text())
        if "[never]" in (thp / "enabled").read_text():
            return 0
        lines = maps.read_text().splitlines()
    except (OSError, ValueError):
        return 0
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return sum(count for address, count in spans(lines, size) if libc.madvise(address, count, MADV_COLLAPSE) == 0)
