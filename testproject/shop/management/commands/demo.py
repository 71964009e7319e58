from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from typing import Any

import httpx
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.urls import reverse
from rest_framework.authtoken.models import Token

from shop.demo import attention, orders, payments
from shop.demo.stage import DEADLINE, Row, fresh_database, gateway, serving, wait_for_the_end

UNLIMITED = httpx.Limits(max_connections=None, max_keepalive_connections=0)


class Command(BaseCommand):
    help = "Start the shop on real server processes, break things, and count the orders and the charges."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--serve", action="store_true", help="Keep the server and the admin running until Ctrl-C.")

    def handle(self, *args: Any, **options: Any) -> None:
        if connection.vendor != "postgresql":
            raise CommandError("The demo needs PostgreSQL. Unset DATABASE_URL to use the embedded one.")
        parent = os.getppid()
        # They must run finally blocks and atexit, or processes and the database would stay behind.
        for end in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(end, lambda number, frame: sys.exit(128 + number))
        with ExitStack() as stack:
            stack.enter_context(fresh_database())
            token = self._accounts()
            bank, old_bank = (stack.enter_context(gateway(*o)) for o in ((), ("--without-keys",)))
            url = stack.enter_context(serving(**payments.environment(bank, old_bank)))
            client = stack.enter_context(httpx.Client(base_url=url, timeout=DEADLINE, limits=UNLIMITED))
            rows = [
                orders.storm(client, "/orders/", "plain view"),
                orders.storm(client, "/api/orders/", "REST framework", token=token),
                orders.hang_up(client, url),
                orders.kill(client),
                payments.time_out(client, bank),
                payments.kill(client, bank),
                payments.hold(client, old_bank),
                orders.unprotected(client),
            ]
            self._table(rows)
            if options["serve"]:
                self._attention(url, attention.leave(client, bank, old_bank))
                self.stdout.write(f"\nServing on {url}, admin at {url}/admin/ (demo / demo). Ctrl-C stops.")
                self.stdout.flush()
                wait_for_the_end(parent)
        if not all(row.ok for row in rows):
            raise CommandError("A promise was broken.")

    def _accounts(self) -> str:
        user = User.objects.create_superuser("demo", password="demo")
        return str(Token.objects.create(user=user))

    def _attention(self, url: str, left: list[attention.Left]) -> None:
        self.stdout.write("\nThese keys need attention. docs/runbook.md says how to decide:\n\n")
        for one in left:
            page = reverse("admin:django_idempotency_idempotencykey_change", args=[one.pk])
            self.stdout.write(f"{one.kind:<10}  {one.story}\n            {url}{page}")

    def _table(self, rows: list[Row]) -> None:
        head = ("what happened", "responses", "counted", "")
        lines = [head, *(row.cells() for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        for line in lines:
            self.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
