"""Move a tenant, with its keys, to another shard. tests/databases/clusters/test_shards.py runs this file.

1. Refuse the tenant's requests in every process (`MOVING`). Wait until running requests have ended.
2. Call `move`. Orders keep their ids, so ids must be unique among the shards.
3. Change `SHARDS` in every process, and admit the tenant's requests.

It moves only keys whose scope begins with the tenant, so start the scopes of `once` and `run_once` with it, too. A key
that stays behind runs again on the target.
"""

from django.db import transaction
from django.utils import timezone
from shop.models import Order
from shop.shards import SHARDS

from django_idempotency.models import IdempotencyKey, IdempotencyStep


def move(tenant, *, source, target):
    """Copy the rows of a tenant whose requests are refused. If this breaks off, call it again: the source counts."""
    if SHARDS[tenant] != source or source == target:
        raise ValueError(f"{tenant!r} is on {SHARDS[tenant]!r}: it cannot move from {source!r} to {target!r}.")
    refuse_hashed(source)
    with transaction.atomic(using=source):
        orders, keys = rows(tenant, source)
        orders, keys = list(orders.select_for_update()), list(keys.select_for_update())
        if any(key.locked_until and key.locked_until > timezone.now() for key in keys):
            raise RuntimeError(f"Workers of {tenant!r} are still at work. Wait until their requests have ended.")
        steps = list(IdempotencyStep.objects.using(source).filter(key__in=keys))
        with transaction.atomic(using=target):
            delete(tenant, target)  # the copy of a move that broke off
            Order.objects.using(target).bulk_create(orders)
            copies = {(key.pk, key.key_hash, key.scope_hash): key for key in keys}
            for key in keys:
                key.pk = None  # ids of keys are the shard's own
            IdempotencyKey.objects.using(target).bulk_create(keys)
            own = [step for step in steps if (step.key_id, step.key_hash, step.scope_hash) in copies]
            for step in own:
                step.pk, step.key_id = None, copies[step.key_id, step.key_hash, step.scope_hash].pk
            IdempotencyStep.objects.using(target).bulk_create(own)
        delete(tenant, source)


def refuse_hashed(alias):
    """A scope of more than 255 characters is stored as a hash, which doesn't tell the tenant."""
    if IdempotencyKey.objects.using(alias).filter(scope__startswith="scope:").exists():
        raise RuntimeError(f"{alias!r} has keys whose scope is a hash. Let them expire, or move them by hand.")


def rows(tenant, alias):
    orders = Order.objects.using(alias).filter(reference=tenant)
    return orders, IdempotencyKey.objects.using(alias).filter(scope__startswith=f"{tenant}:")


def delete(tenant, alias):
    for found in rows(tenant, alias):
        found.delete()
