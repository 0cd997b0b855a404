//! A request made ready: names resolved, others' places looked up, once for all nodes.

mod domain_rules;

use crate::affinity::Topology;
use crate::fleet::{Fleet, NodeIndex, Posting, Presence, Symbol};
use crate::model::{InstanceRequest, Timestamp};
use crate::policy::Policy;

pub use domain_rules::Notice;
pub(crate) use domain_rules::{DomainRule, Origin};

use domain_rules::Hints;

/// What all filters and scorers are asked about.
pub(crate) struct PreparedRequest<'a> {
    pub(crate) request: &'a InstanceRequest,
    pub(crate) policy: &'a Policy,
    pub(crate) fleet: &'a Fleet,
    pub(crate) now: Timestamp,
    /// The owner, when it has anything placed.
    pub(crate) owner: Option<Symbol>,
    /// Where the workload's replicas are, when there are any.
    pub(crate) replicas: Option<&'a Presence>,
    /// The fewest and the most replicas in one zone.
    pub(crate) replicas_per_zone: (u32, u32),
    /// Which nodes have the image.
    pub(crate) cached_nodes: Option<&'a Posting>,
    /// Nodes that denied this request before.
    pub(crate) excluded: Vec<NodeIndex>,
    /// Rules about others that must hold.
    pub(crate) hard_rules: Vec<DomainRule<'a>>,
    /// Rules about others that should hold.
    pub(crate) soft_rules: Vec<DomainRule<'a>>,
    /// Soft locality hints.
    pub(crate) hints: Hints<'a>,
    /// Some rule may mean this very instance, by its id or name, and not all of its class.
    pub(crate) may_be_named_by_rule: bool,
    /// What the caller should be told, whatever the answer is.
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
        let owner = texts.find(&request.owner);
        let workload = request.workload.as_deref().and_then(|name| texts.find(name));
        let replicas = owner.zip(workload).and_then(|(o, w)| fleet.index().workload(o, w));
        let image = request.image.as_deref().and_then(|name| texts.find(name));
        let mut prepared = Self {
            request,
            policy,
            fleet,
            now,
            owner,
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

    /// Whether one node's change can only change that node's own answer, apart from the spread
    /// over racks and zones, which rankings handle: then a ranking can be repaired.
    pub(crate) fn is_local(&self) -> bool {
        let mut rules = self.hard_rules.iter().chain(&self.soft_rules);
        rules.all(|rule| rule.topology == Topology::Node)
            && !self.hard_rules.iter().any(|rule| rule.depends_on_first_member())
            && !self.may_be_named_by_rule
    }
}
