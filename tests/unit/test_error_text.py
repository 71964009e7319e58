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
        (OSError("a\n  b\0c\ud800"), "OSError: a bc\\ud800"),
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
    ],
)
def test_secrets_are_masked(message: str, text: str) -> None:
    """What looks like a credential or a card number, and nothing else."""
    assert describe(ValueError(message)) == f"ValueError: {text}"


def test_it_is_short() -> None:
    """However long the message."""
    assert len(describe(ValueError("x" * 10**6))) == 500
