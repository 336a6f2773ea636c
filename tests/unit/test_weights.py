"""Weights that are read ahead are in the page cache when an engine opens them."""

import os
from pathlib import Path

import pytest

from pools.weights import read_ahead, read_ahead_aside
from tests.fakes import until

SIZE = 4 << 20


def cached(path: Path) -> bool:
    """Whether all of it can be read without a disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        return all(os.preadv(file, [bytearray(1)], at, os.RWF_NOWAIT) == 1 for at in range(0, SIZE, 4096))
    except BlockingIOError:
        return False
    finally:
        os.close(file)


def forget(path: Path) -> None:
    file = os.open(path, os.O_RDWR)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """As a hub's cache has it: links to blobs."""
    blob = tmp_path / "blobs" / "1"
    blob.parent.mkdir()
    blob.write_bytes(os.urandom(SIZE))
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(blob)
    (folder / "gone.safetensors").symlink_to(tmp_path / "blobs" / "2")
    forget(blob)
    try:
        if cached(blob):
            pytest.skip("this file system keeps everything in memory")
    except OSError:
        pytest.skip("this file system does not tell what is cached")
    return folder


def test_a_snapshot_is_read_ahead(snapshot: Path) -> None:
    assert read_ahead(snapshot) == SIZE
    assert until(lambda: cached(snapshot / "model.safetensors"))


def test_it_is_read_by_a_thread_of_its_own(snapshot: Path) -> None:
    read_ahead_aside(str(snapshot)).join()
    assert until(lambda: cached(snapshot / "model.safetensors"))


def test_no_such_folder_is_no_bytes(tmp_path: Path) -> None:
    assert read_ahead(tmp_path / "none") == 0
