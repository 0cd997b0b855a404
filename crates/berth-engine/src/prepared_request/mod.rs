//! A request with its names resolved and the locations of other instances looked up, once for all
//! nodes.

mod domain_rules;

use crate::affinity::Topology;
use crate::fleet::{Fleet, NodeIndex, Posting, Presence, Symbol};
use crate::model::{InstanceRequest, Timestamp};
use crate::policy::Policy;

pub use domain_rules::Notice;
pub(crate) use domain_rules::{DomainRule, Origin, selects_request};

use domain_rules::Hints;

/// The input of all filters and scorers.
pub(crate) struct PreparedRequest<'a> {
    pub(crate) request: &'a InstanceRequest,
    pub(crate) policy: &'a Policy,
    pub(crate) fleet: &'a Fleet,
    pub(crate) now: Timestamp,
    /// The tenant, when it has anything placed.
    pub(crate) tenant: Option<Symbol>,
    /// Where the workload's replicas are, when there are any.
    pub(crate) replicas: Option<&'a Presence>,
    /// The fewest and the most replicas in one zone.
    pub(crate) replicas_per_zone: (u32, u32),
    /// Which nodes have the image.
    pub(crate) cached_nodes: Option<&'a Posting>,
    /// Nodes that denied this request before.
    pub(crate) excluded: Vec<NodeIndex>,
    /// Rules about other instances that must hold.
    pub(crate) hard_rules: Vec<DomainRule<'a>>,
    /// Rules about other instances that should hold.
    pub(crate) soft_rules: Vec<DomainRule<'a>>,
    /// Soft locality hints.
    pub(crate) hints: Hints<'a>,
    /// A rule may select this instance by its id or name, and not its whole class.
    pub(crate) may_be_named_by_rule: bool,
    /// Notices for the caller, whatever the result is.
    pub(crate) notices: Vec<Notice>,
}

impl<'a> PreparedRequest<'a> {
    pub(crate) fn new(
        request: &'a InstanceRequest,
        policy: &'a Policy,
        fleet: &'a Fleet,
        now: Timestamp,
    ) -> Self {
        let texts = fleet.texts();
        let tenant = texts.find(&request.tenant);
        let workload = request.workload.as_deref().and_then(|name| texts.find(name));
        let replicas = tenant.zip(workload).and_then(|(o, w)| fleet.index().workload(o, w));
        let image = request.image.as_deref().and_then(|name| texts.find(name));
        let mut prepared = Self {
            request,
            policy,
            fleet,
            now,
            tenant,
            replicas,
            replicas_per_zone: replicas
                .map_or((0, 0), |replicas| replicas.zones.range(fleet.domains().populated_zones())),
            cached_nodes: image.and_then(|image| fleet.index().cached_image(image)),
            excluded: request.excluded_nodes.iter().filter_map(|id| fleet.index_of(id)).collect(),
            hard_rules: Vec::new(),
            soft_rules: Vec::new(),
            hints: Hints::default(),
            may_be_named_by_rule: false,
            notices: Vec::new(),
        };
        domain_rules::resolve(&mut prepared);
        prepared
    }

    /// Whether a change of one node affects the result for that node only, apart from the spread over
    /// racks and zones, which rankings handle. Only then can a ranking be repaired.
    pub(crate) fn is_local(&self) -> bool {
        let mut rules = self.hard_rules.iter().chain(&self.soft_rules);
        rules.all(|rule| rule.topology == Topology::Node)
            && !self.hard_rules.iter().any(|rule| rule.depends_on_first_member())
            && !self.may_be_named_by_rule
    }
}
