"""Berth for programs: place instances, wait for room, release them, read refusals.

Every other call of the API is in :mod:`berth_client.generated`, which is made from Berth's OpenAPI
document; :attr:`Berth.api` is the client that its functions take.
"""

from ._berth import Berth
from ._errors import BerthError, RateLimited, Refused
from .generated.models import (
    InstanceSpec,
    Placed,
    PlacedInstance,
    PlaceRequest,
    Problem,
    Refusal,
    Resources,
    Ticket,
)

__all__ = [
    "Berth",
    "BerthError",
    "InstanceSpec",
    "PlaceRequest",
    "Placed",
    "PlacedInstance",
    "Problem",
    "RateLimited",
    "Refusal",
    "Refused",
    "Resources",
    "Ticket",
]
