//! Permits and migrations, directly on the ledger; and a naive permit that the invariants must catch.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use berth_engine::elastic::{Grants, PermitRequest, Size, WatermarkRule};
use berth_engine::{InstanceId, InstanceRequest, NodeId};
use berth_ledger::{
    Answer, ClaimKey, DocumentWrite, Expect, Hold, Op, PermitOperation, Release, Switch, Text,
    WithDocuments,
};

use super::Server;
use super::steps::MOVING_TIME;
use crate::protocol::{Report, StepOutcome};
use crate::raw_sql::RawSql;
use crate::timing::stopwatch;

/// Between the look and the write, as a server has that does anything else in between.
const PAUSE: Duration = Duration::from_millis(20);

/// Steps that this process has written.
static STEPS: AtomicU64 = AtomicU64::new(0);

impl Server {
    pub(super) fn permit(
        &self,
        instance: InstanceId,
        seq: Option<u64>,
        memory_mib: u32,
    ) -> StepOutcome {
        let asked = PermitOperation {
            instance,
            tenant: None,
            node: None,
            fence: None,
            wish: PermitRequest { seq, ..PermitRequest::new(Size::new(10, memory_mib)) },
            unit: Size::new(1, 64),
            grants: Grants::Joint,
            whole_units: false,
            rigid_while_moving: false,
            watermark: WatermarkRule::default(),
            host_cpu_milli: None,
            basis: None,
        };
        match self.ledger().call(Op::Permit(asked)) {
            Ok(Answer::Permit(answer)) => match *answer {
                Ok(answer) => StepOutcome::Permitted {
                    seq: answer.permit.seq,
                    memory_mib: answer.permit.granted.memory_mib,
                    repeated: answer.repeated,
                },
                Err(rejected) => StepOutcome::Rejected {
                    code: rejected.code().to_owned(),
                    text: format!("{rejected:?}"),
                },
            },
            Ok(other) => StepOutcome::Unknown(format!("{other:?}")),
            Err(error) => StepOutcome::Unknown(error.to_string()),
        }
    }

    /// Looks at what is left, and takes it if it is enough. Two who look at once both take it.
    pub(super) fn naive_permit(&self, instance: InstanceId, more_mib: u32) -> StepOutcome {
        match self.read_then_take(instance, more_mib) {
            Ok(memory_mib) => StepOutcome::Permitted { seq: 0, memory_mib, repeated: false },
            Err(error) => StepOutcome::Unknown(format!("{error:#}")),
        }
    }

    fn read_then_take(&self, instance: InstanceId, more_mib: u32) -> anyhow::Result<u32> {
        let url = self.url.as_str();
        let file = url.strip_prefix("sqlite:");
        let sql_connection =
            file.map_or_else(|| RawSql::postgres(url), |file| RawSql::sqlite(Path::new(file)))?;
        let left = sql_connection.number("SELECT limit_memory - used_memory FROM node_room")?;
        std::thread::sleep(PAUSE);
        if left < i64::from(more_mib) {
            return Ok(0);
        }
        let id = instance.0.simple();
        let key = if file.is_some() { format!("x'{id}'") } else { format!("'\\x{id}'") };
        sql_connection.run(&format!(
            "UPDATE claim SET memory = memory + {more_mib} WHERE instance = {key};
             UPDATE node_room SET used_memory = used_memory + {more_mib};"
        ))?;
        Ok(more_mib)
    }

    /// Moves an instance to and fro while it runs, to be killed in the middle of it: a place is
    /// held, taken, and what is left is cleaned up, each with its document.
    pub(super) fn migrate_back_and_forth(
        &self,
        instance: &InstanceRequest,
        nodes: &[String; 2],
    ) -> Report {
        let (started, mut answers) = (stopwatch(), Vec::new());
        for node in nodes.iter().cycle() {
            if started.elapsed() > MOVING_TIME {
                break;
            }
            answers.push(self.migrate(instance, node));
        }
        Report::StepOutcome(answers)
    }

    fn migrate(&self, instance: &InstanceRequest, node: &str) -> StepOutcome {
        match self.try_migrate(instance, node) {
            Ok(()) => StepOutcome::Done,
            Err(why) => StepOutcome::Unknown(why),
        }
    }

    fn try_migrate(&self, instance: &InstanceRequest, node: &str) -> Result<(), String> {
        let key = ClaimKey::primary(instance.id);
        let claim = self.ledger().claim(key).map_err(|error| error.to_string())?;
        let claim = claim.ok_or("there is no claim")?;
        // A killed worker may have left a held target; continue from there.
        let held = self.ledger().claim(ClaimKey::target(instance.id));
        let held = held.map_err(|error| error.to_string())?;
        if held.is_none() && claim.node.as_str() != node {
            let to = self.planned(instance, node);
            self.call_with_document(
                instance.id,
                "held",
                Op::Hold(Box::new(Hold { fence: claim.fence, to })),
            )?;
        }
        let to = held.map_or_else(|| NodeId::new(node), |held| held.node);
        let switch = Op::Switch(Switch { instance: instance.id, to });
        self.call_with_document(instance.id, "switched", switch)?;
        let left = self.ledger().claim(ClaimKey::source(instance.id));
        if let Some(left) = left.map_err(|error| error.to_string())? {
            let release = Release {
                request_id: Text::from(format!("{}-{}", instance.id, left.fence)),
                key: left.key,
                tenant: None,
                fence: Some(left.fence),
                confirmed: true,
                reason: Text::from("moved"),
            };
            self.call_with_document(instance.id, "done", Op::Release(release))?;
        }
        Ok(())
    }

    /// One step, with the document that records it.
    fn call_with_document(&self, instance: InstanceId, state: &str, op: Op) -> Result<(), String> {
        let number = STEPS.fetch_add(1, Ordering::Relaxed);
        let document = DocumentWrite {
            kind: Text::from("migration"),
            id: Text::from(instance.to_string()),
            body: format!("{{\"state\":\"{state}\",\"by\":\"{}-{number}\"}}", std::process::id()),
            expect: Expect::Any,
        };
        let with = WithDocuments { op, documents: vec![document] };
        match self.ledger().call(Op::WithDocuments(Box::new(with))) {
            Ok(Answer::Claim(Ok(_))) => Ok(()),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }
}
