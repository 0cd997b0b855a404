//! Rules of a request about other instances, resolved to counts per node, rack or zone.
//!
//! Groups, affinity expressions, the rules of instances already placed and locality hints all
//! become [`DomainRule`]s: counts of members and a test of the count. Only instances of the same
//! tenant are considered; a rule that matches nothing is reported, never dropped silently.

use std::borrow::Cow;
use std::fmt;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::PreparedRequest;
use crate::affinity::{
    Candidate, MIN_ID_PREFIX_CHARS, Operator, Rule, Strength, Subject, Topology,
};
use crate::fleet::{Fleet, InstanceRow, NO_DOMAIN, NodeIndex, Posting, Symbol};
use crate::model::{GroupKind, Hint, InstanceId, InstanceRequest};
use crate::units;

/// Where a rule comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A group the instance is a member of.
    Group,
    /// A hard `!=` of an instance that is already there.
    Resident,
    /// An affinity expression of the request.
    Affinity,
    /// A strict locality hint.
    Locality,
}

/// Which instances are members of a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RuleMembers<'a> {
    /// Members of this group.
    Group(&'a str),
    /// The tenant's instances that this rule selects.
    Selected(&'a Rule),
    /// Instances of the tenant that a hint may name.
    Hinted,
}

/// What the count in a node's domain must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountTest {
    /// At least one.
    Present,
    /// None.
    Absent,
    /// Fewer than this many.
    Below(u32),
    /// At least one and fewer than this many; or any known domain while there is none anywhere.
    HomeBelow(u32),
    /// Anything: the instance is the first member of its own rule.
    Anywhere,
}

/// A rule about how many others are in a node's domain.
#[derive(Clone, Debug)]
pub(crate) struct DomainRule<'a> {
    pub(crate) origin: Origin,
    pub(crate) text: Cow<'a, str>,
    pub(crate) topology: Topology,
    pub(crate) counts: Cow<'a, Posting>,
    pub(crate) members: RuleMembers<'a>,
    pub(crate) test: CountTest,
}

impl DomainRule<'_> {
    /// How many others are in the node's domain. A node without a rack shares no rack.
    pub(crate) fn members(&self, fleet: &Fleet, index: NodeIndex) -> u32 {
        match fleet.domain(index, self.topology) {
            NO_DOMAIN if self.topology != Topology::Node => 0,
            domain => self.counts.count(domain),
        }
    }

    /// Whether the node passes the rule.
    pub(crate) fn admits(&self, fleet: &Fleet, index: NodeIndex) -> bool {
        let known =
            self.topology == Topology::Node || fleet.domain(index, self.topology) != NO_DOMAIN;
        self.admits_count(self.members(fleet, index), known)
    }

    /// Whether a domain with this many members passes; `known` is false for nodes that are in no
    /// domain of this kind.
    pub(crate) fn admits_count(&self, members: u32, known: bool) -> bool {
        match self.test {
            CountTest::Present => members > 0,
            CountTest::Absent => members == 0,
            CountTest::Below(limit) => members < limit,
            CountTest::HomeBelow(limit) => {
                known && members < limit && (members > 0 || self.counts.is_empty())
            }
            CountTest::Anywhere => true,
        }
    }

    /// Whether the node may pass the rule once others have come and gone.
    pub(crate) fn may_admit_later(&self, prepared: &PreparedRequest<'_>, index: NodeIndex) -> bool {
        let known = self.topology == Topology::Node
            || prepared.fleet.domain(index, self.topology) != NO_DOMAIN;
        match self.test {
            CountTest::Absent | CountTest::Anywhere => true,
            // Those that it wants may come, or the request is the first once all have left.
            CountTest::Present => known || self.selects(prepared.request),
            CountTest::Below(limit) => limit > 0,
            CountTest::HomeBelow(limit) => known && limit > 0,
        }
    }

    /// Whether the request is among the members of its own affinity rule.
    fn selects(&self, request: &InstanceRequest) -> bool {
        match self.members {
            RuleMembers::Selected(rule) => selects_request(rule, request),
            RuleMembers::Group(_) | RuleMembers::Hinted => false,
        }
    }

    /// Whether the rule's result for other nodes changes when the first member is placed.
    pub(crate) fn depends_on_first_member(&self) -> bool {
        // The first member decides the domain, which changes the result of every other node.
        matches!(self.test, CountTest::HomeBelow(_) | CountTest::Anywhere)
    }

    /// Whether the rule may count this instance as a member.
    pub(crate) fn may_count(
        &self,
        fleet: &Fleet,
        tenant: Option<Symbol>,
        row: &InstanceRow,
    ) -> bool {
        match self.members {
            RuleMembers::Group(id) => {
                let symbol = fleet.texts().find(id);
                let mut groups = row.rare.iter().flat_map(|rare| &rare.groups);
                groups.any(|group| Some(*group) == symbol)
            }
            RuleMembers::Selected(rule) => {
                Some(row.tenant) == tenant && selects_row(rule, row, fleet)
            }
            RuleMembers::Hinted => Some(row.tenant) == tenant,
        }
    }

    /// Whether the rule wants members in the domain.
    pub(crate) const fn wants_members(&self) -> bool {
        matches!(self.test, CountTest::Present | CountTest::HomeBelow(_) | CountTest::Anywhere)
    }

    /// What a soft rule adds for each member in the domain: one, or minus one.
    pub(crate) fn sign(&self) -> i64 {
        if self.wants_members() { 1 } else { -1 }
    }

    /// What the rule would accept on a node.
    pub(crate) fn wanted(&self, fleet: &Fleet, index: NodeIndex) -> String {
        let known =
            self.topology == Topology::Node || fleet.domain(index, self.topology) != NO_DOMAIN;
        match self.test {
            CountTest::HomeBelow(_) if !known && self.counts.is_empty() => {
                format!("a known {}", self.topology.name())
            }
            CountTest::Present => "at least 1".to_owned(),
            CountTest::Absent => "0".to_owned(),
            CountTest::Below(limit) => format!("fewer than {limit}"),
            CountTest::HomeBelow(u32::MAX) => "where the others are".to_owned(),
            CountTest::HomeBelow(limit) => format!("where the others are, fewer than {limit}"),
            CountTest::Anywhere => "anything".to_owned(),
        }
    }
}

/// Soft locality hints: nodes to avoid and nodes to prefer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hints<'a> {
    pub(crate) far: Vec<Cow<'a, Posting>>,
    pub(crate) near: Vec<Cow<'a, Posting>>,
}

impl Hints<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.far.is_empty() && self.near.is_empty()
    }
}

/// A warning about a request: what it asks for and will not get, or not as it may think.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Notice {
    /// A hard rule matches no instance of this tenant.
    MatchesNothing {
        /// The rule.
        rule: String,
    },
    /// A hard `==` matches only the instance itself, which therefore starts the set.
    Seeds {
        /// The rule.
        rule: String,
    },
    /// A locality hint names no instance of this tenant.
    UnknownHint {
        /// The hint.
        hint: String,
    },
    /// Rules that repeat or shadow each other.
    Redundant {
        /// Which, and what to change.
        finding: String,
    },
    /// The policy does not score preferred places, so that `prefer` changes nothing.
    PreferenceIgnored {
        /// The policy.
        policy: String,
    },
    /// An elastic instance may grow to more CPU than its host has: it gets no more than that there.
    GrowthLimited {
        /// The CPU that it may grow to, thousandths of a core.
        max_cpu_milli: u32,
        /// The CPU of its host, thousandths of a core.
        host_cpu_milli: u32,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MatchesNothing { rule } => {
                write!(f, "{rule} matches none of your instances; check its spelling")
            }
            Self::Seeds { rule } => {
                write!(f, "{rule} matches only this instance, which therefore starts the set")
            }
            Self::UnknownHint { hint } => {
                write!(f, "locality hint {hint} names none of your instances")
            }
            Self::Redundant { finding } => f.write_str(finding),
            Self::PreferenceIgnored { policy } => write!(
                f,
                "prefer has no effect: policy {policy} gives preferred-place no weight; have an \
                 operator add it, or use where"
            ),
            Self::GrowthLimited { max_cpu_milli, host_cpu_milli } => write!(
                f,
                "it may grow to {} and its host has {}: it cannot have more there",
                units::cpu((*max_cpu_milli).into()),
                units::cpu((*host_cpu_milli).into())
            ),
        }
    }
}

/// Resolves the rules of a request.
pub(super) fn resolve(prepared: &mut PreparedRequest<'_>) {
    let request = prepared.request;
    for id in &request.groups {
        add_group(prepared, id);
    }
    if !request.affinity.is_empty() {
        for rule in &request.affinity {
            add_affinity(prepared, rule);
        }
        let findings = crate::affinity::lint(&request.affinity);
        let redundant = findings.into_iter().filter(|finding| !finding.is_fatal());
        let notices = redundant.map(|finding| Notice::Redundant { finding: finding.to_string() });
        prepared.notices.extend(notices);
    }
    if prepared.fleet.index().has_apart_rules() {
        add_resident_rules(prepared);
    }
    add_locality(prepared);
}

fn add_group<'a>(prepared: &mut PreparedRequest<'a>, id: &'a str) {
    let Some(row) = prepared.fleet.group_row(id) else {
        return;
    };
    let counts = match row.group.topology {
        Topology::Node => &row.presence.nodes,
        Topology::Rack => &row.presence.racks,
        Topology::Zone => &row.presence.zones,
    };
    let test = match row.group.kind {
        GroupKind::Together => CountTest::HomeBelow(row.group.limit()),
        GroupKind::Apart => CountTest::Below(row.group.limit()),
    };
    let rule = DomainRule {
        origin: Origin::Group,
        text: Cow::Owned(format!("group {id}")),
        topology: row.group.topology,
        counts: Cow::Borrowed(counts),
        members: RuleMembers::Group(id),
        test,
    };
    match row.group.strength {
        Strength::Hard => prepared.hard_rules.push(rule),
        Strength::Soft => prepared.soft_rules.push(rule),
    }
}

fn add_affinity<'a>(prepared: &mut PreparedRequest<'a>, rule: &'a Rule) {
    let nodes = matching_nodes(prepared, rule);
    let none = nodes.is_empty();
    let mut test = match rule.operator() {
        Operator::Same => CountTest::Present,
        Operator::Different => CountTest::Absent,
    };
    if none && rule.is_hard() {
        let text = rule.to_string();
        let selects_itself = selects_request(rule, prepared.request);
        match rule.operator() {
            // The first instance of a set has no other member to join: it starts the set.
            Operator::Same if selects_itself => {
                test = CountTest::Anywhere;
                prepared.notices.push(Notice::Seeds { rule: text });
            }
            // The first of instances that keep apart from each other: nothing is misspelled.
            Operator::Different if selects_itself => {}
            Operator::Same | Operator::Different => {
                prepared.notices.push(Notice::MatchesNothing { rule: text });
            }
        }
    }
    let resolved = DomainRule {
        origin: Origin::Affinity,
        text: Cow::Borrowed(rule.as_str()),
        topology: rule.scope(),
        counts: at_scope(prepared.fleet, nodes, rule.scope()),
        members: RuleMembers::Selected(rule),
        test,
    };
    match rule.strength() {
        Strength::Hard => prepared.hard_rules.push(resolved),
        Strength::Soft => prepared.soft_rules.push(resolved),
    }
}

/// Hard `!=` rules of the tenant's placed instances apply to new instances too, or parallel creates
/// would break them from the other side.
fn add_resident_rules(prepared: &mut PreparedRequest<'_>) {
    let Some(tenant) = prepared.tenant else { return };
    for (rule, nodes) in prepared.fleet.index().apart_rules_of(tenant) {
        prepared.may_be_named_by_rule |= *rule.subject() == Subject::Instance;
        if selects_request(rule, prepared.request) {
            prepared.hard_rules.push(DomainRule {
                origin: Origin::Resident,
                text: Cow::Owned(format!("{rule} of a placed instance")),
                topology: rule.scope(),
                counts: at_scope(prepared.fleet, Cow::Borrowed(nodes), rule.scope()),
                members: RuleMembers::Selected(rule),
                test: CountTest::Absent,
            });
        }
    }
}

fn add_locality(prepared: &mut PreparedRequest<'_>) {
    let locality = &prepared.request.locality;
    if locality.is_empty() {
        if prepared.policy.options.owner_spread
            && let Some(nodes) =
                prepared.tenant.and_then(|tenant| prepared.fleet.index().tenant(tenant))
        {
            prepared.hints.far.push(Cow::Borrowed(nodes));
        }
        return;
    }
    for (hints, test) in [(&locality.far, CountTest::Absent), (&locality.near, CountTest::Present)]
    {
        for hint in hints {
            add_hint(prepared, hint, test);
        }
    }
}

fn add_hint(prepared: &mut PreparedRequest<'_>, hint: &Hint, test: CountTest) {
    let nodes = hinted_nodes(prepared, hint);
    let text = match hint {
        Hint::Instance(id) => id.to_string(),
        Hint::Tag(key, value) => format!("{key}={value}"),
    };
    if nodes.is_empty() {
        let notice = Notice::UnknownHint { hint: text.clone() };
        if !prepared.notices.contains(&notice) {
            prepared.notices.push(notice);
        }
        // `far` from nothing holds everywhere; a strict `near` to nothing fails everywhere.
        if test == CountTest::Absent {
            return;
        }
    }
    if prepared.request.locality.strict {
        let way = if test == CountTest::Absent { "far" } else { "near" };
        prepared.hard_rules.push(DomainRule {
            origin: Origin::Locality,
            text: Cow::Owned(format!("{way} {text}")),
            topology: Topology::Node,
            counts: nodes,
            members: RuleMembers::Hinted,
            test,
        });
    } else if test == CountTest::Absent {
        prepared.hints.far.push(nodes);
    } else {
        prepared.hints.near.push(nodes);
    }
}

fn hinted_nodes<'a>(prepared: &PreparedRequest<'a>, hint: &Hint) -> Cow<'a, Posting> {
    match hint {
        Hint::Instance(id) => Cow::Owned(node_of_own_instance(prepared, *id)),
        Hint::Tag(key, value) => {
            let texts = prepared.fleet.texts();
            let symbols = (prepared.tenant, texts.find(key), texts.find(value));
            let (Some(tenant), Some(key), Some(value)) = symbols else {
                return no_nodes();
            };
            borrowed(prepared.fleet.index().tag(tenant, key, value))
        }
    }
}

fn node_of_own_instance(prepared: &PreparedRequest<'_>, id: InstanceId) -> Posting {
    let own = prepared.fleet.instance(id).filter(|row| Some(row.tenant) == prepared.tenant);
    own.map_or(Posting::Empty, |row| Posting::One(row.host.index().0, 1))
}

/// Counts by the rule's own scope instead of by node.
fn at_scope<'a>(fleet: &Fleet, nodes: Cow<'a, Posting>, scope: Topology) -> Cow<'a, Posting> {
    if scope == Topology::Node {
        return nodes;
    }
    let mut counts: FxHashMap<u32, u32> = FxHashMap::default();
    nodes.for_each(|index, count| match fleet.domain(NodeIndex(index), scope) {
        NO_DOMAIN => {}
        domain => *counts.entry(domain).or_insert(0) += count,
    });
    Cow::Owned(Posting::from_counts(counts))
}

/// Nodes that hold instances of the tenant which the rule selects, and how many.
fn matching_nodes<'a>(prepared: &PreparedRequest<'a>, rule: &Rule) -> Cow<'a, Posting> {
    let (index, texts) = (prepared.fleet.index(), prepared.fleet.texts());
    let Some(tenant) = prepared.tenant else {
        return no_nodes();
    };
    let pattern = rule.pattern();
    let value = pattern.exact().map(|text| texts.find(text));
    match (rule.subject(), value) {
        // An exact value that no row uses matches nothing.
        (Subject::Tag(_) | Subject::Workload, Some(None)) => no_nodes(),
        (Subject::Workload, Some(Some(name))) => {
            borrowed(index.workload(tenant, name).map(|presence| &presence.nodes))
        }
        (Subject::Tag(key), Some(Some(value))) => {
            borrowed(texts.find(key).and_then(|key| index.tag(tenant, key, value)))
        }
        (Subject::Workload, None) => {
            merged(index.workloads_of(tenant, texts).filter(|(name, _)| pattern.matches(name)))
        }
        (Subject::Tag(key), None) => {
            let Some(key) = texts.find(key) else {
                return no_nodes();
            };
            let values = index.tag_values(tenant, key, texts);
            merged(values.filter(|(value, _)| pattern.matches(value)))
        }
        // A longer text may also be the beginning of an id.
        (Subject::Instance, Some(name)) if pattern.source().len() < MIN_ID_PREFIX_CHARS => {
            borrowed(name.and_then(|name| index.name(tenant, name)))
        }
        (Subject::Instance, Some(name)) => {
            let named = name.is_some_and(|name| index.name(tenant, name).is_some());
            match pattern.source().parse() {
                // A complete id that no instance uses as its name.
                Ok(id) if !named => Cow::Owned(node_of_own_instance(prepared, InstanceId(id))),
                Ok(_) | Err(_) => Cow::Owned(matching_instances(prepared, tenant, rule)),
            }
        }
        (Subject::Instance | Subject::Image, _) => {
            Cow::Owned(matching_instances(prepared, tenant, rule))
        }
    }
}

/// Ids and images have no index, so the tenant's instances are checked one by one.
fn matching_instances(prepared: &PreparedRequest<'_>, tenant: Symbol, rule: &Rule) -> Posting {
    let mut found = Posting::Empty;
    let Some(nodes) = prepared.fleet.index().tenant(tenant) else {
        return found;
    };
    nodes.for_each(|index, _| {
        let rows = prepared.fleet.row(NodeIndex(index)).map_or(&[][..], |row| &row.instances);
        for instance in rows.iter().filter_map(|&number| prepared.fleet.instance_at(number)) {
            if instance.tenant == tenant && selects_row(rule, instance, prepared.fleet) {
                found.add(index);
            }
        }
    });
    found
}

fn selects_row(rule: &Rule, row: &InstanceRow, fleet: &Fleet) -> bool {
    let texts = fleet.texts();
    let name = row.rare.as_ref().and_then(|rare| rare.name).map(|name| texts.text(name));
    let tags = fleet.tag_sets().tags(row.tags).iter();
    let tags: Vec<_> = tags.map(|&(k, v)| (texts.text(k), texts.text(v))).collect();
    rule.selects(&Candidate {
        id: &row.id.to_string(),
        name,
        workload: row.workload.map(|workload| texts.text(workload)),
        image: row.image.map(|image| texts.text(image)),
        tags: &tags,
    })
}

/// Whether a rule is about an instance as it is requested.
pub(crate) fn selects_request(rule: &Rule, request: &InstanceRequest) -> bool {
    let tags: Vec<_> = request.tags.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    rule.selects(&Candidate {
        id: &request.id.to_string(),
        name: request.name.as_deref(),
        workload: request.workload.as_deref(),
        image: request.image.as_deref(),
        tags: &tags,
    })
}

fn merged<'a>(mut postings: impl Iterator<Item = (&'a str, &'a Posting)>) -> Cow<'a, Posting> {
    let Some((_, first)) = postings.next() else { return no_nodes() };
    let mut all = Cow::Borrowed(first);
    for (_, posting) in postings {
        let all = all.to_mut();
        posting.for_each(|index, count| all.add_many(index, count));
    }
    all
}

fn borrowed(posting: Option<&Posting>) -> Cow<'_, Posting> {
    posting.map_or_else(no_nodes, Cow::Borrowed)
}

const fn no_nodes<'a>() -> Cow<'a, Posting> {
    Cow::Owned(Posting::Empty)
}
