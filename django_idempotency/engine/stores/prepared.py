"""How is a statement sent to PostgreSQL: as SQL with the values in it, or by the name of a prepared statement?

# Note [Prepared statements]
The first claim on a connection is sent as SQL text, because preparing statements saves nothing on a connection that
serves only one request. The message with the second claim also prepares the statements. A pool hands the same psycopg
connection object to several requests. The connection's state, such as "prepared", is therefore kept in an attribute of
that object.

Behind a connection pooler, two releases of this package can encounter each other's prepared statements. Every name
contains a hash of all the statements, so a connection has either all of a release's statements or none of them. Suppose
that each name contained only the hash of its own SQL, and a new release changed only the completion. The claim's name
would stay the same. The new release could then execute the old release's prepared claim, and run the view before
finding that its own completion was not prepared. That request would fail, and so would every retry on the connection.

A prepared statement fails if DISCARD ALL has deleted it, or if another client behind a pooler has taken its name. A
claim that fails this way is rolled back and sent again as SQL text. From then on, everything on that connection is sent
as SQL text.

If a completion's name is missing because the view sent DEALLOCATE ALL, the completion aborts the view's
transaction. It cannot be sent again without running the view again, so nothing is committed and the client gets 503. A
savepoint in the same message would save that request, but every other request would need a second transaction id. A
busy database would then have to freeze its tables twice as often.

PostgreSQL replans a prepared statement for each of its first five executions, and then keeps the plan that it makes
for the sixth. If the key table were empty at that moment, the planner would choose a sequential scan, and the statement
would go on scanning the whole table even after it had grown. `enable_seqscan` is therefore off during planning, and is
restored to its previous value before the view runs. PostgreSQL evaluates EXECUTE's arguments in order before it plans
the statement: the second-to-last argument reads `enable_seqscan`, and the last one turns it off. The statement then
restores the value that was read. After `PLANNED` executions, these two arguments are NULL, because changing the setting
and restoring it can take up to a tenth of the claim's time. From then on, unless the schema changes, PostgreSQL makes a
new plan only after an ANALYZE or a VACUUM of the table. Both determine the table's real size, and the next ANALYZE runs
once the table has grown.
"""

from __future__ import annotations

import re
from hashlib import sha256
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .queries import Values

try:
    from psycopg import pq
except ImportError:  # the project uses psycopg2, or it has no PostgreSQL driver
    pq = None  # type: ignore[assignment]

PARAMETER = re.compile(r"%\((\w+)\)s")
SEQSCAN_OFF, PLANNED_ALREADY = (
    b"current_setting('enable_seqscan'), set_config('enable_seqscan', 'off', true))",
    b"NULL, NULL)",
)
"""The last arguments of an EXECUTE. See Note [Prepared statements]."""
PLANNED = 10
"""The number of executions after which a prepared statement keeps its plan. PostgreSQL makes that plan at the sixth
execution, but some of the earlier ones may fail."""


class State(NamedTuple):
    """What a connection has sent. The state is replaced as a whole, so no exception can leave it half changed.

    Attributes:
        name: "by cursor", "new", "new, by text", "text", "used" or "prepared".
        calls: how often each prepared statement has been executed, up to `PLANNED`. None if nothing is prepared.
    """

    name: str
    calls: Mapping[bytes, int] | None = None


BY_CURSOR, NEW, NEW_TEXT, TEXT, USED, PREPARED = (
    *(State(name) for name in ("by cursor", "new", "new, by text", "text", "used")),
    State("prepared", {}),
)
AFTER_THE_FIRST = {NEW.name: USED, NEW_TEXT.name: TEXT}
"""The states after a connection's first claim."""


def statements(**texts: str) -> dict[str, Statement]:
    """Return a store's statements by kind. Their names share one hash."""
    release = sha256("; ".join(map(_prepared, texts.values())).encode()).hexdigest()[:12]
    return {kind: Statement(f"idempotency_{kind}_{release}", text) for kind, text in texts.items()}


def _prepared(text: str) -> str:
    names = _parameters(text)
    numbered = PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", text)
    before, off = f"${len(names) + 1}", f"${len(names) + 2}::text"
    restored = f"set_config('enable_seqscan', {before}, true)"
    return numbered.format(seqscan_back=f", CASE WHEN {off} IS NOT NULL THEN {restored} END")


def _parameters(text: str) -> list[str]:
    return list(dict.fromkeys(PARAMETER.findall(text)))


class Statement:
    """An SQL statement. It is sent as text until it has been prepared. From then on, only its name and values are sent.

    Args:
        name: the name of the prepared statement, or "" for one that is always sent as text.
        text: the SQL, with parameters as `%(name)s`. In a prepared statement, `{seqscan_back}` becomes an additional
            column, which restores `enable_seqscan`.
    """

    def __init__(self, name: str, text: str) -> None:
        self.text = text.format(seqscan_back="")
        names = _parameters(text)
        self._in_order = itemgetter(*names)
        self._placeholders = [name.encode() for name in names]
        self._text = PARAMETER.sub(r"%(\1)b", self.text).encode()
        self.preparation = f"PREPARE {name} AS {_prepared(text)}; ".encode()
        self._call = f"EXECUTE {name}(".encode() if name else b""

    def filled(self, raw: Any, state: State, values: Values) -> tuple[bytes, State]:
        """Return the message to send on a connection in this state, and the connection's state after it has been sent.

        The message contains the values as literals.
        """
        escape, literals = pq.Escaping(raw.pgconn).escape_literal, []
        for value in self._in_order(values):
            if value is None:
                literal = b"NULL"
            elif (kind := type(value)) is int or kind is float:
                literal = b"'%a'" % value
            elif isinstance(value, bytes):
                literal = b"E'\\\\x%b'" % value.hex().encode()
            else:
                text = value if isinstance(value, str) else str(value)
                if "\0" in text:
                    # libpq would cut the text off there.
                    raise DataError("PostgreSQL text cannot contain NUL (0x00) bytes.")
                literal = escape(text.encode())
            literals.append(literal)
        if (calls := state.calls) is None or not self._call:
            return self._text % dict(zip(self._placeholders, literals, strict=True)), state
        if (called := calls.get(self._call, 0)) == PLANNED:
            literals.append(PLANNED_ALREADY)
        else:
            literals.append(SEQSCAN_OFF)
            state = State(state.name, {**calls, self._call: called + 1})
        return self._call + b", ".join(literals), state
