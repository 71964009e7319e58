"""What is an idempotency key (C1, C6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_idempotency.engine.protocol.key_syntax import (
    InvalidKey,
    check_dated,
    check_key,
    is_uuid,
    parse_header,
)


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ('"abc"', "abc"),
        ("abc", "abc"),
        ('  "abc"\t', "abc"),
        (r'"a\"b\\c"', 'a"b\\c'),
        ('"a,b;c(d)"', "a,b;c(d)"),
        ('"abc";v=1;flag;t="x,y";b=:aGk=:;n=-1.5;d=@1;q=?1', "abc"),
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        ("order:42/7=x?", "order:42/7=x?"),
        ("42", "42"),
        ("x" * 255, "x" * 255),
        ("." * 255, "." * 255),
        ("X.X", "X.X"),
    ],
)
def test_c1_the_quoted_and_the_bare_form_are_one_key(field: str, key: str) -> None:
    """Escapes are undone, parameters ignored."""
    assert parse_header(field) == key


@pytest.mark.parametrize(
    "field",
    [
        *("", " ", '""', '" "', '"', '"abc', 'abc"', r'"a\x"', '"a"b', '"a" "b"', '"a", "b"', "a, b", "a,b", "a;b"),
        *("(a b)", ":aGk=:", "?1", "?0", "@1659578233", '%"x"', '"é"', "é", "a\x00b", '"a\nb"', "a b", '"a b"'),
        *("a\x7f", "x" * 256, '"' + "x" * 256 + '"', '"abc";', '"abc";A=1', '"abc";a="', "\u2028"),
        *("\xa0abc", "abc\x85", '\x0b"abc"'),  # white space for Python, but not for HTTP
    ],
)
def test_c1_anything_else_is_refused(field: str) -> None:
    """Each with a reason."""
    with pytest.raises(InvalidKey, match=r"\w+.*\.$"):
        parse_header(field)


@given(st.text())
def test_it_returns_a_key_or_raises_invalid_key(field: str) -> None:
    """No other exception, and nothing but visible ASCII."""
    try:
        key = parse_header(field)
    except InvalidKey:
        return
    assert 1 <= len(key) <= 255
    assert all(0x21 <= ord(character) <= 0x7E for character in key)


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255))
def test_every_key_survives_quoting(key: str) -> None:
    """Quoting and parsing are inverse."""
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    assert parse_header(f'"{quoted}"') == check_key(key) == key


@pytest.mark.parametrize(
    ("key", "uuid"),
    [
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", True),
        ("8E03978E-40D5-43DD-BC93-6894A57F9324", True),
        ("8e03978e40d543ddbc936894a57f9324", False),
        ("urn:uuid:8e03978e-40d5-43dd-bc93-6894a57f9324", False),
        ("abc", False),
    ],
)
def test_c6_is_uuid(key: str, uuid: bool) -> None:
    """A ready KEY_VALIDATOR."""
    assert is_uuid(key) is uuid


@pytest.mark.parametrize("key", ["abc", "8e03978e-40d5-43dd-bc93-6894a57f9324"])
def test_a_key_without_a_date_is_refused_with_the_reason(key: str) -> None:
    with pytest.raises(InvalidKey, match=r"^It must be a UUID of version 7, which says when it was made\.$"):
        check_dated(key)
