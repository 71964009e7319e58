"""The exhaustive model of leased mode: every interleaving of clients, crashes, lapsing leases and cleanup.

Two clients here; `SPIN_CLIENTS=3 tox run -e model` for three, which takes some minutes and gigabytes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

MODEL = Path(__file__).with_name("lease.pml")
CLIENTS = int(os.environ.get("SPIN_CLIENTS", "2"))
PATIENCE = 200 if CLIENTS == 2 else 3600  # the longest claim takes 11 seconds of a processor that it has to itself
OPTIMIZED = "-O0" if CLIENTS == 2 else "-O2"
"""The compiler is most of the time for two clients, and nothing of it for three."""
pytestmark = [
    pytest.mark.skipif(
        not (shutil.which("spin") and shutil.which("gcc")),
        reason="no Spin or no gcc here (Debian: apt install spin gcc)",
    ),
    pytest.mark.timeout(PATIENCE + 20),
]


Check = Callable[..., tuple[int, int]]


@pytest.fixture(scope="session")
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Check a claim about the model with these definitions: errors found and states looked at."""

    @cache
    def compiled(*defines: str) -> Path:
        """The folder of the checker. One checker knows all the claims."""
        folder = tmp_path_factory.mktemp("model")
        quiet: dict[str, Any] = {"cwd": folder, "check": True, "capture_output": True, "timeout": 60}
        subprocess.run(["spin", "-a", f"-DCLIENTS={CLIENTS}", *defines, str(MODEL)], **quiet)
        subprocess.run(["gcc", "-w", OPTIMIZED, "-DNFAIR=4", "-o", "pan", "pan.c"], **quiet)
        return folder

    def check(claim: str, *defines: str, fair: bool = False) -> tuple[int, int]:
        command = ["./pan", *(["-a", "-f"] if fair else []), "-N", claim, "-m1000000"]
        folder = compiled(*defines)
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
        errors, states = re.search(r"errors: (\d+)", result.stdout), re.search(r"(\d+) states, stored", result.stdout)
        assert errors, result.stdout + result.stderr
        assert states, result.stdout
        assert "truncated" not in result.stdout
        print(f"{CLIENTS} clients, {claim} {' '.join(defines)}: {states[1]} states, {errors[1]} errors")
        return int(errors[1]), int(states[1])

    return check


# One crash and one lease that lapses are enough for each failure of the recovery, and keep the model small.
SMALL = ["-DRECOVERY", "-DCRASHES=1", "-DLAPSES=1", "-DLEFT=1"]


LONG = pytest.mark.skipif(not os.environ.get("SPIN_ALL"), reason="NOT RUN: needs SPIN_ALL=1, as in tox run -e model")
OTHERS = [pytest.param([policy], marks=LONG, id=policy) for policy in ("-DRETRY", "-DHOLD")]


@pytest.mark.parametrize("policy", [pytest.param([], id="retry-keyed"), *OTHERS])
@pytest.mark.parametrize(
    ("claim", "model"),
    [
        ("once", []),
        ("nobody_is_stuck", []),
        ("once", SMALL),
        pytest.param("nobody_is_stuck", SMALL, marks=LONG),
        ("no_charge_is_left", SMALL),
        pytest.param("once", ["-DCATCHES"], marks=LONG),
        pytest.param("no_charge_is_left", [*SMALL, "-DCATCHES"], marks=LONG),
    ],
)
def test_the_claim_holds(check: Check, claim: str, model: list[str], policy: list[str]) -> None:
    """Whatever is killed when: one charge, one order, and one answer for everybody. And if every process gets its turn,
    every client that goes on retrying gets its answer, and the recovery completes the key of a client that is gone."""
    errors, states = check(claim, *model, *policy, fair=claim != "once")
    assert errors == 0
    assert states > 10_000


@pytest.mark.parametrize(
    ("claim", "sabotage"),
    [
        ("once", ["-DNO_FENCE"]),
        ("once", ["-DFORGETFUL"]),
        ("once", ["-DCATCHES", "-DANY_ANSWER"]),
        ("once", ["-DRETRY", "-DNO_FENCE"]),
        ("once", ["-DHOLD", "-DNO_FENCE"]),
        ("once", ["-DHOLD", "-DNO_DOUBT"]),
        ("once", ["-DHOLD", "-DCARELESS"]),
        ("once", [*SMALL, "-DSAME_ATTEMPT"]),
        ("once", [*SMALL, "-DNO_FENCE"]),
        ("no_charge_is_left", [*SMALL, "-DHOLD", "-DHASTY"]),
    ],
)
def test_the_checker_finds_what_is_broken_on_purpose(check: Check, claim: str, sabotage: list[str]) -> None:
    """Without the fence, without looking at doubts, or released while the worker is only slow. A repeat without its
    derived key, and an answer that completes a key in doubt. A recovery that does not take the key over, and a
    reconcile that does not ask whether the worker is dead."""
    errors, _ = check(claim, *sabotage, fair=claim != "once")
    assert errors == 1
