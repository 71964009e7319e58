"""The cleanup and its command: arguments, exit status, signals, and several databases."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction
from django.test import override_settings

from django_idempotency.maintenance.cleanup import Cleanup, cleanup_idempotency_keys
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.expired import make_keys, make_leased, run, without_tables
from tests.unreachable import UNREACHABLE, reached_by


@pytest.mark.django_db
@pytest.mark.parametrize("command", [(), ("--dry-run",)])
@pytest.mark.parametrize(("lapsed", "doubt"), [(True, False), (None, True)])
def test_it_can_alert(command: tuple[str, ...], lapsed: bool | None, doubt: bool) -> None:
    """--fail-on-stuck: exit status 3, after the work is done."""
    make_leased("k", "in_progress" if lapsed else "failed", lapsed=lapsed, doubt=doubt)
    run(*command)
    with pytest.raises(CommandError) as caught:
        run("--fail-on-stuck", *command)
    assert str(caught.value) == "Idempotency keys need attention. See the admin."
    assert caught.value.returncode == 3


@pytest.mark.django_db
class TestCommand:
    def test_it_is_calm_while_nothing_needs_attention(self) -> None:
        """A call that is being made right now is not in doubt, and a failed key without a call is not half done."""
        make_leased("running", "in_progress", lapsed=False, doubt=True)
        make_leased("failed", "failed", call=False, expired=False)
        assert run("--fail-on-stuck") == "Deleted 0 expired idempotency keys.\n"

    def test_it_says_what_it_does(self) -> None:
        """One line for cron's mail; with --verbosity 0 none. A dry run says what it would do, and does nothing."""
        make_keys(2)
        make_keys(2, age=timedelta(0))
        make_leased("stuck", "in_progress", lapsed=True)
        make_leased("died", "in_progress", lapsed=True, call=False)
        stuck = "Half done, because a call has finished and the operation has not: 1."
        dead = "1 key for retry: their workers died before any call."
        assert run("--dry-run") == f"Would delete 2 expired idempotency keys. Would free {dead} {stuck}\n"
        assert IdempotencyKey.objects.count() == 6
        assert run() == f"Deleted 2 expired idempotency keys. Freed {dead} {stuck}\n"
        assert run(verbosity=0) == ""

    def test_limits_stop_it_and_the_summary_says_so(self) -> None:
        """At the end of a batch. No time at all still does one batch."""
        make_keys(8)
        stopped = "Deleted 2 expired idempotency keys. Stopped early: more are left.\n"
        assert run("--batch-size", "2", "--max-seconds", "0") == stopped
        assert run("--batch-size", "3", "--max-seconds", "600", verbosity=2) == (
            "3 deleted ...\n6 deleted ...\nDeleted 6 expired idempotency keys.\n"
        )

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["--database", "nowhere"], "database 'nowhere', which does not exist"),
            (["--batch-size", "0"], "batch_size must be at least 1, not 0."),
            (["--pause", "nan"], "pause must be at least 0, not nan."),
            (["--max-seconds", "-1"], "max_seconds must be at least 0, not -1.0."),
        ],
    )
    def test_bad_arguments_are_errors(self, args: list[str], message: str) -> None:
        """They name the value."""
        with pytest.raises(CommandError) as caught:
            run(*args)
        assert message in str(caught.value)


@pytest.mark.django_db(databases=["default", "other"])
class TestSeveralDatabases:
    """One call for cron, with a line for each database. `recover_idempotency_keys` has the same base."""

    @pytest.mark.parametrize("chosen", [("--all-databases",), ("--database", "default", "--database", "other")])
    def test_each_is_cleaned(self, chosen: tuple[str, ...]) -> None:
        make_keys(2)
        make_keys(1, using="other")
        lines = "default: {0} 2 expired idempotency keys.\nother: {0} 1 expired idempotency key.\n"
        assert run("--dry-run", *chosen) == lines.format("Would delete")
        assert run(*chosen) == lines.format("Deleted")
        assert not IdempotencyKey.objects.exists()
        assert not IdempotencyKey.objects.using("other").exists()

    def test_one_of_them(self) -> None:
        """Named twice it is one. Calling code gives a text, as `call_command("migrate", database=…)` takes it."""
        make_keys(1)
        make_keys(1, using="other")
        assert run(database="other") == "Deleted 1 expired idempotency key.\n"
        assert run("--database", "other", "--database", "other") == "Deleted 0 expired idempotency keys.\n"
        assert IdempotencyKey.objects.count() == 1

    @pytest.mark.django_db(transaction=True, databases=["default", "other"])
    @pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
    def test_one_that_fails_does_not_stop_the_others(self, dry_run: tuple[str, ...]) -> None:
        """The error names the database and what to type. The exit status is 1, also if keys need attention."""
        make_leased("stuck", "in_progress", lapsed=True)
        make_keys(1, using="other")
        err = io.StringIO()
        with without_tables("default"), pytest.raises(CommandError) as caught:
            run("--all-databases", "--fail-on-stuck", *dry_run, stderr=err)
        assert (str(caught.value), caught.value.returncode) == ("1 of 2 databases failed.", 1)
        assert err.getvalue().startswith("default: database 'default' has no up-to-date table")
        assert IdempotencyKey.objects.using("other").count() == len(dry_run)

    @pytest.mark.django_db(transaction=True, databases=["default", "other"])
    def test_a_database_that_cannot_list_its_schemas_does_not_stop_the_others(self) -> None:
        """It counts as failed. If it is the only one, its error is the command's."""
        make_keys(1, using="other")
        err = io.StringIO()
        with reached_by(UNREACHABLE[connection.vendor]), pytest.raises(CommandError) as caught:
            run("--all-databases", "--all-schemas", stderr=err)
        assert (caught.value.returncode, err.getvalue().startswith("default: ")) == (1, True)
        assert not IdempotencyKey.objects.using("other").exists()
        with reached_by(UNREACHABLE[connection.vendor]), pytest.raises(CommandError):
            run("--all-schemas")

    def test_a_schema_without_a_key_table_is_refused(self) -> None:
        """Databases that have no schemas have none with this name."""
        with pytest.raises(CommandError, match=r"^schema 'nowhere' has no key table\. Known are: "):
            run("--schema", "nowhere")

    def test_an_error_quotes_no_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As where it is the only database."""

        def fails(*args: Any, **options: Any) -> None:
            raise DatabaseError("duplicate key\nDETAIL:  Key (key)=(very-secret) already exists.")

        monkeypatch.setattr(
            "django_idempotency.management.commands.cleanup_idempotency_keys.cleanup_idempotency_keys", fails
        )
        err = io.StringIO()
        with pytest.raises(CommandError):
            run("--all-databases", stderr=err)
        assert err.getvalue() == "default: duplicate key\nother: duplicate key\n"

    def test_keys_that_need_attention_on_any_of_them_alert(self) -> None:
        """--fail-on-stuck, after all are cleaned."""
        make_leased("stuck", "in_progress", lapsed=True)
        make_keys(1, using="other")
        with pytest.raises(CommandError) as caught:
            run("--all-databases", "--fail-on-stuck")
        assert caught.value.returncode == 3
        assert not IdempotencyKey.objects.using("other").exists()

    def test_databases_without_the_table_are_left_out(self) -> None:
        """The routers say where the key table is."""
        with override_settings(DATABASE_ROUTERS=["tests.routers.KeysOnOther"]):
            assert run("--all-databases") == "Deleted 0 expired idempotency keys.\n"
        message = r"DATABASE_ROUTERS allow the key table on no database\. Let allow_migrate\(\) return True\."
        with override_settings(DATABASE_ROUTERS=["tests.routers.NoKeys"]), pytest.raises(CommandError, match=message):
            run("--all-databases")

    def test_a_signal_ends_it_before_the_next_database(self) -> None:
        """The running batch is finished."""
        make_keys(1)
        make_keys(1, using="other")

        class Interrupted(io.StringIO):
            def write(self, text: str) -> int:
                signal.raise_signal(signal.SIGINT)
                return super().write(text)

        out = Interrupted()
        with pytest.raises(SystemExit) as caught:
            call_command("cleanup_idempotency_keys", all_databases=True, stdout=out)
        assert (caught.value.code, out.getvalue()) == (130, "default: Deleted 1 expired idempotency key.\n")
        assert IdempotencyKey.objects.using("other").exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_after_the_running_batch(number: signal.Signals, status: int) -> None:
    """A real process, told to stop while it rests between two batches: its work stays, its status is honest."""
    make_keys(6)
    process = started("cleanup_idempotency_keys", "--batch-size", "2", "--pause", "3", "--verbosity", "2")
    assert process.stdout is not None
    assert process.stdout.readline() == "2 deleted ...\n", process.communicate()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (status, "")
    assert out.endswith("Stopped early: more are left.\n")
    assert IdempotencyKey.objects.count() == 4


def started(*arguments: str) -> subprocess.Popen[str]:
    """A command in a process of its own, on the database of the tests."""
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "TEST_NAME": str(connection.settings_dict["NAME"]),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


SCRIPT = """
import os, sys
from django.conf import settings
for database in settings.DATABASES.values():
    database["NAME"] = os.environ["TEST_NAME"]
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


@pytest.mark.django_db
class TestLeasedKeys:
    def test_keys_that_are_not_over_stay_however_old(self) -> None:
        """Running, stuck, in doubt or half done; the others go, with their steps."""
        make_leased("completed", "completed")
        make_leased("completed, its view has dealt with the doubt", "completed", doubt=True)
        make_leased("failed", "failed", call=False)
        make_leased("half done", "failed")
        make_leased("failed in doubt", "failed", doubt=True)
        make_leased("running", "in_progress", lapsed=False, doubt=True)
        make_leased("stuck", "in_progress", lapsed=True)
        make_leased("stuck in doubt", "in_progress", lapsed=True, doubt=True)
        assert run() == (
            "Deleted 3 expired idempotency keys. "
            "In doubt, because it is unknown what took effect: 2. "
            "Half done, because a call has finished and the operation has not: 2.\n"
        )
        left = ["half done", "failed in doubt", "running", "stuck", "stuck in doubt"]
        assert list(IdempotencyKey.objects.order_by("pk").values_list("key", flat=True)) == left
        assert IdempotencyStep.objects.count() == 2 * len(left)
        assert not IdempotencyStep.objects.exclude(key__in=IdempotencyKey.objects.all()).exists()


@pytest.mark.django_db
def test_the_function_reports_what_it_did() -> None:
    """For Celery beat and django.tasks. Stuck keys are freed in batches, too; an event ends the run after a batch."""
    make_keys(5)
    for number in range(3):
        make_leased(f"stuck {number}", "in_progress", lapsed=True, call=False, expired=False)
    stop, rest = Event(), {"stuck": 0, "in_doubt": 0}
    freed = Cleanup(deleted=0, batches=1, complete=False, unstuck=2, **{**rest, "stuck": 1})
    stop.set()
    assert cleanup_idempotency_keys(batch_size=2, stop=stop) == freed
    assert cleanup_idempotency_keys(batch_size=2) == Cleanup(deleted=5, batches=4, complete=True, unstuck=1, **rest)


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_stuck_key_that_somebody_is_taking_over_is_passed_over(in_threads: Callable[..., list[Any]]) -> None:
    """Its row is locked, and the cleanup does not wait for it."""
    for key in ("taken over", "stuck"):
        make_leased(key, "in_progress", lapsed=True, call=False, expired=False)

    def impatiently(number: int) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '5s'")
        return cleanup_idempotency_keys()

    with transaction.atomic():
        IdempotencyKey.objects.select_for_update(no_key=True).get(key="taken over")
        (cleaned,) = in_threads(1, impatiently)
    assert (cleaned.unstuck, cleaned.stuck, cleaned.complete) == (1, 1, True)


@pytest.mark.django_db(transaction=True)
def test_it_refuses_to_run_inside_a_transaction() -> None:
    """A batch that cannot commit is no batch."""
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        cleanup_idempotency_keys()
