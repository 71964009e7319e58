"""This code beside another revision's, in turn on one PostgreSQL: what a change costs or saves.

    python -m tests.extra.benchmarks.paired REVISION [--rounds 40] [--new-connections]

REVISION is checked out into a temporary worktree of git, this code is the working tree as it is. Each has a process and
a database of its own, and they take turns: a round is 50 times the bare view, a first request and a replay. What is
printed are medians of the rounds, in units of the bare view's time in the same round and process, and the calls of the
package's functions that a first request and a replay make.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

ROOT = Path(__file__).parents[3]
EACH = 50
"""Requests of each kind in a round: the held-out benchmark's number."""
WARM = 60
FIGURES = ("first", "replay", "cpu first", "cpu replay")
CALLS = ("calls first", "calls replay")
Round = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--new-connections", action="store_true", help="each request opens its own connection")
    options = parser.parse_args()
    with ExitStack() as stack:
        theirs = stack.enter_context(checked_out(options.revision))
        server = postgresql()
        names = f"{options.revision} (a)", "this code (b)"
        workers = [
            stack.enter_context(worker(tree, server, database, new_connections=options.new_connections))
            for tree, database in ((theirs, "paired_a"), (ROOT, "paired_b"))
        ]
        found: list[list[Round]] = [[], []]
        for number in range(options.rounds):
            for turn in (0, 1) if number % 2 else (1, 0):
                found[turn].append(ask(workers[turn]))
    print(f"{'':22}{'bare':>9}" + "".join(f"{figure:>14}" for figure in (*FIGURES, *CALLS)))
    for name, rounds in zip(names, found, strict=True):
        ratios = "".join(f"{'×' + format(median(rounds, figure), '.2f'):>14}" for figure in FIGURES)
        calls = "".join(f"{rounds[-1][figure]:>14.0f}" for figure in CALLS)
        print(f"{name:22}{median(rounds, 'bare'):6.0f} µs{ratios}{calls}")
    differences = [{figure: b[figure] - a[figure] for figure in FIGURES} for a, b in zip(*found, strict=True)]
    print(f"{'b - a':31}" + "".join(f"{median(differences, figure):>+14.2f}" for figure in FIGURES))


def median(rounds: list[Round], figure: str) -> float:
    return statistics.median(one[figure] for one in rounds)


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="paired-") as folder:
        tree = Path(folder, "tree")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def postgresql() -> str:
    """The conninfo of a server with fsync, without the name of a database."""
    import psycopg

    from tests.at_hand import embedded_postgresql

    url = embedded_postgresql()
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (
            "ALTER SYSTEM SET fsync = on",
            "SELECT pg_reload_conf()",
            "CREATE DATABASE paired_a",
            "CREATE DATABASE paired_b",
        ):
            connection.execute(statement)
        return connection.info.host


@contextmanager
def worker(tree: Path, host: str, database: str, *, new_connections: bool) -> Iterator[subprocess.Popen[str]]:
    """A process that imports the package out of this tree. -P: this folder has modules named like packages."""
    command = [sys.executable, "-P", __file__, "--serve", str(tree), host, database, *["new"] * new_connections]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment, cwd=tree) as process:
        try:
            yield process
        finally:
            process.communicate()


def ask(process: subprocess.Popen[str]) -> Round:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("round\n")
    process.stdin.flush()
    return dict(json.loads(process.stdout.readline()))


class Stage(NamedTuple):
    """The two views, and `taken(view, key)`, which returns the microseconds of one request, and those of CPU."""

    bare: Any
    protected: Any
    taken: Callable[[Any, str | None], tuple[float, float]]


def medians(times: Iterable[tuple[float, float]]) -> tuple[float, ...]:
    """The median of the microseconds, and that of CPU."""
    return tuple(map(statistics.median, zip(*times, strict=True)))


def stage(host: str, database: str, *, new: bool = False) -> Stage:
    """Set Django up on this database, with both views and all tables."""
    import django
    from django.conf import settings

    default = {"ENGINE": "django.db.backends.postgresql", "NAME": database, "HOST": host, "USER": "postgres"}
    settings.configure(
        SECRET_KEY="only for benchmarks",
        DATABASES={"default": {**default, "CONN_MAX_AGE": 0 if new else None}},
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_idempotency"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
        LOGGING_CONFIG=None,
    )
    django.setup()
    from django.contrib.auth.models import AnonymousUser
    from django.core.management import call_command
    from django.db import connection, models, transaction
    from django.http import HttpRequest, HttpResponse, JsonResponse
    from django.test import RequestFactory
    from django.urls import ResolverMatch

    from django_idempotency import idempotent

    class Order(models.Model):  # noqa: DJ008
        reference = models.CharField(max_length=100)

        class Meta:
            app_label = "paired"

    def work(request: HttpRequest) -> HttpResponse:
        order = Order.objects.create(reference="tea")
        return JsonResponse({"id": order.pk, "status": "CREATED", "pad": "y" * 150}, status=201)

    bare, protected = transaction.atomic(work), idempotent(work)
    body = json.dumps({"sku": "book-42", "quantity": 1, "note": "x" * 120})
    factory = RequestFactory()

    def taken(view: Any, key: str | None) -> tuple[float, float]:
        headers = {"Idempotency-Key": key} if key else {}
        request = factory.post("/orders/", body, content_type="application/json", headers=headers)
        request.user, request.resolver_match = AnonymousUser(), ResolverMatch(protected, (), {}, route="orders/")
        cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
        assert view(request).status_code == 201
        if new:
            connection.close()
        return (time.perf_counter_ns() - wall) / 1e3, (time.thread_time_ns() - cpu) / 1e3

    call_command("migrate", verbosity=0)
    with connection.schema_editor() as editor:
        editor.create_model(Order)
    return Stage(bare, protected, taken)


def serve(tree: str, host: str, database: str, *new: str) -> None:
    """In the worker: answer each line with the figures of a round."""
    import django_idempotency

    assert django_idempotency.__file__.startswith(tree), django_idempotency.__file__
    bare, protected, taken = stage(host, database, new=bool(new))

    def one_round(each: int) -> Round:
        found: dict[str, list[tuple[float, float]]] = {"bare": [], "first": [], "replay": []}
        for _ in range(each):
            key = str(uuid4())
            views = [("bare", bare, None), ("first", protected, key)]
            random.shuffle(views)
            for name, view, sent in (*views, ("replay", protected, key)):
                found[name].append(taken(view, sent))
        middle = {name: medians(times) for name, times in found.items()}
        wall, cpu = middle["bare"]
        ratios = {name: middle[name][0] / wall for name in ("first", "replay")}
        return {"bare": wall, **ratios, **{f"cpu {name}": middle[name][1] / cpu for name in ratios}}

    def calls(key: str) -> int:
        """Of functions in the package's files."""
        home, counted = os.path.dirname(django_idempotency.__file__), 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal counted
            counted += event == "call" and frame.f_code.co_filename.startswith(home)

        sys.setprofile(count)
        try:
            taken(protected, key)
        finally:
            sys.setprofile(None)
        return counted

    one_round(WARM)
    key = str(uuid4())
    counted = {name: calls(key) for name in CALLS}
    for _ in sys.stdin:
        print(json.dumps({**one_round(EACH), **counted}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main()
