"""Say whether your copies of this package's files are old: `python -m django_idempotency.copies ops/alerts.yml`.

Alerts, dashboards and clients are files that you copy and adapt. A comment in each of them names
its revision, also in your copy. Run this in your CI, with the paths of your copies.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

REVISIONS = {
    "alerts.yml": 2,
    "client.js": 2,
    "client.py": 2,
    "grafana.json": 2,
    "shards.py": 2,
    "tenant_databases.py": 2,
}
"""The revision of each file in this release's `docs` folder. The files of 0.4.0 named no revision."""
NAMED = re.compile(r"django-idempotency/([\w.]+), revision (\d+)")


def judge(path: Path) -> tuple[str, bool]:
    """Return the verdict on a copy, and whether the copy is from this release."""
    try:
        named = NAMED.search(path.read_text(errors="replace"))
    except OSError as error:
        return f"cannot be read: {error.strerror}", False
    if named is None:
        return "names no revision, so it is from 0.4.0 or earlier, or no copy", False
    name, revision = named[1], int(named[2])
    newest = REVISIONS.get(name)
    if newest is None:
        return f"is a copy of {name}, which this release doesn't have", False
    if revision < newest:
        return f"is revision {revision} of {name}, and this release has {newest}: compare it with docs/{name}", False
    return f"is revision {revision} of {name}", True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m django_idempotency.copies",
        description=__doc__,
        epilog="The exit status is 0 if all copies are of this release, otherwise 1.",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a copy")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each path. Return 0 if all copies are of this release, otherwise 1."""
    told = [(path, *judge(path)) for path in _parser().parse_args(arguments).paths]
    sys.stdout.writelines(f"{path} {what}.\n" for path, what, _ in told)
    return 0 if all(current for _, _, current in told) else 1


if __name__ == "__main__":  # pragma: no cover
    sys.exit(main())
