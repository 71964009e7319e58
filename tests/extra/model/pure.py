"""What a key does, in fifty lines of plain Python: the law that the stores are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Key:
    fingerprint: str
    attempt: int = 1
    status: str = "in_progress"
    live: bool = True
    expired: bool = False
    steps: dict[str, bool] = field(default_factory=dict)
    """By name: has it a result?"""
    keyed: dict[str, bool] = field(default_factory=dict)
    """By name: did each start of the call carry the derived key?"""
    recorded: set[str] = field(default_factory=set)
    """The steps whose result a person has recorded, and may correct."""
    result: bytes = b""
    row: int = 0
    """Its primary key: what cleanup has deleted comes back as another row, at attempt 1 again."""

    @property
    def doubts(self) -> list[str]:
        return [name for name, finished in self.steps.items() if not finished]

    @property
    def over(self) -> bool:
        """As if never seen; cleanup deletes it. A failed key with a call, in doubt or half done, never is."""
        return self.expired and (self.status == "completed" or (self.status == "failed" and not self.steps))

    @property
    def idle(self) -> bool:
        return self.status == "failed" or (self.status == "in_progress" and not self.live)

    def may_record(self, name: str) -> bool:
        """A person may record the result of a call in doubt, and correct one that a person has recorded."""
        return self.steps.get(name) is False or name in self.recorded

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.doubts), len(self.steps) - len(self.doubts)

    def held(self, policy: str) -> bool:
        """Whether a call in doubt must not be made again."""
        return any(policy == "hold" or (policy == "retry-keyed" and not self.keyed[name]) for name in self.doubts)

    def claim(self, fingerprint: str, *, policy: str) -> str:
        if self.over:
            self.__init__(fingerprint, attempt=self.attempt + 1, row=self.row)  # type: ignore[misc]
            return "claimed"
        if self.status == "in_progress" and self.live:
            return "conflicted"
        if fingerprint != self.fingerprint:
            return "mismatched"
        if self.status == "completed":
            return "completed"
        if self.held(policy):
            return "in doubt"
        self.attempt, self.status, self.live, self.expired = self.attempt + 1, "in_progress", True, False
        return "claimed"

    def is_of(self, row: int, attempt: int) -> bool:
        """The fence: is a worker of this attempt still the one?"""
        return self.status == "in_progress" and (self.row, self.attempt) == (row, attempt)

    def end(self, status: str, result: bytes = b"") -> None:
        self.status, self.live, self.expired, self.result = status, False, False, result
