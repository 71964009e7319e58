"""The long runs, one after the other, and the page of what they came to: what a week's night is for.

    python -m tests.long_runs [--only PART …] [--short] [--page FILE]

Each part is a tox environment that also runs briefly among the tests. The page has a section for each part that has
run, with version, commit, date, seeds, commands and figures. A part that runs again replaces its section. The page is
written after each run, so that a night that is cut off leaves what it has found. The output of a failed run is printed.
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
from subprocess import PIPE, STDOUT

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "tests" / "proof.md"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One long run: the arguments of `tox run`, and the environment that makes it long.

    Args:
        proves: what holds if the part passes, in a sentence.
        seed: the environment variable, or the option of pytest, that names the plan.
        seeds: how many plans are run.
        figures: finds the lines of the output that the page shows.
    """

    proves: str
    tox: tuple[str, ...]
    settings: tuple[tuple[str, str], ...] = ()
    seed: str | None = None
    seeds: int = 1
    figures: str = r"\d+ passed"

    def command(self, seed: int, *, short: bool) -> tuple[list[str], dict[str, str]]:
        """The arguments of tox, and the environment."""
        arguments, environment = list(self.tox), {} if short else dict(self.settings)
        if self.seed is not None and self.seed.startswith("-"):
            arguments += [*([] if "--" in arguments else ["--"]), f"{self.seed}={seed}"]
        elif self.seed is not None:
            environment[self.seed] = str(seed)
        return arguments, environment


PARTS = {
    "chaos": Part(
        proves="Workers killed, connections cut, the database restarted, with recovery and encryption: no order or "
        "charge too many, no success without its order, no stuck key.",
        tox=("-e", "chaos"),
        settings=(("CHAOS", "20"),),
        seed="CHAOS_SEED",
        seeds=2,
    ),
    "chaos-mysql": Part(
        proves="The same on MySQL, but for the restarts.",
        tox=("-e", "chaos-mysql"),
        settings=(("CHAOS", "20"),),
        seed="CHAOS_SEED",
        seeds=2,
    ),
    "bursts": Part(
        proves="Duplicates in bursts of 50 and 200 on three servers, directly and through PgBouncer; views that "
        "deadlock: one order for each operation, one answer for each key.",
        tox=("-e", "bursts"),
        settings=(("BURSTS", "125"),),
        seed="BURSTS_SEED",
    ),
    "model": Part(
        proves="Every interleaving of clients, crashes, takeovers, decisions and recovery: no state has two orders, "
        "two charges or another answer, and no client waits for ever. Where the model is broken on purpose, Spin finds "
        "the error. Then random histories of the real table.",
        tox=("-e", "model", "--", "-rP"),
        settings=(("SPIN_CLIENTS", "3"), ("HYPOTHESIS_EXAMPLES", "5000")),
        seed="--hypothesis-seed",
        figures=r"\d+ states, \d+ errors|\d+ passed",
    ),
    "fuzz": Part(
        proves="Any bytes in header and body: the protected view answers like the bare one.",
        tox=("-e", "fuzz"),
        settings=(("HYPOTHESIS_EXAMPLES", "5000"),),
        seed="--hypothesis-seed",
    ),
    "postgresql": Part(
        proves="The stores and the migrations on PostgreSQL 16 and 17. The tests have the newest, CI also Debian's.",
        tox=("-e", "postgresql-16,postgresql-17"),
    ),
    "lowest": Part(
        proves="The lowest version of each dependency that `pyproject.toml` allows, on Python 3.11.",
        tox=("-e", "lowest"),
    ),
    "frameworks": Part(
        proves="The tests of Django and of the REST framework, with every view protected and each request sent again. "
        "`tests/frameworks/suites.toml` has the reason for each test that fails with the package only.",
        tox=("-e", "frameworks", "--", "--twice"),
        figures=r"every view protected|tests, \d+ skipped|requests under a key|on the list: ",
    ),
    "clusters": Part(
        proves="Shards, tenants, failover, PgBouncer, Galera and Citus. NOT RUN names what the machine lacks.",
        tox=("-e", "clusters"),
        figures=r"NOT RUN|\d+ passed",
    ),
    "interop": Part(
        proves="Clients, proxies and brokers that repeat by themselves: one effect, and without protection two. "
        "NOT RUN names what the machine lacks.",
        tox=("-e", "interop"),
        figures=r"NOT RUN|\d+ passed",
    ),
    "mutation": Part(
        proves="One-line breaks of the core: a test sees each. `mutmut results` lists those that no test sees.",
        tox=("-e", "mutation"),
        figures=r"\S+: survived",
    ),
}


def main(*arguments: str) -> int:
    """Run the parts. The exit status is 1 if one of them has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; repeat for several; default: all")
    parser.add_argument("--short", action="store_true", help="as among the tests: shows that the parts run")
    parser.add_argument("--page", type=Path, default=PAGE, help="the file to write; default: tests/proof.md")
    chosen = parser.parse_args(arguments)
    passed = [run(name, PARTS[name], chosen.page, short=chosen.short) for name in chosen.only or PARTS]
    return 0 if all(passed) else 1


def run(name: str, part: Part, page: Path, *, short: bool = False) -> bool:
    """Run one part under each of its seeds, and write its section of the page. True if all passed."""
    table, said, passed = (
        "| Command | Outcome | Version | Commit | Date | Minutes |\n|---|---|---|---|---|---|\n",
        "",
        True,
    )
    for seed in [secrets.randbelow(2**31) for _ in range(part.seeds)]:
        started = time.monotonic()
        arguments, environment = part.command(seed, short=short)
        tox = [sys.executable, "-m", "tox", "run", *arguments]
        done = subprocess.run(tox, cwd=ROOT, env={**os.environ, **environment}, stdout=PIPE, stderr=STDOUT, text=True)
        passed = passed and done.returncode == 0
        words = " ".join([*(f"{key}={value}" for key, value in environment.items()), "tox run", *arguments])
        outcome = f"**FAILED** with status {done.returncode}" if done.returncode else "passed"
        table += f"| `{words}` | {outcome} | {origin()} | {(time.monotonic() - started) / 60:.0f} |\n"
        lines = ESCAPE.sub("", done.stdout).splitlines()
        said += "".join(f"    {line.rstrip()}\n" for line in lines if re.search(part.figures, line))
        write(page, name, f"{part.proves}\n\n{table}\n{said}")
        print(words, outcome, done.stdout if done.returncode else "", sep="\n", flush=True)
    return passed


def origin() -> str:
    """Version, commit and date."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=PIPE, text=True).stdout.strip()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return f"{version} | {commit or 'unknown'} | {datetime.date.today().isoformat()}"


def write(page: Path, name: str, text: str) -> None:
    """Put a section into the page, in place of an older one."""
    head, *sections = re.split(r"(?m)^## ", page.read_text() if page.exists() else "# Proof\n\n")
    by_name = {found.partition("\n")[0]: found for found in sections} | {name: f"{name}\n\n{text}"}
    known = sorted(by_name, key=lambda found: [*PARTS, found].index(found))
    page.write_text(head + "\n".join(f"## {by_name[found].rstrip()}\n" for found in known))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
