//! Explanations as text, and what a tenant may see of them.

use std::fmt::{self, Write as _};

use super::{Audience, Explanation, ExplanationPage, NearestMiss, NodeVerdict, Refusal, SearchEnd};
use crate::filter::FilterId;
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
        seen.usual_shapes.clear();
        for verdict in &mut seen.table {
            if let NodeVerdict::Removed { evidence, others, .. } = verdict {
                evidence.hide_others();
                others.iter_mut().for_each(|(_, evidence)| evidence.hide_others());
            }
        }
        if policy.explain.tenants_see_nodes {
            return seen;
        }
        let hide = |node: &mut NodeId, position: usize| {
            *node = NodeId::from(format!("#{}", position + 1));
        };
        for (position, verdict) in seen.table.iter_mut().enumerate() {
            match verdict {
                NodeVerdict::Removed { node, .. } | NodeVerdict::Scored { node, .. } => {
                    hide(node, position);
                }
            }
        }
        let best = [&mut seen.winner, &mut seen.runner_up].into_iter().zip(self.positions);
        for (decision, position) in best {
            if let Some(decision) = decision {
                // Without a position it is not known which one it is.
                match position {
                    Some(position) => hide(&mut decision.node, position),
                    None => decision.node = NodeId::new("#0"),
                }
            }
        }
        seen
    }
}

impl ExplanationPage {
    /// The same page as its audience may see it, as [`Explanation::redacted_for`] says.
    #[must_use]
    pub fn redacted_for(mut self, audience: Audience<'_>, policy: &Policy) -> Self {
        let Audience::Tenant(_) = audience else { return self };
        self.usual_shapes.clear();
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
            writeln!(f, "  without the {filter} rule, {admits} {nodes} could take it")?;
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
