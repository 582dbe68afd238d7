"""The report of the checks and their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stgt._internal.checks import one_line

MARKS = {True: "ok    ", False: "FAILED", None: "-     "}


class CheckError(AssertionError):
    """A check failed; its text is the whole report."""

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report


class SkipError(Exception):
    """Raised by a check that does not apply, with the reason."""


@dataclass(frozen=True)
class Check:
    """One check: whether it passed (None: it does not apply), and the numbers or the reason."""

    name: str
    holds: bool | None
    detail: str


@dataclass
class Report:
    """The checks of one object, in order."""

    subject: str
    checks: list[Check] = field(default_factory=list)

    def run(self, name: str, check: Callable[[], str]) -> None:
        """Adds a check: a function that returns its numbers as text, or raises an AssertionError or a ValueError."""
        try:
            self.checks.append(Check(name, True, check()))
        except SkipError as why:
            self.checks.append(Check(name, None, str(why)))
        except (AssertionError, ValueError, TypeError, NotImplementedError) as fault:
            self.checks.append(Check(name, False, one_line(fault) or type(fault).__name__))

    @property
    def passed(self) -> bool:
        return all(check.holds is not False for check in self.checks)

    def finish(self) -> Report:
        """Returns the report, or raises a `CheckError` if a check failed."""
        if not self.passed:
            raise CheckError(self)
        return self

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        rows = [f"  {MARKS[check.holds]} {check.name:<{width}}  {check.detail}" for check in self.checks]
        return "\n".join([f"{self.subject}: {'all checks passed' if self.passed else 'some checks FAILED'}", *rows])
