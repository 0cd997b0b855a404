"""Uses a generated client as a program would: register nodes, place, be refused, wait, get room."""

import sys
import time

from berth_api_client import Client
from berth_api_client.api.claims import release_claim
from berth_api_client.api.nodes import list_nodes, put_node
from berth_api_client.api.placements import place_instances
from berth_api_client.api.queue import get_ticket
from berth_api_client.models import (
    NodeFacts,
    Placed,
    PlaceRequest,
    Problem,
    ReleaseClaim,
    Ticket,
)

client = Client(base_url=sys.argv[1])


def place(memory_mib, **options):
    resources = {"cpu_milli": 1000, "memory_mib": memory_mib}
    body = {"tenant": "acme", "instances": [{"resources": resources}], **options}
    return place_instances.sync(client=client, body=PlaceRequest.from_dict(body))


capacity = {"cpu_milli": 8000, "memory_mib": 8192, "disk_mib": 102400, "bandwidth_mbps": 1000}
put_node.sync_detailed(
    client=client, node="n1", body=NodeFacts.from_dict({"id": "n1", "capacity": capacity})
)
assert [node.facts.id for node in list_nodes.sync(client=client).items] == ["n1"]

placed = place(6000)
assert isinstance(placed, Placed), placed
assert placed.instances[0].node == "n1", placed

refused = place(6000)
assert isinstance(refused, Problem), refused
assert refused.status == 409 and refused.code == "no_capacity_memory", refused
refusal = refused.refusals[0]
assert refusal.nodes == 1 and refusal.counts[0].filter_ == "memory", refusal
assert refusal.fixes, "a refusal proposes fixes"

ticket = place(6000, mode="wait", wait_s=60)
assert isinstance(ticket, Ticket), ticket
held = placed.instances[0].instance
release_claim.sync_detailed(instance=held, client=client, body=ReleaseClaim.from_dict({}))
for _ in range(300):
    ticket = get_ticket.sync(id=ticket.id, client=client)
    if str(ticket.state) != "waiting":
        break
    time.sleep(0.1)
assert str(ticket.state) == "granted", ticket
print("a generated Python client placed, read a refusal, waited and got room")
