"""What can go wrong, as exceptions with the typed problem document."""

from .generated.models import Problem, Refusal
from .generated.types import Unset


class BerthError(Exception):
    """The server answered with a problem document."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.code}: {problem.detail}")
        self.problem = problem

    @property
    def code(self) -> str:
        """The stable code, such as ``no_capacity_memory``."""
        return self.problem.code

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.problem.status

    @property
    def remedy(self) -> str | None:
        """What would help, if the server knows."""
        remedy = self.problem.remedy
        return None if isinstance(remedy, Unset) else remedy


class Refused(BerthError):
    """No node can take the instances. Nothing was claimed."""

    @property
    def refusals(self) -> list[Refusal]:
        """Why, one for each class of instance: filters, nearest misses, and fixes that were tried."""
        refusals = self.problem.refusals
        return [] if isinstance(refusals, Unset) else refusals

    @property
    def waiting_may_help(self) -> bool:
        """Whether the same request may find room later."""
        return all(refusal.waiting_may_help for refusal in self.refusals)


class RateLimited(BerthError):
    """The tenant asked too often."""

    def __init__(self, problem: Problem, retry_after_s: float | None) -> None:
        super().__init__(problem)
        #: Seconds until the server accepts the next request, if it said so.
        self.retry_after_s = retry_after_s


def error_of(problem: Problem, retry_after: str | None = None) -> BerthError:
    """The exception for a problem document."""
    if problem.status == 429:
        seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
        return RateLimited(problem, seconds)
    if not isinstance(problem.refusals, Unset) and problem.refusals:
        return Refused(problem)
    return BerthError(problem)
