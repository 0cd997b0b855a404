//! Names in requests and selectors that no node has, and which ones were probably meant. It knows
//! nothing of a fleet: the caller collects the names of its nodes.

use std::collections::{BTreeMap, BTreeSet};

use berth_engine::NodeFacts;
use berth_engine::suggest::closest;

use crate::place::{InstanceSpec, PlaceRequest};
use crate::select::{Attribute, Operator, Selector, Value};

/// What a name is the name of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Trait,
    /// A value of a trait.
    TraitValue(String),
    Label,
    /// A value of a label.
    LabelValue(String),
    Class,
    Network,
    Zone,
    Rack,
    Node,
}

/// For whom hints are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintReader {
    /// Sees every node.
    Operator,
    /// Sees no list of names: of what it may ask for, the one name that it almost wrote. Racks and
    /// nodes are not named at all.
    Tenant,
}

/// Names by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(BTreeMap<Kind, BTreeSet<String>>);

impl Kind {
    /// That no node has this name.
    fn missing(&self, name: &str) -> String {
        match self {
            Self::Trait => format!("no node has the trait {name}"),
            Self::TraitValue(of) => format!("no node has the trait {of}={name}"),
            Self::Label => format!("no node has a label {name}"),
            Self::LabelValue(of) => format!("no node has the label {of}={name}"),
            Self::Class => format!("no node has anything of the class {name}"),
            Self::Network => format!("no node has the network {name}"),
            Self::Zone => format!("no node is in a zone {name}"),
            Self::Rack => format!("no node is in a rack {name}"),
            Self::Node => format!("there is no node {name}"),
        }
    }

    const fn is_hidden_from(&self, reader: HintReader) -> bool {
        matches!((self, reader), (Self::Rack | Self::Node, HintReader::Tenant))
    }
}

/// Most names that are listed where none is close.
const LISTED: usize = 10;

/// Most names among which a close one is searched for a tenant: more are ids rather than choices, and
/// a search among them costs the server.
const COMPARED: usize = 200;

/// The words of a trait's value, which may be a list.
fn words(value: &str) -> impl Iterator<Item = &str> {
    value.split('|')
}

impl Names {
    /// The names in a request.
    #[must_use]
    pub fn of_request(request: &PlaceRequest) -> Self {
        let mut names = Self::default();
        request.instances.iter().for_each(|spec| names.add_spec(spec));
        names
    }

    /// The names in a selector of nodes.
    #[must_use]
    pub fn of_selector(selector: &str) -> Self {
        let mut names = Self::default();
        names.add_selector(selector);
        names
    }

    /// The names of nodes.
    #[must_use]
    pub fn of_nodes<'a>(nodes: impl Iterator<Item = &'a NodeFacts>) -> Self {
        let mut names = Self::default();
        nodes.for_each(|facts| names.add_facts(facts));
        names
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Hints about those of these names that no node has, where `known` are the names of all nodes.
    #[must_use]
    pub fn hints(&self, known: &Self, reader: HintReader) -> Vec<String> {
        let nothing = BTreeSet::new();
        let is_known =
            |kind: Kind, name: &String| known.0.get(&kind).is_some_and(|all| all.contains(name));
        let mut hints = Vec::new();
        for (kind, names) in &self.0 {
            // What no node has at all has no values either.
            match kind {
                Kind::TraitValue(of) if !is_known(Kind::Trait, of) => continue,
                Kind::LabelValue(of) if !is_known(Kind::Label, of) => continue,
                _ if kind.is_hidden_from(reader) => continue,
                _ => {}
            }
            let known = known.0.get(kind).unwrap_or(&nothing);
            hints.extend(names.difference(known).map(|name| hint(kind, name, known, reader)));
        }
        hints
    }

    fn add(&mut self, kind: Kind, name: &str) {
        let names = self.0.entry(kind).or_default();
        if !names.contains(name) {
            names.insert(name.to_owned());
        }
    }

    fn add_facts(&mut self, facts: &NodeFacts) {
        for (name, value) in &facts.traits {
            self.add(Kind::Trait, name);
            for word in words(&value.to_string()) {
                self.add(Kind::TraitValue(name.clone()), word);
            }
        }
        for (name, value) in &facts.labels {
            self.add(Kind::Label, name);
            self.add(Kind::LabelValue(name.clone()), value);
        }
        facts.extra.keys().for_each(|class| self.add(Kind::Class, class));
        facts.networks.iter().for_each(|network| self.add(Kind::Network, &network.tag));
        facts.zone.iter().for_each(|zone| self.add(Kind::Zone, zone));
        facts.rack.iter().for_each(|rack| self.add(Kind::Rack, rack));
        self.add(Kind::Node, facts.id.as_str());
    }

    fn add_spec(&mut self, spec: &InstanceSpec) {
        for (name, value) in &spec.traits {
            self.add(Kind::Trait, name);
            let text = value.to_string();
            if !matches!(text.as_str(), "true" | "false") && !text.contains('|') {
                self.add(Kind::TraitValue(name.clone()), &text);
            }
        }
        spec.extra.keys().for_each(|class| self.add(Kind::Class, class));
        // Of alternatives, one that exists is enough.
        for network in spec.networks.iter().filter(|names| names.len() == 1).flatten() {
            self.add(Kind::Network, network);
        }
        if let Some(place) = &spec.required_place {
            self.add_selector(&place.to_string());
        }
    }

    fn add_selector(&mut self, text: &str) {
        let Ok(selector) = Selector::parse(text) else { return };
        for comparison in selector.comparisons() {
            let exact = matches!(comparison.operator, Operator::Equal | Operator::In);
            let kind = match &comparison.attribute {
                Attribute::Id => Kind::Node,
                Attribute::Zone => Kind::Zone,
                Attribute::Rack => Kind::Rack,
                Attribute::Label(label) => {
                    self.add(Kind::Label, label);
                    Kind::LabelValue(label.clone())
                }
                Attribute::Trait(name) => {
                    self.add(Kind::Trait, name);
                    Kind::TraitValue(name.clone())
                }
                Attribute::Extra(class) => {
                    self.add(Kind::Class, class);
                    continue;
                }
                Attribute::Network(network) => {
                    self.add(Kind::Network, network);
                    continue;
                }
                _ => continue,
            };
            for value in comparison.values.iter().filter(|_| exact) {
                if let Value::Text(text) = value {
                    self.add(kind.clone(), text);
                }
            }
        }
    }
}

fn hint(kind: &Kind, name: &str, known: &BTreeSet<String>, reader: HintReader) -> String {
    let missing = kind.missing(name);
    let for_tenant = reader == HintReader::Tenant;
    if for_tenant && known.len() > COMPARED {
        return missing;
    }
    match closest(name, known.iter().map(String::as_str)) {
        Some(near) => format!("{missing}; did you mean {near}?"),
        None if for_tenant || known.is_empty() || known.len() > LISTED => missing,
        None => {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            format!("{missing}; there are: {}", known.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_node_has_are_named_with_those_that_were_meant() {
        let known = Names::of_selector("has trait:ssd and label:team = db and zone in (z1, z2)");
        let of = |text: &str| Names::of_selector(text).hints(&known, HintReader::Operator);
        assert_eq!(of("has trait:sdd"), ["no node has the trait sdd; did you mean ssd?"]);
        assert_eq!(
            of("label:taem = db"),
            ["no node has a label taem; did you mean team?"],
            "its value is not named as well"
        );
        assert_eq!(of("label:team = web"), ["no node has the label team=web; there are: db"]);
        assert_eq!(of("zone = berlin"), ["no node is in a zone berlin; there are: z1, z2"]);
        assert_eq!(of("zone = z1 and has trait:ssd"), Vec::<String>::new());
        // A pattern and an inequality need no exact name.
        assert_eq!(of("zone ~ x* and zone != z9"), Vec::<String>::new());
    }

    #[test]
    fn a_tenant_learns_the_name_that_it_almost_wrote_and_no_other() {
        let known =
            Names::of_selector("has trait:ssd and rack = r1 and id = n1 and zone in (z1, z2)");
        let of = |text: &str| Names::of_selector(text).hints(&known, HintReader::Tenant);
        assert_eq!(of("has trait:sdd"), ["no node has the trait sdd; did you mean ssd?"]);
        assert_eq!(of("zone = berlin"), ["no node is in a zone berlin"]);
        assert_eq!(of("rack = r2 or id = n2"), Vec::<String>::new());
        let many: Vec<String> = (0..300).map(|number| format!("id-{number}")).collect();
        let known = Names::of_selector(&format!("label:serial in ({})", many.join(", ")));
        let found = Names::of_selector("label:serial = id-x").hints(&known, HintReader::Tenant);
        assert_eq!(found, ["no node has the label serial=id-x"]);
    }
}
