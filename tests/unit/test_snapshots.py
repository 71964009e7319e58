"""A response as it is kept."""

from __future__ import annotations

from django_idempotency.engine.protocol.outcomes import Snapshot, decode_headers, encode_headers


def test_headers_survive_storing() -> None:
    """In order, with every character."""
    headers = (("B", "é"), ("A", 'x"\\'), ("B", ""))
    assert decode_headers(encode_headers(headers)) == headers
    assert encode_headers(headers).isascii()
    assert decode_headers(None) == ()


def test_a_snapshot_knows_its_headers() -> None:
    """Names are case-insensitive, the first one counts."""
    snapshot = Snapshot(status_code=201, headers=(("Location", "/1"), ("location", "/2")), body=None)
    assert (snapshot.header("LOCATION"), snapshot.header("ETag")) == ("/1", None)
