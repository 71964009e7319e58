"""The first five lines of docs/performance.md: what a project wants to know before all tables."""

from __future__ import annotations

from tests.benchmarks import cleanup, requests


def answer(asked: requests.Measured, cleaned: list[cleanup.Figures]) -> str:
    """From the figures of a whole run."""
    near, far = ({one.name: one for one in figures} for figures in (asked.near, asked.far))
    first, replay, leased = near["first request"], near["replay"], near["leased: a call and a write"]
    bare, bare_far = near["bare view"], far["bare view"]
    (alone,) = (one.rate for one in cleaned if one.name == cleanup.ALONE)
    lines = (
        f"**A first request** takes ×{first.ratio(bare):.2f} the time of a view with one INSERT. If the database is "
        f"0.5 ms away, a first request takes ×{far[first.name].ratio(bare_far):.2f}. The package adds two statements "
        "and no round trip.",
        f"**A replay** takes ×{replay.ratio(bare):.2f} the time of that view, and ×"
        f"{far[replay.name].ratio(bare_far):.2f} if the database is 0.5 ms away. A replay needs two round trips and "
        "writes nothing.",
        f"**The worker's CPU time** is ×{first.cpu_ratio(bare):.2f} for a first request, and "
        f"×{replay.cpu_ratio(bare):.2f} for a replay.",
        f"**Leased mode** needs {leased.round_trips:.0f} round trips for a call and a write, and takes "
        f"×{leased.ratio(bare):.1f} the time of that view. Leased mode is for calls that take a hundred milliseconds.",
        "**The row of a key** with a small response has about [600 bytes](performance.md#rows-and-bytes). The cleanup "
        f"deletes {alone / 1000:.0f},000 keys per second. If the table is larger, a request does not become slower.",
    )
    return "\n".join(f"* {line}" for line in lines)
