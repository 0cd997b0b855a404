//! What goes over the wire: requests of versions 1.0 to 5.0 and their answers.
//!
//! Memory is counted in bytes there (before version 4.0 in slots) and in MiB here; before version 2.0
//! CPU is counted in whole cores. What is reserved is rounded up and what is answered is cut to what
//! was asked for, so that an answer is never more than either.

use std::fmt;

use berth_engine::Amounts;
use berth_engine::elastic::Size;
use serde::Deserialize;
use serde_json::{Value, json};

use super::quantity::{self, Count};

/// A supported version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    /// Whole cores, memory in slots; metrics are required. Answers name the compute unit.
    V1_0,
    /// Metrics may be null.
    V1_1,
    /// Thousandths of cores.
    V2_0,
    /// The last permit.
    V2_1,
    /// Answers do not name the compute unit any more; the server's still applies.
    V3_0,
    /// Memory in bytes, and the agent's compute unit.
    V4_0,
    /// Fewer metrics.
    V5_0,
}

impl Version {
    fn of(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::V1_0),
            2 => Some(Self::V1_1),
            3 => Some(Self::V2_0),
            4 => Some(Self::V2_1),
            5 => Some(Self::V3_0),
            6 => Some(Self::V4_0),
            7 => Some(Self::V5_0),
            _ => None,
        }
    }

    fn cpu_in(self) -> CpuIn {
        if self < Self::V2_0 { CpuIn::Cores } else { CpuIn::Thousandths }
    }
}

/// The body. Unknown fields are ignored, as agents expect.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    #[serde(default)]
    proto_version: u64,
    pod: Option<Pod>,
    compute_unit: Option<Resources>,
    resources: Option<Resources>,
    last_permit: Option<Resources>,
    metrics: Option<Metrics>,
}

/// Whose request it is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Pod {
    /// The pod's name.
    #[serde(default)]
    pub name: String,
    /// Its namespace.
    #[serde(default)]
    pub namespace: String,
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in namespace {:?}", self.name, self.namespace)
    }
}

#[derive(Debug, Deserialize)]
struct Resources {
    #[serde(rename = "vCPUs", default)]
    cpus: Value,
    #[serde(default)]
    mem: Value,
}

#[derive(Debug, Deserialize)]
struct Metrics {
    #[serde(rename = "loadAvg1M", default)]
    load_1m: Option<f64>,
}

/// CPU and memory as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SentSize {
    cpu_milli: u32,
    /// Bytes or slots.
    memory: u64,
}

/// A valid request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Whose request it is.
    pub pod: Pod,
    /// The requested size, as it is reserved.
    pub wanted: Size,
    /// The size its agent already uses, as it is reserved.
    pub last_permit: Option<Size>,
    /// The agent's compute unit, if it has its own.
    pub unit: Option<Size>,
    /// The machine's load.
    pub load: Option<f64>,
    sent: SentSize,
    cpu_in: CpuIn,
    memory_in: MemoryIn,
    tells_unit: bool,
}

/// What CPU is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CpuIn {
    Cores,
    Thousandths,
}

/// What memory is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryIn {
    Bytes,
    /// Slots of this many MiB.
    Slots(u32),
}

const MIB: u64 = 1 << 20;

impl MemoryIn {
    /// The amount in MiB, rounded up.
    fn mib(self, memory: u64) -> Option<u32> {
        let mib = match self {
            Self::Bytes => memory.div_ceil(MIB),
            Self::Slots(size) => memory.checked_mul(size.into())?,
        };
        u32::try_from(mib).ok().filter(|mib| *mib <= Amounts::MAX)
    }
}

impl Request {
    /// Parses a body, with slots of the given size in MiB.
    ///
    /// # Errors
    /// Says which field is wrong, and what would be accepted.
    pub fn read(body: &[u8], slot_mib: u32) -> Result<Self, String> {
        let body: Body = serde_json::from_slice(body)
            .map_err(|error| format!("the body is not valid: {error}"))?;
        let number = body.proto_version;
        let version = Version::of(number).ok_or_else(|| {
            format!("protoVersion is {number}; accepted is 1 to 7, which are versions 1.0 to 5.0")
        })?;
        let memory_in = match version {
            Version::V4_0 | Version::V5_0 => MemoryIn::Bytes,
            _ => MemoryIn::Slots(slot_mib.max(1)),
        };
        let cpu_in = version.cpu_in();
        let missing = |field: &str| format!("{field} is missing");
        let pod = body.pod.filter(|pod| !pod.name.is_empty()).ok_or_else(|| missing("pod.name"))?;
        let resources = body.resources.ok_or_else(|| missing("resources"))?;
        let sent = resources.read("resources", cpu_in, memory_in)?;
        let wanted = sent.size("resources", memory_in)?;
        sent.check_nonzero("resources")?;
        // Earlier versions do not have the field, so that it is one to ignore.
        let last_permit = body.last_permit.filter(|_| version >= Version::V2_1);
        let last_permit = last_permit.map(|last| {
            let sent = last.read("lastPermit", cpu_in, memory_in)?;
            sent.size("lastPermit", memory_in)
        });
        let unit = match version {
            Version::V4_0 | Version::V5_0 => {
                let unit = body.compute_unit.ok_or_else(|| missing("computeUnit"))?;
                Some(unit.read("computeUnit", cpu_in, memory_in)?.unit()?)
            }
            _ => None,
        };
        if version == Version::V1_0 && body.metrics.is_none() {
            return Err(format!("{}; version 1.0 requires it", missing("metrics")));
        }
        let load = body.metrics.and_then(|metrics| metrics.load_1m);
        // What ranks candidates of migrations is no reason to refuse a permit.
        let load = load.filter(|load| (0.0..=1_000_000.0).contains(load));
        let last_permit = last_permit.transpose()?;
        let tells_unit = version < Version::V3_0;
        Ok(Self { pod, wanted, last_permit, unit, load, sent, cpu_in, memory_in, tells_unit })
    }

    /// Whether answers name the compute unit. Such an agent requests multiples of the last unit that
    /// it was told.
    #[must_use]
    pub const fn tells_unit(&self) -> bool {
        self.tells_unit
    }

    /// The machine's load in thousandths: only its order matters.
    #[must_use]
    #[allow(clippy::float_arithmetic, reason = "agents send decimals; it ends here")]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in range")]
    pub fn load_milli(&self) -> Option<u32> {
        self.load.map(|load| (load * 1000.0) as u32)
    }

    /// A server's unit, for an agent that has none of its own: whole cores if it counts in them, and
    /// of memory whole slots.
    #[must_use]
    pub fn in_slots(&self, unit: Size) -> Size {
        let unit = match self.cpu_in {
            CpuIn::Thousandths => unit,
            CpuIn::Cores => {
                let cpu = unit.cpu_milli.checked_next_multiple_of(1000).unwrap_or(Amounts::MAX);
                Size { cpu_milli: cpu, ..unit }
            }
        };
        match self.memory_in {
            MemoryIn::Bytes => unit,
            MemoryIn::Slots(size) => {
                let mib = unit.memory_mib.checked_next_multiple_of(size).unwrap_or(Amounts::MAX);
                Size { memory_mib: mib.min(Amounts::MAX), ..unit }
            }
        }
    }

    /// The response: never more than requested, nor than is reserved. `unit` is named to agents that
    /// expect it.
    #[must_use]
    pub fn answer(&self, permit: Size, moving: bool, unit: Size) -> Value {
        let cpu_milli = permit.cpu_milli.min(self.sent.cpu_milli);
        let cpu_milli = match self.cpu_in {
            CpuIn::Thousandths => cpu_milli,
            CpuIn::Cores => cpu_milli / 1000 * 1000,
        };
        let memory = match self.memory_in {
            MemoryIn::Bytes => {
                let bytes = u64::from(permit.memory_mib).saturating_mul(MIB);
                quantity::write_bytes(bytes.min(self.sent.memory))
            }
            MemoryIn::Slots(size) => {
                let slots = permit.memory_mib.checked_div(size).unwrap_or(0);
                u64::from(slots).min(self.sent.memory).into()
            }
        };
        let mut answer =
            json!({"permit": {"vCPUs": quantity::write_cpu(cpu_milli), "mem": memory}});
        if moving && let Some(fields) = answer.as_object_mut() {
            fields.insert("migrate".to_owned(), json!({}));
        }
        if let (true, MemoryIn::Slots(slot)) = (self.tells_unit, self.memory_in)
            && let Some(fields) = answer.as_object_mut()
        {
            let slots = unit.memory_mib.checked_div(slot).unwrap_or(1).max(1);
            let unit = json!({"vCPUs": quantity::write_cpu(unit.cpu_milli), "mem": slots});
            fields.insert("resourceUnit".to_owned(), unit);
        }
        answer
    }
}

impl Resources {
    fn read(&self, field: &str, cpu_in: CpuIn, memory_in: MemoryIn) -> Result<SentSize, String> {
        let cpu = amount(&self.cpus, Count::Thousandths);
        let cpu = cpu.and_then(|cpu| u32::try_from(cpu).ok()).filter(|cpu| *cpu <= Amounts::MAX);
        let cpu = cpu.filter(|cpu| cpu_in == CpuIn::Thousandths || cpu.is_multiple_of(1000));
        let wrong = |name: &str, value: &Value, accepted: &str| match value {
            Value::Null => format!("{field}.{name} is missing; accepted is {accepted}"),
            value => format!("{field}.{name} is {value}; accepted is {accepted}"),
        };
        let whole = match cpu_in {
            CpuIn::Cores => "a number of whole cores",
            CpuIn::Thousandths => {
                "a number or a quantity in whole thousandths, as in 2 or \"250m\""
            }
        };
        let cpu_milli = cpu.ok_or_else(|| wrong("vCPUs", &self.cpus, whole))?;
        let accepted = match memory_in {
            MemoryIn::Bytes => "a number of bytes or a quantity, as in \"4Gi\"",
            MemoryIn::Slots(_) => "a number of memory slots",
        };
        let memory = amount(&self.mem, Count::Ones);
        let memory = memory.ok_or_else(|| wrong("mem", &self.mem, accepted))?;
        Ok(SentSize { cpu_milli, memory })
    }
}

fn amount(value: &Value, count: Count) -> Option<u64> {
    match value {
        Value::Number(number) => quantity::read(&number.to_string(), count),
        Value::String(text) => quantity::read(text, count),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

impl SentSize {
    fn size(self, field: &str, memory_in: MemoryIn) -> Result<Size, String> {
        let mib = memory_in.mib(self.memory).ok_or_else(|| {
            format!("{field}.mem is more than {} MiB, the most that is supported", Amounts::MAX)
        })?;
        Ok(Size::new(self.cpu_milli, mib))
    }

    fn check_nonzero(self, field: &str) -> Result<(), String> {
        let named = [("vCPUs", u64::from(self.cpu_milli)), ("mem", self.memory)];
        match named.into_iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => Err(format!("{field}.{name} is 0; accepted is more than that")),
            None => Ok(()),
        }
    }

    /// As a compute unit. Whole MiB: half of one could not be granted.
    fn unit(self) -> Result<Size, String> {
        self.check_nonzero("computeUnit")?;
        if !self.memory.is_multiple_of(MIB) {
            let bytes = self.memory;
            return Err(format!("computeUnit.mem is {bytes}; accepted are whole MiB"));
        }
        self.size("computeUnit", MemoryIn::Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Request, String> {
        Request::read(body.as_bytes(), 1024)
    }

    fn bytes(mem: u64) -> Request {
        read(&format!(
            r#"{{"protoVersion": 7, "pod": {{"name": "a"}}, "resources": {{"vCPUs": 1, "mem": {mem}}},
                "computeUnit": {{"vCPUs": "250m", "mem": "1Gi"}}}}"#
        ))
        .unwrap()
    }

    /// Whatever is asked for and granted, the answer is no more than either, and no less than what
    /// was answered before if that is still reserved.
    #[test]
    fn an_answer_in_bytes_is_between_what_is_used_and_what_was_asked_for() {
        let sizes = [1, MIB - 1, MIB, MIB + 1, 3 * MIB - 1, 3 * MIB, 1_000_000_007];
        for used in sizes {
            let before = bytes(used);
            let held = before.wanted;
            assert!(u64::from(held.memory_mib) * MIB >= used, "what is used is reserved");
            assert_eq!(
                before.answer(held, false, Size::ZERO)["permit"]["mem"],
                quantity::write_bytes(used)
            );
            for wanted in sizes.into_iter().filter(|wanted| *wanted >= used) {
                let request = bytes(wanted);
                for granted in [held, request.wanted] {
                    let answered = request.answer(granted, false, Size::ZERO);
                    let answered = &answered["permit"]["mem"];
                    let answered = amount(answered, Count::Ones).unwrap();
                    assert!(
                        (used..=wanted).contains(&answered),
                        "{used} {wanted} {granted} {answered}"
                    );
                    assert!(answered <= u64::from(granted.memory_mib) * MIB, "it is reserved");
                }
            }
        }
    }

    #[test]
    fn slots_are_whole_in_both_directions() {
        let request = read(
            r#"{"protoVersion": 5, "pod": {"name": "a", "namespace": "b"},
            "resources": {"vCPUs": 2, "mem": 3}, "lastPermit": {"vCPUs": 1, "mem": 2},
            "metrics": {"loadAvg1M": 0.5, "loadAvg5M": 1, "memoryUsageBytes": 3e9}}"#,
        )
        .unwrap();
        assert_eq!(
            (request.wanted, request.last_permit),
            (Size::new(2000, 3072), Some(Size::new(1000, 2048)))
        );
        assert_eq!((request.unit, request.load), (None, Some(0.5)));
        let answer = request.answer(Size::new(1250, 2900), true, Size::new(250, 1024));
        assert_eq!(answer, json!({"permit": {"vCPUs": "1250m", "mem": 2}, "migrate": {}}));
        assert_eq!(request.in_slots(Size::new(250, 1500)), Size::new(250, 2048));
    }

    #[test]
    fn versions_of_the_first_agents_count_cores_and_are_told_the_unit() {
        let body = |version: u32, cpu: &str, more: &str| {
            format!(
                r#"{{"protoVersion": {version}, "pod": {{"name": "a"}}, "resources": {{"vCPUs": {cpu}, "mem": 3}}{more}}}"#
            )
        };
        let metrics = r#", "metrics": {"loadAvg1M": 1.5}"#;
        assert!(read(&body(1, "2", "")).unwrap_err().starts_with("metrics is missing"));
        let first = read(&body(1, "2", metrics)).unwrap();
        assert_eq!((first.wanted, first.load_milli()), (Size::new(2000, 3072), Some(1500)));
        assert_eq!(first.in_slots(Size::new(250, 1500)), Size::new(1000, 2048));
        let unit = Size::new(1000, 2048);
        let answer = first.answer(Size::new(1500, 3072), false, unit);
        let expected =
            json!({"permit": {"vCPUs": 1, "mem": 3}, "resourceUnit": {"vCPUs": 1, "mem": 2}});
        assert_eq!(answer, expected);
        let error = read(&body(2, "\"250m\"", "")).unwrap_err();
        assert!(error.contains("accepted is a number of whole cores"), "{error}");
        let last = r#", "lastPermit": {"vCPUs": "500m", "mem": 2}"#;
        let third = read(&body(3, "\"250m\"", last)).unwrap();
        assert_eq!((third.wanted, third.last_permit), (Size::new(250, 3072), None));
        let fourth = read(&body(4, "\"250m\"", last)).unwrap();
        assert_eq!(fourth.last_permit, Some(Size::new(500, 2048)));
        assert!(fourth.tells_unit() && !read(&body(5, "1", "")).unwrap().tells_unit());
        for version in [0, 8] {
            let error = read(&body(version, "1", metrics)).unwrap_err();
            assert!(error.contains("accepted is 1 to 7"), "{error}");
        }
    }
}
