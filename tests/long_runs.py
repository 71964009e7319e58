"""The long runs, one after the other, and the page of what they came to: what a week's night is for.

    python -m tests.long_runs [--only PART …] [--page FILE]

Each part is a tox environment that also runs briefly among the tests. The page has a section for each part that has
run, with version, commit, date, seeds, commands and figures. A part that runs again replaces these in its section. The
page is written after each run, so that a night that is cut off leaves what it has found. The output of a failed run is
printed.
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
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


class Part(NamedTuple):
    """One long run: what makes it long, and what the page shows of it.

    Args:
        settings: of the environment. In the place of `SEED` is a number that makes the same plan again.
        arguments: of `tox run`. The default is the environment of the part's name.
        seeds: how many plans are run.
        figures: finds the lines of the output that the page shows.
    """

    settings: str = ""
    arguments: str = ""
    seeds: int = 1
    figures: str = r"\d+ passed"


PARTS = {
    "chaos": Part("CHAOS=20 CHAOS_SEED=SEED", seeds=2),
    "chaos-mysql": Part("CHAOS=20 CHAOS_SEED=SEED", seeds=2),
    "bursts": Part("BURSTS=125 BURSTS_SEED=SEED"),
    "model": Part(
        "SPIN_CLIENTS=3 HYPOTHESIS_EXAMPLES=5000",
        "-e model -- -rP --hypothesis-seed=SEED",
        figures=r"\d+ states, \d+ errors|\d+ passed",
    ),
    "fuzz": Part("HYPOTHESIS_EXAMPLES=5000", "-e fuzz -- --hypothesis-seed=SEED"),
    "postgresql": Part(arguments="-e postgresql-16,postgresql-17"),
    "lowest": Part(),
    "frameworks": Part(
        arguments="-e frameworks -- --twice",
        figures=r"every view protected|tests, \d+ skipped|requests under a key|on the list: ",
    ),
    "clusters": Part(figures=r"NOT RUN|\d+ passed"),
    "interop": Part(figures=r"NOT RUN|\d+ passed"),
    "mutation": Part(figures=r"\S+: survived"),
}


def main(*arguments: str) -> int:
    """Run the parts. The exit status is 1 if one of them has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; repeat for several; default: all")
    parser.add_argument("--page", type=Path, default=ROOT / "tests" / "proof.md", help="the file to write")
    chosen = parser.parse_args(arguments)
    passed = [run(name, PARTS[name], chosen.page) for name in chosen.only or PARTS]
    return 0 if all(passed) else 1


def run(name: str, part: Part, page: Path) -> bool:
    """Run one part under each of its seeds, and write its section of the page. True if all passed."""
    rows, said, passed = (
        "| Command | Outcome | Version | Commit | Date | Minutes |\n|---|---|---|---|---|---|\n",
        "",
        True,
    )
    for seed in [str(secrets.randbelow(2**31)) for _ in range(part.seeds)]:
        started = time.monotonic()
        settings = part.settings.replace("SEED=SEED", f"SEED={seed}").split()
        arguments = (part.arguments or f"-e {name}").replace("seed=SEED", f"seed={seed}").split()
        environment = {**os.environ, **dict(setting.split("=") for setting in settings)}
        tox = [sys.executable, "-m", "tox", "run", *arguments]
        done = subprocess.run(tox, cwd=ROOT, env=environment, stdout=PIPE, stderr=STDOUT, text=True)
        passed = passed and done.returncode == 0
        words = " ".join([*settings, "tox run", *arguments])
        outcome = f"**FAILED** with status {done.returncode}" if done.returncode else "passed"
        rows += f"| `{words}` | {outcome} | {origin()} | {(time.monotonic() - started) / 60:.0f} |\n"
        lines = ESCAPE.sub("", done.stdout).splitlines()
        said += "".join(f"    {line.rstrip()}\n" for line in lines if re.search(part.figures, line))
        write(page, name, f"{rows}\n{said}")
        print(words, outcome, done.stdout if done.returncode else "", sep="\n", flush=True)
    return passed


def origin() -> str:
    """Version, commit and date."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=PIPE, text=True).stdout.strip()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return f"{version} | {commit or 'unknown'} | {datetime.date.today().isoformat()}"


def write(page: Path, name: str, runs: str) -> None:
    """Put the runs into their section of the page, below what it says of the part, in place of older ones."""
    head, *sections = re.split(r"(?m)^## ", page.read_text() if page.exists() else "# Proof\n\n")
    by_name = {found.partition("\n")[0]: found for found in sections}
    told = by_name.get(name, f"{name}\n\n").partition("| Command")[0]
    by_name[name] = f"{told.rstrip()}\n\n{runs}"
    known = sorted(by_name, key=lambda found: [*PARTS, found].index(found))
    page.write_text(head + "\n".join(f"## {by_name[found].rstrip()}\n" for found in known))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
