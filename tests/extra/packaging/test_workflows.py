"""The workflows of .github: what they name is there."""

from __future__ import annotations

import json
import re

from tests.extra.packaging.conftest import PROJECT, ROOT

WORKFLOWS = {path.name: path.read_text() for path in (ROOT / ".github/workflows").iterdir()}


def test_the_weekly_run_has_each_part() -> None:
    """All but three, whose programs a hosted machine lacks."""
    (listed,) = re.findall(r"part: \[(.+)\]", WORKFLOWS["long-runs.yml"])
    (parts,) = re.findall(r'all\) "\$0" (.+) \|\|', (ROOT / ".ci/long_runs").read_text())
    assert set(listed.split(", ")) == set(parts.split()) - {"clusters", "chaos-mysql", "chaos-pymysql"}


def test_each_environment_is_one_of_tox() -> None:
    """What a workflow runs is what a developer runs."""
    tox = (ROOT / "tox.ini").read_text()
    named = {name for text in WORKFLOWS.values() for name in re.findall(r"tox run -e (\S+)", text)}
    assert [name for name in named if f"[testenv:{name}]" not in tox] == []


def test_each_action_is_named_by_the_hash_of_its_code() -> None:
    """A tag can be moved to other code, which would then have the rights of the job."""
    used = [line for text in WORKFLOWS.values() for line in re.findall(r"uses: (.+)", text)]
    assert len(used) >= 10
    assert [line for line in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_what_is_published_is_what_was_checked() -> None:
    """The checks look into the files of the job that builds, and nothing is built for them alone."""
    build, check, publish = re.split(r"^  (?:check|publish):\n", WORKFLOWS["release.yml"], flags=re.MULTILINE)
    (upload,), (downloaded,), (published,) = (
        re.findall(rf"actions/{which}-artifact@.*\n +with:\n +name: (dist)\n +path: dist/", job)
        for which, job in (("upload", build), ("download", check), ("download", publish))
    )
    assert upload == downloaded == published
    assert re.search(r"BUILT: \$\{\{ github\.workspace \}\}/dist\n +run: python -m tox run -e packaging", check)
    for job in (check, publish):  # both compare what they have got with the hashes of what was built
        compared = job.partition("SUMS: ${{ needs.build.outputs.sums }}")[2].partition("\n      - ")[0]
        assert "sha256sum --check --strict" in compared
        assert job.index("download-artifact") < job.index(compared)
    assert publish.index("sha256sum") < publish.index("gh-action-pypi-publish")
    assert "SOURCE_DATE_EPOCH" not in build  # the check's own build has no such date, and its bytes would differ


def test_each_version_can_be_published() -> None:
    """A tag that no pattern knows starts nothing."""
    (patterns,) = re.findall(r"tags: (\[.+\])", WORKFLOWS["release.yml"])
    known = [pattern.replace(".", r"\.") for pattern in json.loads(patterns)]
    assert any(re.fullmatch(pattern, PROJECT["version"]) for pattern in known)


def test_what_is_published_is_built_where_nothing_else_is_installed() -> None:
    """The packages that the checks need could change it, and only the job that uploads may ask for a token."""
    jobs = dict(
        re.findall(r"^  (\w+):\n((?:    .*\n|\n)+)", WORKFLOWS["release.yml"].partition("jobs:\n")[2], re.MULTILINE)
    )
    installs = {name: re.findall(r"pip install (.+)|(tox run)", text) for name, text in jobs.items()}
    assert installs == {
        "check": [("tox", ""), ("", "tox run"), ("", "tox run")],
        "build": [("build", "")],
        "publish": [],
    }
    assert "needs: [build, check]" in jobs["publish"]
    assert [name for name, text in jobs.items() if "id-token" in text] == ["publish"]
