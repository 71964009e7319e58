"""The first lines of docs/performance.md: what a project wants to know before all tables."""

from __future__ import annotations

from tests.extra.benchmarks import cleanup, requests


def answer(asked: requests.Measured, cleaned: list[cleanup.Figures]) -> str:
    """From the figures of a whole run."""
    near, far = ({one.name: one for one in figures} for figures in (asked.near, asked.far))
    first, replay, leased = near["first request"], near["replay"], near["leased: a call and a write"]
    bare, bare_far = near["bare view"], far["bare view"]
    floor, floor_replay = near[requests.FLOOR], near[requests.FLOOR_REPLAY]
    (alone,) = (one.rate for one in cleaned if one.name == cleanup.ALONE)
    lines = (
        f"**A first request** takes {first.ratio(bare):.2f} times as long as a view with one INSERT. If a round trip "
        f"to the database takes 0.5 ms, the factor is {far[first.name].ratio(bare_far):.2f}. The package adds two "
        "statements but no round trips.",
        f"**Beside the same messages, hard-coded**, a first request takes {first.ratio(floor):.2f} times as long, and "
        f"a replay {replay.ratio(floor_replay):.2f} times.",
        f"**A replay** takes {replay.ratio(bare):.2f} times as long as that view. With a round trip of 0.5 ms, the "
        f"factor is {far[replay.name].ratio(bare_far):.2f}. A replay needs two round trips and writes nothing.",
        f"**The worker's CPU time** for a first request is {first.cpu_ratio(bare):.2f} times that view's, and for a "
        f"replay {replay.cpu_ratio(bare):.2f} times.",
        f"**Leased mode** needs {leased.round_trips:.0f} round trips for a call and a write, and takes "
        f"{leased.ratio(bare):.1f} times as long as that view. Use it for calls that take a hundred "
        "milliseconds or more.",
        "**A key's row** takes about [600 bytes](performance.md#rows-and-bytes) if the response is small. The cleanup "
        f"deletes {alone / 1000:.0f},000 keys per second. A larger table doesn't make a request slower.",
    )
    return "\n".join(f"* {line}" for line in lines)
