"""What an operator may read of an error."""

from __future__ import annotations

import json
import sys
from unicodedata import category

import pytest

from django_idempotency.engine.protocol.error_text import describe, without_controls
from django_idempotency.engine.protocol.key_syntax import InvalidKey, check_key


def caught(work: object, *args: object) -> BaseException:
    with pytest.raises(Exception) as info:  # noqa: PT011 (any error)
        work(*args)  # type: ignore[operator]
    return info.value


def fails() -> None:
    raise ValueError("card 4242 4242 4242 4242 declined, token=tok_123")


def test_class_and_place_without_the_message() -> None:
    """The message may quote a credential, a card number, or a row of the database."""
    assert describe(caught(fails)) == f"ValueError: line 22 of {__name__}.fails"


def test_the_place_is_in_the_projects_own_code() -> None:
    """A line of a library says nothing about the view."""
    assert describe(caught(json.loads, "{")) == f"json.decoder.JSONDecodeError: line 17 of {__name__}.caught"


def test_a_line_of_this_package_is_not_the_place() -> None:
    """The line that has called the package is: an operator reads the project's code."""
    assert describe(caught(check_key, "")) == f"{InvalidKey.__module__}.InvalidKey: line 17 of {__name__}.caught"


@pytest.mark.parametrize(
    "file",
    ["<attrs generated init Charge>", "/home/shop/.local/lib/python3.12/site-packages/a.py", "dist-packages/a.py"],
)
def test_generated_code_and_packages_elsewhere_are_not_the_place(file: str) -> None:
    """No file of the project has such a line."""
    names: dict[str, object] = {"__name__": "generated"}
    exec(compile("def work():\n    raise ValueError", file, "exec"), names)
    assert describe(caught(names["work"])) == f"ValueError: line 17 of {__name__}.caught"


def test_an_error_without_a_place_is_its_class() -> None:
    """It was never raised, or by code that is not the project's."""
    assert describe(KeyError("secret")) == "KeyError"


def test_it_is_short() -> None:
    """However long the name."""
    assert len(describe(type("X" * 10**6, (Exception,), {})())) == 500


def test_a_line_for_any_database_and_terminal() -> None:
    """No control character, and no half of a surrogate pair."""
    assert without_controls("a\n\0\ud800\x1b]0;\u202e") == r"a\n\x00\ud800\x1b]0;\u202e"


@pytest.mark.parametrize(
    "character",
    "\u034f\u061c\u115f\u17b4\u180b\u180e\u200b\u200d\u200e\u202a\u2060\u2066\u2069"
    "\u206f\u3164\ufe0f\ufeff\uffa0\ufffb",
)
def test_no_character_turns_or_hides_a_line(character: str) -> None:
    """Each of Unicode's bidirectional controls, and what has no width."""
    assert without_controls(f"a{character}b") == rf"a\u{ord(character):04x}b"


def test_tags_and_soft_hyphens_are_shown() -> None:
    """Their escapes are longer, or shorter. What has a width stays as it is."""
    assert without_controls("a\xadb\U000e0041c") == r"a\xadb\U000e0041c"
    assert without_controls("Grüße 10\xa0€ \u4e2d\U0001f600") == "Grüße 10\xa0€ \u4e2d\U0001f600"


def test_every_format_character_is_shown() -> None:
    """All that this Python's Unicode calls so, and the places that Unicode keeps for more of them."""
    formats = [chr(code) for code in range(sys.maxunicode + 1) if category(chr(code)) == "Cf"]
    hidden = [*formats, *map(chr, range(0xFFF0, 0xFFFC)), "\u2800", "\U0001d159"]
    assert [f"U+{ord(one):04X}" for one in hidden if without_controls(one) == one] == []
