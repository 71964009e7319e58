"""What the commands print. It quotes operations, steps and errors, which may hold any character."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from ..engine.protocol.error_text import without_controls


class EscapingCommand(BaseCommand):
    """Prints as an escape what the output's encoding lacks, or what a terminal obeys: neither may harm a run."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        options["stdout"] = _Escaping(options.get("stdout") or self.stdout)
        return super().execute(*args, **options)


class _Escaping:
    """A stream, but for what is written to it."""

    def __init__(self, stream: Any) -> None:
        self._stream = getattr(stream, "_out", stream)  # Django's own wrapper may hide the encoding

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"  # that of io.StringIO is None
        lines = "\n".join(map(without_controls, text.split("\n")))
        self._stream.write(lines.encode(encoding, "backslashreplace").decode(encoding))
