//! One agent: its next request, and whether an answer is plausible.

use anyhow::{bail, ensure};
use berth_engine::InstanceId;
use serde::Deserialize;
use std::io::Write as _;

/// The compute unit of the policy that a new server has: milli-CPU and MiB.
pub(super) const UNIT: (u32, u32) = (250, 1024);

/// The least that an instance runs with, in compute units.
pub(super) const MIN_UNITS: u32 = 1;

/// The most that an instance grows to, in compute units.
pub(super) const MAX_UNITS: u32 = 32;

/// The percentage of requests that grow, and of those that shrink; the others change nothing.
const GROW_PERCENT: u32 = 35;

/// An agent and its instances.
pub(super) struct Agent {
    head: String,
    instances: Vec<Instance>,
    random: fastrand::Rng,
    body: Vec<u8>,
    /// The request as it is sent.
    pub(super) request: Vec<u8>,
}

struct Instance {
    id: InstanceId,
    /// What it was permitted last, in units.
    units: u32,
    seq: u64,
}

#[derive(Clone, Copy)]
pub(super) struct PermitRequest {
    index: usize,
    units: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermitOutcome {
    /// Growth was granted in full.
    Grown,
    /// Growth was granted in part or not at all.
    Limited,
    /// No growth was requested.
    NotGrown,
}

#[derive(Deserialize)]
struct Permit {
    seq: u64,
    permit: Size,
    wanted: Size,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
struct Size {
    cpu_milli: u32,
    memory_mib: u32,
}

impl Size {
    /// In compute units, if it is whole ones of both.
    fn units(self) -> Option<u32> {
        let units = self.cpu_milli / UNIT.0;
        (self == Self::of(units)).then_some(units)
    }

    const fn of(units: u32) -> Self {
        Self { cpu_milli: UNIT.0 * units, memory_mib: UNIT.1 * units }
    }
}

impl Agent {
    pub(super) fn new(
        number: u32,
        address: &str,
        token: &str,
        ids: &[InstanceId],
        units: u32,
    ) -> Self {
        let head = format!(
            "host: {address}\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: "
        );
        let instances = ids.iter().map(|id| Instance { id: *id, units, seq: 0 }).collect();
        let random = fastrand::Rng::with_seed(number.into());
        Self { head, instances, random, body: Vec::new(), request: Vec::new() }
    }

    /// Makes the next request.
    pub(super) fn next(&mut self) -> anyhow::Result<PermitRequest> {
        let index = self.random.usize(0..self.instances.len());
        let step = self.random.u32(1..=4);
        let kind = self.random.u32(0..100);
        let Instance { id, units: has, seq } = &self.instances[index];
        let units = match () {
            // The first request reports the current size.
            () if *seq == 0 => *has,
            () if kind < GROW_PERCENT => (has + step).min(MAX_UNITS),
            () if kind < 2 * GROW_PERCENT => has.saturating_sub(step).max(MIN_UNITS),
            () => *has,
        };
        let (size, seq, busy) = (Size::of(units), seq + 1, self.random.u32(0..units));
        self.body.clear();
        write!(
            self.body,
            r#"{{"resources":{{"cpu_milli":{},"memory_mib":{}}},"seq":{seq},"load":{busy}.25}}"#,
            size.cpu_milli, size.memory_mib,
        )?;
        self.request.clear();
        write!(self.request, "POST /v1/instances/{id}/permit HTTP/1.1\r\n{}", self.head)?;
        write!(self.request, "{}\r\n\r\n", self.body.len())?;
        self.request.extend_from_slice(&self.body);
        Ok(PermitRequest { index, units })
    }

    /// Records an answer.
    ///
    /// # Errors
    /// When it is implausible.
    pub(super) fn check_answer(
        &mut self,
        request: PermitRequest,
        status: u16,
        answer: &[u8],
    ) -> anyhow::Result<PermitOutcome> {
        if status != 200 {
            bail!("{status}: {}", String::from_utf8_lossy(answer));
        }
        let permit: Permit = serde_json::from_slice(answer)?;
        let instance = &mut self.instances[request.index];
        let text = || String::from_utf8_lossy(answer).into_owned();
        ensure!(permit.seq == instance.seq + 1, "not the request that was sent: {}", text());
        ensure!(permit.wanted == Size::of(request.units), "not what was asked for: {}", text());
        let Some(units) = permit.permit.units() else { bail!("no whole units: {}", text()) };
        let (least, most) = (instance.units.min(request.units), request.units);
        ensure!(
            (least..=most).contains(&units),
            "{units} units are not between {least} and {most}: {}",
            text()
        );
        let outcome = match () {
            () if request.units <= instance.units => PermitOutcome::NotGrown,
            () if units == request.units => PermitOutcome::Grown,
            () => PermitOutcome::Limited,
        };
        (instance.units, instance.seq) = (units, permit.seq);
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::{Agent, PermitOutcome, UNIT};
    use berth_engine::InstanceId;

    fn answer(seq: u64, wanted: u32, permit: u32) -> String {
        let size = |units: u32| {
            format!(r#"{{"cpu_milli":{},"memory_mib":{}}}"#, UNIT.0 * units, UNIT.1 * units)
        };
        format!(r#"{{"seq":{seq},"wanted":{},"permit":{}}}"#, size(wanted), size(permit))
    }

    #[test]
    fn an_implausible_answer_is_an_error() {
        let id = InstanceId(uuid::Uuid::nil());
        let mut agent = Agent::new(1, "localhost:1", "secret", &[id], 8);
        let request = super::PermitRequest { index: 0, units: 10 };
        let mut check =
            |status, answer: String| agent.check_answer(request, status, answer.as_bytes()).ok();
        assert_eq!(check(503, answer(1, 10, 10)), None, "no answer at all");
        assert_eq!(check(200, answer(2, 10, 10)), None, "of another request");
        assert_eq!(check(200, answer(1, 9, 9)), None, "another size");
        assert_eq!(check(200, answer(1, 10, 7)), None, "less than it has");
        assert_eq!(check(200, answer(1, 10, 11)), None, "more than it asked for");
        assert_eq!(check(200, answer(1, 10, 9)), Some(PermitOutcome::Limited));
        assert_eq!(check(200, answer(2, 10, 10)), Some(PermitOutcome::Grown));
        assert_eq!(check(200, answer(3, 10, 10)), Some(PermitOutcome::NotGrown));
    }
}
