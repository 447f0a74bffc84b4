"""What is kept between processes, in the user's cache folder: anything here can be made again, so nothing here is precious."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import time
from pathlib import Path

KEPT_DAYS = 60  # without a reader: a new compiler or emulator leaves all of the old ones' files behind


def cache_folder() -> Path:
    """Where compiled code and emulated results are kept: PERFLAB_CACHE, else the user's cache folder."""
    import platformdirs

    return Path(os.environ.get("PERFLAB_CACHE") or platformdirs.user_cache_dir("perflab", appauthor=False))


def read_kept(path: Path) -> bytes | None:
    """A kept file's bytes, None where there is none; the file counts as used today."""
    try:
        data = path.read_bytes()
        if time.time() - path.stat().st_mtime > 86400:
            os.utime(path)
    except OSError:
        return None
    return data


def keep(path: Path, data: bytes | str) -> None:
    """Write so that a reader, or a second writer, never sees half a file; once a process, drop what nobody read for long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(handle, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
    os.replace(temporary, path)
    _drop_old(path.parent)


@functools.cache
def _drop_old(folder: Path) -> None:
    """Remove the files of a folder that are older than KEPT_DAYS; another process may do the same at the same time."""
    oldest = time.time() - KEPT_DAYS * 86400
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            if file.is_file() and file.stat().st_mtime < oldest:
                file.unlink()
