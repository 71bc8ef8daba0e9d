"""A server seen from outside: its counters, and what its processes take."""

from __future__ import annotations

import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbuild.triton.metrics import PREFIX
from specbuild.triton.server import Ports

SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{[^}]*\})? (\S+)")
SUMS = {
    "prompt_tokens": "prompt_tokens",
    "reused_tokens": "reused_tokens",
    "emitted_tokens": "emitted_tokens",
    "spec_decode_num_draft_tokens": "total_draft_tokens",
    "spec_decode_num_accepted_tokens": "total_accepted_draft_tokens",
    "spec_decode_num_accepted_tokens_per_pos": "total_accepted_draft_tokens",
    "sequence_rounds": "num_spec_steps",
}
"""Metric → the figure of a request that it is the sum of."""
ENDS = ("requests_completed", "requests_cancelled", "requests_timed_out", "requests_failed")
HELD = ("running_requests", "queue_depth", "kv_used_tokens")
SHOWN = ("requests", *ENDS, "requests_rejected", "requests_busy", *HELD, *SUMS)


def scrape(ports: Ports) -> dict[str, float]:
    """Our metrics, each summed over its labels.

    Raises:
        ValueError: a line is no sample in Prometheus' text format.
    """
    with urllib.request.urlopen(f"http://{ports.host}:{ports.metrics}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    sums: Counter[str] = Counter()
    for line in lines:
        if line and not line.startswith("#"):
            sample = SAMPLE.fullmatch(line)
            if sample is None:
                raise ValueError(f"the metrics have the line {line!r}, which is no sample")
            sums[sample[1]] += float(sample[2])  # type: ignore[assignment]
    return {name.removeprefix(PREFIX): value for name, value in sums.items() if name.startswith(PREFIX)}


def settled(ports: Ports, timeout: float = 60.0) -> dict[str, float]:
    """The same once nothing runs or waits and what is shown of it, which is brought up to date twice a second, stands still."""
    deadline, before = time.monotonic() + timeout, scrape(ports)
    while True:
        time.sleep(1.5)
        now = scrape(ports)
        if time.monotonic() > deadline or (_shown(now) == _shown(before) and not any(now[name] for name in HELD)):
            return now
        before = now


def counters(metrics: Mapping[str, float]) -> dict[str, int]:
    """What of them is shown."""
    return {name: int(metrics[name]) for name in SHOWN}


def _shown(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """The same, also before a metric with labels has its first value."""
    return {name: metrics.get(name) for name in SHOWN}


class Balance:
    """The figures of answered requests, added up, beside the counters of a server that answered no others."""

    def __init__(self) -> None:
        self.answers = 0
        self.sums = dict.fromkeys(SUMS.values(), 0)

    def add(self, figures: Mapping[str, Any]) -> None:
        """Those of one answer."""
        self.answers += 1
        for figure in self.sums:
            self.sums[figure] += int(figures[figure])

    def differences(self, metrics: Mapping[str, float], *, others: bool = False) -> list[str]:
        """What does not agree. ``others``: requests were broken off too, so the counters may be higher."""
        wanted = {metric: self.sums[figure] for metric, figure in SUMS.items()} | {"requests_completed": self.answers}
        found = [
            f"the counter {name} is {metrics[name]:g}, but the answers' figures add up to {value}"
            for name, value in wanted.items()
            if (metrics[name] < value if others else metrics[name] != value)
        ]
        ended = sum(metrics[name] for name in ENDS)
        if metrics["requests"] != ended:
            found.append(f"{metrics['requests']:g} requests were taken, but {ended:g} ended")
        return found + [f"{name} is {metrics[name]:g} when nothing is asked" for name in HELD if metrics[name]]


@dataclass(frozen=True)
class Footprint:
    """What processes take together."""

    mebibytes: float
    """Resident."""
    names: Counter[str]
    """Of their threads."""

    @property
    def threads(self) -> int:
        """How many."""
        return self.names.total()

    @classmethod
    def of(cls, pids: Iterable[int]) -> Footprint:
        """As the kernel says.

        Raises:
            OSError: one of them is no more.
        """
        pids = tuple(pids)
        status = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
        kib = sum(int(re.findall(r"^VmRSS:\s+(\d+)", text, re.M)[0]) for text in status)
        return cls(kib / 1024, Counter(file.read_text().strip() for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/comm")))

    def differences(self, other: Footprint) -> str:
        """Threads of the other that this one has not, and the reverse."""
        more, less = other.names - self.names, self.names - other.names
        return ", ".join([f"+{count} {name}" for name, count in more.items()] + [f"-{count} {name}" for name, count in less.items()])
