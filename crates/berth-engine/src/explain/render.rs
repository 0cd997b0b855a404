//! Explanations as text, and what a tenant may see of them.

use std::fmt::{self, Write as _};

use super::{
    Audience, Explanation, ExplanationPage, Fix, NearestMiss, NodeVerdict, Refusal, SearchEnd,
};
use crate::filter::FilterId;
use crate::model::{CapacityType, NodeFacts, NodeId, Ratios};
use crate::policy::Policy;
use crate::units;

impl Refusal {
    /// The same refusal as its audience may see it.
    ///
    /// For a tenant: fixes that would release others' instances or that only an operator can apply
    /// are removed, as are the users of a volume and what others run on a node; node names are removed
    /// if the policy says so. Racks never appear in a refusal at all.
    #[must_use]
    pub fn redacted_for(&self, audience: Audience<'_>, policy: &Policy) -> Self {
        let mut seen = self.clone();
        let Audience::Tenant(tenant) = audience else {
            return seen;
        };
        seen.fixes.retain(|fix| match fix {
            Fix::Free { tenants, .. } => tenants.iter().all(|other| other == tenant),
            Fix::Mend { .. } | Fix::AddNode { .. } => false,
            Fix::Shrink { .. } | Fix::Relax { .. } => true,
        });
        seen.nearest.iter_mut().for_each(|miss| miss.evidence.hide_others());
        if !policy.explain.tenants_see_nodes {
            seen.nearest.iter_mut().for_each(|miss| miss.node = None);
            for fix in &mut seen.fixes {
                match fix {
                    Fix::Shrink { node, .. }
                    | Fix::Relax { node, .. }
                    | Fix::Free { node, .. }
                    | Fix::Mend { node, .. } => *node = None,
                    Fix::AddNode { .. } => {}
                }
            }
        }
        seen
    }

    /// One sentence: the code, and the closest miss of the filter behind it.
    #[must_use]
    pub fn headline(&self) -> String {
        let nearest = self.nearest.iter().find(|miss| Some(&miss.filter) == self.filter.as_ref());
        let mut line = match self.nodes {
            0 => format!("{}: there are no nodes", self.code),
            1 => format!("{}: the only node cannot take it", self.code),
            nodes => format!("{}: none of {nodes} nodes can take it", self.code),
        };
        match nearest {
            Some(miss) if miss.is_about_request() => format!("{}: {}", self.code, miss.evidence),
            Some(miss) => {
                let node = name(miss.node.as_ref());
                let _ = write!(line, "; closest is {node}: {}", miss.evidence);
                line
            }
            None => line,
        }
    }
}

impl NearestMiss {
    /// Whether the filter looks at the request alone: then every node is as close as any other.
    #[must_use]
    pub fn is_about_request(&self) -> bool {
        FilterId::named(&self.filter).is_some_and(|id| id.filter().is_about_request())
    }
}

impl Explanation {
    /// The same explanation as its audience may see it. For a tenant, what others run is hidden,
    /// and nodes have numbers instead of names if the policy says so.
    #[must_use]
    pub fn redacted_for(&self, audience: Audience<'_>, policy: &Policy) -> Self {
        let mut seen = self.clone();
        let Audience::Tenant(_) = audience else { return seen };
        for verdict in &mut seen.table {
            if let NodeVerdict::Removed { evidence, others, .. } = verdict {
                evidence.hide_others();
                others.iter_mut().for_each(|(_, evidence)| evidence.hide_others());
            }
        }
        if policy.explain.tenants_see_nodes {
            return seen;
        }
        // The table is in order of id.
        let place = |node: &NodeId| self.table.binary_search_by(|v| v.node().cmp(node));
        let hide = |node: &mut NodeId| {
            let number = place(node).map_or(0, |place| place + 1);
            *node = NodeId::from(format!("#{number}"));
        };
        for verdict in &mut seen.table {
            match verdict {
                NodeVerdict::Removed { node, .. } | NodeVerdict::Scored { node, .. } => hide(node),
            }
        }
        seen.winner.iter_mut().chain(&mut seen.runner_up).for_each(|d| hide(&mut d.node));
        seen
    }
}

impl ExplanationPage {
    /// The same page as its audience may see it, as [`Explanation::redacted_for`] says.
    #[must_use]
    pub fn redacted_for(mut self, audience: Audience<'_>, policy: &Policy) -> Self {
        let Audience::Tenant(_) = audience else { return self };
        let shows_nodes = policy.explain.tenants_see_nodes;
        let hide = |node: &mut NodeId, position: usize| {
            if !shows_nodes {
                *node = NodeId::from(format!("#{}", position + 1));
            }
        };
        for (position, verdict) in (self.first..).zip(&mut self.items) {
            match verdict {
                NodeVerdict::Removed { node, evidence, others, .. } => {
                    evidence.hide_others();
                    others.iter_mut().for_each(|(_, evidence)| evidence.hide_others());
                    hide(node, position);
                }
                NodeVerdict::Scored { node, .. } => hide(node, position),
            }
        }
        let best = [&mut self.winner, &mut self.runner_up].into_iter().zip(self.positions);
        for (decision, position) in best {
            if let (Some(decision), Some(position)) = (decision, position) {
                hide(&mut decision.node, position);
            }
        }
        self
    }
}

fn name(node: Option<&NodeId>) -> &str {
    node.map_or("a node", NodeId::as_str)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "refused {}", self.headline())?;
        match self.search {
            Some(SearchEnd::DoesNotFit) => {
                writeln!(f, "every way to place the batch was ruled out: it does not fit")?;
            }
            Some(SearchEnd::NotFoundWithinBudget) => {
                writeln!(f, "not found within the search budget; it may still fit")?;
            }
            Some(SearchEnd::Greedy | SearchEnd::LargestFirst | SearchEnd::Search) | None => {}
        }
        for count in &self.counts {
            writeln!(f, "  {:>6} removed by {}", count.removed, count.filter)?;
            for miss in self.nearest.iter().filter(|miss| miss.filter == count.filter) {
                if miss.is_about_request() {
                    writeln!(f, "         {}", miss.evidence)?;
                } else {
                    let node = name(miss.node.as_ref());
                    writeln!(f, "         closest {node}: {}", miss.evidence)?;
                }
            }
        }
        if let Some((filter, admits)) = &self.best_relaxation {
            let nodes = if *admits == 1 { "node" } else { "nodes" };
            writeln!(f, "  without {filter} alone, {admits} {nodes} could take it")?;
        }
        for fix in &self.fixes {
            writeln!(f, "  fix: {fix}")?;
        }
        for notice in &self.notices {
            writeln!(f, "  note: {notice}")?;
        }
        let waiting = if self.waiting_may_help { "may help" } else { "will not help" };
        write!(f, "  waiting {waiting}; {}", self.remedy)
    }
}

/// What a proposed node needs besides its size.
fn particulars(facts: &NodeFacts) -> Vec<String> {
    let mut texts = Vec::new();
    texts.extend(facts.extra.iter().map(|(class, amount)| format!("{amount} {class}")));
    texts.extend(facts.traits.iter().map(|(name, value)| format!("trait {name}={value}")));
    texts.extend(facts.networks.iter().map(|network| format!("network {} up", network.tag)));
    texts.extend(facts.zone.iter().map(|zone| format!("in zone {zone}")));
    texts.extend(facts.rack.iter().map(|rack| format!("in rack {rack}")));
    texts.extend(facts.labels.iter().map(|(key, value)| format!("label {key}={value}")));
    if facts.capacity_type == CapacityType::Spot {
        texts.push("spot".to_owned());
    }
    if let Some(platform) = facts.platform {
        let built = units::moment(platform.built_at.0);
        texts.push(format!("platform {} built {built}", platform.version));
    }
    if facts.ratios != Ratios::default() {
        let Ratios { cpu_permille, memory_permille, disk_permille } = facts.ratios;
        let ratio = |permille: u32| units::ratio(permille.into());
        texts.push(format!(
            "overcommit CPU {}, memory {}, disk {}",
            ratio(cpu_permille),
            ratio(memory_permille),
            ratio(disk_permille)
        ));
    }
    texts
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shrink { resources: r, node } => {
                write!(f, "ask for {r} (then {})", name(node.as_ref()))
            }
            Self::Relax { change, node, .. } => {
                write!(f, "{change} (then {})", name(node.as_ref()))
            }
            Self::Free { instances, node, .. } => {
                let ids: Vec<String> = instances.iter().take(3).map(ToString::to_string).collect();
                write!(f, "release {}", ids.join(", "))?;
                if instances.len() > ids.len() {
                    write!(f, " and {} more", instances.len() - ids.len())?;
                }
                write!(f, " on {}", name(node.as_ref()))
            }
            Self::Mend { remedy, node, .. } => {
                write!(f, "mend {} ({remedy})", name(node.as_ref()))
            }
            Self::AddNode { shape, facts } => {
                write!(f, "add a node with at least {}", shape.at_least())?;
                particulars(facts).iter().try_for_each(|fact| write!(f, ", {fact}"))
            }
        }
    }
}
