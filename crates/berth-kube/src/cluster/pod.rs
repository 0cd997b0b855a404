//! Pods as the filters see them.

use std::fmt;
use std::sync::Arc;

use berth_engine::InstanceId;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use rustc_hash::FxHasher;
use uuid::Uuid;

use super::declared_features;
use super::devices::{ClaimReference, PodDeviceClaim};
use super::elastic::resizable::ResizablePod;
use super::node::Toleration;
use super::observed_pod::ObservedPod;
use super::pod_groups::{self, GroupRef};
use super::resources::{PodRequests, pod_requests};
use super::selector::{Labels, NodeSelector, Selector, Term};

/// The label or annotation with the name of a pod's gang.
pub const GANG: &str = "berth.dev/gang";
/// The label or annotation with the size of its gang.
pub const GANG_SIZE: &str = "berth.dev/gang-size";
/// The label of a pod that runs a virtual machine, with the machine's name.
pub const VM_NAME: &str = "vm.neon.tech/name";

/// A namespace and a name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl Key {
    /// A key from strings.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of an object.
    #[must_use]
    pub fn of(meta: &meta::ObjectMeta) -> Self {
        let text = |it: &Option<String>| Arc::from(it.as_deref().unwrap_or_default());
        Self { namespace: text(&meta.namespace), name: text(&meta.name) }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A pod's requirements on nodes. Pods of one template share them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct NodeRequirements {
    /// Labels of `nodeSelector`.
    pub labels: Vec<(String, String)>,
    /// Required node affinity.
    pub nodes: NodeSelector,
    /// Its tolerations.
    pub tolerations: Vec<Toleration>,
    /// Features that the node has to declare.
    pub features: Vec<&'static str>,
}

impl NodeRequirements {
    /// Whether a node matches, taints aside.
    #[must_use]
    pub fn selects(&self, name: &str, labels: &Labels) -> bool {
        self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.nodes.matches(name, labels)
    }

    /// Whether there is required node affinity.
    #[must_use]
    pub const fn has_affinity(&self) -> bool {
        self.nodes.0.is_some()
    }
}

/// The namespaces of an affinity term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespaces {
    /// By name.
    pub named: Vec<String>,
    /// By label.
    pub selected: Option<Selector>,
}

/// Other pods, and the topology in which they count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodTerm {
    /// The namespaces.
    pub namespaces: Namespaces,
    /// The pods; absent: none.
    pub selector: Option<Selector>,
    /// The topology key.
    pub topology: String,
}

/// A topology spread constraint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spread {
    /// The topology key.
    pub topology: String,
    /// Which pods are counted; absent: none.
    pub selector: Option<Selector>,
    /// By how many a domain may exceed the minimum.
    pub max_skew: i64,
    /// With fewer domains than this, the minimum counts as 0.
    pub min_domains: i64,
    /// Whether it must hold (`DoNotSchedule`).
    pub hard: bool,
    /// Whether only nodes that match the pod's node affinity count.
    pub by_affinity: bool,
    /// Whether only nodes whose taints it tolerates count.
    pub by_taints: bool,
}

/// A host port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port {
    /// The number.
    pub port: i32,
    /// TCP, UDP or SCTP.
    pub protocol: String,
    /// The address; `0.0.0.0`: all. `::` is an address like any other, as in kube-scheduler.
    pub ip: String,
}

impl Port {
    /// Whether two pods with these ports cannot share a node.
    #[must_use]
    pub fn conflicts_with(&self, other: &Self) -> bool {
        const ANY: &str = "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || self.ip == ANY || other.ip == ANY)
    }
}

/// The controller of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// A group of pods that are scheduled together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gang {
    /// Its name within the namespace. Those of groups of Kubernetes have a prefix.
    pub name: Arc<str>,
    /// How many have to be scheduled together.
    pub rule: GangRule,
}

/// How many pods of a gang have to be scheduled together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GangRule {
    /// All, and at least so many; the text if that is invalid.
    Size(Result<usize, String>),
    /// What a group says.
    Group(GroupRef),
    /// It is unknown, because of what the pod belongs to.
    Unknown(&'static str),
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: Key,
    /// Its uid.
    pub uid: Arc<str>,
    /// The engine's id of it.
    pub id: InstanceId,
    /// Its scheduler name.
    pub scheduler: Arc<str>,
    /// The node it is bound to.
    pub node: Option<Arc<str>>,
    /// `nominatedNodeName` of its status.
    pub nominated_node: Option<Arc<str>>,
    /// Whether it succeeded or failed.
    pub ended: bool,
    /// Whether it is terminating.
    pub deleting: bool,
    /// Whether it has scheduling gates.
    pub gated: bool,
    /// Whether it is ready.
    pub ready: bool,
    /// Its labels.
    pub labels: Arc<Labels>,
    /// What it requests.
    pub requests: PodRequests,
    /// Its priority.
    pub priority: i32,
    /// Whether it may preempt others.
    pub preempts: bool,
    /// Its requirements on nodes.
    pub node_requirements: Arc<NodeRequirements>,
    /// Preferred node affinity, by weight.
    pub preferred_nodes: Vec<(i64, Term)>,
    /// Required pod affinity.
    pub required_affinity: Vec<PodTerm>,
    /// Required pod anti-affinity.
    pub anti_affinity: Vec<PodTerm>,
    /// Preferred pod affinity, by weight; anti-affinity has negative weights.
    pub preferred_affinity: Vec<(i64, PodTerm)>,
    /// Its topology spread constraints.
    pub spread: Vec<Spread>,
    /// Its host ports.
    pub ports: Vec<Port>,
    /// Names of the volume claims that it uses.
    pub claims: Vec<String>,
    /// Its claims of devices.
    pub device_claims: Vec<PodDeviceClaim>,
    /// Its controller.
    pub owner: Option<Arc<Owner>>,
    /// Its gang.
    pub gang: Option<Gang>,
    /// The image of its first container.
    pub image: Option<Arc<str>>,
    /// The virtual machine that it runs.
    pub vm: Option<String>,
    /// Its bounds, if it can be resized in place; the text if they are invalid.
    pub elastic: Option<Result<ResizablePod, String>>,
    /// Fields of its spec that are unknown and may constrain scheduling.
    pub unknown_fields: Vec<String>,
    /// Its creation time, in seconds.
    pub created: i64,
    /// Its start time, in seconds.
    pub started: Option<i64>,
}

impl Pod {
    /// Reads a pod.
    #[must_use]
    pub fn read(observed: &ObservedPod) -> Self {
        let pod = &observed.pod;
        let empty = core::PodSpec::default();
        let (spec, meta) = (pod.spec.as_ref().unwrap_or(&empty), &pod.metadata);
        let status = pod.status.as_ref();
        let key = Key::of(meta);
        let labels = meta.labels.clone().unwrap_or_default();
        let affinity = spec.affinity.as_ref();
        let (required_affinity, anti_affinity, preferred_affinity) =
            pod_terms(affinity, &key.namespace, &labels);
        let phase = status.and_then(|it| it.phase.as_deref());
        let uid: Arc<str> = meta.uid.as_deref().unwrap_or_default().into();
        let name =
            |it: Option<&String>| it.filter(|it| !it.is_empty()).map(|it| Arc::from(it.as_str()));
        let seconds = |time: Option<&meta::Time>| time.map(|it| it.0.as_second());
        Self {
            id: instance_id(&uid),
            uid,
            scheduler: spec.scheduler_name.as_deref().unwrap_or_default().into(),
            node: name(spec.node_name.as_ref()),
            nominated_node: name(status.and_then(|it| it.nominated_node_name.as_ref())),
            ended: matches!(phase, Some("Succeeded" | "Failed")),
            deleting: meta.deletion_timestamp.is_some(),
            gated: spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()),
            ready: is_ready(pod),
            requests: pod_requests(pod),
            priority: spec.priority.unwrap_or(0),
            preempts: spec.preemption_policy.as_deref() != Some("Never"),
            node_requirements: Arc::new(node_requirements(spec)),
            preferred_nodes: preferred_nodes(affinity),
            required_affinity,
            anti_affinity,
            preferred_affinity,
            spread: spread(spec, &labels),
            ports: ports(spec),
            claims: claims(spec, &key.name),
            device_claims: device_claims(spec, status),
            owner: controller(meta).map(|(kind, name, _)| Arc::new(Owner { kind, name })),
            gang: gang(observed),
            image: spec.containers.first().and_then(|it| it.image.as_deref()).map(Arc::from),
            vm: labels.get(VM_NAME).cloned(),
            elastic: ResizablePod::read(pod),
            unknown_fields: observed.unknown_fields.clone(),
            created: seconds(meta.creation_timestamp.as_ref()).unwrap_or(0),
            started: seconds(status.and_then(|it| it.start_time.as_ref())),
            labels: Arc::new(labels),
            key,
        }
    }

    /// Whether it uses its node.
    #[must_use]
    pub fn uses_node(&self) -> bool {
        !self.ended
    }

    /// Namespace and name of its gang.
    #[must_use]
    pub fn gang_key(&self) -> Option<Key> {
        let gang = self.gang.as_ref()?;
        Some(Key { namespace: Arc::clone(&self.key.namespace), name: Arc::clone(&gang.name) })
    }

    /// Whether everything is the same that the filters look at.
    #[must_use]
    pub fn same_filter_fields(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.labels == other.labels
            && self.requests == other.requests
            && self.priority == other.priority
            && self.node_requirements == other.node_requirements
            && self.ports == other.ports
            && self.vm == other.vm
            && self.elastic == other.elastic
            && self.gang == other.gang
            && self.deleting == other.deleting
            && self.device_claims == other.device_claims
    }
}

/// The engine's id of a pod: its uid, which is a UUID if a real API server made it.
pub(crate) fn instance_id(uid: &str) -> InstanceId {
    use std::hash::{Hash, Hasher};
    let number = Uuid::parse_str(uid).map(|uuid| uuid.as_u128()).unwrap_or_else(|_| {
        let half = |salt: u8| {
            let mut hasher = FxHasher::default();
            (salt, uid).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        (half(1) << 64) | half(2)
    });
    InstanceId::from_u128(number)
}

fn is_ready(pod: &core::Pod) -> bool {
    let conditions = pod.status.iter().filter_map(|it| it.conditions.as_ref()).flatten();
    conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True")
}

fn node_requirements(spec: &core::PodSpec) -> NodeRequirements {
    let required = spec.affinity.as_ref().and_then(|it| it.node_affinity.as_ref());
    let required =
        required.and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    NodeRequirements {
        labels: spec.node_selector.clone().unwrap_or_default().into_iter().collect(),
        nodes: NodeSelector::read(required),
        tolerations: spec.tolerations.iter().flatten().map(Toleration::read).collect(),
        features: declared_features::required(spec),
    }
}

fn preferred_nodes(affinity: Option<&core::Affinity>) -> Vec<(i64, Term)> {
    let preferred = affinity.and_then(|it| it.node_affinity.as_ref());
    let preferred =
        preferred.and_then(|it| it.preferred_during_scheduling_ignored_during_execution.as_ref());
    let terms = preferred.into_iter().flatten();
    terms.map(|it| (i64::from(it.weight), Term::read(&it.preference))).collect()
}

/// Required affinity, required anti-affinity, and preferences by weight.
type AffinityTerms = (Vec<PodTerm>, Vec<PodTerm>, Vec<(i64, PodTerm)>);

fn pod_terms(affinity: Option<&core::Affinity>, namespace: &str, own: &Labels) -> AffinityTerms {
    let read = |term: &core::PodAffinityTerm| read_term(term, namespace, own);
    let (mut required_affinity, mut anti_affinity, mut preferred_affinity) =
        (Vec::new(), Vec::new(), Vec::new());
    if let Some(found) = affinity.and_then(|it| it.pod_affinity.as_ref()) {
        let required = found.required_during_scheduling_ignored_during_execution.iter().flatten();
        required_affinity.extend(required.map(read));
        let preferred = found.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        preferred_affinity
            .extend(preferred.map(|it| (i64::from(it.weight), read(&it.pod_affinity_term))));
    }
    if let Some(found) = affinity.and_then(|it| it.pod_anti_affinity.as_ref()) {
        let required = found.required_during_scheduling_ignored_during_execution.iter().flatten();
        anti_affinity.extend(required.map(read));
        let preferred = found.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        preferred_affinity
            .extend(preferred.map(|it| (-i64::from(it.weight), read(&it.pod_affinity_term))));
    }
    (required_affinity, anti_affinity, preferred_affinity)
}

fn read_term(term: &core::PodAffinityTerm, namespace: &str, own: &Labels) -> PodTerm {
    let mut selector = term.label_selector.as_ref().map(Selector::read);
    if let Some(selector) = &mut selector {
        // The API server merges these into the selector; where it has not, they mean the same.
        for key in term.match_label_keys.iter().flatten() {
            if let Some(value) = own.get(key) {
                selector.and_equal(key, value);
            }
        }
        for key in term.mismatch_label_keys.iter().flatten() {
            if let Some(value) = own.get(key) {
                selector.and_differs(key, value);
            }
        }
    }
    let mut named = term.namespaces.clone().unwrap_or_default();
    let selected = term.namespace_selector.as_ref().map(Selector::read);
    if named.is_empty() && selected.is_none() {
        named.push(namespace.to_owned());
    }
    PodTerm {
        namespaces: Namespaces { named, selected },
        selector,
        topology: term.topology_key.clone(),
    }
}

fn spread(spec: &core::PodSpec, own: &Labels) -> Vec<Spread> {
    let constraints = spec.topology_spread_constraints.iter().flatten();
    constraints
        .map(|it| {
            let mut selector = it.label_selector.as_ref().map(Selector::read);
            if let Some(selector) = &mut selector {
                for key in it.match_label_keys.iter().flatten() {
                    if let Some(value) = own.get(key) {
                        selector.and_equal(key, value);
                    }
                }
            }
            Spread {
                topology: it.topology_key.clone(),
                selector,
                max_skew: i64::from(it.max_skew),
                min_domains: i64::from(it.min_domains.unwrap_or(1)),
                hard: it.when_unsatisfiable != "ScheduleAnyway",
                by_affinity: it.node_affinity_policy.as_deref() != Some("Ignore"),
                by_taints: it.node_taints_policy.as_deref() == Some("Honor"),
            }
        })
        .collect()
}

fn ports(spec: &core::PodSpec) -> Vec<Port> {
    // Sidecars run along with the containers; other init containers have ended by then.
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|it| it.restart_policy.as_deref() == Some("Always"));
    let all = spec.containers.iter().chain(sidecars);
    let all = all.flat_map(|it| it.ports.iter().flatten());
    let mut ports: Vec<Port> = all
        .filter_map(|it| {
            let port = it.host_port.filter(|port| *port > 0)?;
            let text = |it: &Option<String>, default: &str| {
                it.clone().filter(|it| !it.is_empty()).unwrap_or_else(|| default.to_owned())
            };
            let ip = text(&it.host_ip, "0.0.0.0");
            Some(Port { port, protocol: text(&it.protocol, "TCP"), ip })
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Claims by name; the claim of an ephemeral volume is named after the pod.
fn claims(spec: &core::PodSpec, pod: &str) -> Vec<String> {
    let volumes = spec.volumes.iter().flatten();
    volumes
        .filter_map(|it| match (&it.persistent_volume_claim, &it.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{pod}-{}", it.name)),
            (None, None) => None,
        })
        .collect()
}

/// Its claims of devices; the status has the names of those that were created from templates.
fn device_claims(spec: &core::PodSpec, status: Option<&core::PodStatus>) -> Vec<PodDeviceClaim> {
    let generated = status.and_then(|it| it.resource_claim_statuses.as_ref());
    let claims = spec.resource_claims.iter().flatten().filter_map(|it| {
        let claim = match (&it.resource_claim_name, &it.resource_claim_template_name) {
            (Some(name), _) => ClaimReference::Named(name.as_str().into()),
            (None, Some(template)) => {
                match generated.into_iter().flatten().find(|known| known.name == it.name) {
                    // Kubernetes may decide that the pod needs no claim.
                    Some(known) => {
                        ClaimReference::Generated(known.resource_claim_name.as_deref()?.into())
                    }
                    None => ClaimReference::NotGenerated(template.clone()),
                }
            }
            (None, None) => ClaimReference::Unknown,
        };
        Some(PodDeviceClaim { name: it.name.clone(), claim })
    });
    claims.collect()
}

/// The controller of an object: its kind, name and uid.
#[must_use]
pub fn controller(meta: &meta::ObjectMeta) -> Option<(String, String, String)> {
    let owner = meta.owner_references.iter().flatten().find(|it| it.controller == Some(true))?;
    Some((owner.kind.clone(), owner.name.clone(), owner.uid.clone()))
}

fn gang(observed: &ObservedPod) -> Option<Gang> {
    let labelled = labelled_gang(&observed.pod.metadata);
    let Some((group, name)) = pod_groups::group_of(observed) else { return labelled };
    let rule = match (group, labelled) {
        (_, Some(_)) => {
            GangRule::Unknown("two gangs (berth.dev/gang and a group of scheduling.k8s.io)")
        }
        (GroupRef::Unknown(what), None) => GangRule::Unknown(what),
        (group, None) => GangRule::Group(group),
    };
    Some(Gang { name, rule })
}

fn labelled_gang(meta: &meta::ObjectMeta) -> Option<Gang> {
    let find = |key: &str| {
        let of = |it: &Option<Labels>| it.as_ref().and_then(|it| it.get(key)).cloned();
        of(&meta.labels).or_else(|| of(&meta.annotations))
    };
    let name = find(GANG).filter(|name| !name.is_empty())?;
    let size = find(GANG_SIZE).unwrap_or_default();
    let number = size.parse::<usize>().ok().filter(|size| *size > 0);
    Some(Gang { name: name.into(), rule: GangRule::Size(number.ok_or(size)) })
}
