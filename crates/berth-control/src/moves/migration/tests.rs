#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::sync::Arc;

use berth_api::{MigrationReason, MigrationState};
use berth_engine::Timestamp;
use berth_engine::{Amounts, BatchMode, InstanceId, InstanceRequest, NodeFacts, NodeId, Policy};
use berth_ledger::{Advance, Answer, Backend, ClaimKey, Op, Step, Text};

use super::begin::hold_place;
use super::{Begin, MigrationRecord, begin};
use crate::caller::Caller;
use crate::documents::Versioned;
use crate::{ControlOptions, ControlPlane, PlaceAnswer, PlaceRequest};

/// A control plane with an instance that runs on `n1`, and `n2` that has room for exactly one more.
async fn with_running_instance(folder: &tempfile::TempDir) -> (Arc<ControlPlane>, InstanceId) {
    let backend = Backend::Sqlite(folder.path().join("ledger.db"));
    let options = ControlOptions::new(backend, Policy::builtin("balanced").unwrap());
    let started = tokio::task::spawn_blocking(move || ControlPlane::start(options));
    let control = started.await.unwrap().unwrap();
    let add = async |id: &str| {
        let mut facts = NodeFacts::new(id, Amounts::new(4000, 4096).with_disk(4096));
        facts.ratios.cpu_permille = 1000;
        facts.heartbeat_at = Timestamp(control.now().as_second());
        control.submit(Op::put_node(facts)).await.unwrap();
        control.settled().await;
    };
    add("n1").await;
    let instance = InstanceId::from_u128(1);
    let amounts = Amounts::new(4000, 3000).with_disk(64);
    let request = PlaceRequest {
        request_id: Text::from("place"),
        owner: Text::from("acme"),
        instances: vec![Arc::new(InstanceRequest::new(instance, "acme", amounts))],
        mode: BatchMode::AllOrNothing,
        lease_s: 120,
        ..PlaceRequest::default()
    };
    let placing = Arc::clone(&control);
    let placed = tokio::task::spawn_blocking(move || placing.placer.place(request)).await.unwrap();
    let PlaceAnswer::Granted(granted) = placed else { panic!("{placed:?}") };
    let fence = granted.grant.claims[0].fence;
    for step in [Step::Bind, Step::Activate] {
        let key = ClaimKey::primary(instance);
        let op = Op::Advance(Advance { key, owner: None, fence, step });
        let answer = control.submit(op).await.unwrap();
        assert!(matches!(answer, Answer::Claim(Ok(_))), "{answer:?}");
    }
    add("n2").await;
    (control, instance)
}

/// The loop that drives migrations may read one that is decided, and try to hold its place only
/// after the request that decided it did. The place is taken then: by the migration itself.
#[test]
fn a_late_attempt_to_hold_the_place_does_not_fail_a_migration_that_has_it() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (control, instance) = with_running_instance(&folder).await;
        let (to, reason) = (NodeId::new("n2"), MigrationReason::Asked);
        let asked = Begin { instance, to, reason, cost: 0, guard: None };
        let begun = begin(&control, &Caller::local("test"), &asked).await.unwrap();
        assert_eq!(begun.state, MigrationState::TargetHeld, "{begun:?}");
        control.settled().await;

        let known = control.migrations.get(&begun.id).unwrap();
        let decided = MigrationRecord { state: MigrationState::Planned, ..known.value.clone() };
        let decided = Versioned { value: decided, revision: known.revision - 1 };
        hold_place(&control, &begun.id, &decided).await.unwrap();

        control.settled().await;
        let after = control.migrations.get(&begun.id).unwrap();
        assert_eq!(after.value.state, MigrationState::TargetHeld, "{:?}", after.value.why);
        let books = control.catalog.books();
        assert!(books.claims.contains_key(&ClaimKey::target(instance)), "its place was freed");
        drop(books);
        control.stopping.cancel();
    });
}
