"""The floor of a protected view: the same messages to PostgreSQL, with everything hard-coded.

It keeps the promise for one view, one caller and keys that are UUIDs: the claim comes with the BEGIN, the response with
the COMMIT, and a replay reads in the message that would have claimed. What a request takes beyond that is the price of
options, callers, comparisons, signals and guards.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse

from tests.extra.benchmarks.views import create

TABLE = """
CREATE TABLE floor_key (
    id bigserial PRIMARY KEY, key_hash bigint NOT NULL, scope_hash bigint NOT NULL, scope text NOT NULL,
    operation text NOT NULL, key text NOT NULL, fingerprint bytea, status text NOT NULL, status_code smallint,
    headers text, body bytea, created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    expires_at timestamptz NOT NULL, UNIQUE (key_hash, scope_hash)
) WITH (fillfactor = 95);
CREATE INDEX ON floor_key (expires_at);
"""
PREPARE = b"""
PREPARE floor_claim (bigint, bigint, text, bytea) AS
    WITH stored AS MATERIALIZED (
        SELECT json_build_array(key, encode(fingerprint, 'hex'), status_code, headers)::text AS facts, body
        FROM floor_key WHERE key_hash = $1 AND scope_hash = $2 AND expires_at > statement_timestamp()
    ), inserted AS (
        INSERT INTO floor_key (key_hash, scope_hash, scope, operation, key, fingerprint, status, expires_at)
        SELECT $1, $2, 'anonymous', 'create', $3, $4, 'in_progress', statement_timestamp() + interval '1 day'
        WHERE NOT EXISTS (SELECT 1 FROM stored) AND pg_try_advisory_xact_lock($2)
        ON CONFLICT (key_hash, scope_hash) DO NOTHING RETURNING id
    )
    SELECT id, NULL, NULL FROM inserted UNION ALL SELECT NULL, facts, encode(body, 'hex') FROM stored;
PREPARE floor_complete (bigint, smallint, text, bytea) AS
    UPDATE floor_key SET status = 'completed', status_code = $2, headers = $3, body = $4 WHERE id = $1
"""
UUID = re.compile(r"[0-9a-f-]{36}")
"""What may stand in a message without being escaped."""


def build() -> None:
    with connection.cursor() as cursor:
        cursor.execute(TABLE)


def floor(request: HttpRequest) -> HttpResponse:
    """`views.create`, protected."""
    key = request.META["HTTP_IDEMPOTENCY_KEY"]
    assert UUID.fullmatch(key)
    fingerprint = sha256(json.dumps(json.loads(request.body), sort_keys=True).encode()).hexdigest()
    key_hash, scope_hash = (
        int.from_bytes(sha256(text.encode()).digest()[:8], "big", signed=True)
        for text in (key, f"anonymous create {key}")
    )
    with transaction.atomic():
        pgconn = _prepared()
        claim = f"BEGIN; EXECUTE floor_claim ({key_hash}, {scope_hash}, '{key}', '\\x{fingerprint}')"
        found = _sent(pgconn, claim)
        if (row := found.get_value(0, 0)) is not None:
            response = create(request)
            kept = f"{response.status_code}, '{json.dumps([*response.items()])}', '\\x{response.content.hex()}'"
            _sent(pgconn, f"EXECUTE floor_complete ({int(row)}, {kept}); COMMIT")
            return response
        facts, body = json.loads(found.get_value(0, 1)), bytes.fromhex(found.get_value(0, 2).decode())
        assert facts[:2] == [key, fingerprint]
        _sent(pgconn, "COMMIT")
        return HttpResponse(body, status=facts[2], headers=dict(json.loads(facts[3])))


def _prepared() -> Any:
    """The connection of libpq on which both statements are prepared."""
    raw: Any = connection.connection
    if "_floor" not in vars(raw):
        _sent(raw.pgconn, PREPARE.decode())
        raw._floor = True
    return raw.pgconn


def _sent(pgconn: Any, message: str) -> Any:
    result = pgconn.exec_(message.encode())
    assert result.status in (1, 2), result.error_message  # libpq's PGRES_COMMAND_OK and PGRES_TUPLES_OK
    return result
