"""The two numbers that a key is found by."""

from __future__ import annotations

from hashlib import sha256

import pytest

from django_idempotency.engine.protocol.digests import (
    digest,
    hash_of,
    identify,
    identify_given,
    key_hash,
    stored_scope,
)


def test_the_hashes_never_change() -> None:
    """Another release must find the rows of this one: these numbers are a contract."""
    identity = identify(scope="user:auth.User:1", operation="POST orders/", key="abc")
    assert identity.key_hash == key_hash("abc") == -5010229573455851542
    assert identity.scope_hash == 5418399700064966631


@pytest.mark.parametrize(
    ("key", "reference"), [("abc", "ba7816bf8f01cfea"), ("evt_1", "7d4e5a76eae6d8c1")], ids=["negative", "positive"]
)
def test_a_reference_stands_for_a_hash(key: str, reference: str) -> None:
    """The first 8 bytes of the key's SHA-256, whatever their sign."""
    assert identify(scope="s", operation="o", key=key).reference == reference
    assert hash_of(reference) == key_hash(key)


def test_parts_are_told_apart() -> None:
    """Lengths come first, so moving a letter from one part to the next is another scope."""
    one, other = (identify(scope=scope, operation=name, key="d") for scope, name in (("ab", "c"), ("a", "bc")))
    assert one.scope_hash != other.scope_hash
    assert digest(b"ab", b"") != digest(b"a", b"b")


def test_a_hash_is_no_scope() -> None:
    """Whoever reads a hashed scope in the table and sends it as a scope is another caller."""
    stored = identify(scope="x" * 256, operation="o", key="k")
    assert stored.scope == f"scope:{sha256(b'x' * 256).hexdigest()}"
    sent = identify(scope=stored.scope, operation="o", key="k")
    assert sent.scope == f"scope:{sha256(stored.scope.encode()).hexdigest()}"
    assert sent.scope_hash != stored.scope_hash
    assert (stored_scope("scope"), stored_scope("x" * 255)) == ("scope", "x" * 255)
    assert stored_scope("\ud800").startswith("scope:")  # no database takes half a surrogate pair


@pytest.mark.parametrize("scope", ["x", "x" * 256, "\x00", "scope:x"])
def test_an_operator_may_give_a_scope_as_it_is_returned_or_as_it_is_stored(scope: str) -> None:
    stored = identify(scope=scope, operation="o", key="k")
    assert [identify_given(scope=text, operation="o", key="k") for text in (scope, stored.scope)] == [stored] * 2
