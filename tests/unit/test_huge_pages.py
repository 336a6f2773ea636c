"""What moves into huge pages: whole ones of private memory that belongs to no file, where the system has them."""

from pathlib import Path

from gateway.huge_pages import into_huge_pages, spans

SIZE = 0x200000
MAPS = """\
55d2f9a00000-55d2fa600000 rw-p 00000000 00:00 0                          [heap]
7f0000100000-7f0000900000 rw-p 00000000 00:00 0 
7f0001000000-7f0001100000 rw-p 00000000 00:00 0 
7f0002000000-7f0002800000 r-xp 00000000 fe:01 1234                       /usr/lib/libpython3.11.so.1.0
7f0003000000-7f0003800000 rw-p 00000000 fe:01 1234                       /usr/lib/a file with blanks.so
7f0004000000-7f0004800000 rw-s 00000000 00:00 0 
7ffd2a000000-7ffd2a800000 rw-p 00000000 00:00 0                          [stack]
""".splitlines()  # fmt: skip


def test_whole_huge_pages_of_private_memory() -> None:
    assert list(spans(MAPS, SIZE)) == [(0x55D2F9A00000, 0xC00000), (0x7F0000200000, 0x600000)]


def system(folder: Path, enabled: str) -> Path:
    (folder / "hpage_pmd_size").write_text(f"{SIZE}\n")
    (folder / "enabled").write_text(enabled)
    return folder


def test_nothing_where_the_system_has_none(tmp_path: Path) -> None:
    assert into_huge_pages(tmp_path / "no such folder") == 0
    assert into_huge_pages(system(tmp_path, "always madvise [never]")) == 0


def test_memory_keeps_what_it_holds(tmp_path: Path) -> None:
    """Of this process; how much moves is the kernel's to say."""
    held = [bytes([n % 256]) * 300 for n in range(40_000)]
    assert into_huge_pages(system(tmp_path, "always [madvise] never")) >= 0
    assert all(one == bytes([n % 256]) * 300 for n, one in enumerate(held))
