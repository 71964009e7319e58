"""System checks report mistakes in settings, views and databases before the first request.

A check's id always keeps the same meaning:

E001 the IDEMPOTENCY setting
E002 unknown alias
E003 the key table is routed elsewhere
E004 no store for the database
E005 autocommit switched off
E006 a decorator above authentication
E007 options that contradict each other
E008 202 without the status page
E009 key tables that MariaDB or MySQL does not keep in InnoDB
E012 options under a name that nothing reads
E013 a separate schema for each tenant, but no SCOPE
E014 key tables that Citus does not commit together with the business write
E015 an invalid entry in BACKENDS
E017 a declaration that applies to none of its view's methods
W001 SQLite without IMMEDIATE transactions
W002 an isolation level other than READ COMMITTED
W004 a database whose times Django does not read as UTC
W006 the project's model tables that MariaDB or MySQL keeps in a storage engine without transactions
W007 missing indexes or constraints on the key tables
W008 columns in the key tables whose collation treats two different strings as equal
W009 a leased view with a `ttl` so short that a gateway remembers its keys for longer
W010 a Redis server that evicts keys
W011 a Redis server without an append-only file
W012 keys in memory outside DEBUG
W013 a DynamoDB table without Time to Live
W014 protection switched off or paused
W015 a leased view without `operation`
W016 stored keys of an operation that no endpoint has
W017 recent rows that ENCRYPTION_KEYS cannot decrypt
W018 one operation of several views
W019 a backend that does not answer
W020 an authenticator that does not hand its JWT on, and whose users are in no table
W021 a JWT that only the view's own code checks
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

from django.apps.config import AppConfig
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError, connections, router
from django.urls import get_resolver

from .endpoints.authenticators import authenticators_of, bare_token_checks, strangers
from .endpoints.listing import Answers, declarations_of, misplaced, routes
from .engine.conf import Options, backend_for, get_settings, resolve
from .engine.declare.registry import Declaration
from .engine.declare.wrappers import dotted_name
from .engine.request.responses import status_url
from .engine.stores import store_for
from .engine.stores.sealing import unseal_response
from .engine.stores.transactions import atomically
from .exceptions import IdempotencyConfigurationError, NotDecryptable
from .maintenance.renamed import LOST, unknown_operations
from .models import IdempotencyKey

TENANT_PACKAGES = frozenset({"django_pgschemas", "django_tenants", "tenant_schemas"})
"""Packages that give each tenant a PostgreSQL schema of its own."""


VENDORS = frozenset({"postgresql", "mysql", "sqlite"})
"""Django's names for the databases that may have a store. For Django, TiDB is also "mysql": only the server can tell
which one it is."""
NEWEST = 20
"""How many of the newest rows W017 tries to decrypt."""


@register("django_idempotency")
def check_project(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Run all checks that need no connection."""
    try:
        get_settings()
    except IdempotencyConfigurationError as error:
        return [Error(str(error), hint="Correct the IDEMPOTENCY setting.", id="django_idempotency.E001")]
    return [*check_settings(), *check_urls(), *check_switches()]


# Only `check --database` and `migrate` run the checks with this tag. Without it, Django 6.1 would run them before each
# command. A worker that forks would then share the connection with its children, and two tasks would run in one
# transaction.
@register("django_idempotency", Tags.database)
def check_servers(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Run all checks that query the databases. An invalid IDEMPOTENCY setting is reported by `check_project`."""
    try:
        get_settings()
    except IdempotencyConfigurationError:
        return []
    return [*check_databases(databases or ()), *check_backends()]


def check_settings() -> Iterator[CheckMessage]:
    """Check that each key belongs to one tenant, and that keys are routed to a database that exists.

    Users of two tenants can have the same primary key and send the same key. In a shared key table without SCOPE, one
    of these users would then get the other's stored response.
    """
    paths = [*django_settings.INSTALLED_APPS, *(given["ENGINE"] for given in connections.settings.values())]
    packages = TENANT_PACKAGES.intersection(path.partition(".")[0] for path in paths)
    if packages and resolve().scope is None:
        yield Error(
            f"{' and '.join(sorted(packages))} keeps each tenant's users in a separate schema, so users of two tenants "
            "can have the same primary key. One could get the stored response of the other.",
            hint="Set IDEMPOTENCY['SCOPE'] to a callable(request) whose result names both the tenant and the user.",
            id="django_idempotency.E013",
        )
    for alias in sorted(_aliases()):
        yield from _check_alias(alias)
    for name in get_settings().backends or {}:
        try:
            backend_for(name)
        except IdempotencyConfigurationError as error:
            yield Error(str(error), id="django_idempotency.E015")


def check_databases(databases: Sequence[str]) -> Iterator[CheckMessage]:
    """Query each database that stores keys, to check its server and its key tables."""
    for alias in _aliases().intersection(databases):
        if connections[alias].vendor not in VENDORS:
            continue  # `check_settings` has reported it
        try:
            yield from store_for(alias).check()
        except IdempotencyConfigurationError as error:
            yield Error(str(error), id="django_idempotency.E004")
        else:
            # There is no table before the first migration. Invalid options are reported by E007.
            messages: list[CheckMessage] = []
            with suppress(DatabaseError, IdempotencyConfigurationError):
                messages = atomically(alias, lambda: [*_check_operations(alias), *_check_decryption(alias)])  # noqa: B023
            yield from messages


def _check_operations(alias: str) -> Iterator[CheckMessage]:
    for operation in unknown_operations(using=alias):
        yield Warning(
            LOST.format(alias, operation),
            hint="Keep the old route, or the old operation=, until its keys have expired. renamed_idempotency_keys "
            "lists those that have run twice.",
            id="django_idempotency.W016",
        )


def _check_decryption(alias: str) -> Iterator[CheckMessage]:
    """Try to decrypt the newest rows. During a rotation, processes with other encryption keys may have written them."""
    newest = IdempotencyKey.objects.using(alias).order_by("-pk")[:NEWEST]
    for row in (row for row in newest if row.status_code is not None):
        try:
            unseal_response(row, row)
        except NotDecryptable as error:
            yield Warning(
                f"database {alias!r} contains a new row that cannot be decrypted, so its retry gets 500. {error}",
                hint="While you rotate, keep the new key at the end of the list until all processes have it.",
                id="django_idempotency.W017",
            )
            return


def check_backends() -> Iterator[CheckMessage]:
    """Let each backend check its server. A backend that cannot be created is reported by `check_project`."""
    for name in get_settings().backends or {}:
        try:
            yield from backend_for(name).check()
        except IdempotencyConfigurationError:
            continue
        except Exception as error:  # noqa: BLE001 (each backend's client raises its own errors)
            # An error would stop `migrate`, which doesn't need the backend.
            yield Warning(
                f"backend {name!r} does not answer: {error}",
                hint="Requests whose keys are there get 503 until it answers.",
                id="django_idempotency.W019",
            )


def check_urls() -> Iterator[CheckMessage]:
    """Check each protected route's options, and check that authentication runs before the protection."""
    declared, contradictory = _declared()
    problems_by_id = {
        "django_idempotency.E006": (problem for callback in _callbacks() for problem in misplaced(callback)),
        "django_idempotency.E007": contradictory,
        "django_idempotency.E012": (problem for callback in _callbacks() for problem in _misspelled(callback)),
        "django_idempotency.E017": _without_effect(declared),
    }
    for id_, problems in problems_by_id.items():
        yield from (Error(problem, id=id_) for problem in sorted({*problems}))
    short = {f"{answers.view}: ttl={options.ttl!r}" for answers, options in declared if options.outlived_by_gateways}
    for place in sorted(short):
        yield Warning(
            f"{place} with a lease. After ttl the same key runs again, a gateway that still knows its "
            "derived key answers with the first charge, and one payment buys two orders.",
            hint='Leave ttl out, which means 35 days, or pass late_keys="refuse".',
            id="django_idempotency.W009",
        )
    leased = ((answers.view, options) for answers, options in declared if options.runner.has_steps)
    for view in sorted({view for view, options in leased if options.operation is None}):
        yield Warning(
            f"{view} has a lease and no operation=. If its route is renamed, a retry runs again under the new name, "
            "with another derived key: the customer is charged twice.",
            hint='Pass operation="pay a basket", for example. For keys that exist already, see docs/operations.md.',
            id="django_idempotency.W015",
        )
    for operation, views in _shared_operations(declared):
        yield Warning(
            f"operation={operation!r} belongs to {' and '.join(views)}. A key that one of them has used is answered by "
            "the others with its response, if the bodies and the URLs' arguments are equal.",
            hint="Pass each an operation= of its own; a viewset, in idempotency_actions or @action(idempotency=…).",
            id="django_idempotency.W018",
        )
    yield from _check_callers()
    if any(options.in_progress_status == 202 for _, options in declared):
        try:
            status_url("default", 0, 0, None)
        except IdempotencyConfigurationError as error:
            yield Error(str(error), id="django_idempotency.E008")


def _check_callers() -> Iterator[CheckMessage]:
    """Report authentication code whose callers will be refused, or count as new callers once a token is renewed."""
    refused: set[tuple[str, str, str]] = set()
    renewed: set[tuple[str, str]] = set()
    for callback, answers, options in _protected():
        if options.scope is None:
            target = cast(Declaration, answers.declaration).target
            authenticators = authenticators_of(callback, target)
            refused |= {(answers.view, *stranger) for stranger in strangers(authenticators)}
            if not authenticators:
                renewed |= {(answers.view, stranger) for stranger in bare_token_checks(callback)}
    for view, authenticator, user in sorted(refused):
        yield Warning(
            f"{view}: {authenticator} checks a JWT and returns {user}, who is in no table, without the token. User 17 "
            "of one issuer would be user 17 of another, so these requests get 403.",
            hint="Return the token from the authenticator, too, or set it as the user's `token`; or pass scope=.",
            id="django_idempotency.W020",
        )
    for view, place in sorted(renewed):
        yield Warning(
            f"{view}: {place} decodes a JWT and sets no user, so the token's text is the caller. A client that retries "
            "with a renewed token is another caller, and its request runs again.",
            hint="Set request.user above the view, or pass scope=callable(request), made of claims that stay.",
            id="django_idempotency.W021",
        )


def _without_effect(protected: Sequence[tuple[Answers, Options]]) -> Iterator[str]:
    """Describe each declaration without effect, which protects only methods that the view doesn't answer."""
    answered: dict[str, set[str]] = {}
    declared: dict[str, set[str]] = {}
    for answers, options in protected:
        place = _declared_on(answers)
        if place is None or answers.method is None or answers.by_request:
            continue
        answered.setdefault(place, set()).add(answers.method)
        declared.setdefault(place, set()).update(options.methods)
    for place in answered:
        if not answered[place] & declared[place]:
            methods, covered = sorted(answered[place]), sorted(declared[place])
            yield (
                f"{place} answers {', '.join(methods)}, but its options protect {', '.join(covered)}: each retry "
                f"runs again. Pass methods={tuple(methods)!r}, or remove the options."
            )


def _declared_on(answers: Answers) -> str | None:
    """Return the name of the view, class or handler that sets its own options, or None if it only inherits options."""
    declaration = cast(Declaration, answers.declaration)
    target = declaration.target
    if not isinstance(target, type) or declaration.layers[0] is not cast("Any", target).idempotency:
        return answers.view
    return dotted_name(target) if "idempotency" in vars(target) else None


def _shared_operations(protected: Sequence[tuple[Answers, Options]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each `operation` that several views share, with their names. A view with several routes counts once."""
    views: dict[tuple[str, str], set[str]] = {}
    for answers, options in protected:
        if options.operation is not None and not answers.by_request:
            for method in {*options.methods}.intersection(answers.methods()):
                views.setdefault((options.operation, method), set()).add(answers.view)
    yield from sorted({(operation, tuple(sorted(names))) for (operation, _), names in views.items() if len(names) > 1})


def check_switches() -> Iterator[CheckMessage]:
    """Report each temporary switch that is in effect, in case it has been forgotten."""
    conf, observe = get_settings(), resolve().observe
    switches = {
        "IDEMPOTENCY['ENABLED'] is False: no request is protected, and each retry runs again.": not conf.enabled,
        "IDEMPOTENCY['OBSERVE'] is True: each retry runs again.": observe,
        "IDEMPOTENCY['PAUSED'] is True: every request to a protected endpoint gets 503.": conf.paused is True,
    }
    views = {answers.view for answers, options in _declared()[0] if options.observe and not observe}
    switches |= {f"{view} has observe=True: each retry runs again.": True for view in sorted(views)}
    yield from (Warning(message, id="django_idempotency.W014") for message, applies in switches.items() if applies)


def _misspelled(callback: Any) -> Iterator[str]:
    """Describe misspelled names in a view class's options. An option with a misspelled name has no effect."""
    view_class: Any = getattr(callback, "view_class", None) or getattr(callback, "cls", None)
    if not hasattr(view_class, "get_idempotency_options"):
        return
    name = dotted_name(view_class)
    if hasattr(view_class, "idempotency_options"):
        yield f"{name} has the attribute idempotency_options, which has no effect. Name it idempotency."
    # Outside a viewset, the handler is named after the verb: `post`, even if that calls a method named `create`.
    verbs = view_class.http_method_names if getattr(callback, "actions", None) is None else None
    for action in getattr(view_class, "idempotency_actions", {}):
        if not hasattr(view_class, action):
            yield f"{name}.idempotency_actions names {action!r}, but the class has no such method. Correct the name."
        elif verbs is not None and action not in verbs:
            yield f"{name}.idempotency_actions names {action!r}, which nothing reads: name the handler, such as 'post'."


def _declared() -> tuple[list[tuple[Answers, Options]], set[str]]:
    """Return each protected route's `Answers` and options, and the E007 messages about contradictory options."""
    problems: set[str] = set()
    return [(answers, options) for _, answers, options in _protected(problems)], problems


def _protected(problems: set[str] | None = None) -> Iterator[tuple[Any, Answers, Options]]:
    """Yield each protected route's callback, `Answers` and options. Contradictory options are added to `problems`."""
    for callback in _callbacks():
        for answers in declarations_of(callback):
            if answers.declaration is not None:
                try:
                    yield callback, answers, answers.declaration.options
                except IdempotencyConfigurationError as error:
                    if problems is not None:
                        problems.add(f"{answers.view}: {error}")


def _aliases() -> set[str]:
    """The aliases of the databases in which the project stores keys."""
    declared = (options for _, options in _declared()[0])
    return {alias for options in (resolve(), *declared) if (alias := options.runner.alias()) is not None}


def _check_alias(alias: str) -> Iterator[CheckMessage]:
    if alias not in connections:
        yield Error(
            f"idempotency option using={alias!r}: there is no such database.",
            hint=f"Known are: {', '.join(connections)}.",
            id="django_idempotency.E002",
        )
        return
    if not router.allow_migrate_model(alias, IdempotencyKey):
        yield Error(
            f"idempotency keys are kept in database {alias!r}, but DATABASE_ROUTERS do not allow their table there.",
            hint="Let allow_migrate() return True for django_idempotency on that alias, or change `using`.",
            id="django_idempotency.E003",
        )
    connection = connections[alias]
    if connection.vendor not in VENDORS:
        try:
            store_for(alias)  # `store_for` needs no connection for this
        except IdempotencyConfigurationError as error:
            yield Error(str(error), id="django_idempotency.E004")
        return
    given = connection.settings_dict
    if not given["AUTOCOMMIT"]:
        yield Error(
            f"AUTOCOMMIT is off for database {alias!r}, so nothing commits when a protected view returns.",
            hint="Remove AUTOCOMMIT: False.",
            id="django_idempotency.E005",
        )
    mode = (given["OPTIONS"].get("transaction_mode") or "").upper()
    if connection.vendor == "sqlite" and mode not in ("IMMEDIATE", "EXCLUSIVE"):
        yield Warning(
            f"database {alias!r} is SQLite without IMMEDIATE transactions: concurrent writers fail instead of waiting.",
            hint=f"Set DATABASES[{alias!r}]['OPTIONS'] = {{'transaction_mode': 'IMMEDIATE'}}, and keep the others.",
            id="django_idempotency.W001",
        )
    if not _reads_committed(connection.vendor, given["OPTIONS"]):
        yield Warning(
            f"database {alias!r} does not use READ COMMITTED. PostgreSQL may fail requests with error 40001, and under "
            "REPEATABLE READ a view that takes a lock does not see what was committed while it waited: the claim took "
            "the snapshot. On MySQL, a duplicate waits for innodb_lock_wait_timeout, even if `wait` is shorter. "
            "Nothing runs twice.",
            hint=f"Remove isolation_level from DATABASES[{alias!r}]['OPTIONS'], or name READ COMMITTED there.",
            id="django_idempotency.W002",
        )
    if connection.vendor != "postgresql" and connection.timezone_name != "UTC":
        yield Warning(
            f"database {alias!r} stores times of keys in UTC, but Django reads them as {connection.timezone_name!r}.",
            hint="The admin shows wrong times, although keys expire on time. Set USE_TZ = True without a TIME_ZONE.",
            id="django_idempotency.W004",
        )


def _reads_committed(vendor: str, options: dict[str, Any]) -> bool:
    if vendor == "postgresql":
        # psycopg and psycopg2 number the isolation levels differently. Projects without PostgreSQL may have neither.
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        return bool(options.get("isolation_level", IsolationLevel.READ_COMMITTED) == IsolationLevel.READ_COMMITTED)
    return vendor != "mysql" or (options.get("isolation_level", "read committed") or "").lower() == "read committed"


def _callbacks() -> Iterator[Any]:
    if getattr(django_settings, "ROOT_URLCONF", None):
        yield from (callback for _, callback in routes(get_resolver()))
