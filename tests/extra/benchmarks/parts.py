"""What each part of a first request costs, measured where it runs: the part is left out, and the rest is timed.

    python -m tests.extra.benchmarks.parts [--rounds 100]

The views and the server are those of `paired`. In each round, each part in turn is replaced by a function that returns
a fixed value, for a few requests, in random order. A tight loop would show less: after each wait for the database, the
processor's caches have lost the code. What is printed are medians, and the difference to the round with all parts.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock
from uuid import uuid4

from .paired import medians, postgresql, stage

EACH, WARM = 12, 2
"""Requests of a part in a round, and those before them that are not counted."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    bare, protected, taken = stage(postgresql(), "paired_b")
    parts = replacements()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ("the bare view", *parts)}
    for _ in range(rounds):
        for name in random.sample(list(parts), len(parts)):
            with ExitStack() as stack:
                for owner, attribute, fixed in parts[name]:
                    stack.enter_context(mock.patch.object(owner, attribute, fixed))
                times = [(taken(protected, str(uuid4())), taken(bare, None)) for _ in range(WARM + EACH)][WARM:]
            found[name] += [first for first, _ in times]
            found["the bare view"] += [other for _, other in times]
    middle = {name: medians(times) for name, times in found.items()}
    wall, cpu = middle["nothing"]
    print(f"{'left out':20}{'time':>10}{'CPU':>10}{'saved':>10}{'CPU':>10}")
    for name, (of_wall, of_cpu) in middle.items():
        saved = f"{wall - of_wall:7.0f} µs{cpu - of_cpu:7.0f} µs" if name in parts else ""
        print(f"{name:20}{of_wall:7.0f} µs{of_cpu:7.0f} µs{saved}")


def replacements() -> dict[str, list[tuple[Any, str, Callable[..., Any]]]]:
    """For each part: where its functions stand, and what takes their place."""
    from django_idempotency.engine.execution import atomic, runners
    from django_idempotency.engine.protocol.outcomes import Snapshot
    from django_idempotency.engine.request import adapters, calls, pipeline
    from django_idempotency.engine.stores import messages, postgresql, store

    snapshot = Snapshot(status_code=201, headers=(("Content-Type", "application/json"),), body=b"y" * 190)

    def read_only(request: Any, *others: Any) -> bytes:
        assert request.body
        return bytes(32)

    databases = postgresql.PostgreSQLStore
    return {
        "nothing": [],
        "fingerprint": [(pipeline, "fingerprint_of", lambda *others: bytes(32))],
        "all but the body": [(pipeline, "fingerprint_of", read_only)],
        "scope": [(pipeline, "scope_of", lambda *others: "anonymous")],
        "key": [(pipeline, "read_key", lambda request, options: request.META["HTTP_IDEMPOTENCY_KEY"])],
        "operation": [(calls.Call, "operation_name", lambda call: "POST orders/")],
        "capture": [(calls, "capture", lambda *others: snapshot)],
        "headers as JSON": [(store, "seal_response", lambda *others: ("[]", snapshot.body))],
        "events": [(runners, "report_outcome", lambda *others: None), (atomic, "report", lambda *o, **k: None)],
        "replayed header": [(adapters.Adapter, "deliver", lambda adapter, call, response, **options: response)],
        "may_send": [(messages, "may_send", lambda *others: True)],
        "ended, broken": [(databases, name, lambda *others: False) for name in ("has_ended", "is_broken")],
        "bridge": [(atomic, "without_bridge_above", lambda work: work())],
    }


if __name__ == "__main__":
    main()
