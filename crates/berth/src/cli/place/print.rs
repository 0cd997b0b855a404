//! A granted placement: where the instances are, and what happens next.

use std::collections::BTreeMap;

use berth_api::{Placed, PlacedInstance};

use crate::cmdutil::style::{BOLD, DIM, paint};
use crate::cmdutil::{Output, Table, age, columns, or_dash, plural};

/// Most instances of one node that a table names.
const NAMED: usize = 3;

/// Prints where instances went.
pub(crate) fn print_placement(out: &Output, placed: &Placed) {
    if out.quiet {
        for instance in &placed.instances {
            out.line(instance.instance.to_string());
        }
        return;
    }
    out.line(headline(placed));
    out.line("");
    out.line(out.text_of(&table(placed, out.is_wide())));
    for notice in &placed.notices {
        out.note(format!("\nNote: {notice}"));
    }
    let lease = placed.instances.iter().filter_map(|instance| instance.lease_until).min();
    if let Some(until) = lease {
        let text = format!("The claims expire {} unless an agent binds them.", age(until));
        out.note(format!("\n{}", paint(DIM, &text)));
    }
}

fn headline(placed: &Placed) -> String {
    let nodes: std::collections::BTreeSet<_> =
        placed.instances.iter().filter_map(|instance| instance.node.as_ref()).collect();
    let instances = plural(placed.instances.len(), "instance");
    let done = if placed.dry_run { "would place" } else { "placed" };
    let mut line = format!("{done} {}", paint(BOLD, &instances));
    if !nodes.is_empty() {
        line.push_str(&format!(" on {}", plural(nodes.len(), "node")));
    }
    line.push_str(&format!(" for {}", placed.tenant));
    if let Some(decision) = &placed.decision {
        line.push_str(&paint(DIM, &format!("  (decision {decision})")));
    }
    line
}

fn table(placed: &Placed, wide: bool) -> Table {
    if wide {
        return every_instance(placed);
    }
    let mut by_node: BTreeMap<&str, Vec<&PlacedInstance>> = BTreeMap::new();
    for instance in &placed.instances {
        let node = instance.node.as_ref().map_or("(hidden)", |node| node.as_str());
        by_node.entry(node).or_default().push(instance);
    }
    let mut table = Table::new(&["NODE", ">COUNT", "INSTANCES"]);
    for (node, instances) in by_node {
        let named: Vec<String> = instances.iter().take(NAMED).map(|one| name(one)).collect();
        let mut text = named.join(", ");
        if instances.len() > NAMED {
            text.push_str(&format!(" and {} more", instances.len() - NAMED));
        }
        table.row([node.into(), instances.len().to_string().into(), text.into()]);
    }
    table
}

fn name(instance: &PlacedInstance) -> String {
    match &instance.name {
        Some(name) => name.clone(),
        None => instance.instance.to_string(),
    }
}

fn every_instance(placed: &Placed) -> Table {
    let columns = columns![placed: PlacedInstance;
        "INSTANCE" => placed.instance.to_string(),
        "NAME" => placed.name.as_deref(),
        "NODE" => placed.node.as_ref().map(|node| node.as_str()),
        ">FENCE" => placed.fence,
        "LEASE" => placed.lease_until.map(age),
        "VALUES" => {
            let values = placed.values.iter().map(|held| format!("{}={}", held.pool, held.value));
            or_dash(Some(&values.collect::<Vec<_>>().join(" ")))
        },
    ];
    Table::of(&placed.instances, false, columns)
}
