//! Explanations as text, and what a tenant may see of them.

use std::fmt::{self, Write as _};

use super::{Audience, Explanation, NodeVerdict, Refusal, SearchEnd};
use crate::model::NodeId;
use crate::policy::Policy;

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
        seen.fixes.retain(|fix| fix.is_for_tenant(tenant));
        seen.nearest.iter_mut().for_each(|miss| miss.evidence.hide_others());
        if !policy.explain.tenants_see_nodes {
            seen.nearest.iter_mut().for_each(|miss| miss.node = None);
            seen.fixes.iter_mut().for_each(|fix| fix.for_each_node(&mut |node| *node = None));
        }
        seen
    }

    /// One sentence: the code, and the closest miss of the filter behind it.
    #[must_use]
    pub fn headline(&self) -> String {
        let nearest = self.nearest.iter().find(|miss| Some(&miss.filter) == self.filter.as_ref());
        let mut line = format!("{}: 0 of {} nodes can take it", self.code, self.nodes);
        if let Some(miss) = nearest {
            let _ = write!(line, "; closest is {}: {}", name(miss.node.as_ref()), miss.evidence);
        }
        line
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

pub(super) fn name(node: Option<&NodeId>) -> &str {
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
                writeln!(f, "         closest {}: {}", name(miss.node.as_ref()), miss.evidence)?;
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
