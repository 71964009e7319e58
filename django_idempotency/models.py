"""The two tables: the keys, each of which belongs to one caller and operation, and the steps of leased operations."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.db import models
from django.db.models.lookups import Exact, GreaterThan, IsNull
from django.utils.translation import gettext_lazy as _

from .columns import ExactCharField, ExactTextField, IndexWhereSet
from .exceptions import IdempotencyConfigurationError

if not apps.is_installed("django_idempotency"):
    raise IdempotencyConfigurationError(
        "django_idempotency is not in INSTALLED_APPS, so it has no tables for its keys. Add it there: "
        'INSTALLED_APPS = [..., "django_idempotency"]. Then run: python manage.py migrate'
    )


ATTENTION_FITS = Exact(
    IsNull(models.F("attention_at"), False),
    models.Q(GreaterThan(models.F("unknown") + models.F("effects"), 0), status="failed"),
)
"""A failed key needs attention if, and only if, a call took effect or a step has no result. On all other keys, the
column is NULL. Keys whose lease has lapsed, or that were claimed without one, are found through other columns."""


class IdempotencyKey(models.Model):
    """A key with its caller, its operation, and the response to replay.

    Only this package writes these rows. Your code may read them, but must not change them.
    """

    class Status(models.TextChoices):
        IN_PROGRESS = "in_progress", _("in progress")
        COMPLETED = "completed", _("completed")
        FAILED = "failed", _("failed")

    class Policy(models.TextChoices):
        """The values of `on_abandoned`: whether a retry repeats an external call that is in doubt."""

        RETRY_KEYED = "retry-keyed", _("retry-keyed: make a call again only with its derived key")
        RETRY = "retry", _("retry: make the call again")
        HOLD = "hold", _("hold: wait for a decision")

    id = models.BigAutoField(primary_key=True)
    # A key is identified by two hashes rather than by `scope`, `operation` and `key`: an index on the hashes is half
    # the size of one on the text columns, and every database compares numbers in the same way.
    key_hash = models.BigIntegerField(_("key hash"), editable=False)
    scope_hash = models.BigIntegerField(_("scope hash"), editable=False)
    scope = ExactCharField(_("scope"), max_length=255)
    operation = ExactTextField(_("operation"))
    key = ExactCharField(_("key"), max_length=255)
    fingerprint = models.BinaryField(_("fingerprint"), max_length=32, null=True)
    status = models.CharField(_("status"), max_length=11, choices=Status, default=Status.IN_PROGRESS)
    # NULL in atomic mode, which has no calls.
    policy = models.CharField(_("policy"), max_length=11, choices=Policy, null=True, blank=True)
    attempt = models.PositiveIntegerField(_("attempt"), default=1)
    # These three columns summarize the outcomes of the key's steps. See Note [One truth about a key] in
    # engine/stores/journal.py.
    unknown = models.PositiveIntegerField(_("steps without a result"), default=0, db_default=0, editable=False)
    effects = models.PositiveIntegerField(_("finished calls"), default=0, db_default=0, editable=False)
    attention_at = models.DateTimeField(_("needs attention since"), null=True, blank=True, editable=False)
    locked_until = models.DateTimeField(_("locked until"), null=True, blank=True)
    # The host and process id of the last worker that claimed the key to run the work, such as "web-3:4711".
    worker = models.CharField(_("worker"), max_length=100, null=True, blank=True)
    status_code = models.PositiveSmallIntegerField(_("status code"), null=True, blank=True)
    headers = models.TextField(_("headers"), null=True, blank=True)
    # Bytes, because a text or JSON column would not return exactly what was stored.
    body = models.BinaryField(_("body"), null=True)
    last_error = models.TextField(_("last error"), null=True, blank=True)
    # What the view passed to `Operation.refer_to`.
    resource_type = models.CharField(_("resource type"), max_length=100, null=True, blank=True)
    resource_id = models.CharField(_("resource ID"), max_length=255, null=True, blank=True)
    # The decisions made by people and commands: a JSON list, oldest first, maintained by `maintenance.decisions`.
    decisions = models.TextField(_("decisions"), null=True, blank=True)
    created_at = models.DateTimeField(_("created at"))
    # Updated by almost every change, such as a claim, a renewed lease or a person's decision. A decision is refused if
    # this has changed since the person read the key.
    updated_at = models.DateTimeField(_("updated at"))
    completed_at = models.DateTimeField(_("completed at"), null=True, blank=True)
    expires_at = models.DateTimeField(_("expires at"))

    class Meta:
        verbose_name = _("idempotency key")
        verbose_name_plural = _("idempotency keys")
        constraints = [
            models.UniqueConstraint(fields=["key_hash", "scope_hash"], name="idempotency_key_uniq"),
            models.CheckConstraint(condition=ATTENTION_FITS, name="idempotency_attention_fits"),
        ]
        indexes = [
            models.Index(fields=["expires_at"], name="idempotency_expires_idx"),
            # Finds everything that belongs to one caller, so that it can be deleted.
            models.Index(fields=["scope"], name="idempotency_scope_idx"),
            # On PostgreSQL, completing an atomic key changes no index. The only exception is the index on
            # `resource_id`, which changes after `refer_to`.
            IndexWhereSet(fields=["locked_until"], name="idempotency_locked_idx", set_column="locked_until"),
            # Finds the failed keys, all of which have a `last_error`: first those that need attention, then the others
            # by age. A single index serves both groups, because PostgreSQL must check the condition of every partial
            # index at each claim and completion.
            IndexWhereSet(
                fields=["attention_at", "created_at"],
                name="idempotency_failed_idx",
                set_column="last_error",
                plain_fields=("status", "attention_at", "created_at"),
            ),
            IndexWhereSet(
                fields=["resource_id", "resource_type"], name="idempotency_resource_idx", set_column="resource_id"
            ),
        ]
        permissions = [
            ("view_response", _("Can view stored response bodies")),
            ("resolve_idempotencykey", _("Can resolve stuck idempotency keys")),
        ]

    def __str__(self) -> str:
        """Return the operation and the reference, not the key, because the admin's log keeps this text forever."""
        return f"{self.operation} {self.reference}"

    def refresh_from_db(self, using: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Read from the same alias again, even for a deferred field, because a router might choose a replica."""
        super().refresh_from_db(using or self._state.db, *args, **kwargs)

    @property
    def reference(self) -> str:
        """The 16 hexadecimal digits that logs show instead of the key, as `keys.key_reference` returns them."""
        return f"{self.key_hash & 0xFFFF_FFFF_FFFF_FFFF:016x}"


class IdempotencyStep(models.Model):
    """A step of a leased operation: an external call, an external read or a local write.

    The start of a call is committed before the call is made, and its result afterwards. A call without `finished_at` is
    running or in doubt. A local write is committed together with its result.
    """

    class Kind(models.TextChoices):
        CALL = "call", _("external call")
        FETCH = "fetch", _("external read")
        WRITE = "write", _("local write")

    id = models.BigAutoField(primary_key=True)
    # There is no foreign key constraint: it would make the database look for steps whenever a key is deleted, although
    # atomic-mode keys have none. A separate index isn't needed, because the index of the unique constraint begins with
    # this column.
    key = models.ForeignKey(
        IdempotencyKey, models.CASCADE, related_name="steps", db_constraint=False, db_index=False, verbose_name=_("key")
    )
    # Two keys can share an id, in two partitions or in two tenants' schemas. The hashes tell them apart.
    key_hash = models.BigIntegerField(editable=False)
    scope_hash = models.BigIntegerField(editable=False)
    name = ExactCharField(_("name"), max_length=100)
    kind = models.CharField(_("kind"), max_length=5, choices=Kind)
    attempt = models.PositiveIntegerField(_("attempt"))
    # Whether the view always asked for the derived key before starting the call. Once False, this stays False: if the
    # call was started even once without the key, the called service can't recognize a repeat.
    keyed = models.BooleanField(_("keyed"), default=False, db_default=False)
    started_at = models.DateTimeField(_("started at"))
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)
    result = models.TextField(_("result"), null=True, blank=True)
    error = models.TextField(_("error"), null=True, blank=True)

    class Meta:
        verbose_name = _("step")
        verbose_name_plural = _("steps")
        # Steps are shown only on their key's page, and need no separate permissions.
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["key", "key_hash", "scope_hash", "name"], name="idempotency_step_uniq")
        ]

    def __str__(self) -> str:
        return str(self.name)
