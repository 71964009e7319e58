"""Keys in Amazon DynamoDB. Install `django-idempotency[dynamodb]`."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from django.core.checks import CheckMessage, Warning

from ..limits import limit_in
from . import KeyValueBackend

__all__ = ["DynamoDBBackend"]

LIMITS = Config(connect_timeout=1, read_timeout=1, retries={"mode": "standard", "total_max_attempts": 2})
"""Wait at most one second for an answer, and try twice. boto3's defaults are 60 seconds and more tries."""


class DynamoDBBackend(KeyValueBackend):
    """Keeps keys in a DynamoDB table. Each change is one conditional write.

    The table needs a string `name` as its partition key, no sort key, and Time to Live on the `expires` attribute.
    DynamoDB's conditions have no access to a clock, and expired items may linger for days, so each condition compares
    `expires` with this machine's clock. With global tables, duplicates in different regions are not recognized.

    Args:
        table: the name of the table.
        client: arguments for `boto3.client("dynamodb", …)`, such as `region_name` or `endpoint_url`.
    """

    max_bytes = 400 * 1024 - 512  # the size limit of an item, minus its name, its time and its attribute names

    def __init__(self, table: str, **client: Any) -> None:
        self.table = table
        self.client = boto3.client("dynamodb", config=LIMITS, **client)
        self._before = threading.local()
        self.client.meta.events.register_first("needs-retry.dynamodb", self._let_limits_through)

    def _let_limits_through(self, caught_exception: BaseException | None = None, **about: Any) -> None:
        """Raise a limit that botocore has caught. Otherwise, botocore would wrap it in its own error and try again."""
        if (limit := limit_in(caught_exception, getattr(self._before, "handled", None))) is not None:
            raise limit

    def swap(self, name: str, old: bytes | None, new: bytes | None, seconds: float) -> bytes | None:
        self._before.handled = sys.exception()
        now = round(time.time(), 3)  # the time as the condition will contain it
        key = {"name": {"S": name}}
        if old is None and new is None:
            return self._read(name, now)
        asked: dict[str, Any] = {
            "ConditionExpression": "attribute_not_exists(#name) OR expires <= :now",
            "ExpressionAttributeNames": {"#name": "name"},
            "ExpressionAttributeValues": {":now": {"N": f"{now:.3f}"}},
        }
        if old is not None:
            asked["ConditionExpression"] = "#value = :old AND expires > :now"
            asked["ExpressionAttributeNames"] = {"#value": "value"}
            asked["ExpressionAttributeValues"][":old"] = {"B": old}
        told = {"ReturnValues": "ALL_OLD", "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        try:
            if new is None:
                done = self.client.delete_item(TableName=self.table, Key=key, **asked, **told)
            else:
                expires = {"N": str(math.ceil(now + seconds))}
                item = {**key, "value": {"B": new}, "expires": expires}
                done = self.client.put_item(TableName=self.table, Item=item, **asked, **told)
        except ClientError as error:
            if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
                raise
            # Old versions of botocore and some emulators do not return the item that they found.
            return self._live(error.response["Item"], now) if "Item" in error.response else self._read(name, now)
        return self._live(done.get("Attributes"), now)

    def _read(self, name: str, now: float) -> bytes | None:
        answer = self.client.get_item(TableName=self.table, Key={"name": {"S": name}}, ConsistentRead=True)
        return self._live(answer.get("Item"), now)

    def _live(self, item: Any, now: float) -> bytes | None:
        return None if item is None or float(item["expires"]["N"]) <= now else item["value"]["B"]

    def check(self) -> Iterator[CheckMessage]:
        described = self.client.describe_time_to_live(TableName=self.table)["TimeToLiveDescription"]
        if described.get("AttributeName") != "expires":
            yield Warning(
                f"The table {self.table!r} has no Time to Live on the attribute 'expires', so it keeps expired keys.",
                hint="Turn on Time to Live for 'expires'. Keys expire without it, too, but their items stay.",
                id="django_idempotency.W013",
            )
