"""What an operator may read of an error."""

from __future__ import annotations

import pytest

from django_idempotency.engine.protocol.error_text import describe


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("broken")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such order"), "ValueError: no such order"),
        (KeyError(), "KeyError"),
        (Unprintable(), f"{__name__}.Unprintable"),
        (OSError("a\n  b\0c\ud800"), "OSError: a b\\x00c\\ud800"),
        (OSError("\x1b]0;owned\x07\x9b2K\u202etxt"), "OSError: \\x1b]0;owned\\x07\\x9b2K\\u202etxt"),
    ],
)
def test_class_and_message_on_one_line(error: Exception, text: str) -> None:
    """Without a traceback, and fit for any database."""
    assert describe(error) == text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("401 for Authorization: Bearer abc.def-ghi", "401 for Authorization: Bearer ****"),
        ("sent bearer abcdefgh1234", "sent bearer ****"),
        ('{"password": "hunter2", "user": "x"}', '{"password": "****", "user": "x"}'),
        ("POST /x?api_key=123&a=1 failed", "POST /x?api_key=****&a=1 failed"),
        ("client_secret='abc'", "client_secret='****'"),
        ("postgres://shop:hunter2@db/shop", "postgres://shop:****@db/shop"),
        ("Invalid API key provided: sk_live_abc123", "Invalid API key provided: ****"),
        ("card 4242 4242 4242 4242 declined", "card **** declined"),
        ("the token bucket is empty", "the token bucket is empty"),
        ("order 20261121 is gone", "order 20261121 is gone"),
        ('password="correct horse battery" for x', 'password="****" for x'),
        ("{'pwd': 'correct horse', 'n': 1}", "{'pwd': '****', 'n': 1}"),
        ('password="a\\"b c" next', 'password="****" next'),
        ("passphrase='cut in the mid", "passphrase='****"),
        ('{\\"password\\": \\"two words\\"}', '{\\"password\\": \\"****'),
        ("auth=('shop', 'hunter2'), timeout=3", "auth=****, timeout=3"),
        ("otp=123456 pin: 1234 access_key=a passwd=b", "otp=**** pin: **** access_key=**** passwd=****"),
        ("spin=3 by the author: Ann", "spin=3 by the author: Ann"),
        ("Authorization: ApiKey abc def", "Authorization: ApiKey ****"),
        ("Authorization: abcdef\nretry", "Authorization: **** retry"),
        ("{'Authorization': 'X y', 'a': 1}", "{'Authorization': 'X ****', 'a': 1}"),
        ("Proxy-Authorization: AWS4 Credential=AK/1, Signature=ab", "Proxy-Authorization: AWS4 ****"),
        ("Cookie: sessionid=abc; csrftoken=def", "Cookie: ****"),
        ("sent JWT abc.def.ghi", "sent JWT ****"),
        ("GET /maps?key=abc&q=1 failed", "GET /maps?key=****&q=1 failed"),
        ("no rights for ghp_16C7e42F292c6912E7710c", "no rights for ****"),
        ("github_pat_11AAAA_bbbb, glpat-abcdefgh, npm_abcdefgh", "****, ****, ****"),
        ("AKIAIOSFODNN7EXAMPLE xoxb-123-456 sk-proj-abcdefgh", "**** **** ****"),
        ("bad token eyJhbGciOi.eyJzdWIi.c2ln here", "bad token **** here"),
        ("https://hooks.slack.com/services/T0/B0/XX", "https://hooks.slack.com/services/****"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY----- read", "**** read"),
        ("-----BEGIN PRIVATE KEY-----\nabc", "****"),
        ("to DE89 3704 0044 0532 0130 00 and GB33BUKB20201555555555", "to **** and ****"),
    ],
)
def test_secrets_are_masked(message: str, text: str) -> None:
    """What looks like a credential or a card number, and nothing else."""
    assert describe(ValueError(message)) == f"ValueError: {text}"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            'duplicate key value violates "u"\nDETAIL:  Key (name)=(ann\n@example.org) already exists.',
            'duplicate key value violates "u" DETAIL: ****',
        ),
        ("syntax error at or near \"x\"\nLINE 1: INSERT ('ann')\n     ^", 'syntax error at or near "x" LINE 1: ****'),
        ("Failing row contains (7, ann, x).", "Failing row contains (****"),
        ("Key (lower(a), b)=(ann, b) c) already exists.", "Key (lower(a), b)=(****) already exists."),
        ("Key (a)=(cut in the mid", "Key (a)=(****"),
        ("(1062, \"Duplicate entry 'ann's' for key 'u.n'\")", "(1062, \"Duplicate entry **** for key 'u.n'\")"),
        ('invalid input syntax for type uuid: "ann "b""', "invalid input syntax for type uuid: ****"),
        ("UNIQUE constraint failed: shop_order.reference", "UNIQUE constraint failed: shop_order.reference"),
    ],
)
def test_what_a_database_quotes_of_a_row_is_masked(message: str, text: str) -> None:
    """It is what a client sent: names, addresses, and anything else that must be unique."""
    assert describe(ValueError(message)) == f"ValueError: {text}"


def test_it_is_short() -> None:
    """However long the message."""
    assert len(describe(ValueError("x" * 10**6))) == 500
