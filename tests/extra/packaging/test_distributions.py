"""What is uploaded: the same bytes each time, complete, and nothing that is not meant for users."""

from __future__ import annotations

import re
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

from tests.extra.packaging.conftest import PROJECT, ROOT, Distributions, run

SCRIPTS = Path(sys.executable).parent


def files(folder: str) -> set[str]:
    """Those of the checkout, by the names that they have in it."""
    paths = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file())
    return {
        path.as_posix() for path in paths if not any(part[0] == "." or part == "__pycache__" for part in path.parts)
    }


def test_two_builds_have_the_same_bytes(distributions: Distributions, rebuilt: Distributions) -> None:
    """Whoever has the sdist can build the wheel again and compare."""
    assert distributions.sdist.read_bytes() == rebuilt.sdist.read_bytes()
    assert distributions.wheel.read_bytes() == rebuilt.wheel.read_bytes()


def test_the_index_would_take_them(distributions: Distributions) -> None:
    """twine is strict: a description that cannot be rendered is an error."""
    said = run(SCRIPTS / "twine", "check", "--strict", distributions.sdist, distributions.wheel)
    assert said.count("PASSED") == 2


def test_the_index_shows_a_readme_whose_links_lead_somewhere(distributions: Distributions) -> None:
    """The index has neither the pictures nor the pages beside the README: a link is an address, or only its text."""
    with ZipFile(distributions.wheel) as wheel:
        (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        readme = wheel.read(metadata).decode().partition("\n\n")[2]
    source = PROJECT.get("urls", {}).get("Source")
    links = re.findall(r"\[[^]]*\]\(([^)]+)", readme)
    assert [link for link in links if not link.startswith("https://")] == []
    assert (f"{source}/blob/{PROJECT['version']}/docs/tutorial.md" in links) is (source is not None)
    told = re.sub(r"!\[[^]]*\]\([^)]*\)|\]\([^)]*\)|\[|\]", "", (ROOT / "README.md").read_text())
    assert re.sub(r"!\[[^]]*\]\([^)]*\)|\]\([^)]*\)|\[|\]", "", readme).split() == told.split()


def test_the_wheel_has_no_common_mistake(distributions: Distributions) -> None:
    """check-wheel-contents, with what pyproject.toml says to it."""
    assert run(SCRIPTS / "check-wheel-contents", distributions.wheel, cwd=ROOT).endswith("OK\n")


def test_the_wheel_holds_the_package_and_nothing_else(distributions: Distributions) -> None:
    """Templates, styles, translations and py.typed are no Python files, and easily forgotten."""
    with ZipFile(distributions.wheel) as wheel:
        names = set(wheel.namelist())
    metadata = {name for name in names if ".dist-info/" in name}
    assert names - metadata == files("django_idempotency")
    assert {name.split(".dist-info/")[1] for name in metadata} == {"METADATA", "RECORD", "WHEEL", "licenses/LICENSE"}
    assert {Path(name).suffix for name in names - metadata} >= {".css", ".html", ".mo", ".po", ".py", ".typed"}
    assert "django_idempotency/migrations/0001_initial.py" in names


def test_the_sdist_holds_all_that_is_needed_to_test_it(distributions: Distributions) -> None:
    """Whoever packages it for a distribution runs the tests, and builds the pages, out of the sdist."""
    with tarfile.open(distributions.sdist) as sdist:
        names = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
    folders = {file for folder in ("django_idempotency", "docs", "tests", "testproject") for file in files(folder)}
    assert names - folders == {
        ".ci/long_runs",
        ".ci/run",
        ".github/workflows/long-runs.yml",
        ".github/workflows/release.yml",
        ".github/workflows/tests.yml",
        ".gitignore",  # hatchling needs it to leave out the same files
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "SECURITY.md",
        "pyproject.toml",
        "tox.ini",
    }
    assert folders <= names
