//! Whether a node fits. Never fails: what a node lacks is simply not equal to anything.

use super::attribute::{PlaceAttribute, Value};
use super::grammar::{Facts, Operator, fits_pattern};

/// The facts of a node that a selector can compare.
pub trait PlaceFacts {
    /// Its name.
    fn id(&self) -> &str;
    /// Its zone.
    fn zone(&self) -> Option<&str>;
    /// Its rack.
    fn rack(&self) -> Option<&str>;
    /// `on-demand` or `spot`.
    fn capacity_type(&self) -> &str;
    /// The version of its platform, major and minor.
    fn platform_version(&self) -> Option<(u16, u16)>;
    /// Its hardware class.
    fn hardware_class(&self) -> i32;
    /// Whether it is a virtual machine.
    fn is_virtual(&self) -> bool;
    /// One of its labels.
    fn label(&self, key: &str) -> Option<&str>;
    /// The words of one of its traits: `true` or `false` for a switch.
    fn trait_words(&self, key: &str) -> Vec<&str>;
}

impl<T: PlaceFacts> Facts<PlaceAttribute> for T {
    fn has(&self, attribute: &PlaceAttribute) -> bool {
        match attribute {
            PlaceAttribute::Virtual => self.is_virtual(),
            PlaceAttribute::PlatformVersion => self.platform_version().is_some(),
            PlaceAttribute::HardwareClass => true,
            PlaceAttribute::Trait(key) => {
                let words = self.trait_words(key);
                !words.is_empty() && words != ["false"]
            }
            PlaceAttribute::Id
            | PlaceAttribute::Zone
            | PlaceAttribute::Rack
            | PlaceAttribute::CapacityType
            | PlaceAttribute::Label(_) => !texts(attribute, self).is_empty(),
        }
    }

    fn compares(&self, attribute: &PlaceAttribute, by: Operator, value: &Value) -> bool {
        match value {
            Value::Text(pattern) if by == Operator::Like => {
                texts(attribute, self).iter().any(|text| fits_pattern(pattern, text))
            }
            Value::Text(text) => {
                texts(attribute, self).iter().any(|found| by.accepts((*found).cmp(text.as_str())))
            }
            Value::Number(number) => by.accepts(i64::from(self.hardware_class()).cmp(number)),
            Value::Version(major, minor) => self
                .platform_version()
                .is_some_and(|found| by.accepts(found.cmp(&(*major, *minor)))),
            Value::Switch(on) => by.accepts(self.is_virtual().cmp(on)),
        }
    }
}

/// A fact as text; several where any of them will do.
fn texts<'a>(attribute: &PlaceAttribute, node: &'a impl PlaceFacts) -> Vec<&'a str> {
    let one = |text: Option<&'a str>| text.into_iter().collect();
    match attribute {
        PlaceAttribute::Id => vec![node.id()],
        PlaceAttribute::Zone => one(node.zone()),
        PlaceAttribute::Rack => one(node.rack()),
        PlaceAttribute::CapacityType => vec![node.capacity_type()],
        PlaceAttribute::Label(key) => one(node.label(key)),
        PlaceAttribute::Trait(key) => node.trait_words(key),
        PlaceAttribute::PlatformVersion
        | PlaceAttribute::HardwareClass
        | PlaceAttribute::Virtual => Vec::new(),
    }
}
