from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser

from ...endpoints.formats import as_markdown, as_table
from ...endpoints.listing import Endpoint, list_endpoints
from ...maintenance.renamed import LOST, unknown_operations
from ..base import IdempotencyCommand, several

FORMATS = {"table": as_table, "markdown": as_markdown}


class Command(IdempotencyCommand):
    help = (
        "List the unsafe routes of the project's URLconf, protected or not. No view is called, and without --database "
        "no database is read. The exit status is 0 if the list was printed, 1 if --fail-on-unprotected is given and a "
        "route is neither protected nor allowed, and 2 if an error prevented the list from being printed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add(
            "--format",
            choices=FORMATS,
            default="table",
            help="Default: %(default)s. The markdown format is meant for your clients.",
        )
        add("--all", action="store_true", help="Also list the admin's routes, and routes such as orders.json.")
        add("--urlconf", help="List the routes of the URLconf at this dotted path; default: ROOT_URLCONF.")
        stored = (
            "Also list operations that no longer belong to any endpoint but still have keys in this database, for "
            "example after a route was renamed."
        )
        add("--database", metavar="ALIAS", help=stored)
        fail = "Exit with status 1 if a route is neither protected nor allowed. Use this option in CI."
        add("--fail-on-unprotected", action="store_true", help=fail)
        allow = (
            "Allow matching routes to be unprotected. The pattern names a route ('hooks/*'), a method and a route "
            "('DELETE *'), or a view ('shop.views.*'). May be repeated."
        )
        add("--allow", action="append", default=[], metavar="PATTERN", help=allow)
        add("--allow-file", type=Path, metavar="FILE", help="Read such patterns from this file, one per line.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            patterns = [*several(options["allow"]), *_patterns(options["allow_file"])]
            every = sorted(list_endpoints(options["urlconf"]), key=lambda endpoint: not endpoint.own)
        except (OSError, UnicodeDecodeError, ImportError, ImproperlyConfigured) as error:
            raise CommandError(str(error), returncode=2) from error
        allowed = partial(_allowed, patterns)
        endpoints = every if options["all"] else [endpoint for endpoint in every if endpoint.own]
        self.say(FORMATS[options["format"]](endpoints, allowed))
        if options["format"] == "table" and len(endpoints) < len(every):
            self.say(f"{len(every) - len(endpoints)} more with --all: the admin, format suffixes.")
        for pattern in patterns:
            if not any(_allowed([pattern], endpoint) for endpoint in every if not endpoint.protected):
                # A pattern that is no longer needed could later hide a new unprotected endpoint.
                self.stderr.write(f"Nothing unprotected matches {pattern!r}: remove it.")
        if options["database"]:
            for operation in unknown_operations(using=options["database"], urlconf=options["urlconf"]):
                self.stderr.write(LOST.format(options["database"], operation))
        left = [endpoint for endpoint in endpoints if not endpoint.protected and not allowed(endpoint)]
        if options["fail_on_unprotected"] and left:
            count = "1 unsafe route is" if len(left) == 1 else f"{len(left)} unsafe routes are"
            lines = [f"  {endpoint.method} {endpoint.route}  {endpoint.view}" for endpoint in left]
            advice = f"{count} not protected. Protect them, or name them with --allow:"
            raise CommandError("\n".join([advice, *lines]))


def _patterns(file: Path | None) -> list[str]:
    lines = [] if file is None else file.read_text(encoding="utf-8").splitlines()
    return [line for line in map(str.strip, lines) if line and not line.startswith("#")]


def _allowed(patterns: Sequence[str], endpoint: Endpoint) -> bool:
    texts = (endpoint.route, f"{endpoint.method} {endpoint.route}", endpoint.view)
    # A route can be a regular expression that contains "[", which means something else to `fnmatch`.
    return any(text == pattern or fnmatchcase(text, pattern) for pattern in patterns for text in texts)
