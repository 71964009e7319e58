"""Known vulnerabilities in the packages of an environment: `python -m tests.extra.packaging.audit PYTHON`.

pip-audit asks the package index about each package. An index that cannot answer is no finding, and the result must not
look like a clean one: pip-audit ends with status 0 if the index knows none of the packages. Any other failure fails.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

OURS = "django-idempotency"
"""The package that is built here. The index may not have it."""
PATHS = "import sysconfig; print(sysconfig.get_path('purelib'))"
UNREACHABLE = re.compile(r"(?i)connect|resol|time.?out|timed out|proxy|unavailable")
"""How errors of a network are worded."""
NOT_RUN = "NOT RUN: no known vulnerability was looked for, because {reason}."


def main(python: str) -> str | None:
    """Ask about the packages that this interpreter imports. What to end with: None, or the findings."""
    packages = subprocess.run([python, "-c", PATHS], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner=off", "--format=json", f"--path={packages}"]
    asked = subprocess.run(command, check=False, capture_output=True, text=True)
    found, told = judged(asked.stdout, asked.stderr)
    print(told)
    return found


def judged(report: str, errors: str) -> tuple[str | None, str]:
    """The findings, or None, and what to print about the rest."""
    try:
        packages = [one for one in json.loads(report)["dependencies"] if one["name"] != OURS]
    except ValueError:
        reason = (errors.strip().splitlines() or ["nothing was said"])[-1]
        return (None, NOT_RUN.format(reason=reason)) if UNREACHABLE.search(reason) else (f"pip-audit: {reason}", "")
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    if len(unknown) == len(packages):
        return None, NOT_RUN.format(reason="the index answers about none of the packages")
    findings = [
        f"{one['name']} {one['version']}: {vulnerability['id']}, mended in {', '.join(vulnerability['fix_versions'])}"
        for one in packages
        for vulnerability in one.get("vulns", ())
    ]
    told = f"{len(packages) - len(unknown)} packages were looked up. Without an answer: {', '.join(unknown) or 'none'}."
    return "\n".join(findings) or None, told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
