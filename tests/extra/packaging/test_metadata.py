"""What pyproject.toml says of the package is what is tried."""

from __future__ import annotations

import re
from configparser import ConfigParser

from tests.extra.packaging.conftest import PROJECT, ROOT


def classified(prefix: str) -> set[str]:
    versions = {name.removeprefix(prefix) for name in PROJECT["classifiers"] if name.startswith(prefix)}
    return {version for version in versions if re.fullmatch(r"\d+\.\d+", version)}


def tried(prefix: str) -> set[str]:
    """The versions in tox's list: py311 and py{312,313} are 3.11, 3.12 and 3.13."""
    tox = ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    lists = re.findall(rf"\b{prefix}(\d+|{{[\d,]+}})", tox["tox"]["env_list"])
    return {f"{number[0]}.{number[1:]}" for numbers in lists for number in re.findall(r"\d+", numbers)}


def test_each_version_that_is_promised_is_tried():
    """By classifier and by tox alike."""
    pythons, djangos = classified("Programming Language :: Python :: "), classified("Framework :: Django :: ")
    assert pythons == tried("py") == {"3.11", "3.12", "3.13", "3.14"}
    assert djangos == tried("dj") == {"5.2", "6.0", "6.1"}


def test_it_depends_on_django_alone():
    """And on asgiref, which Django brings: tests/kept/test_transactions.py fails with its 3.8. Everything
    else is an extra."""
    assert PROJECT["dependencies"] == ["asgiref>=3.9.1", "django>=5.2"]
    assert PROJECT["requires-python"] == ">=3.11"


def test_each_address_belongs_to_one_repository():
    """`release.yml` compares `Source` with the repository that publishes. Without it, no file names one of ours."""
    source = PROJECT.get("urls", {}).get("Source", "")
    files = ["pyproject.toml", "README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md"]
    text = "".join(path.read_text() for path in (*(ROOT / file for file in files), *(ROOT / "docs").rglob("*.md")))
    ours = re.findall(rf"https://[^\s\"')]*{PROJECT['name']}[^\s\"')]*", text)
    assert [address for address in ours if not (source and address.startswith(source))] == []


def test_the_changelog_begins_with_the_version():
    """Below what is not released yet."""
    unreleased, released = re.findall(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text())[:2]
    assert (unreleased, released) == ("Unreleased", PROJECT["version"])


def test_a_release_candidate_says_so():
    """And a release says nothing of the kind."""
    version, pages = PROJECT["version"], [(ROOT / page).read_text() for page in ("README.md", "docs/versions.md")]
    assert ["release candidate" in page for page in pages] == ["rc" in version] * 2
    assert (f"**{version} is a release candidate**" in pages[1]) is ("rc" in version)
