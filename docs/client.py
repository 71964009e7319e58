# django-idempotency/client.py, revision 2
"""A client that retries, with an outbox in a file: see clients.md."""

import json
import random
import sqlite3
import time
import uuid

import httpx

GIVE_UP_AFTER = 600  # seconds: longer than the server's longest lease
RETRIED = {408, 423, 425, 429}  # and every 5xx
LOGIN = {401, 403}  # these say nothing about the order, nor does a redirect
CODES = {  # by status and `code`; a 409 from the business logic has another code, or none
    "409 in-progress": "retry",
    "429 in-progress": "retry",
    "409 outcome-unknown": "retry",
    "503 busy": "retry",
    "503 paused": "retry",
    "403 unidentified-caller": "log-in",
    "403 changing-credential": "log-in",
    "409 response-not-stored": "look-up",
    "403 replay-refused": "look-up",
    "409 key-too-old": "look-up",
    "409 already-used": "look-up",
    "422 already-used": "look-up",
    "400 missing-key": "final",
    "400 invalid-key": "final",
    "411 length-required": "final",
    "413 body-too-large": "final",
}


class Refused(Exception):
    """The final answer is no."""


class Processed(Exception):
    """The order was processed, or may have been, but its answer is not available. Look it up; do not order again."""


class NotConfirmed(Exception):
    """There is no final answer yet. Keep the key and try again later."""


def new_key():
    """A version 7 UUID, which contains its creation time."""
    milliseconds = time.time_ns() // 10**6
    return str(uuid.UUID(int=milliseconds << 80 | 7 << 76 | uuid.uuid4().int % 2**76))


def place_order(client, key, order, path="/orders/", give_up_after=GIVE_UP_AFTER, sent=False):
    """Pass `sent=True` if an earlier call may have sent this key."""
    end = time.monotonic() + give_up_after
    while True:
        answer, repeated = ask(client, end, "POST", path, json=order, headers={"Idempotency-Key": f'"{key}"'})
        sent = sent or repeated
        if answer.status_code != 202 or "Location" not in answer.headers:
            break
        page = answer
        while page.is_success and fields(page).get("status") == "in_progress":
            wait(page, 1, end)
            page, _ = ask(client, end, "GET", answer.url.join(answer.headers["Location"]))
        if fields(answer).get("code") != "in-progress":
            if fields(page).get("status") == "failed":
                raise Refused(page.status_code, page.text)
            # A 202 from the view itself is final. Its page says how the work ended, unless it can't be read.
            if page.is_success or meaning(page) == "log-in":
                answer = page
            break
        sent = True
    if meaning(answer) == "log-in":
        raise NotConfirmed(answer.status_code)
    # A final code is a refusal before the key is read: it says nothing about an earlier attempt.
    if known(answer) == "look-up" or (sent and known(answer) == "final"):
        raise Processed(answer.headers.get("Location"))
    if not answer.is_success:
        raise Refused(answer.status_code, answer.text)
    return fields(answer)


def ask(client, end, method, url, **request):
    """Repeat the request until an answer does not call for a retry; say whether the request was repeated."""
    pause, repeated = 0.5, False
    while True:
        try:
            answer = client.request(method, url, **request)
        except httpx.TransportError:
            answer = None
        else:
            if meaning(answer) != "retry":
                return answer, repeated
        wait(answer, pause, end)
        pause, repeated = min(2 * pause, 30), True


def meaning(answer):
    """What the answer says about the order, by its code if that is a known one, or else by its status."""
    status = answer.status_code
    if told := known(answer):
        return told
    if status in RETRIED or answer.is_server_error:
        return "retry"
    return "log-in" if status in LOGIN or answer.is_redirect else "final"


def known(answer):
    return CODES.get(f"{answer.status_code} {fields(answer).get('code')}")


def wait(answer, pause, end):
    asked = "" if answer is None else answer.headers.get("Retry-After", "")
    seconds = max(pause, float(asked) if asked.isdecimal() else 0) * random.uniform(1, 1.25)
    if time.monotonic() + seconds > end:
        raise NotConfirmed("time is up")
    time.sleep(seconds)


def fields(answer):
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


class Outbox:
    """Orders that are not confirmed yet, with their keys."""

    def __init__(self, path):
        self.file = sqlite3.connect(path, isolation_level=None)
        self.file.execute("CREATE TABLE IF NOT EXISTS outbox (key TEXT PRIMARY KEY, body TEXT)")
        self.file.execute("CREATE TABLE IF NOT EXISTS sent (key TEXT PRIMARY KEY)")

    def put(self, order):
        self.file.execute("INSERT INTO outbox VALUES (?, ?)", [new_key(), json.dumps(order)])

    def deliver(self, client, **options):
        """Send what is left. Yields each order with its final answer: the JSON, `Refused` or `Processed`."""
        for key, body in self.file.execute("SELECT key, body FROM outbox ORDER BY rowid").fetchall():
            order = json.loads(body)
            # Stored before the request is sent, so that a killed process leaves it to the next one.
            new = self.file.execute("INSERT OR IGNORE INTO sent VALUES (?)", [key]).rowcount
            try:
                yield order, place_order(client, key, order, sent=not new, **options)
            except NotConfirmed:
                continue  # stays in the outbox
            except (Refused, Processed) as final:
                yield order, final
            self.file.execute("DELETE FROM outbox WHERE key = ?", [key])
            self.file.execute("DELETE FROM sent WHERE key = ?", [key])
