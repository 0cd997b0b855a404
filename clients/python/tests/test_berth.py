"""The client against a real server without sign-in, whose address is in BERTH_URL."""

import os
import threading
import time
import uuid

import pytest

from berth_client import Berth, BerthError, InstanceSpec, Placed, Refused, Resources, Ticket
from berth_client.generated.api.nodes import list_nodes, put_node
from berth_client.generated.models import FixAddNode, NodeFacts

HALF = {"resources": {"cpu_milli": 1000, "memory_mib": 6000}}


@pytest.fixture
def berth():
    """A client of a tenant of its own, and one node of which an instance takes more than half."""
    with Berth(os.environ["BERTH_URL"] + "/", tenant=f"tenant-{uuid.uuid4()}") as berth:
        capacity = {"cpu_milli": 8000, "memory_mib": 8192, "disk_mib": 102400, "bandwidth_mbps": 1000}
        facts = NodeFacts.from_dict({"id": "n1", "capacity": capacity})
        put_node.sync_detailed(client=berth.api, node="n1", body=facts)
        yield berth


@pytest.fixture
def placed(berth):
    placed = berth.place([HALF])
    yield placed
    try:
        berth.release(placed.instances[0].instance)
    except BerthError as error:
        assert error.code == "not_found", error


def test_instances_are_placed_and_released(berth):
    spec = InstanceSpec(resources=Resources(cpu_milli=500, memory_mib=512), count=2)
    placed = berth.place([spec])
    assert [one.node for one in placed.instances] == ["n1", "n1"]
    assert [node.facts.id for node in list_nodes.sync(client=berth.api).items] == ["n1"]
    for one in placed.instances:
        berth.release(one.instance, fence=one.fence, reason="no longer needed")


def test_a_retry_with_the_same_id_gets_the_same_answer(berth):
    request_id = str(uuid.uuid4())
    first = berth.place([HALF], request_id=request_id)
    second = berth.place([HALF], request_id=request_id)
    assert first.instances[0].instance == second.instances[0].instance
    berth.release(first.instances[0].instance)


def test_a_dry_run_claims_nothing(berth):
    for _ in range(2):
        assert berth.place([HALF], dry_run=True).instances[0].node == "n1"


def test_a_refusal_is_typed_and_says_what_would_help(berth, placed):
    with pytest.raises(Refused) as raised:
        berth.place([HALF])
    refused = raised.value
    assert (refused.status, refused.code) == (409, "no_capacity_memory")
    refusal = refused.refusals[0]
    assert refusal.nodes == 1 and refusal.counts[0].filter_ == "memory"
    assert refused.waiting_may_help
    added = [fix for fix in refusal.fixes if isinstance(fix, FixAddNode)]
    assert added and added[0].shape.memory_mib >= 6000, refusal.fixes


def test_other_errors_have_their_code_and_remedy(berth):
    with pytest.raises(BerthError) as raised:
        berth.place([{"resources": {"memory_mib": 1}, "id": str(uuid.uuid4()), "count": 2}])
    assert not isinstance(raised.value, Refused)
    assert raised.value.status in (400, 422), raised.value
    with pytest.raises(BerthError) as raised:
        berth.release(uuid.uuid4())
    assert raised.value.status in (404, 409), raised.value


def test_a_request_waits_until_there_is_room(berth, placed):
    def release():
        time.sleep(0.5)
        berth.release(placed.instances[0].instance)

    thread = threading.Thread(target=release)
    thread.start()
    waited = berth.wait_for_room([HALF], wait_s=60)
    thread.join()
    assert isinstance(waited, Placed) and waited.instances[0].node == "n1"
    berth.release(waited.instances[0].instance)


def test_a_request_can_wait_in_vain_or_be_cancelled(berth, placed):
    with pytest.raises(Refused) as raised:
        berth.wait_for_room([HALF], wait_s=1)
    assert raised.value.refusals
    ticket = berth.queue([HALF], wait_s=60)
    assert isinstance(ticket, Ticket)
    berth.cancel(ticket)
