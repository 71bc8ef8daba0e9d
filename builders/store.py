"""Where bundles live: a folder of immutable, content-addressed folders, published whole or not at all.

    <store>/<name>-<digest12>/            a bundle
    <store>/.staging-<name>-<digest12>/   one being built, under its lock; without a lock holder: left by a killed build
    <store>/.trash-<name>-<digest12>/     one being removed, likewise
    <store>/.locks/<name>-<digest12>      lock files (empty, kept: removing a lock file would let two hold it)

A bundle appears and disappears by one rename, so whenever a process is killed, each bundle is either wholly there or not
at all; whatever staging is left behind is removed by the next build or prune.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from specbuild.bundle import MANIFEST, Bundle
from specbuild.errors import BuildError, BundleError, SpecbuildError, UsageError, close_match

STAGING, TRASH, LOCKS = ".staging-", ".trash-", ".locks"


@dataclass(frozen=True)
class StoredBundle:
    """A bundle in the store, readable or not."""

    path: Path
    bytes: int
    published: float
    """Seconds since the epoch."""
    problem: str | None
    """Why it cannot be opened; None: it can."""

    @property
    def name(self) -> str:
        """The recipe's name: the folder's name without its digest."""
        return self.path.name.rpartition("-")[0]


class Store:
    """The bundles under one folder."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @classmethod
    def default(cls) -> Store:
        """The store of ``SPECBUILD_HOME``, else of the user's cache folder."""
        home = os.environ.get("SPECBUILD_HOME")
        return cls(Path(home) if home else Path(platformdirs.user_cache_dir("specbuild", appauthor=False)))

    def path(self, folder: str) -> Path:
        """Where the bundle called ``folder`` is, or would be."""
        return self.home / folder

    def bundles(self) -> list[StoredBundle]:
        """Every bundle, the newest first."""
        folders = [path for path in self._entries() if not path.name.startswith(".")]
        stored = [entry for entry in map(_stored, folders) if entry is not None]
        return sorted(stored, key=lambda stored: (-stored.published, stored.path.name))

    def find(self, reference: str) -> Path:
        """The bundle that ``reference`` means: a folder with a manifest, a folder's name, or a recipe's name (its newest).

        Raises:
            UsageError: there is none.
        """
        if (Path(reference) / MANIFEST).is_file():
            return Path(reference)
        stored = self.bundles()
        for entry in stored:
            if reference in (entry.path.name, entry.name):
                return entry.path
        known = {name for entry in stored for name in (entry.path.name, entry.name)}
        there = close_match(reference, known) if known else " The store is empty; build one with `specbuild engine build -c RECIPE`."
        raise UsageError(f"{reference}: no bundle in {self.home}.{there}")

    @contextmanager
    def staging(self, folder: str, *, wait: float = -1) -> Iterator[Path]:
        """An empty staging folder for the bundle ``folder``, under its lock; removed at the end unless it was published.

        ``wait`` is how long to wait for another builder of the same bundle, in seconds; negative: for ever.

        Raises:
            BuildError: another process builds it and ``wait`` has passed, or the store cannot be written.
        """
        with self._lock(folder, wait):
            self._sweep(except_for=folder)
            staging = self.home / f"{STAGING}{folder}"
            _remove(staging)
            _remove(self.home / f"{TRASH}{folder}")
            staging.mkdir()
            try:
                yield staging
            finally:
                _remove(staging)

    def publish(self, folder: str) -> Path:
        """Make the staging folder of ``folder`` the bundle, replacing one that is there. Call it inside ``staging``."""
        staging, final, trash = self.home / f"{STAGING}{folder}", self.path(folder), self.home / f"{TRASH}{folder}"
        _flush_tree(staging)
        if final.exists():
            final.rename(trash)
        staging.rename(final)
        _flush(self.home)
        _remove(trash)
        return final

    def prune(self, *, older_than: float | None = None, keep: int | None = None, dry_run: bool = False) -> list[StoredBundle]:
        """Remove bundles published more than ``older_than`` seconds ago, and all but the ``keep`` newest of each name.

        With neither, only what interrupted builds left behind is removed. A bundle being built is left alone.

        Returns:
            The bundles removed (or, with ``dry_run``, that would be).
        """
        if not dry_run:
            self._sweep()
        expired = _expired(self.bundles(), older_than=older_than, keep=keep)
        return [entry for entry in expired if dry_run or self._discard(entry.path.name)]

    def _discard(self, folder: str) -> bool:
        """Remove a bundle unless it is locked."""
        try:
            with self._lock(folder, 0):
                trash = self.home / f"{TRASH}{folder}"
                _remove(trash)
                self.path(folder).rename(trash)
                _remove(trash)
                return True
        except (BuildError, FileNotFoundError):  # being built, or removed by another meanwhile
            return False

    def _sweep(self, except_for: str | None = None) -> None:
        """Remove the staging and trash of processes that are gone: those whose lock is free."""
        for path in self._entries():
            for prefix in (STAGING, TRASH):
                folder = path.name.removeprefix(prefix)
                if path.name.startswith(prefix) and folder != except_for:
                    try:
                        with self._lock(folder, 0):
                            _remove(path)
                    except BuildError:
                        continue

    def _entries(self) -> Iterable[Path]:
        try:
            return sorted(path for path in self.home.iterdir() if path.is_dir() and path.name != LOCKS)
        except FileNotFoundError:
            return []

    @contextmanager
    def _lock(self, folder: str, wait: float) -> Iterator[None]:
        try:
            (self.home / LOCKS).mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.home / LOCKS / folder)
            lock.acquire(timeout=wait)
        except Timeout:
            raise BuildError(f"{self.path(folder)}: another process is building it; wait for it, or end it") from None
        except OSError as error:
            problem = f"{self.home}: the store cannot be written ({error.strerror})"
            raise BuildError(f"{problem}; set SPECBUILD_HOME to a folder that can") from error
        try:
            yield
        finally:
            lock.release()


def _stored(path: Path) -> StoredBundle | None:
    """The bundle at ``path``; None: another process has removed it meanwhile."""
    try:
        Bundle.open(path)
        problem = None
    except (SpecbuildError, OSError) as error:
        problem = str(error)
    try:
        return StoredBundle(path, folder_bytes(path), path.stat().st_mtime, problem)
    except FileNotFoundError:
        return None


def _expired(stored: list[StoredBundle], *, older_than: float | None, keep: int | None) -> list[StoredBundle]:
    """Those of ``stored`` (newest first) that are too old, or beyond the ``keep`` newest of their name."""
    now, seen, expired = time.time(), dict[str, int](), list[StoredBundle]()
    for entry in stored:
        seen[entry.name] = seen.get(entry.name, 0) + 1
        if (older_than is not None and now - entry.published > older_than) or (keep is not None and seen[entry.name] > keep):
            expired.append(entry)
    return expired


def folder_bytes(path: Path) -> int:
    """Bytes of all files under a folder."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _remove(path: Path) -> None:
    """Remove a folder if it is there.

    Raises:
        BundleError: it cannot be removed.
    """
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise BundleError(f"{path}: cannot be removed ({error.strerror}); remove it by hand") from error


def _flush_tree(folder: Path) -> None:
    """Have the disk hold every file and folder under ``folder`` before its name becomes visible."""
    for path in (*folder.rglob("*"), folder):
        _flush(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
