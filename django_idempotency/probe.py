"""Ask a deployed endpoint whether it is idempotent, as a client would: `python -m django_idempotency.probe URL`.

Tests in a process don't see proxies, poolers and real workers. This sends a few requests through all of them, with the
standard library alone, only to the given URL, and never follows a redirect. Without `--run`, nothing is sent.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import chain
from pathlib import Path
from threading import Barrier
from urllib.parse import SplitResult, urlsplit
from uuid import UUID

MOST = 50
"""How many requests are sent at once, at most."""
READ = 1024 * 1024
"""How many bytes of a response are compared."""
MALFORMED = '"not closed'
NOT_SENT = 2
"""The exit status if the endpoint could not be asked. argparse uses the same status for a wrong argument."""
FORM = "application/x-www-form-urlencoded"
PLAN = """\
This would send to {method} {url}, with the headers {headers}:

  1. a request with a new key, and the same request again
  2. {at_once} equal requests at once, with another new key, and one more
  3. the first key with another body: {other}
  4. {keyless}a request with a malformed key ({malformed})

Body: {body}

If the endpoint is idempotent, this does its work twice: for 1 and for 2. If it is not, up to {most} times; it stops
after 1 if that shows it. Use an account and amounts that don't matter, and add --run to send it.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response or, if `status` is 0, a description of what went wrong."""

    status: int
    body: bytes = b""
    replayed: str | None = None

    def __str__(self) -> str:
        if not self.status:
            return self.body.decode()
        return f"{self.status}" + ("" if self.replayed is None else f", replayed: {self.replayed}")

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status < 300

    def repeats(self, first: Answer) -> bool:
        """Whether this is the first response again, and no header says that the work has run a second time."""
        return (self.status, self.body) == (first.status, first.body) and self.replayed != "false"


@dataclass(frozen=True, slots=True)
class Row:
    sent: str
    came: str
    asked: str
    ok: bool


class Probe:
    """Sends the requests of one run. `rows` yields the result of each as soon as it is known."""

    def __init__(self, url: SplitResult, options: argparse.Namespace) -> None:
        self.url, self.options = url, options
        self.body, self.other = options.data, options.other_data
        self.headers = {"Content-Type": options.content_type, **dict(options.header)}

    def rows(self) -> Iterator[Row]:
        key = new_key()
        first = self.send(key)
        yield Row("first request", str(first), "its result: 2xx", first.succeeded)
        if not first.succeeded:
            return
        retry = self.send(key)
        yield Row("the same again", _compared(retry, first), "the same result", retry.repeats(first))
        if not retry.repeats(first):
            return
        yield self._at_once(new_key())
        changed = self.send(key, self.other)
        yield Row("the first key, another body", str(changed), "422", changed.status == 422)
        if not self.options.optional:
            missing = self.send(None)
            yield Row("no key", str(missing), "400", missing.status == 400)
        malformed = self.send(MALFORMED)
        yield Row(f"malformed key {MALFORMED}", str(malformed), "400", malformed.status == 400)

    def _at_once(self, key: str) -> Row:
        number = self.options.at_once
        barrier = Barrier(number)
        with ThreadPoolExecutor(number) as threads:
            answers = [
                *threads.map(lambda _: self.send(key, before=lambda: barrier.wait(self.options.timeout)), range(number))
            ]
        last = self.send(key)
        ran = [answer for answer in answers if answer.succeeded]
        results = {(answer.status, answer.body) for answer in (*ran, last)}
        ok = (
            bool(ran)
            and len(results) == 1
            and sum(answer.replayed == "false" for answer in ran) <= 1
            and all(answer.succeeded or answer.status == 409 for answer in answers)
        )
        came = ", ".join(f"{count} x {status}" for status, count in sorted(Counter(a.status for a in answers).items()))
        return Row(
            f"{number} at once", f"{came}; {len(results)} result{'s'[: len(results) != 1]}", "one result, else 409", ok
        )

    def send(self, key: str | None, body: bytes | None = None, before: Callable[[], object] | None = None) -> Answer:
        """Send one request. `before` is called as soon as the connection is open."""
        kind = HTTPSConnection if self.url.scheme == "https" else HTTPConnection
        connection = kind(self.url.hostname or "", self.url.port, timeout=self.options.timeout)
        path = (self.url.path or "/") + (f"?{self.url.query}" if self.url.query else "")
        headers = self.headers | ({} if key is None else {self.options.key_header: key})
        try:
            connection.connect()
            if before is not None:
                before()
            connection.request(self.options.method, path, self.body if body is None else body, headers)
            came = connection.getresponse()
            return Answer(came.status, came.read(READ), came.headers.get(self.options.replayed_header))
        except (OSError, HTTPException) as error:
            return Answer(0, f"{type(error).__name__}: {error}".encode())
        finally:
            connection.close()


def _compared(retry: Answer, first: Answer) -> str:
    return f"{retry}; {'same' if retry.body == first.body else 'other'} bytes"


def new_key() -> str:
    """A UUID of version 7, which every rule for keys accepts."""
    milliseconds = time.time_ns() // 1_000_000
    return str(UUID(int=milliseconds << 80 | 7 << 76 | secrets.randbits(12) << 64 | 2 << 62 | secrets.randbits(62)))


def another_body(body: bytes, content_type: str) -> bytes | None:
    """Return the body with one more member, or None if its type is not supported."""
    if content_type == FORM:
        return body + b"&idempotency_probe=another"
    try:
        data = json.loads(body)
    except ValueError:
        return None
    return json.dumps({**data, "idempotency_probe": "another"}).encode() if isinstance(data, dict) else None


def _header(written: str) -> tuple[str, str]:
    name, colon, value = written.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"{written!r} is not a header: write 'Name: value'.")
    return name.strip(), value.strip()


def _data(written: str) -> bytes:
    if not written.startswith("@"):
        return written.encode()
    try:
        return Path(written[1:]).read_bytes()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{written!r} cannot be read: {error.strerror}.") from error


def _number(written: str) -> int:
    if not written.isdecimal() or not 2 <= int(written) <= MOST:
        raise argparse.ArgumentTypeError(f"{written!r} is not a number from 2 to {MOST}.")
    return int(written)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m django_idempotency.probe",
        description=__doc__,
        epilog=f"The exit status is 0 if each answer was as the draft asks, 1 if one was not, and {NOT_SENT} if the "
        "endpoint could not be asked.",
    )
    add = parser.add_argument
    add("url", metavar="URL", help="the endpoint: http:// or https://")
    add("--header", action="append", default=[], type=_header, metavar="'NAME: VALUE'", help="may be repeated")
    add("--data", default=b"{}", type=_data, metavar="BODY", help="the body, or @FILE ({})")
    add("--other-data", type=_data, metavar="BODY", help="another body for the same key (BODY with one more member)")
    add("--content-type", default="application/json", metavar="TYPE", help="of both bodies (application/json)")
    add("--method", default="POST", help="the method (POST)")
    add("--key-header", default="Idempotency-Key", metavar="NAME", help="the header with the key (Idempotency-Key)")
    add("--replayed-header", default="Idempotency-Replayed", metavar="NAME", help="the header that tells a replay")
    add("--optional", action="store_true", help="the endpoint needs no key: send no request without one")
    add("--at-once", default=20, type=_number, metavar="N", help="how many equal requests at once (20)")
    add("--timeout", default=30.0, type=float, metavar="S", help="seconds to wait for each answer (30)")
    add("--run", action="store_true", help="send the requests")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan or, with `--run`, a table. Return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    url = urlsplit(options.url)
    if url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc:
        parser.error(f"{options.url!r} is not an address: write https://host/path, and pass logins by --header.")
    for text in (options.url, options.method, options.content_type, options.key_header, *chain(*options.header)):
        if not (text.isascii() and text.isprintable()):
            parser.error(f"{text!r} can't be sent: an address and a header have printable ASCII characters only.")
    if options.other_data is None:
        options.other_data = another_body(options.data, options.content_type)
    if options.other_data in (None, options.data):
        parser.error("pass another body by --other-data: this type can't be changed by itself.")
    if not options.run:
        sys.stdout.write(_plan(options))
        return 0
    rows: list[Row] = []
    for row in Probe(url, options).rows():
        rows.append(row)
        sys.stdout.write(f"{row.sent:<28} {row.came:<36} {row.asked:<22} {'ok' if row.ok else 'NO'}\n")
        sys.stdout.flush()
    if not rows[0].ok:
        sys.stdout.write("The request itself was not accepted, so nothing is known. Look at --header and --data.\n")
        return NOT_SENT
    return 0 if all(row.ok for row in rows) else 1


def _plan(options: argparse.Namespace) -> str:
    return PLAN.format(
        method=options.method,
        url=options.url,
        headers=", ".join(["Content-Type", options.key_header, *(name for name, _ in options.header)]),
        at_once=options.at_once,
        other=options.other_data.decode(errors="replace")[:200],
        keyless="" if options.optional else "a request without a key, and ",
        malformed=MALFORMED,
        body=options.data.decode(errors="replace")[:200],
        most=options.at_once + 5 + (not options.optional),
    )


if __name__ == "__main__":  # pragma: no cover
    sys.exit(main())
