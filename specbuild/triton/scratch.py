"""What a server has on this machine, a folder and shared memory, and how both go even if whoever started it was killed.

The server's log, in the folder, is locked by all who write to it: as long as one of its processes lives, nobody takes the lock.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

PREFIX = "specbuild-triton-"
LOG = "log"
MEMORY = Path("/dev/shm")
YOUNG_SECONDS = 60.0
"""A folder's age below which its server may be about to lock it."""
LEASH = 'read _; rm -f -- "$0"*; kill -KILL 0'
"""Shell: wait until the other end of standard input is closed, by its process or with it, then end the own process group."""


class Scratch:
    """The folder of one server, and the shared memory that is called after it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))

    @property
    def regions(self) -> str:
        """How the names of its shared memory begin."""
        return f"{self.folder.name}-"

    @property
    def leash(self) -> list[str]:
        """Command that leads the server's process group, and ends it once its standard input is closed."""
        return ["/bin/sh", "-c", LEASH, str(MEMORY / self.regions)]

    @property
    def log(self) -> str:
        """All that the server has said."""
        file = self.folder / LOG
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""

    def open_log(self) -> BinaryIO:
        """To be handed to every process of the server, which thereby holds the lock."""
        log = (self.folder / LOG).open("wb")
        fcntl.flock(log, fcntl.LOCK_EX)
        return log

    def remove(self) -> None:
        """Leave nothing."""
        _remove(self.folder)


def sweep(young: float = YOUNG_SECONDS) -> None:
    """Remove what servers left that were killed with whoever started them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # What is another user's, or is gone by now, is not ours to remove.
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime >= young:
                with (folder / LOG).open("rb") as log:
                    fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(folder)


def _remove(folder: Path) -> None:
    for region in MEMORY.glob(f"{folder.name}-*"):
        region.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
