"""`manage.py idempotency_endpoints`: its arguments, its exit status, and what it says on stderr."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from tests.operators.endpoints.shop import run

ASIDE = "tests.operators.endpoints.aside_urls"


def listed(table: str) -> list[str]:
    """The routes of a table."""
    return [line.split()[1] for line in table.partition("\n\n")[0].splitlines()[1:]]


class TestCommand:
    def test_fail_on_unprotected(self, shop: str) -> None:
        """Status 1 and the list; the table is printed all the same."""
        with pytest.raises(CommandError) as caught:
            run("--fail-on-unprotected", urlconf=shop)
        assert caught.value.returncode == 1
        assert str(caught.value) == (
            "2 unsafe routes are not protected. Protect them, or name them with --allow:\n"
            "  POST plain  tests.operators.endpoints.shop.view\n"
            "  ANY any  tests.operators.endpoints.shop.view"
        )

    @pytest.mark.parametrize(
        "patterns", [["plain", "any"], ["p?ain", "a*"], ["POST p*", "ANY *"], ["tests.*.view"], ["plain", "POST any"]]
    )
    def test_what_is_allowed_does_not_fail(self, patterns: list[str], shop: str) -> None:
        """By route, by method and route, by view; the last list names a method that is not there."""
        args = ["--fail-on-unprotected", *(f"--allow={pattern}" for pattern in patterns)]
        if "POST any" in patterns:
            with pytest.raises(CommandError):
                run(*args, urlconf=shop)
        else:
            assert run(*args, urlconf=shop)[1] == ""

    def test_patterns_from_a_file(self, shop: str, tmp_path: Path) -> None:
        """One to a line; comments and empty lines are skipped."""
        file = tmp_path / "allowed"
        file.write_text("# health checks\nplain\n\n  any  \n")
        assert run("--fail-on-unprotected", f"--allow-file={file}", urlconf=shop)[1] == ""

    def test_an_idle_pattern_is_told(self, shop: str) -> None:
        """It would allow what comes to match it one day; what is protected needs no pattern either."""
        assert run("--allow", "orders", urlconf=shop)[1] == "Nothing unprotected matches 'orders': remove it.\n"

    def test_the_admin_and_format_suffixes_are_listed_with_all(self) -> None:
        """They come last. A view of the project in the admin is an endpoint, and so is a suffix without its route."""
        routes = ["back/refund/", "^orders/$", r"^only\.(?P<format>[a-z0-9]+)/?$"]
        own, every = (listed(run(*more, urlconf=ASIDE)[0]) for more in ([], ["--all"]))
        assert (own, every[:3]) == (routes, routes)
        rest = {*every[3:]}
        assert {"back/login/", "back/r/<path:content_type_id>/<path:object_id>/"} < rest
        assert {route for route in rest if not route.startswith("back/")} == {r"^orders\.(?P<format>[a-z0-9]+)/?$"}
        assert f"\n{len(every) - 3} more with --all: the admin, format suffixes.\n" in run(urlconf=ASIDE)[0]
        assert "more with --all" not in run("--all", urlconf=ASIDE)[0]

    @pytest.mark.parametrize(
        "args",
        [
            *(["--urlconf=no.such.module"], ["--urlconf=json"]),
            *(["--allow-file=/no/such/file"], ["--allow-file={folder}/picture"]),
        ],
        ids=["no module", "no URLconf", "no file", "no text"],
    )
    def test_status_2_when_there_is_no_list(self, args: list[str], tmp_path: Path) -> None:
        """So that CI can tell it from a finding."""
        (tmp_path / "picture").write_bytes(b"\x89PNG")
        with pytest.raises(CommandError) as caught:
            call_command("idempotency_endpoints", *(arg.format(folder=tmp_path) for arg in args))
        assert caught.value.returncode == 2
