"""Run schemathesis against the shop on real server processes and a fresh database. Exit status: schemathesis's own.

A script of its own, because the shop has other settings than the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).with_name("schemathesis.toml")


def main(arguments: list[str]) -> int:
    sys.path[:0] = [str(ROOT), str(ROOT / "testproject")]
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
    import django

    django.setup()
    from django.contrib.auth.models import User
    from rest_framework.authtoken.models import Token
    from shop.management.commands.demo import fresh_database, serving

    with fresh_database(), tempfile.TemporaryDirectory() as scratch:
        token = Token.objects.create(user=User.objects.create_user("fuzz"))
        with serving() as url:
            command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"]
            location = [f"{url}/api/schema/", "--header", f"Authorization: Token {token}"]
            # Its caches go to the current directory; its hooks are a module of ours.
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            return subprocess.call([*command, *location, *arguments], cwd=scratch, env=environment)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
