"""What is public, one line a thing, made of the code.

    python -m tests.acceptance.surface

writes docs/surface.txt, to which docs/versions.md refers. test_public_names.py fails while the code and the file
disagree, so that no change of what is public is an accident.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import logging
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from datetime import timedelta
from enum import Enum
from importlib import import_module
from typing import Any, Generic

from tests.acceptance.problems import every_problem
from tests.acceptance.reference import COMMANDS, DJANGOS_OWN, DOCS, public, set_up

FILE = DOCS / "surface.txt"
PACKAGE = DOCS.parent / "django_idempotency"
OURS = "django_idempotency"
NOT_MADE_BY_USERS = ("Operation",)
"""Classes whose constructors only the package calls."""
OF_THE_PACKAGE = ("client", "connect", "given", "options_for", "outlived_by_gateways")
"""Members of public classes that only the package calls, and that no page names."""


def surface() -> list[str]:
    """Each public thing in a line that begins with its kind."""
    kinds = (names, attributes, options, settings, problems, events, log_fields, metrics, tables, checks)
    kinds += (commands, modules, templates, tags, urls, extras, exported)
    return sorted({line for kind in kinds for line in kind()})


def listed(what: str, things: Iterable[str]) -> str:
    return f"{what}: {', '.join(things)}"


# --- names


def names() -> Iterator[str]:
    """Each public name with its signature, and each member of a class that the package itself defines."""
    for module, members in public().items():
        for name in members:
            value = getattr(import_module(module), name)
            yield from described(f"name {module}.{name}", value)


def described(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        known = [base for base in value.__bases__ if base not in (object, Generic)]
        bases = ", ".join(base.__name__ for base in known if not base.__module__.startswith(f"{OURS}.engine"))
        yield f"{name}{constructor(value)}{f', based on {bases}' if bases else ''}"
        yield from (f"{name}.{member}" for member in members(value))
    elif callable(value):
        yield f"{name}{signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def constructor(kind: type) -> str:
    """The arguments, where the package has written the constructor, and users call it."""
    if kind.__name__ in (*NOT_MADE_BY_USERS, "Idempotency"):  # options have lines of their own
        return ""
    makes: Any = next(base for base in kind.__mro__ if {"__init__", "__new__"} & vars(base).keys())
    return signature(kind) if makes.__module__.startswith(OURS) else ""


def members(kind: type) -> Iterator[str]:
    """What the class adds to those that it is derived from outside the package."""
    foreign = {name for base in kind.__mro__ if not base.__module__.startswith(OURS) for name in dir(base)}
    ours = [base for base in reversed(kind.__mro__) if base.__module__.startswith(OURS)]
    found: dict[str, Any] = {}
    for base in ours:
        found |= dict.fromkeys(attributes_of(base)) | vars(base)
    for name, value in found.items():
        if name.startswith("_") or name in (*foreign, *OF_THE_PACKAGE):
            continue
        if isinstance(value, property):
            yield f"{name}: {annotation(inspect.signature(value.fget).return_annotation)}"  # type: ignore[arg-type]
        elif callable(value := getattr(value, "__func__", value)) and not isinstance(value, type):
            yield f"{name}{signature(value)}"
        elif is_dataclass(kind) or isinstance(value, type):
            continue  # the constructor has it
        elif isinstance(value, Enum):
            yield f"{name} = {value.value!r}"
        else:
            yield name


def attributes_of(kind: type) -> list[str]:
    """What the class's constructor sets on each object."""
    made = vars(kind).get("__init__")
    return (
        []
        if is_dataclass(kind) or made is None
        else re.findall(r"self\.([a-z]\w*)(?:: .+?)? = ", inspect.getsource(made))
    )


def signature(value: Any) -> str:
    """Its parameters with their types and defaults, on one line."""
    given = inspect.signature(value)
    parameters = [parameter for name, parameter in given.parameters.items() if name not in ("self", "cls")]
    parts, seen = list[str](), set[Any]()
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not seen & {parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL}:
            parts.append("*")
        seen.add(parameter.kind)
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        told = annotation(parameter.annotation)
        default = "" if parameter.default is parameter.empty else f" = {shown(parameter.default)}"
        parts.append(f"{stars}{parameter.name}{f': {told}' if told else ''}{default}")
    returned = "" if isinstance(value, type) else annotation(given.return_annotation)
    return f"({', '.join(parts)}){f' -> {returned}' if returned else ''}"


def annotation(given: Any) -> str:
    if given is inspect.Signature.empty:
        return ""
    return given if isinstance(given, str) else getattr(given, "__name__", str(given))


def shown(value: Any) -> str:
    """A default as code. One that is an object without a name is only a default."""
    if isinstance(value, timedelta):
        return f"{int(value.total_seconds())} seconds"
    name = getattr(value, "__name__", "<")
    return name if name[0] != "<" else "…" if " at 0x" in repr(value) else repr(value)


# --- options and settings


def attributes() -> Iterator[str]:
    """What `ERROR_RESPONSE` receives."""
    from django_idempotency.engine.request.problems import Problem

    yield from (f"problem {field.name}: {field.type}" for field in fields(Problem))
    yield from (f"problem {name}" for name, value in vars(Problem).items() if isinstance(value, property))


def options() -> Iterator[str]:
    """Each option with its type and default, and with the mode if that has a default, or a limit, of its own."""
    from django_idempotency.engine.conf.modes import registered
    from django_idempotency.engine.conf.options import OPTIONS, OnceKeywords, defaults

    plain = {name: field.metadata["default"] for name, field in OPTIONS.items()}
    for name, field in OPTIONS.items():
        yield f"option {name}: {field.type} = {shown(plain[name])}"
        for mode in registered():
            default, possible = defaults(mode)[name], mode.possible.get(name)
            if possible is not None:
                yield f"option {name}, {mode.__name__.lower()}: only {', '.join(map(shown, possible))}"
            elif default != plain[name]:
                yield f"option {name}, {mode.__name__.lower()} = {shown(default)}"
    yield listed("option of run_once, arun_once and once", sorted(OnceKeywords.__annotations__))


def settings() -> Iterator[str]:
    from django_idempotency.engine.conf.settings import SETTING_NAMES, Settings

    own = {field.name: field for field in fields(Settings)}
    for name in sorted({*SETTING_NAMES} - {"BACKEND", "OPERATION"}):  # which are refused there
        field = own.get(name.lower())
        told = " = that of the option" if field is None else f": {field.type} = {shown(field.default)}"
        yield f"setting {name}{told}"


# --- what clients and operators see


def problems() -> Iterator[str]:
    """Each error response, by its code, and the members of its body."""
    from django.test import RequestFactory

    from django_idempotency import Idempotency
    from django_idempotency.engine.conf import resolve
    from django_idempotency.engine.request.problems import _json

    for mismatch in (422, 409):
        for problem in every_problem(resolve(Idempotency(mismatch_status=mismatch))):
            headers = "".join(f", {name}" for name in problem.headers)
            yield f"code {problem.code}: {problem.status}, {problem.meaning}, {problem.title!r}{headers}"
    body = ast.literal_eval(_json(RequestFactory().post("/"), problem).content.decode())
    yield listed("code, members of the body", (*body, "resource"))


def events() -> Iterator[str]:
    """Each event with the level of its record, and each argument of a receiver."""
    from django_idempotency import signals as module
    from django_idempotency.engine.events import LEVELS

    text = inspect.getsource(module).partition("key_event = ")[2]
    for name in re.findall(r'(?m)^ {8}"(\w+)": ', text):
        yield f"event {name}: {logging.getLevelName(LEVELS.get(name, logging.INFO))}"
    yield listed("event, arguments", re.findall(r"(?m)^    (\w+): ", text))


def log_fields() -> Iterator[str]:
    """The fields of a log record of the logger `django_idempotency`."""
    from django_idempotency.engine import events as module

    source = textwrap.dedent(inspect.getsource(module.report) + inspect.getsource(module.report_purged))
    found = re.findall(r'"(event|operation|key_reference|database|backend|attempt|reason|resource_\w+)"', source)
    yield listed("log django_idempotency, fields", dict.fromkeys(found))


def metrics() -> Iterator[str]:
    from django_idempotency import metrics as prometheus
    from django_idempotency import opentelemetry

    source = inspect.getsource(prometheus.install)
    for name, labels in re.findall(r'Counter\(\s*"(\w+)", "[^"]+", \(([^)]*)\)', source):
        yield listed(f"metric {name}_total, a counter with labels", re.findall(r"\w+", labels))
    yield from (f"metric idempotency_keys_{name}, a gauge with labels: database" for name in prometheus.GAUGES)
    source = inspect.getsource(opentelemetry.install)
    yield from (f"metric {name}: OpenTelemetry" for name in re.findall(r'create_counter\("([^"]+)"', source))
    yield from (f"metric attribute {name}" for name in re.findall(r'"(idempotency\.[\w.]+)": ', source))


# --- the database


def tables() -> Iterator[str]:
    from django.apps import apps

    for model in apps.get_app_config(OURS).get_models():
        table = model._meta.db_table
        for field in model._meta.concrete_fields:
            _, _, _, given = field.deconstruct()
            about = {name: value for name, value in given.items() if name in ("max_length", "null", "default")}
            about |= {"choices": [value for value, _ in field.flatchoices]} if field.choices else {}
            told = "".join(
                f", {name}={str(value) if isinstance(value, str) else value!r}" for name, value in about.items()
            )
            yield f"column {table}.{field.column}: {type(field).__name__}{told}"
        for index in (*model._meta.indexes, *model._meta.constraints):
            of = ", ".join(index.fields) if hasattr(index, "fields") else "a condition"
            yield f"index {index.name} of {table}: {of}"
        yield from (f"permission {OURS}.{name}" for name, _ in model._meta.permissions)
    yield from (f"migration {path.stem}" for path in (PACKAGE / "migrations").glob("0*.py"))


def checks() -> Iterator[str]:
    source = "".join(path.read_text() for path in sorted(PACKAGE.rglob("*.py")))
    for name in re.findall(r'"(django_idempotency\.[EW]\d{3})"', source):
        yield f"check {name}: {'Error' if '.E' in name else 'Warning'}"


# --- commands


def commands() -> Iterator[str]:
    """Each command, its arguments, and its exit statuses."""
    for name in COMMANDS:
        home = import_module(f"django_idempotency.management.commands.{name}")
        parser = home.Command().create_parser("manage.py", name)
        own = [action for action in parser._actions if action.dest not in DJANGOS_OWN]
        yield from (f"command {name} {argument(action)}" for action in own)
        base = [kind for kind in home.Command.__mro__ if kind.__module__ == "django_idempotency.management.base"]
        sources = [inspect.getsource(home), *map(inspect.getsource, base)]
        returned = {given for source in sources for given in re.findall(r"returncode=(\w+)", source)}
        status = {0, 1, *(int(given) if given.isdigit() else getattr(home, given, 3) for given in returned)}
        by_signal = any("128 + received" in source for source in sources)
        yield listed(f"command {name}, exit status", [*map(str, sorted(status)), *["128 + signal"] * by_signal])


def modules() -> Iterator[str]:
    """Modules that `python -m` runs."""
    from django_idempotency import copies, probe

    for home in (copies, probe):
        parser, name = home._parser(), f"python -m {home.__name__}"
        yield from (f"command {name} {argument(action)}" for action in parser._actions if action.dest != "help")
        yield listed(f"command {name}, exit status", sorted(set(re.findall(r"\b\d\b", parser.epilog or ""))))


def argument(action: argparse.Action) -> str:
    """A flag with its value and default, or the name of what is given without one."""
    given = " / ".join(action.option_strings) or str(action.metavar or action.dest)
    choices = f" {{{','.join(map(str, action.choices))}}}" if action.choices else ""
    value = (
        choices or f" {action.metavar or action.dest.upper()}" if action.option_strings and action.nargs != 0 else ""
    )
    more = ", required" if action.required and action.option_strings else ""
    more += ", repeatable" if isinstance(action, argparse._AppendAction) or action.nargs == "+" else ""
    more += "" if action.default in (None, False, []) else f" = {shown(action.default)}"
    return f"{given}{value}{more}"


# --- pages


def templates() -> Iterator[str]:
    """Templates, which a project may replace or extend, with their blocks and what the package passes to its own."""
    from django_idempotency.engine.request import problems as module

    for path in (PACKAGE / "templates").rglob("*.html"):
        name, text = path.relative_to(PACKAGE / "templates").as_posix(), path.read_text()
        yield f"template {name}"
        yield from (f"template {name}, block {block}" for block in re.findall(r"{% block ([\w-]+)", text))
    (context,) = re.findall(r"context = ({.*})", inspect.getsource(module._page))
    yield listed("template django_idempotency/problem.html, context", re.findall(r'"(\w+)":', context))


def tags() -> Iterator[str]:
    for path in (PACKAGE / "templatetags").glob("idempotency*.py"):
        for name, tag in import_module(f"django_idempotency.templatetags.{path.stem}").register.tags.items():
            yield f"tag {path.stem}.{name}{signature(inspect.unwrap(tag))}"


def urls() -> Iterator[str]:
    from django_idempotency import urls as module

    yield from (f"url {module.app_name}:{url.name} {url.pattern}" for url in module.urlpatterns)


def extras() -> Iterator[str]:
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    yield from (f"extra {name}" for name in project["optional-dependencies"])


def exported() -> Iterator[str]:
    """The columns of the admin's CSV, and the members of a line of `export_idempotency_keys`."""
    from django_idempotency.admin.export import COLUMNS
    from django_idempotency.maintenance.sheet import TO_FILL
    from django_idempotency.management.commands.export_idempotency_keys import KEY, STEP

    yield listed("file of the admin's export, columns", (*TO_FILL, *COLUMNS))
    yield listed("file of export_idempotency_keys, members", (*KEY, "last_error", "decisions", "response", "steps"))
    yield listed("file of export_idempotency_keys, members of steps", (*STEP, "result", "error"))


HEAD = """\
What is public in django-idempotency, a line for each thing. versions.md says what may change, and when.
Made by a command, and compared with the code by a test: python -m tests.acceptance.surface
"""


def text() -> str:
    return "\n".join([HEAD, *surface(), ""])


def main() -> None:
    set_up()
    FILE.write_text(text())


if __name__ == "__main__":
    main()
