"""The client: a thin layer over the generated functions."""

import os
import time
import uuid
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import httpx

from ._errors import error_of
from .generated import AuthenticatedClient, Client
from .generated.api.claims import release_claim
from .generated.api.placements import place_instances
from .generated.api.queue import delete_ticket, get_ticket
from .generated.models import (
    InstanceSpec,
    Mode,
    Placed,
    PlaceRequest,
    Problem,
    ReleaseClaim,
    Ticket,
    TicketState,
)
from .generated.types import Response

#: How often a request is sent when the connection fails. A retry has the id of the first, so that it is
#: carried out once.
ATTEMPTS = 3

#: How long the server may keep a question about a queued request open until there is news.
POLL_S = 20


class Berth:
    """A connection to a Berth server.

    >>> with Berth("http://127.0.0.1:7717", token="berth_…") as berth:
    ...     placed = berth.place([{"resources": {"cpu_milli": 1000, "memory_mib": 2048}}])
    ...     print(placed.instances[0].node)
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tenant: str | None = None,
        ca_file: str | None = None,
        timeout_s: float = 40.0,
    ) -> None:
        """
        :param url: where the server listens, such as ``https://berth.example:7717``.
        :param token: a token; without one only servers without sign-in answer.
        :param tenant: whose instances they are, for tokens that are not bound to a tenant.
        :param ca_file: certificates to trust instead of the system's.
        """
        options: dict[str, Any] = {
            "base_url": url.rstrip("/"),
            "timeout": httpx.Timeout(timeout_s),
            "verify_ssl": ca_file if ca_file is not None else True,
        }
        #: The client that functions of :mod:`berth_client.generated` take.
        self.api: AuthenticatedClient | Client = (
            Client(**options) if token is None else AuthenticatedClient(token=token, **options)
        )
        self.tenant = tenant

    @classmethod
    def from_environment(cls) -> Self:
        """By ``BERTH_URL``, ``BERTH_TOKEN`` and ``BERTH_TENANT``."""
        url = os.environ.get("BERTH_URL", "http://127.0.0.1:7717")
        return cls(url, token=os.environ.get("BERTH_TOKEN"), tenant=os.environ.get("BERTH_TENANT"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self.api.get_httpx_client().close()

    def place(
        self,
        instances: Iterable[InstanceSpec | dict[str, Any]],
        *,
        dry_run: bool = False,
        request_id: str | None = None,
        **options: Any,
    ) -> Placed:
        """Places all instances, or none.

        :param instances: specs, or dictionaries in the form of the API.
        :param dry_run: decide without claiming anything.
        :param request_id: the id under which a retry gets this answer; made up when absent.
        :param options: further fields of the request, such as ``pools`` or ``lease_s``.
        :raises Refused: no node can take them; says why, and what would help.
        """
        request = self._request(instances, request_id, dry_run=dry_run, **options)
        answer = self._call(place_instances.sync_detailed, body=request)
        if isinstance(answer, Placed):
            return answer
        raise TypeError(f"the request was queued as {answer.id}; use wait_for_room")

    def queue(
        self,
        instances: Iterable[InstanceSpec | dict[str, Any]],
        *,
        wait_s: int = 600,
        request_id: str | None = None,
        **options: Any,
    ) -> Placed | Ticket:
        """Places all instances at once, or queues the request for up to ``wait_s`` seconds."""
        request = self._request(instances, request_id, mode=Mode.WAIT, wait_s=wait_s, **options)
        return self._call(place_instances.sync_detailed, body=request)

    def wait_for_room(
        self,
        instances: Iterable[InstanceSpec | dict[str, Any]],
        *,
        wait_s: int = 600,
        **options: Any,
    ) -> Placed:
        """Places all instances, waiting for room for up to ``wait_s`` seconds.

        :raises Refused: there was no room in time.
        """
        answer = self.queue(instances, wait_s=wait_s, **options)
        return answer if isinstance(answer, Placed) else self.wait(answer)

    def wait(self, ticket: Ticket) -> Placed:
        """Waits until a queued request is decided.

        :raises Refused: it was not placed in time.
        :raises TimeoutError: it ended without a reason, for example because it was cancelled.
        """
        while ticket.state == TicketState.WAITING:
            ticket = self._call(get_ticket.sync_detailed, id=ticket.id, wait_s=POLL_S)
        if isinstance(ticket.placed, Placed):
            return ticket.placed
        if isinstance(ticket.problem, Problem):
            raise error_of(ticket.problem)
        raise TimeoutError(f"request {ticket.id} is {ticket.state}")

    def cancel(self, ticket: Ticket) -> None:
        """Takes a request out of the queue."""
        self._call(delete_ticket.sync_detailed, id=ticket.id)

    def release(self, instance: uuid.UUID, *, fence: int | None = None, reason: str | None = None) -> None:
        """Gives back what an instance holds.

        :param fence: the fence it was granted with; needed by tenants.
        """
        given = {"fence": fence, "reason": reason, "request_id": str(uuid.uuid4())}
        body = ReleaseClaim.from_dict({name: value for name, value in given.items() if value is not None})
        self._call(release_claim.sync_detailed, instance=instance, body=body)

    def _request(
        self, instances: Iterable[InstanceSpec | dict[str, Any]], request_id: str | None, **options: Any
    ) -> PlaceRequest:
        specs = [one if isinstance(one, InstanceSpec) else InstanceSpec.from_dict(one) for one in instances]
        given = {"tenant": self.tenant, **options}
        given = {name: value for name, value in given.items() if value is not None}
        return PlaceRequest(instances=specs, request_id=request_id or str(uuid.uuid4()), **given)

    def _call(self, function: Any, **arguments: Any) -> Any:
        """Calls a generated function; a problem document becomes an exception."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                response: Response[Any] = function(client=self.api, **arguments)
                break
            except httpx.TransportError:
                if attempt == ATTEMPTS:
                    raise
                time.sleep(0.1 * 2**attempt)
        if isinstance(response.parsed, Problem):
            raise error_of(response.parsed, response.headers.get("retry-after"))
        return response.parsed
