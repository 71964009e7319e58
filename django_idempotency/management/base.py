"""What the commands share: output that harms nothing, values of options, and a run over several databases."""

from __future__ import annotations

from threading import Event
from typing import Any, Generic, TypeVar

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connections, router

from ..engine.conf import get_settings
from ..engine.protocol.error_text import without_controls
from ..exceptions import IdempotencyConfigurationError
from ..models import IdempotencyKey
from .stopping import SIGNALS, stoppable

NEED_ATTENTION = 3
"""Exit status. 1 is Django's for errors, 2 is argparse's."""
NO_ENGINE = "django.db.backends.dummy"
"""That of `"default": {}`, which Django advises where each app has an alias of its own."""
Result = TypeVar("Result")


class EscapingCommand(BaseCommand):
    """Prints as an escape what the output's encoding lacks, or what a terminal obeys: neither may harm a run.

    Operations, steps and errors, which commands quote, may hold any character.
    """

    def execute(self, *args: Any, **options: Any) -> str | None:
        options["stdout"] = _Escaping(options.get("stdout") or self.stdout)
        return super().execute(*args, **options)


class _Escaping:
    """A stream, but for what is written to it."""

    def __init__(self, stream: Any) -> None:
        self._stream = getattr(stream, "_out", stream)  # Django's own wrapper may hide the encoding

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"  # that of io.StringIO is None
        lines = "\n".join(map(without_controls, text.split("\n")))
        self._stream.write(lines.encode(encoding, "backslashreplace").decode(encoding))


class DatabasesCommand(EscapingCommand, Generic[Result]):
    """Works on databases one after the other. A signal ends the run when the key or batch at hand is done."""

    def add_arguments(self, parser: CommandParser) -> None:
        either = parser.add_mutually_exclusive_group()
        either.add_argument(
            "--database",
            action="append",
            help="Database alias. May be repeated. Default: the alias that keys are written to.",
        )
        either.add_argument(
            "--all-databases",
            action="store_true",
            help="Every alias on which the database routers allow the key table, one after the other. An alias that "
            "fails does not stop the others: its error goes to stderr, and the exit status is 1.",
        )
        parser.add_argument("--dry-run", action="store_true", help="Only say what would be done.")
        parser.add_argument("--max-seconds", type=float, metavar="S", help="Stop after S seconds for each database.")

    def handle(self, *args: Any, **options: Any) -> None:
        aliases = chosen(options)
        stop = Event()
        results: list[Result] = []
        with stoppable(stop, () if options["dry_run"] else SIGNALS) as received:
            for alias in aliases:
                results += self._run_or_report(alias, options, stop, alone=len(aliases) == 1)
                if stop.is_set():
                    break
        if received:
            raise SystemExit(128 + received[0])
        if len(results) < len(aliases):
            raise CommandError(f"{len(aliases) - len(results)} of {len(aliases)} databases failed.")
        if self.needs_attention(results, options):
            where = get_settings().runbook_url or "the admin"
            raise CommandError(f"Idempotency keys need attention. See {where}.", returncode=NEED_ATTENTION)

    def _run_or_report(self, alias: str | None, options: dict[str, Any], stop: Event, *, alone: bool) -> list[Result]:
        """Work on one database and say so. Empty: the error was reported, and the other databases have their turn."""
        name = "" if alone else f"{alias}: "
        try:
            result = self.run(alias, name, options, stop)
        except (IdempotencyConfigurationError, DatabaseError, ImportError, ValueError) as error:
            if alone or isinstance(error, (ImportError, ValueError)):  # these are about the options
                raise CommandError(str(error)) from error
            self.stderr.write(f"{name}{error}")
            return []
        if options["verbosity"]:
            self.stdout.write(name + self.described(result, dry_run=options["dry_run"]))
        return [result]

    def run(self, alias: str | None, name: str, options: dict[str, Any], stop: Event) -> Result:
        """Work on one database. `name` begins each line that is printed."""
        raise NotImplementedError

    def described(self, result: Result, *, dry_run: bool) -> str:
        """The last line about a database, for cron's mail."""
        raise NotImplementedError

    def needs_attention(self, results: list[Result], options: dict[str, Any]) -> bool:
        """Whether the exit status says so. Raises `CommandError` for what is worse."""
        raise NotImplementedError

    def tell(self, line: str, shown: bool) -> None:
        """Print a line before the work is done."""
        if shown:
            self.stdout.write(line)
            self.stdout.flush()  # a pipe would hold the line back until the end


def counted(count: int, noun: str = "key") -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def several(given: Any) -> Any:
    """The values of an option that may be repeated, as a list; None: not given.

    `call_command(…, key="abc")` gives the value itself.
    """
    return [given] if isinstance(given, str | int) else given


def known(alias: str | None) -> str | None:
    """The alias; None is the one that keys are written to. Raises `CommandError` for an unknown one."""
    if alias is not None and alias not in connections:
        raise CommandError(f"There is no database {alias!r}. Known are: {', '.join(connections)}.")
    return alias


def chosen(options: dict[str, Any]) -> list[str | None]:
    """The aliases that the command was given. None is the one that keys are written to."""
    if not options["all_databases"]:
        given = several(options["database"])
        return [None] if given is None else [known(alias) for alias in dict.fromkeys(given)]
    allowed: list[str | None] = [
        name
        for name in connections
        if connections[name].settings_dict["ENGINE"] != NO_ENGINE and router.allow_migrate_model(name, IdempotencyKey)
    ]
    if not allowed:
        raise CommandError("DATABASE_ROUTERS allow the key table on no database. Let allow_migrate() return True.")
    return allowed
