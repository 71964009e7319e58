"""A past result of a step, as the example of what a person has to record."""

from __future__ import annotations

from django.db.models import Max, QuerySet

from ..engine.stores.sealing import unseal
from ..exceptions import NotDecryptable
from ..models import IdempotencyKey, IdempotencyStep
from . import limits


def past_result(keys: QuerySet[IdempotencyKey], obj: IdempotencyKey, step: str) -> str | None:
    """Return what is kept of the newest result of this step under a completed key of the same operation.

    Looks at the latest results only: a range of the primary key, then single rows.

    Args:
        keys: the keys that this person may see.
        obj: the key that needs the result.
        step: the name of the step.
    """
    steps = IdempotencyStep.objects.using(keys.db)
    newest = steps.aggregate(newest=Max("pk"))["newest"] or 0
    same_name = steps.filter(pk__gt=newest - limits.FILTERED, name=step).exclude(result=None).exclude(key=obj)
    ids = dict(same_name.order_by("-pk").values_list("pk", "key_id")[: limits.EXAMPLES])
    done = keys.filter(pk__in=set(ids.values()), operation=obj.operation, status=IdempotencyKey.Status.COMPLETED)
    owners = {row.pk: row for row in done}
    pk = next((pk for pk, owner in ids.items() if owner in owners), None)
    if pk is None:
        return None
    try:
        return unseal(owners[ids[pk]], "result", steps.get(pk=pk).result, step)
    except NotDecryptable:
        return None
