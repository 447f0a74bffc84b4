"""Kept files: whole or not at all, used files stay, old ones go."""

from __future__ import annotations

import os
import time

from perflab import caches


def aged(path, days):
    then = time.time() - days * 86400
    os.utime(path, (then, then))
    return path


def test_what_nobody_reads_goes_and_what_is_read_stays(tmp_path):
    caches._drop_old.cache_clear()
    names = ("read", "unread", "young")
    read, unread, young = (tmp_path / name for name in names)
    for path in (read, unread, young):
        path.write_bytes(path.name.encode())
    aged(read, caches.KEPT_DAYS + 1)
    aged(unread, caches.KEPT_DAYS + 1)
    aged(young, caches.KEPT_DAYS - 1)
    assert caches.read_kept(read) == b"read"  # and so counts as used
    caches.keep(tmp_path / "new", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "read", "young"]
    assert caches.read_kept(tmp_path / "new") == b"text"


def test_a_file_that_is_not_there_is_none(tmp_path):
    assert caches.read_kept(tmp_path / "nothing") is None


def test_the_folder_is_walked_once_a_process(tmp_path):
    caches._drop_old.cache_clear()
    caches.keep(tmp_path / "first", b"1")
    old = aged(tmp_path / "first", caches.KEPT_DAYS + 1)
    caches.keep(tmp_path / "second", b"2")
    assert old.exists()
