"""The German translation: complete, current, and used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from gettext import GNUTranslations
from pathlib import Path
from typing import Any

import pytest
from django.test import Client, modify_settings
from django.utils.translation import override

import django_idempotency
from django_idempotency.engine.conf import Idempotency
from django_idempotency.engine.request.problems import missing_key
from django_idempotency.keys import from_form_field, from_header

PACKAGE = Path(django_idempotency.__file__).parent
CATALOGUE = PACKAGE / "locale/de/LC_MESSAGES/django.po"
STRING = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'
ENTRY = re.compile(rf"^msgid {STRING}(?:msgid_plural {STRING})?((?:msgstr(?:\[\d\])? {STRING})+)", re.MULTILINE)
PLACEHOLDER = re.compile(r"%\(\w+\)[-#0 +]*[\d.]*[a-z]|\{\w+\}")

Post = Callable[..., Any]


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """The language that LocaleMiddleware has activated stays, for the next test too."""
    with override("en"):
        yield


def text_of(literals: str) -> str:
    """What the string literals of a catalogue stand for, one after the other."""
    joined = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals))
    return re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), joined)


def entries(catalogue: Path) -> dict[str, tuple[str | None, list[str]]]:
    """By msgid: the plural and the translations. Without the header, and without what is commented out."""
    found = {
        text_of(msgid): (
            plural and text_of(plural),
            [text_of(literals) for literals in re.findall(rf"msgstr(?:\[\d\])? {STRING}", translations)],
        )
        for msgid, plural, translations, _last in ENTRY.findall(catalogue.read_text())
    }
    assert found.pop("")
    return found


def test_everything_is_translated_with_the_same_placeholders() -> None:
    """Nothing missing, nothing that a tool has guessed."""
    assert "fuzzy" not in CATALOGUE.read_text()
    translated = entries(CATALOGUE)
    assert len(translated) > 100
    for msgid, (plural, translations) in translated.items():
        assert len(translations) == (2 if plural else 1), msgid
        for translation in translations:
            assert translation.strip(), msgid
            assert sorted(PLACEHOLDER.findall(translation)) == sorted(PLACEHOLDER.findall(msgid)), msgid


def test_the_compiled_catalogue_is_current() -> None:
    """After a change: django-admin compilemessages, in the folder of the package."""
    with CATALOGUE.with_suffix(".mo").open("rb") as file:
        compiled = GNUTranslations(file)
    for msgid, (plural, translations) in entries(CATALOGUE).items():
        found = [compiled.ngettext(msgid, plural, n) for n in (1, 2)] if plural else [compiled.gettext(msgid)]
        assert found == translations


@pytest.mark.skipif(shutil.which("xgettext") is None, reason="gettext's xgettext is not on this machine")
def test_the_catalogue_has_the_strings_of_the_code(tmp_path: Path) -> None:
    """Neither new ones nor old ones: django-admin makemessages -l de --no-wrap --add-location file."""
    shutil.copytree(PACKAGE, tmp_path / "package", ignore=shutil.ignore_patterns("*.mo", "__pycache__"))
    command = [sys.executable, "-m", "django", "makemessages", "--locale", "de", "--no-obsolete"]
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    subprocess.run(
        command, cwd=tmp_path / "package", env=environment, check=True, timeout=60, stdout=subprocess.DEVNULL
    )
    assert set(entries(tmp_path / "package" / CATALOGUE.relative_to(PACKAGE))) == set(entries(CATALOGUE))


@modify_settings(MIDDLEWARE={"append": "django.middleware.locale.LocaleMiddleware"})
@pytest.mark.django_db
@pytest.mark.urls("tests.view_urls")
@pytest.mark.parametrize(
    ("key", "title", "detail"),
    [
        (
            None,
            "Idempotency-Key is missing",
            "Dieser Vorgang braucht den Anfrage-Header Idempotency-Key mit einem eindeutigen Wert, etwa einer UUID.",
        ),
        (
            "a, b",
            "Idempotency-Key is not valid",
            "Der Anfrage-Header Idempotency-Key enthält keinen brauchbaren Schlüssel. Setzen Sie den Schlüssel in "
            "doppelte Anführungszeichen, und senden Sie den Header nur einmal.",
        ),
    ],
)
def test_a_problem_has_its_detail_in_the_clients_language(post: Post, key: str | None, title: str, detail: str) -> None:
    """And its title as the draft has it: clients tell errors apart by it."""
    problem = post("/create", key=key, headers={"Accept-Language": "de"}).json()
    assert (problem["title"], problem["detail"]) == (title, detail)
    assert post("/create", key=key, headers={"Accept-Language": "en"}).json()["title"] == title


def test_another_place_of_the_key_is_named_in_the_clients_language() -> None:
    """The reader was made when the code was imported, in no language."""
    for reader, place in (
        (from_form_field(), "das Formularfeld 'idempotency_key'"),
        (from_header("X"), "der Anfrage-Header X"),
    ):
        with override("de"):
            assert missing_key(Idempotency(key=reader)).detail.endswith(f"an dieser Stelle: {place}.")
        with override("en"):
            assert missing_key(Idempotency(key=reader)).detail.startswith("This operation needs the ")


@modify_settings(MIDDLEWARE={"append": "django.middleware.locale.LocaleMiddleware"})
@pytest.mark.urls("tests.admin_urls")
def test_the_admin_speaks_german(admin_client: Client) -> None:
    """Names of the app, of the model and of its columns."""
    page = admin_client.get(
        "/admin/django_idempotency/idempotencykey/", headers={"Accept-Language": "de"}
    ).content.decode()
    assert "Idempotenzschlüssel" in page
    assert "fehlgeschlagen" in page
