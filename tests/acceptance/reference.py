"""The parts of the reference that are made of the code.

    python -m tests.acceptance.reference

writes them into the pages of docs/, between the comments that name them; test_reference.py fails when that is due.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from pkgutil import walk_packages
from textwrap import dedent
from typing import Any

from django.core.management.base import BaseCommand

from tests.acceptance.problems import codes, every_problem
from tests.pages import with_part

DOCS = Path(__file__).resolve().parents[2] / "docs"


def public() -> dict[str, list[str]]:
    """Each public module's names: its `__all__`. Public is every module that has one and is not in `engine`."""
    package = import_module("django_idempotency")
    found = {package.__name__: list(package.__all__)}
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.startswith("django_idempotency.engine"):
            names = getattr(import_module(module.name), "__all__", [])
            found |= {module.name: sorted(names)} if names else {}
    return found


ITS_PAGE = {
    "django_idempotency.graphql": "[GraphQL](recipes.md#graphql)",
    "django_idempotency.graphql.strawberry": "[GraphQL](recipes.md#protect-each-mutation)",
    "django_idempotency.ninja": "[Django Ninja](ninja.md)",
    "django_idempotency.ninja.schema": "[OpenAPI](ninja.md#openapi)",
    "django_idempotency.rest_framework": "[REST framework](drf.md)",
    "django_idempotency.rest_framework.schema": "[OpenAPI](drf.md#openapi)",
    "django_idempotency.testing": "[Testing](testing.md)",
    "django_idempotency.views": "[Class-based views](views.md#class-based-views)",
}
"""Modules whose names another page explains."""
RESULTS = ("Asked", "Cleanup", "Forgotten", "Recovered", "Resolved", "RunningTransaction")
"""What functions return. The docstrings tell the attributes."""
ELSEWHERE = ("django_idempotency.exceptions", "django_idempotency.signals")
"""Modules that have a page of their own."""
COMMANDS = (
    "cleanup_idempotency_keys",
    "export_idempotency_keys",
    "forget_idempotency_keys",
    "idempotency_endpoints",
    "idempotency_metrics",
    "recover_idempotency_keys",
    "renamed_idempotency_keys",
    "resolve_idempotency_keys",
)
DJANGOS_OWN = frozenset(action.dest for action in BaseCommand().create_parser("manage.py", "")._actions)


def pages() -> dict[str, dict[str, Callable[[], str]]]:
    """What is made, by page and name."""
    return {
        "api.md": {"names": names, "exceptions": exceptions},
        "client.js": {"CODES": lambda: codes("  ")},
        "client.py": {"CODES": lambda: codes("    ")},
        "commands.md": {"shared": shared_arguments} | {name: lambda name=name: command(name) for name in COMMANDS},
        "signals.md": {"signals": signals, "metrics": metrics},
        "problems.md": {"answers": answers},
        "options.md": {"serves": serves},
    }


def updated(page: str, parts: dict[str, Callable[[], str]]) -> str:
    """The page's text with its parts as they should be."""
    text = (DOCS / page).read_text()
    for name, make in parts.items():
        text = with_part(text, name, make().strip()) if page.endswith(".md") else with_table(text, name, make())
    return text


def with_table(code: str, name: str, rows: str) -> str:
    """The code with these rows in the table of that name."""
    head, rest = re.split(rf"(?m)^(?={re.escape(name)} = |const {re.escape(name)} = )", code)
    first, rest = rest.split("\n", 1)
    return f"{head}{first}\n{rows}{rest[rest.index('}') :]}"


def whom() -> dict[str, str]:
    """Whom each option and setting serves: what its docstring says last, from "For" on."""
    from django_idempotency.engine.conf import options, settings

    (definition,) = ast.parse(inspect.getsource(options.Idempotency)).body
    assert isinstance(definition, ast.ClassDef)
    texts = {
        name.target.id: text.value.value
        for name, text in pairwise(definition.body)
        if isinstance(name, ast.AnnAssign) and isinstance(name.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
    attributes = (inspect.getdoc(settings.Settings) or "").partition("Attributes:")[2]
    texts |= {name.upper(): text for name, text in re.findall(r"(?m)^    (\w+): (.*(?:\n {8}.*)*)", attributes)}
    return {name: " ".join(str(text).split()).rpartition(" For ")[2] for name, text in texts.items()}


def serves() -> str:
    """The options and settings by those whom they serve."""
    rows = (f"| {text.removesuffix('.')} | `{name}` |" for name, text in whom().items())
    return "\n".join(["| For | Set |", "|---|---|", *rows])


def names() -> str:
    """Each public name with its signature and docstring."""
    lines: list[str] = []
    for module, members in public().items():
        if module in ELSEWHERE:
            continue
        lines += [f"## `{module}`", ""]
        if module in ITS_PAGE:
            lines += [f"{', '.join(f'`{name}`' for name in members)}: {ITS_PAGE[module]}.", ""]
            continue
        lines += returned(members)
        for member in members:
            value = getattr(import_module(module), member)
            if member in ("Idempotency", *RESULTS) or (isinstance(value, type) and issubclass(value, Exception)):
                continue  # options.md, `returned()`, and the part on exceptions
            lines += described("###", member, value, TOLD.get(member))
            if member == "Operation":
                for name, method in {**vars(value.__base__), **vars(value)}.items():
                    if not name.startswith("_") and name not in SAID_ON_TOP:
                        lines += described("####", f"operation.{name}", method, TOLD.get(f"operation.{name}"))
    return "\n".join(lines)


def returned(members: Iterable[str]) -> list[str]:
    """The results of a module's functions, in one line."""
    results = ", ".join(f"`{name}`" for name in members if name in RESULTS)
    return [f"Each function returns one of these objects: {results}.", ""] if results else []


def summary(value: Any) -> str:
    """The first line of a docstring, which has to be whole sentences."""
    line = docstring(value).partition("\n")[0]
    assert line.endswith("."), f"{value!r}: its docstring's first line must not end within a sentence: {line}"
    return line


def docstring(value: Any) -> str:
    """As the source has it: a class may hide its docstring from OpenAPI."""
    if isinstance(value, type) and value.__doc__ is None:
        (definition,) = ast.parse(inspect.getsource(value)).body
        return ast.get_docstring(definition) or ""  # type: ignore[arg-type]
    return inspect.getdoc(value) or ""


def described(level: str, name: str, value: Any, page: str | None) -> list[str]:
    text = docstring(value)
    if page:
        text = f"{summary(value)} [More]({page})."
    known = () if isinstance(value, type) else common_arguments()
    return [f"{level} `{name}{signature(name, value)}`", "", prose(text, known).strip(), ""]


def common_arguments() -> list[str]:
    """The arguments that the page explains above the names, once for all functions: "* `by`, `reason`: …"."""
    head = (DOCS / "api.md").read_text().partition("<!--")[0]
    return [name for names in re.findall(r"(?m)^\* (`.*?): ", head) for name in re.findall(r"`(\w+)`", names)]


def signature(name: str, value: Any) -> str:
    """The parameters without their types. Nothing for what no project calls, and for what a command calls."""
    if isinstance(value, type) or not callable(value) or name in COMMANDS:
        return ""
    given = inspect.signature(value)
    parameters = [p.replace(annotation=p.empty) for p in given.parameters.values() if p.name != "self"]
    text = str(given.replace(parameters=parameters, return_annotation=given.empty))
    return re.sub(r"<[^=]* at 0x\w+>", "…", text)


SAID_ON_TOP = ("acall", "afetch", "arefer_to", "arenew", "awrite", "request")
"""Members of `Operation`: the asynchronous ones, which the page lists, and an attribute of its docstring."""
TOLD = {
    "operation.call": "leased.md#writing-steps",
    "operation.derive_key": "leased.md#the-derived-key",
    "operation.fetch": "leased.md#writing-steps",
    "operation.refer_to": "leased.md#name-the-order-that-a-key-is-about",
    "operation.results": "interrupted.md#let-your-code-find-out",
    "operation.write": "leased.md#writing-steps",
    "arun_once": "events.md",
    "get_operation": "leased.md#name-the-order-that-a-key-is-about",
    "idempotent": "views.md",
    "once": "events.md",
    "problem_response": "events.md#webhooks",
    "Endpoint": "commands.md#idempotency_endpoints",
    "IdempotencyKeyAdmin": "monitoring.md#the-admin",
    "cleanup_idempotency_keys": "operations.md#cleanup",
    "forget": "privacy.md#forget-a-key-or-a-user",
    "forget_scope": "privacy.md#forget-a-key-or-a-user",
    "close_with": "runbook.md#the-decisions",
    "record_outcome": "runbook.md#the-decisions",
    "release_for_retry": "runbook.md#the-decisions",
    "remember_calls": "incidents.md#after-a-restore-or-a-failover-that-lost-commits",
    "resolve_all": "interrupted.md#let-a-person-decide",
    "recover_idempotency_keys": "operations.md#recovery",
    "find_resource": "leased.md#name-the-order-that-a-key-is-about",
    "half_done": "runbook.md#2-find-the-keys",
    "in_doubt": "runbook.md#2-find-the-keys",
    "running_transactions": "monitoring.md#atomic-mode-at-work",
    "in_flight": "runbook.md#2-find-the-keys",
    "stuck": "runbook.md#2-find-the-keys",
    "find_key": "runbook.md#2-find-the-keys",
    "KeyCollector": "monitoring.md",
    "install": "monitoring.md",
    "from_form_field": "views.md#double-clicks-on-a-form",
    "from_header": "events.md#webhooks",
    "list_endpoints": "commands.md#idempotency_endpoints",
    "derived_key": "leased.md#the-derived-key",
    "key_reference": "signals.md#events",
}
"""Names that another page explains: the reference has their first line."""
RAISED = {*import_module("django_idempotency.exceptions").__all__, "InvalidKey"} - {"IdempotencyConfigurationError"}
"""Of those, the lists speak. Any function may raise the last one, and the page says so once."""
NOTE = re.compile(r" ?See Note \[[^]]+\]\.")
"""For readers of the code."""
SECTION = re.compile(r"(?m)^(Args|Attributes|Raises|Returns):\n((?:[ ]{4,}.*(?:\n|$))+)")


def prose(text: str, known: Collection[str] = ()) -> str:
    """A docstring as Markdown. What it lists, `name: what it means`, becomes an item of a list."""
    text = SECTION.sub(lambda found: section(found, known), NOTE.sub("", text))
    lines: list[str] = []
    for line in re.sub(r"\n[ ]{4,}", " ", text).splitlines():
        item = re.fullmatch(r"([a-z_*]+(?:(?:, | and )[a-z_*]+)*): (.+)", line)
        if lines and (bool(item) or line.startswith("* ")) != lines[-1].startswith("* "):
            lines.append("")
        lines.append("* {}: {}".format(re.sub(r"[a-z_*]{4,}|key", r"`\g<0>`", item[1]), item[2]) if item else line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def section(found: re.Match[str], known: Collection[str]) -> str:
    """A section of a docstring in Google's style, without the arguments that are known."""
    lines = re.sub(r"\n[ ]{4,}", " ", dedent(found[2])).splitlines()
    if found[1] == "Returns":
        return ""  # the first line of a docstring says it
    items = [(re.findall(r"\w+", names), text) for names, _, text in (line.partition(": ") for line in lines)]
    if found[1] == "Raises":  # another part says what each one means; those of Python and Django, their own documents
        raised = dict.fromkeys(f"`{name}`" for names, _ in items for name in names if name in RAISED)
        return f"Raises {', '.join(raised)}.\n" if raised else ""
    told = [(", ".join(f"`{name}`" for name in names), text) for names, text in items if not {*names} <= {*known}]
    return "".join(f"* {names}: {text}\n" for names, text in told)


def arguments(name: str) -> list[tuple[str, str]]:
    """A command's arguments without those of every command, each with its help."""
    parser = import_module(f"django_idempotency.management.commands.{name}").Command().create_parser("manage.py", name)
    own = [action for action in parser._actions if action.dest not in DJANGOS_OWN]
    return [(argument(action), cell(str(action.help) % vars(action))) for action in own]


REPEATED = " May be repeated."
STATUS = re.compile(r" (?:With or without --apply, t|T)he exit status is [^.]*\.$")
"""The page tells of all commands' statuses in one place."""


def shared() -> dict[str, str]:
    """The arguments that mean the same for several commands."""
    every = (each for name in COMMANDS for each in {(a, text.removesuffix(REPEATED)) for a, text in arguments(name)})
    return dict(each for each, count in Counter(every).items() if count > 1)


def shared_arguments() -> str:
    return "\n".join(f"* `{name}`: {text}" for name, text in sorted(shared().items()))


def command(name: str) -> str:
    """A management command: its help, and its arguments. Those that several commands share are only named."""
    description = import_module(f"django_idempotency.management.commands.{name}").Command.help
    common, own, named = shared(), [], []
    for each, text in arguments(name):
        if common.get(each) == text.removesuffix(REPEATED):
            named.append(f"`{each.partition(' ')[0]}`{' …' * text.endswith(REPEATED)}")
        else:
            own.append(f"* `{each}`: {text}")
    above = f"* {', '.join(named)}: [as above](#arguments-of-several-commands)."
    return "\n".join([f"## `{name}`", "", STATUS.sub("", description), "", *own, *([above] if named else [])])


def argument(action: argparse.Action) -> str:
    if action.nargs == 0:
        return action.option_strings[-1]
    value = "{" + ",".join(action.choices) + "}" if action.choices else action.metavar or action.dest.upper()
    return f"{action.option_strings[-1]} {value}"


def answers() -> str:
    """How long the package asks a client to wait, with the default options."""
    from django_idempotency.engine.conf import resolve
    from django_idempotency.engine.protocol.outcomes import LONGEST_RETRY_AFTER, SHORTEST_RETRY_AFTER

    found = [problem for problem in every_problem(resolve()) if "Retry-After" in problem.headers]
    waits = ", ".join(f"{problem.headers['Retry-After']} for `{problem.code}`" for problem in found)
    of_leases = (
        "In [leased mode](leased.md#the-lease), an `in-progress` response has the seconds until the lease expires, "
        f"from {SHORTEST_RETRY_AFTER} to {LONGEST_RETRY_AFTER}."
    )
    return f"Wait for the seconds in `Retry-After`: {waits}. {of_leases}"


def exceptions() -> str:
    """What the package raises: each exception before its subclasses."""
    from django_idempotency import exceptions

    def below(parent: type) -> Iterable[str]:
        bases = [base.__name__ for base in parent.__bases__ if base not in (Exception, exceptions.IdempotencyError)]
        kind = f", a subclass of {' and '.join(f'`{base}`' for base in bases)}" if bases else ""
        yield f"* `{parent.__name__}`{kind}: {' '.join(prose(docstring(parent)).split())}"
        for child in sorted(parent.__subclasses__(), key=lambda child: child.__name__):
            if child.__module__ == exceptions.__name__:
                yield from below(child)

    return "\n".join(below(exceptions.IdempotencyError))


def signals() -> str:
    """Each event of the signal, with its text in the code, and the levels of the log records."""
    from django_idempotency import signals as module
    from django_idempotency.engine import events

    lines = []
    source = inspect.getsource(module).partition("key_event = ")[2]
    for name, text in re.findall(r'(?ms)^ {8}"(\w+)": (.*?)(?=^ {8}"|^$)', source):
        told = " ".join(text.split())
        lines.append(f"* `{name}`: {told}")
    by_level: dict[int, list[str]] = {}
    for name, level in events.LEVELS.items():
        by_level.setdefault(level, []).append(f"`{name}`")
    levels = "; ".join(f"{', '.join(names)} at {logging.getLevelName(level)}" for level, names in by_level.items())
    repeated = (
        "`held` is at ERROR only for a run that fails and for the first retry that each process refuses. Otherwise it "
        "is at INFO, also where `reconcile` does not know yet."
    )
    return "\n".join([*lines, "", f"Log levels: {levels}; all others at INFO. {repeated}"])


def metrics() -> str:
    """Each metric as a scrape names it."""
    from django_idempotency import metrics as module

    meanings = {"idempotency_key_outcomes_total": "How often each [event](#events) happened."}
    meanings["idempotency_keys_purged_total"] = "Expired keys that this process has deleted."
    meanings |= {f"idempotency_keys_{name}": text for name, text in module.GAUGES.items()}
    told: dict[str, list[str]] = {}  # several metrics may have one meaning
    for name, text in meanings.items():
        told.setdefault(text, []).append(f"`{name}`")
    return "\n".join(f"* {', '.join(names)}: {text}" for text, names in told.items())


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def set_up() -> None:
    """Django, with what the package's modules import."""
    import django
    from django.conf import settings

    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    apps = [*(f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes")), "django_idempotency"]
    settings.configure(INSTALLED_APPS=apps, DATABASES={"default": database})
    django.setup()


def main() -> None:
    set_up()
    for page, parts in pages().items():
        (DOCS / page).write_text(updated(page, parts))


if __name__ == "__main__":
    main()
