//! Flags of where an instance may or should go.

use berth_api::InstanceSpec;
use berth_api::engine::node_selector::NodeSelector;
use clap::Args;

use super::flags::CommandLine;

/// Required and preferred places.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Place of each instance")]
pub(crate) struct PlaceFlags {
    /// Zone that its node must be in; repeated: one of these.
    #[arg(long = "zone", value_name = "ZONE")]
    zones: Vec<String>,
    /// Rack that its node must be in; repeated: one of these.
    #[arg(long = "rack", value_name = "RACK")]
    racks: Vec<String>,
    /// Node that it must go to; repeated: one of these.
    #[arg(long = "node", value_name = "NODE")]
    nodes: Vec<String>,
    /// Nodes that it may go to: 'zone = z1 and not label:tier = old'; repeated: all must hold.
    #[arg(long = "where", value_parser = selector, value_name = "SELECTOR")]
    selectors: Vec<NodeSelector>,
    /// Nodes that it should rather go to; may be repeated.
    #[arg(long = "prefer", value_parser = selector, value_name = "SELECTOR")]
    preferred: Vec<NodeSelector>,
    /// Zone that it should rather go to; repeated: one of these.
    #[arg(long = "prefer-zone", value_name = "ZONE")]
    preferred_zones: Vec<String>,
    /// Rack that it should rather go to; repeated: one of these.
    #[arg(long = "prefer-rack", value_name = "RACK")]
    preferred_racks: Vec<String>,
    /// Node that it should rather go to; repeated: one of these.
    #[arg(long = "prefer-node", value_name = "NODE")]
    preferred_nodes: Vec<String>,
}

fn selector(text: &str) -> Result<NodeSelector, String> {
    NodeSelector::parse(text).map_err(|error| error.to_string())
}

impl PlaceFlags {
    /// Adds them to an instance: to what it requires, and to what it prefers.
    pub(super) fn apply(&self, spec: &mut InstanceSpec) {
        let mut required: Vec<NodeSelector> = spec.required_place.take().into_iter().collect();
        required.extend(NodeSelector::zones(&self.zones));
        required.extend(NodeSelector::racks(&self.racks));
        required.extend(NodeSelector::nodes(&self.nodes));
        required.extend(self.selectors.iter().cloned());
        spec.required_place = NodeSelector::all(required);
        let preferred = &mut spec.preferred_places;
        preferred.extend(NodeSelector::zones(&self.preferred_zones));
        preferred.extend(NodeSelector::racks(&self.preferred_racks));
        preferred.extend(NodeSelector::nodes(&self.preferred_nodes));
        preferred.extend(self.preferred.iter().cloned());
    }

    /// Adds them to a command line.
    pub(super) fn add_words(&self, line: &mut CommandLine) {
        let texts = |selectors: &[NodeSelector]| -> Vec<String> {
            selectors.iter().map(ToString::to_string).collect()
        };
        line.flag("--zone", self.zones.iter().cloned());
        line.flag("--rack", self.racks.iter().cloned());
        line.flag("--node", self.nodes.iter().cloned());
        line.flag("--where", texts(&self.selectors));
        line.flag("--prefer", texts(&self.preferred));
        line.flag("--prefer-zone", self.preferred_zones.iter().cloned());
        line.flag("--prefer-rack", self.preferred_racks.iter().cloned());
        line.flag("--prefer-node", self.preferred_nodes.iter().cloned());
    }

    /// Removes one part of what is required, as a refusal names it.
    pub(crate) fn drop_part(&mut self, part: &str) {
        let is_part = |selector: Option<NodeSelector>| {
            selector.is_some_and(|selector| selector.to_string() == part)
        };
        for (names, selector) in [
            (&mut self.zones, NodeSelector::zones as fn(&[String]) -> Option<NodeSelector>),
            (&mut self.racks, NodeSelector::racks),
            (&mut self.nodes, NodeSelector::nodes),
        ] {
            if is_part(selector(names)) {
                names.clear();
            }
        }
        let Ok(part) = NodeSelector::parse(part) else { return };
        let selectors = std::mem::take(&mut self.selectors).into_iter();
        self.selectors = selectors.filter_map(|selector| selector.without(&part)).collect();
    }
}
