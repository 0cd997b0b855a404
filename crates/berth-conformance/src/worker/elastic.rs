//! Permits and migrations, asked of the ledger itself; and a permit as one would write it by hand,
//! which is here to be caught.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use berth_engine::elastic::{Grants, PermitRequest, Size, WatermarkRule};
use berth_engine::{InstanceId, InstanceRequest, NodeId};
use berth_ledger::{
    Answer, ClaimKey, DocumentWrite, Expect, Hold, Op, PermitAsk, Release, Switch, Text, With,
};

use super::Server;
use super::orders::TO_AND_FRO;
use crate::hand::Hand;
use crate::protocol::{Report, Stood};
use crate::timing::stopwatch;

/// Between the look and the write, as a server has that does anything else in between.
const PAUSE: Duration = Duration::from_millis(20);

/// Steps that this process has written.
static STEPS: AtomicU64 = AtomicU64::new(0);

impl Server {
    pub(super) fn permit(&self, instance: InstanceId, seq: Option<u64>, memory_mib: u32) -> Stood {
        let asked = PermitAsk {
            instance,
            owner: None,
            node: None,
            fence: None,
            wish: PermitRequest { seq, ..PermitRequest::new(Size::new(10, memory_mib)) },
            unit: Size::new(1, 64),
            grants: Grants::Joint,
            whole_units: false,
            rigid_while_moving: false,
            watermark: WatermarkRule::default(),
        };
        match self.ledger().call(Op::Permit(asked)) {
            Ok(Answer::Permit(answer)) => match *answer {
                Ok(answer) => Stood::Permitted {
                    seq: answer.permit.seq,
                    memory_mib: answer.permit.granted.memory_mib,
                    repeated: answer.repeated,
                },
                Err(rejected) => Stood::Rejected {
                    code: rejected.code().to_owned(),
                    text: format!("{rejected:?}"),
                },
            },
            Ok(other) => Stood::Unknown(format!("{other:?}")),
            Err(error) => Stood::Unknown(error.to_string()),
        }
    }

    /// Looks at what is left, and takes it if it is enough. Two who look at once both take it.
    pub(super) fn naive_permit(&self, instance: InstanceId, more_mib: u32) -> Stood {
        match self.take_what_is_left(instance, more_mib) {
            Ok(memory_mib) => Stood::Permitted { seq: 0, memory_mib, repeated: false },
            Err(error) => Stood::Unknown(format!("{error:#}")),
        }
    }

    fn take_what_is_left(&self, instance: InstanceId, more_mib: u32) -> anyhow::Result<u32> {
        let url = self.url.as_str();
        let file = url.strip_prefix("sqlite:");
        let hand =
            file.map_or_else(|| Hand::postgres(url), |file| Hand::sqlite(Path::new(file)))?;
        let left = hand.number("SELECT limit_memory - used_memory FROM node_room")?;
        std::thread::sleep(PAUSE);
        if left < i64::from(more_mib) {
            return Ok(0);
        }
        let id = instance.0.simple();
        let key = if file.is_some() { format!("x'{id}'") } else { format!("'\\x{id}'") };
        hand.run(&format!(
            "UPDATE claim SET memory = memory + {more_mib} WHERE instance = {key};
             UPDATE node_room SET used_memory = used_memory + {more_mib};"
        ))?;
        Ok(more_mib)
    }

    /// Moves an instance to and fro while it runs, to be killed in the middle of it: a place is
    /// held, taken, and what is left is cleaned up, each with its document.
    pub(super) fn migrate_to_and_fro(
        &self,
        instance: &InstanceRequest,
        nodes: &[String; 2],
    ) -> Report {
        let (started, mut answers) = (stopwatch(), Vec::new());
        for node in nodes.iter().cycle() {
            if started.elapsed() > TO_AND_FRO {
                break;
            }
            answers.push(self.migrate(instance, node));
        }
        Report::Stood(answers)
    }

    fn migrate(&self, instance: &InstanceRequest, node: &str) -> Stood {
        match self.try_migrate(instance, node) {
            Ok(()) => Stood::Done,
            Err(why) => Stood::Unknown(why),
        }
    }

    fn try_migrate(&self, instance: &InstanceRequest, node: &str) -> Result<(), String> {
        let key = ClaimKey::primary(instance.id);
        let claim = self.ledger().claim(key).map_err(|error| error.to_string())?;
        let claim = claim.ok_or("there is no claim")?;
        // What somebody who was killed left behind is taken from where it is.
        let held = self.ledger().claim(ClaimKey::target(instance.id));
        let held = held.map_err(|error| error.to_string())?;
        if held.is_none() && claim.node.as_str() != node {
            let to = self.planned(instance, node);
            self.written(instance.id, "held", Op::Hold(Box::new(Hold { fence: claim.fence, to })))?;
        }
        let to = held.map_or_else(|| NodeId::new(node), |held| held.node);
        let switch = Op::Switch(Switch { instance: instance.id, to });
        self.written(instance.id, "switched", switch)?;
        let left = self.ledger().claim(ClaimKey::source(instance.id));
        if let Some(left) = left.map_err(|error| error.to_string())? {
            let release = Release {
                request_id: Text::from(format!("{}-{}", instance.id, left.fence)),
                key: left.key,
                owner: None,
                fence: Some(left.fence),
                confirmed: true,
                reason: Text::from("moved"),
            };
            self.written(instance.id, "done", Op::Release(release))?;
        }
        Ok(())
    }

    /// One step, and the document that says so.
    fn written(&self, instance: InstanceId, state: &str, op: Op) -> Result<(), String> {
        let number = STEPS.fetch_add(1, Ordering::Relaxed);
        let document = DocumentWrite {
            kind: Text::from("migration"),
            id: Text::from(instance.to_string()),
            body: format!("{{\"state\":\"{state}\",\"by\":\"{}-{number}\"}}", std::process::id()),
            expect: Expect::Any,
        };
        let with = With { op, documents: vec![document] };
        match self.ledger().call(Op::With(Box::new(with))) {
            Ok(Answer::Claim(Ok(_))) => Ok(()),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }
}
