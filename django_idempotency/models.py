"""This module has the models of the two tables. In the key table, each row belongs to one key, one caller and one
operation. The step table has one row for each step of a leased operation.
"""

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
        "django_idempotency is not among the INSTALLED_APPS, so it has no table for the keys. Add it there: "
        'INSTALLED_APPS = [..., "django_idempotency"]. Then run: python manage.py migrate'
    )


ATTENTION_FITS = Exact(
    IsNull(models.F("attention_at"), False),
    models.Q(GreaterThan(models.F("unknown") + models.F("effects"), 0), status="failed"),
)
"""A failed key needs attention exactly if a call took effect or a step has no result. Other keys never do by this
column: a lapsed lease and a claim without a lease are found by theirs.
"""


class IdempotencyKey(models.Model):
    """Each row of this table stores a key with its caller, its operation, and the response to replay.

    Only this package writes rows of this table. Your code may read these rows, but must not change them.
    """

    class Status(models.TextChoices):
        IN_PROGRESS = "in_progress", _("in progress")
        COMPLETED = "completed", _("completed")
        FAILED = "failed", _("failed")

    class Policy(models.TextChoices):
        """This class has the values of the view's option `on_abandoned`. This option decides whether a retry repeats an
        external call that is in doubt.
        """

        RETRY_KEYED = "retry-keyed", _("retry-keyed: make a call again only with its derived key")
        RETRY = "retry", _("retry: make the call again")
        HOLD = "hold", _("hold: wait for a decision")

    id = models.BigAutoField(primary_key=True)
    # The unique index contains two hash numbers instead of the texts `scope`, `operation` and `key`. An index of
    # numbers is half as big as an index of texts, and all databases compare numbers in the same way.
    key_hash = models.BigIntegerField(_("key hash"), editable=False)
    scope_hash = models.BigIntegerField(_("scope hash"), editable=False)
    scope = ExactCharField(_("scope"), max_length=255)
    operation = ExactTextField(_("operation"))
    key = ExactCharField(_("key"), max_length=255)
    fingerprint = models.BinaryField(_("fingerprint"), max_length=32, null=True)
    status = models.CharField(_("status"), max_length=11, choices=Status, default=Status.IN_PROGRESS)
    # The column `policy` is NULL in atomic mode, because atomic mode has no calls.
    policy = models.CharField(_("policy"), max_length=11, choices=Policy, null=True, blank=True)
    attempt = models.PositiveIntegerField(_("attempt"), default=1)
    # What the steps of the key come to. See Note [One truth about a key] in engine/stores/journal.py.
    unknown = models.PositiveIntegerField(_("steps without a result"), default=0, db_default=0, editable=False)
    effects = models.PositiveIntegerField(_("finished calls"), default=0, db_default=0, editable=False)
    attention_at = models.DateTimeField(_("needs attention since"), null=True, blank=True, editable=False)
    locked_until = models.DateTimeField(_("locked until"), null=True, blank=True)
    # The column `worker` contains the host and the process id of the last worker that claimed the key, such as
    # "web-3:4711".
    worker = models.CharField(_("worker"), max_length=100, null=True, blank=True)
    status_code = models.PositiveSmallIntegerField(_("status code"), null=True, blank=True)
    headers = models.TextField(_("headers"), null=True, blank=True)
    # The response body is stored as bytes, because a column for text or JSON would not return exactly the stored bytes.
    body = models.BinaryField(_("body"), null=True)
    last_error = models.TextField(_("last error"), null=True, blank=True)
    # `resource_type` and `resource_id` identify the object that the view has passed to `Operation.refer_to`.
    resource_type = models.CharField(_("resource type"), max_length=100, null=True, blank=True)
    resource_id = models.CharField(_("resource ID"), max_length=255, null=True, blank=True)
    # The column `decisions` contains a JSON list of the decisions of people and commands, with the oldest decision
    # first. The module `maintenance.decisions` reads and writes this list.
    decisions = models.TextField(_("decisions"), null=True, blank=True)
    created_at = models.DateTimeField(_("created at"))
    # Almost every change of the row sets `updated_at`, for example a claim, a renewed lease or a person's decision. If
    # `updated_at` has changed after a person read the key, the decision of this person is refused.
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
            # The index on `scope` is used when all data of one caller are deleted.
            models.Index(fields=["scope"], name="idempotency_scope_idx"),
            # In atomic mode, the completion of a key changes no index on PostgreSQL. But if the view has called
            # `refer_to`, the completion changes the index on `resource_id`.
            IndexWhereSet(fields=["locked_until"], name="idempotency_locked_idx", set_column="locked_until"),
            # Each failed key has a text in `last_error`. Those that need attention come in the order of `attention_at`, the
            # others are all NULL there. One index, because each partial index slows down every claim and completion.
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
        """Return the operation and the reference of the key. The text does not contain the key itself. The admin's log
        keeps the text of this method for ever, and a key can be secret.
        """
        return f"{self.operation} {self.reference}"

    def refresh_from_db(self, using: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Read the row again from the same database alias. Without this method, a database router could choose a
        replica.

        Django also calls this method to read a deferred field.
        """
        super().refresh_from_db(using or self._state.db, *args, **kwargs)

    @property
    def reference(self) -> str:
        """Return the 16 hexadecimal digits that logs show instead of the key. The function
        `django_idempotency.keys.key_reference` returns the same digits.
        """
        return f"{self.key_hash & 0xFFFF_FFFF_FFFF_FFFF:016x}"


class IdempotencyStep(models.Model):
    """Each row of this table is a step of a leased operation: an external call, an external read or a local write.

    Before an external call, the package commits the start of the call. After the call, the package commits the result
    of the call. If `finished_at` of a call is NULL, the call is running or in doubt. A local write and its result are
    committed together.
    """

    class Kind(models.TextChoices):
        CALL = "call", _("external call")
        FETCH = "fetch", _("external read")
        WRITE = "write", _("local write")

    id = models.BigAutoField(primary_key=True)
    # The foreign key `key` has no constraint in the database. With a constraint, the database would search for steps at
    # each DELETE of a key. This search would be useless for keys of atomic mode, because these keys have no steps. The
    # foreign key needs no separate index, because the index of the unique constraint begins with the same column.
    key = models.ForeignKey(
        IdempotencyKey, models.CASCADE, related_name="steps", db_constraint=False, db_index=False, verbose_name=_("key")
    )
    # Two keys can share an id: in two partitions, or in the schemas of two tenants. The hashes tell them apart.
    key_hash = models.BigIntegerField(editable=False)
    scope_hash = models.BigIntegerField(editable=False)
    name = ExactCharField(_("name"), max_length=100)
    kind = models.CharField(_("kind"), max_length=5, choices=Kind)
    attempt = models.PositiveIntegerField(_("attempt"))
    # Whether each start of the call came after the view had asked for its derived key. It never turns True again: one
    # start without the key is enough to make a repeat unrecognizable.
    keyed = models.BooleanField(_("keyed"), default=False, db_default=False)
    started_at = models.DateTimeField(_("started at"))
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)
    result = models.TextField(_("result"), null=True, blank=True)
    error = models.TextField(_("error"), null=True, blank=True)

    class Meta:
        verbose_name = _("step")
        verbose_name_plural = _("steps")
        # There are no separate permissions for steps, because steps are shown only on the page of a key.
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["key", "key_hash", "scope_hash", "name"], name="idempotency_step_uniq")
        ]

    def __str__(self) -> str:
        return str(self.name)
