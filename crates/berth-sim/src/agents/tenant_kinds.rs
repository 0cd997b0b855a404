//! The kinds of tenants in the demo, and their requests.

use berth_api::{InstanceSpec, Mode, PlaceRequest, Resources};
use berth_engine::affinity::Rule;
use berth_engine::elastic::Size;
use berth_engine::{
    Amounts, CapacityType, Elastic, PlatformBounds, PlatformVersion, Timestamp, TraitValue,
};

use crate::fleet::SeededRng;

/// A kind of tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TenantKind {
    /// The tenant.
    pub(super) tenant: &'static str,
    /// What its workloads are called.
    workload: &'static str,
    cores: u32,
    memory_gib: u32,
    /// Most instances of a batch once the fleet is as full as it should be.
    pub(super) batch: u64,
    /// How long a batch is kept, in seconds.
    pub(super) keeps_s: (u64, u64),
    spot: bool,
    gpu: u32,
    /// Its instances grow and shrink with their day.
    elastic: bool,
}

const PLAIN: TenantKind = TenantKind {
    tenant: "",
    workload: "",
    cores: 1,
    memory_gib: 4,
    batch: 4,
    keeps_s: (120, 600),
    spot: false,
    gpu: 0,
    elastic: false,
};

/// The tenants.
pub(super) const KINDS: [TenantKind; 6] = [
    TenantKind {
        tenant: "shop",
        workload: "web",
        cores: 4,
        memory_gib: 16,
        batch: 8,
        elastic: true,
        ..PLAIN
    },
    TenantKind {
        tenant: "bank",
        workload: "ledger",
        cores: 8,
        memory_gib: 48,
        batch: 3,
        keeps_s: (300, 1200),
        ..PLAIN
    },
    TenantKind {
        tenant: "media",
        workload: "encode",
        cores: 8,
        memory_gib: 24,
        batch: 6,
        keeps_s: (60, 240),
        spot: true,
        ..PLAIN
    },
    TenantKind {
        tenant: "games",
        workload: "arena",
        cores: 4,
        memory_gib: 24,
        batch: 10,
        keeps_s: (90, 360),
        elastic: true,
        ..PLAIN
    },
    TenantKind { tenant: "mail", workload: "store", cores: 4, memory_gib: 32, batch: 4, ..PLAIN },
    TenantKind {
        tenant: "science",
        workload: "model",
        cores: 8,
        memory_gib: 40,
        batch: 4,
        gpu: 1,
        ..PLAIN
    },
];

impl TenantKind {
    /// A batch of this tenant's workload.
    pub(super) fn batch(&self, count: u64, rng: &mut SeededRng) -> PlaceRequest {
        let workload = format!("{}-{}", self.workload, rng.below(90) + 10);
        let cores = self.cores << rng.below(2);
        let memory_mib = (self.memory_gib * 1024) << rng.below(2);
        let mut spec = spec(cores, memory_mib);
        spec.elastic = self.elastic.then(|| elastic(cores, memory_mib));
        spec.count = u32::try_from(count.clamp(1, 100)).ok();
        spec.name = Some(workload.clone());
        spec.image = Some(format!("image-{}", rng.below(40)));
        spec.tags.insert("role".to_owned(), self.workload.to_owned());
        // Only some of them; the rest takes any capacity.
        if self.spot && rng.one_in(4) {
            spec.capacity_type = Some(CapacityType::Spot);
        }
        // Nodes with a trait accept only instances that request it.
        if rng.one_in(10) {
            spec.traits.insert("ssd".to_owned(), TraitValue::Bool(true));
        }
        if self.gpu > 0 && rng.one_in(6) {
            spec.extra.insert("gpu".to_owned(), self.gpu);
        }
        spec.workload = Some(workload);
        request(self.tenant, spec, Mode::BestEffort)
    }
}

/// From a quarter to twice what it begins with, in units of a core and its share of memory.
fn elastic(cores: u32, memory_mib: u32) -> Elastic {
    let of = |units: u32| Size::new(units * 1000, units * (memory_mib / cores));
    let bound = |units: u32| of(units).within(Amounts::default());
    let compute_unit = Some(of(1));
    Elastic { compute_unit, ..Elastic::new(bound(cores / 4), bound(cores * 2)) }
}

fn spec(cores: u32, memory_mib: u32) -> InstanceSpec {
    InstanceSpec::new(Resources {
        cpu_milli: cores * 1000,
        memory_mib,
        disk_mib: Some(cores * 8192),
        bandwidth_mbps: 100,
    })
}

/// A request of a tenant.
pub(super) fn request(tenant: &str, spec: InstanceSpec, mode: Mode) -> PlaceRequest {
    PlaceRequest {
        request_id: Some(uuid::Uuid::now_v7().to_string()),
        tenant: Some(tenant.to_owned()),
        mode,
        ..PlaceRequest::new(vec![spec])
    }
}

/// A request that this fleet cannot grant, for one of several reasons.
pub(super) fn impossible_request(rng: &mut SeededRng, now: Timestamp) -> PlaceRequest {
    let named = |mut spec: InstanceSpec, name: &str| {
        spec.name = Some(name.to_owned());
        spec.workload = Some(name.to_owned());
        spec
    };
    let (tenant, spec) = match rng.below(6) {
        0 => ("bank", named(spec(64, 2 * 1024 * 1024), "warehouse")),
        1 => {
            let mut spec = named(spec(8, 32 * 1024), "risk");
            spec.traits.insert("fpga".to_owned(), TraitValue::Bool(true));
            ("bank", spec)
        }
        2 => {
            let mut spec = named(spec(16, 64 * 1024), "training");
            spec.extra.insert("gpu".to_owned(), 16);
            ("science", spec)
        }
        3 => {
            let mut spec = named(spec(2, 8 * 1024), "gateway");
            spec.networks = vec![vec!["dmz".to_owned()]];
            ("shop", spec)
        }
        4 => {
            // One for each zone, and one more than there are zones.
            let mut spec = named(spec(2, 8 * 1024), "quorum");
            spec.count = Some(4);
            spec.affinity = Rule::parse("workload!=quorum@zone").into_iter().collect();
            ("mail", spec)
        }
        _ => {
            let mut spec = named(spec(4, 16 * 1024), "preview");
            let mut bounds = PlatformBounds::default();
            bounds.min.insert(PlatformVersion::new(9, 0), now);
            spec.platform = Some(bounds);
            ("games", spec)
        }
    };
    request(tenant, spec, Mode::AllOrNothing)
}

/// A large request that may have to wait.
pub(super) fn waiting_request(rng: &mut SeededRng) -> PlaceRequest {
    let mut spec = spec(32, (200 + rng.below_u32(4) * 80) * 1024);
    spec.name = Some(format!("report-{}", rng.below(90) + 10));
    spec.workload = spec.name.clone();
    let mut request = request("bank", spec, Mode::Wait);
    request.wait_s = Some(60 + rng.below_u32(120));
    request
}
