from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ObjectDoesNotExist
from django.core.management.base import CommandError, CommandParser

from ...engine.conf import get_settings
from ...engine.request.callers import scope_of_user
from ...engine.stores import alias_for, store_for
from ...maintenance.elsewhere import find_in_backend
from ...maintenance.erasure import forget, forget_scope, of_scope
from ...models import IdempotencyKey
from ..base import NEED_ATTENTION, IdempotencyCommand, counted
from ..schemas import in_schema


class Command(IdempotencyCommand):
    help = (
        "Delete what is stored about one caller. The next request with a deleted key runs the work again. Without "
        "--apply, the keys are only counted. Keys that are in progress, in doubt or half done are kept: to "
        "decide what happens to them, use resolve_idempotency_keys. The exit status is 0 if everything is done, 1 "
        "after an error, and 3 if keys were kept."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_caller(parser, "Forget")
        parser.add_argument("--key", help="Forget only this key; default: all keys of the caller.")
        parser.add_argument("--operation", help="With --key: only the key of this operation, such as 'POST orders/'.")
        parser.add_argument("--database", help="Database alias; default: the write alias.")
        parser.add_argument("--schema", help="A tenant's PostgreSQL schema; default: the connection's own.")
        backend = (
            "Forget the key in this backend (a name in BACKENDS), and print its state. Needs --key and --operation."
        )
        parser.add_argument("--backend", metavar="NAME", help=backend)
        parser.add_argument("--apply", action="store_true", help="Delete the keys.")

    def handle(self, *args: Any, **options: Any) -> None:
        with in_schema(options["database"], options["schema"]):
            self._forget(options)

    def _forget(self, options: dict[str, Any]) -> None:
        if options["operation"] is not None and options["key"] is None:
            raise CommandError("--operation needs --key.")
        backend = options["backend"]
        if backend is not None and None in (options["key"], options["operation"]):
            raise CommandError("--backend needs --key and --operation: a backend has no list of its keys.")
        scope, chosen = scope_from(options), {"using": options["database"], "dry_run": not options["apply"]}
        if options["key"] is None:
            keys = IdempotencyKey.objects.using(store_for(alias_for(options["database"])).alias)
            total = self.total(keys.filter(of_scope(scope)))
            result = forget_scope(scope, **chosen, progress=lambda done: self.show(done, total))
        else:
            one = {"operation": options["operation"], "key": options["key"]}
            if backend is not None and (seen := find_in_backend(backend, scope=scope, **one)) is not None:
                status = "" if seen.status_code is None else f" with {seen.status_code}"
                about = "" if seen.resource is None else f", about {' '.join(seen.resource)}"
                self.say(f"In {backend!r}: {seen.status}{status}{about}.")
            result = forget(scope, **one, backend=backend, **chosen)
        done = "Forgot" if options["apply"] else "Would forget"
        self.say(f"{done} {counted(result.deleted)} of {scope}.{'' if options['apply'] else ' Add --apply to do it.'}")
        if result.kept:
            text = f"Kept, because they are in progress, in doubt or half done: {counted(result.kept)}."
            raise CommandError(text, returncode=NEED_ATTENTION)


def add_caller(parser: CommandParser, verb: str) -> None:
    """Add the options that name a caller."""
    caller = parser.add_mutually_exclusive_group(required=True)
    caller.add_argument("--user", metavar="NAME", help=f"{verb} the keys of this user. Refused if SCOPE is set.")
    scope = f"{verb} the keys of this scope; write it as the admin shows it or as scope= returns it."
    caller.add_argument("--scope", help=scope)


def scope_from(options: dict[str, Any]) -> str:
    """Return the scope of the caller that the options name. Raises `CommandError`."""
    if options["user"] is None:
        return str(options["scope"])
    if (own := get_settings().options.given().get("scope")) is not None:
        raise CommandError(
            f"--user={options['user']!r}: IDEMPOTENCY['SCOPE'] is {own!r}, so no key is stored under "
            "the scope that a user has by default, and none would be found. Pass --scope with what that "
            "function returns for the user, or with the scope that the admin shows."
        )
    try:
        return scope_of_user(get_user_model()._default_manager.get_by_natural_key(options["user"]))
    except ObjectDoesNotExist as error:
        raise CommandError(f"There is no user {options['user']!r}.") from error
