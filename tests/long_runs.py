"""The long runs, one after the other, and one report of them: what a week's night is for.

    python -m tests.long_runs [--only PART …] [--report FILE]

Each part is a tox environment that also runs briefly among the tests. The report names date, version, commit, seeds and
what each part has printed last. It is written after each part, so that a run that is cut off leaves what it has found.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import secrets
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "tests" / "long_runs.md"
SHOWN = 4
"""Lines of a part's output that the report shows: its last ones."""
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One long run.

    Args:
        tox: the arguments of `tox run`.
        settings: environment variables that make the run long.
        seed: the environment variable, or the option of pytest, that names the plan.
        seeds: how many plans are run.
    """

    tox: tuple[str, ...]
    settings: tuple[tuple[str, str], ...] = ()
    seed: str | None = None
    seeds: int = 1

    def command(self, seed: int) -> tuple[list[str], dict[str, str]]:
        """The arguments of tox, and the environment."""
        arguments, environment = list(self.tox), dict(self.settings)
        if self.seed is not None and self.seed.startswith("-"):
            arguments += ["--", f"{self.seed}={seed}"]
        elif self.seed is not None:
            environment[self.seed] = str(seed)
        return arguments, environment


PARTS = {
    "chaos": Part(tox=("-e", "chaos"), settings=(("CHAOS", "20"),), seed="CHAOS_SEED", seeds=2),
    "bursts": Part(tox=("-e", "bursts"), settings=(("BURSTS", "125"),), seed="BURSTS_SEED"),
    "model": Part(
        tox=("-e", "model"),
        settings=(("SPIN_CLIENTS", "3"), ("HYPOTHESIS_EXAMPLES", "600")),
        seed="--hypothesis-seed",
    ),
    "fuzz": Part(tox=("-e", "fuzz"), settings=(("HYPOTHESIS_EXAMPLES", "5000"),), seed="--hypothesis-seed"),
    "frameworks": Part(tox=("-e", "frameworks", "--", "--twice")),
    "clusters": Part(tox=("-e", "clusters")),
    "mutation": Part(tox=("-e", "mutation")),
}


def main(*arguments: str) -> int:
    """Run the parts. The exit status is 1 if one of them has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; repeat for several; default: all")
    parser.add_argument("--report", type=Path, default=REPORT, help="the file to write; default: tests/long_runs.md")
    chosen = parser.parse_args(arguments)
    sections: list[str] = []
    failed = 0
    for name in chosen.only or PARTS:
        for seed in _seeds(PARTS[name]):
            status, section = run(name, seed)
            failed += status != 0
            sections.append(section)
            chosen.report.write_text(report(sections))
            print(section, flush=True)
    return 1 if failed else 0


def run(name: str, seed: int) -> tuple[int, str]:
    """Run one part under one seed: its exit status, and its section of the report."""
    arguments, environment = PARTS[name].command(seed)
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tox", "run", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    minutes = (time.monotonic() - started) / 60
    words = " ".join([*(f"{key}={value}" for key, value in environment.items()), "tox run", *arguments])
    outcome = "passed" if done.returncode == 0 else f"FAILED with status {done.returncode}"
    lines = "\n".join(f"    {line}" for line in last_lines(done.stdout))
    return done.returncode, f"## {name}: {outcome}, {minutes:.0f} minutes\n\n`{words}`\n\n{lines}\n"


def last_lines(output: str) -> list[str]:
    """What a part has to say at its end, without tox's own words."""
    lines = [ESCAPE.sub("", line).rstrip() for line in output.splitlines()]
    said = [
        line for line in lines if line.strip() and not re.match(r"\s*(\S+: (OK|FAIL)|congratulations|evaluation)", line)
    ]
    return said[-SHOWN:]


def report(sections: list[str]) -> str:
    """The whole report."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    head = (
        f"# Long runs of version {version}\n\n"
        f"{datetime.date.today().isoformat()}, commit {commit or 'unknown'}, Python {sys.version.split()[0]}, "
        f"{os.cpu_count()} cores. Made by `python -m tests.long_runs`.\n"
    )
    return "\n".join([head, *sections])


def _seeds(part: Part) -> list[int]:
    return [secrets.randbelow(2**31) for _ in range(part.seeds)] if part.seed else [0]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
