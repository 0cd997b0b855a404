//! Explanations as text, and what a tenant may see of them.

use std::fmt::{self, Write as _};

use super::{Audience, Fix, Refusal};
use crate::filter::Evidence;
use crate::model::NodeId;
use crate::plan::SearchEnd;
use crate::policy::Policy;

impl Refusal {
    /// The same refusal as its audience may see it.
    ///
    /// For a tenant: fixes that would release others' instances are gone, remedies that only an
    /// operator can apply are gone, who else uses a volume is gone, and node names go if the
    /// policy says so. Racks never appear in a refusal at all.
    #[must_use]
    pub fn seen_by(&self, audience: Audience<'_>, policy: &Policy) -> Self {
        let mut seen = self.clone();
        let Audience::Tenant(owner) = audience else {
            return seen;
        };
        seen.fixes.retain(|fix| match fix {
            Fix::Free { owners, .. } => owners.iter().all(|other| other == owner),
            Fix::Mend { .. } | Fix::AddNode { .. } => false,
            Fix::Shrink { .. } | Fix::Relax { .. } => true,
        });
        for miss in &mut seen.nearest {
            if let Evidence::Fact { fact, found, .. } = &mut miss.evidence
                && (fact.starts_with("volume ") || fact.starts_with("home of volume "))
            {
                "elsewhere".clone_into(found);
            }
        }
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
        let nearest = self.nearest.iter().find(|miss| Some(miss.filter) == self.filter);
        let mut line = format!("{}: 0 of {} nodes can take it", self.code, self.nodes);
        if let Some(miss) = nearest {
            let _ = write!(line, "; closest is {}: {}", name(miss.node.as_ref()), miss.evidence);
        }
        line
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
                writeln!(f, "         closest {}: {}", name(miss.node.as_ref()), miss.evidence)?;
            }
        }
        if let Some((filter, admits)) = self.best_relaxation {
            writeln!(f, "  without {filter} alone, {admits} nodes could take it")?;
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

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shrink { resources: r, node } => write!(
                f,
                "ask for {} mCPU, {} MiB memory, {} MiB disk, {} Mbit/s (then {})",
                r.cpu_milli,
                r.memory_mib,
                r.disk_mib,
                r.bandwidth_mbps,
                name(node.as_ref())
            ),
            Self::Relax { change, node, .. } => {
                write!(f, "{change} (then {})", name(node.as_ref()))
            }
            Self::Free { instances, node, .. } => {
                let ids: Vec<String> = instances.iter().map(ToString::to_string).collect();
                write!(f, "release {} on {}", ids.join(", "), name(node.as_ref()))
            }
            Self::Mend { remedy, node, .. } => {
                write!(f, "{}: {remedy}", name(node.as_ref()))
            }
            Self::AddNode { shape } => write!(
                f,
                "add a node with at least {} mCPU, {} MiB memory, {} MiB disk, {} Mbit/s",
                shape.cpu_milli, shape.memory_mib, shape.disk_mib, shape.bandwidth_mbps
            ),
        }
    }
}
