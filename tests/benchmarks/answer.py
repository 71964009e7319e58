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
        f"**A first request** has two statements and no round trip more than a view with one INSERT. The request "
        f"takes ×{first.ratio(bare):.2f} the view's time, and ×{far[first.name].ratio(bare_far):.2f} when the database "
        "is 0.5 ms away.",
        f"**A replay** takes ×{replay.ratio(bare):.2f} and ×{far[replay.name].ratio(bare_far):.2f}. A replay, a "
        "mismatch and a conflict have two round trips and write nothing.",
        f"**The worker's CPU** is ×{first.cpu_ratio(bare):.2f} for a first request and ×{replay.cpu_ratio(bare):.2f} "
        "for a replay.",
        f"**Leased mode** takes {leased.round_trips:.0f} round trips and ×{leased.ratio(bare):.1f}, for a call and a "
        "write. The mode is made for calls that take a hundred milliseconds.",
        "**A key** takes about [600 bytes](performance.md#rows-and-bytes) with a small response. Cleanup deletes "
        f"{alone / 1000:.0f},000 keys per second. The size of the table changes nothing.",
    )
    return "\n".join(f"* {line}" for line in lines)
