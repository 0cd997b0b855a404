//! Policies as text: reading, checking, and the canonical form that is hashed.
//!
//! Every error names the key, the value and what would be accepted.

mod builtin;
mod problems;
mod settings;
mod weights;

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::elastic::ElasticSettings;
use crate::fleet::UsualShape;
use crate::model::{Amounts, PPM};
use crate::policy::{
    Combine, CpuRule, Defaults, ExplainSettings, FilterId, FilterSettings, OPTIONAL_FILTERS,
    Policy, PolicyHash, ScoreOptions, Weight, WrittenWeight, weights_at,
};

pub use builtin::BUILTIN_POLICIES;
pub(crate) use builtin::BUILTINS;
pub use problems::PolicyProblem;
pub(crate) use settings::settings;
use weights::{as_written, check_weights};

/// A policy that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// Not TOML, or not the shape of a policy. The message names the key and the line.
    #[error("policy is not valid {format}: {message}")]
    Syntax {
        /// TOML or JSON.
        format: &'static str,
        /// The parser's message.
        message: String,
    },
    /// A value outside its range.
    #[error("{key} is {value}; accepted is {accepted}")]
    OutOfRange {
        /// The key.
        key: String,
        /// What was given.
        value: String,
        /// What would be accepted.
        accepted: String,
    },
    /// A name that does not exist.
    #[error("{key} names {value:?}, which does not exist; accepted are {accepted}")]
    UnknownName {
        /// The key.
        key: String,
        /// What was given.
        value: String,
        /// What would be accepted.
        accepted: String,
    },
}

/// Most recurring shapes; each is evaluated for each node.
const MAX_SHAPES: usize = 32;

/// Most usual shapes; each is compared with each node.
const MAX_USUAL_SHAPES: usize = 16;

/// The largest weight of a usual shape.
const MAX_SHAPE_WEIGHT: u32 = 1_000_000;

/// A policy as it is written.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Policy))]
#[serde(deny_unknown_fields)]
struct Document {
    #[cfg_attr(feature = "schema", schema(min_length = 1))]
    name: String,
    #[serde(default)]
    combine: Combine,
    #[serde(default)]
    filters: FilterSettings,
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(schema_with = schema::weights))]
    scores: BTreeMap<String, WrittenWeight>,
    #[serde(default)]
    options: ScoreOptions,
    #[serde(default)]
    explain: ExplainSettings,
    // Left out while it says nothing, so that policies keep the hash they always had.
    #[serde(default, skip_serializing_if = "ElasticSettings::is_default")]
    elastic: ElasticSettings,
    #[serde(default, skip_serializing_if = "Defaults::is_default")]
    defaults: Defaults,
    // The usual shapes; learned where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 16))]
    shapes: Vec<UsualShape>,
}

impl Policy {
    /// Reads a policy from TOML.
    ///
    /// # Errors
    /// Names the key, the value and what would be accepted.
    pub fn from_toml(text: &str) -> Result<Self, PolicyError> {
        let read = toml::from_str::<Document>(text);
        let syntax = |error: toml::de::Error| PolicyError::Syntax {
            format: "TOML",
            message: error.to_string(),
        };
        read.map_err(syntax).and_then(check_written)
    }

    /// Reads a policy from JSON.
    ///
    /// # Errors
    /// Names the key, the value and what would be accepted.
    pub fn from_json(text: &str) -> Result<Self, PolicyError> {
        let read = serde_json::from_str::<Document>(text);
        let syntax = |error: serde_json::Error| PolicyError::Syntax {
            format: "JSON",
            message: error.to_string(),
        };
        read.map_err(syntax).and_then(check_written)
    }

    /// Reads a policy as a ledger stores it, perhaps written by an earlier version: a rule that was
    /// added since is off, so that the policy decides, and hashes, as it did then.
    ///
    /// # Errors
    /// As [`Policy::from_json`].
    pub fn from_stored(text: &str) -> Result<Self, PolicyError> {
        let syntax = |error: serde_json::Error| PolicyError::Syntax {
            format: "JSON",
            message: error.to_string(),
        };
        let mut stored: serde_json::Value = serde_json::from_str(text).map_err(syntax)?;
        if let Some(document) = stored.as_object_mut() {
            let filters = document.entry("filters").or_insert_with(|| serde_json::json!({}));
            if let Some(filters) = filters.as_object_mut() {
                filters.entry("cpu_within_host").or_insert(serde_json::Value::Bool(false));
            }
        }
        let read = serde_json::from_value::<Document>(stored);
        read.map_err(syntax).and_then(|document| check(document).map_err(first))
    }

    /// The weight of one scorer in thousandths; zero when it is not used.
    #[must_use]
    pub fn weight(&self, scorer: &str) -> u32 {
        let used = self.weights.iter().find(|(id, _)| id.scorer().name == scorer);
        used.map_or(0, |(_, weight)| *weight)
    }

    /// The policy as a TOML file that can be edited and stored again.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Plain data with text keys always has a TOML form.
        toml::to_string_pretty(&document(self)).unwrap_or_default()
    }

    /// The canonical text: the same policy always gives the same bytes.
    #[must_use]
    pub fn to_json(&self) -> String {
        canonical(self)
    }
}

/// The policy that somebody wrote, or the first error in it.
fn check_written(document: Document) -> Result<Policy, PolicyError> {
    check_all_written(document).map_err(first)
}

/// The same, or every error: such a policy cannot go without a rule that every policy has.
fn check_all_written(document: Document) -> Result<Policy, Vec<PolicyError>> {
    let within_host = document.filters.cpu_within_host;
    let checked = check(document);
    if within_host {
        return checked;
    }
    let mut errors = checked.err().unwrap_or_default();
    errors.push(out_of_range("filters.cpu_within_host", "false", "true"));
    Err(errors)
}

fn first(errors: Vec<PolicyError>) -> PolicyError {
    errors.into_iter().next().unwrap_or_else(|| out_of_range("policy", "empty", "a policy"))
}

/// The policy of a document, or every error in it.
fn check(mut document: Document) -> Result<Policy, Vec<PolicyError>> {
    // The same policy however its list is written.
    document.filters.off.sort_unstable();
    document.filters.off.dedup();
    let mut errors = Vec::new();
    if document.name.is_empty() {
        errors.push(out_of_range("name", "empty", "at least one character"));
    }
    let all_weights = check_weights(&document.scores, &mut errors);
    let off = check_off(&document.filters, &mut errors);
    check_numbers(&document, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut policy = Policy {
        name: document.name,
        combine: document.combine,
        filters: document.filters,
        options: document.options,
        explain: document.explain,
        elastic: document.elastic,
        defaults: document.defaults,
        hash: PolicyHash([0; 32]),
        weights: weights_at(&all_weights, 0),
        all_weights,
        shapes: document.shapes,
        off,
    };
    policy.hash = PolicyHash(*blake3::hash(canonical(&policy).as_bytes()).as_bytes());
    Ok(policy)
}

fn check_off(filters: &FilterSettings, errors: &mut Vec<PolicyError>) -> u64 {
    let mut off = 0;
    for name in &filters.off {
        match FilterId::named(name).filter(|id| id.filter().is_optional()) {
            Some(id) => off |= id.bit(),
            None => errors.push(PolicyError::UnknownName {
                key: "filters.off".to_owned(),
                value: name.clone(),
                accepted: OPTIONAL_FILTERS.join(", "),
            }),
        }
    }
    off
}

/// Numbers with a range: key, value, least and most.
fn ranged(filters: &FilterSettings, options: &ScoreOptions) -> [(&'static str, u32, u32, u32); 12] {
    let tent = &options.tent;
    [
        ("filters.heartbeat_grace_s", filters.heartbeat_grace_s, 1, 31_536_000),
        ("filters.max_overlay_loss_ppm", filters.max_overlay_loss_ppm, 0, PPM),
        ("filters.cpu_ceiling_permille", filters.cpu_ceiling_permille.unwrap_or(1000), 1000, PPM),
        ("filters.sick_window_s", filters.sick_window_s, 1, 31_536_000),
        ("filters.min_scratch_mib", filters.min_scratch_mib, 0, Amounts::MAX),
        ("filters.disk_headroom_mib", filters.disk_headroom_mib, 0, 1 << 30),
        ("filters.no_reboot_within_days", filters.no_reboot_within_days.unwrap_or(1), 1, 3650),
        ("options.failure_half_life_s", options.failure_half_life_s, 60, 31_536_000),
        ("options.load_max_age_s", options.load_max_age_s, 1, 31_536_000),
        ("options.tent.idle_ppm", tent.idle_ppm, 0, PPM),
        ("options.tent.full_ppm", tent.full_ppm, 0, PPM),
        ("options.tent.peak_ppm", tent.peak_ppm, 1, PPM - 1),
    ]
}

fn check_numbers(document: &Document, errors: &mut Vec<PolicyError>) {
    let options = &document.options;
    for (key, value, least, most) in ranged(&document.filters, options) {
        if !(least..=most).contains(&value) {
            errors.push(out_of_range(key, value, &format!("{least} to {most}")));
        }
    }
    if let (CpuRule::Hard, Some(ceiling)) =
        (document.filters.cpu, document.filters.cpu_ceiling_permille)
    {
        let accepted = "none with cpu = \"hard\", which is the same as 1000";
        errors.push(out_of_range("filters.cpu_ceiling_permille", ceiling, accepted));
    }
    let elastic = document.elastic.ranged().into_iter();
    for (key, value, least, most) in elastic.chain(document.defaults.ranged()) {
        if !(least..=most).contains(&value) {
            errors.push(out_of_range(&key, value, &format!("{least} to {most}")));
        }
    }
    if document.elastic.nodes.len() > ElasticSettings::MAX_RULES {
        let accepted = format!("at most {} rules", ElasticSettings::MAX_RULES);
        errors.push(out_of_range("elastic.nodes", document.elastic.nodes.len(), &accepted));
    }
    check_defaults(&document.defaults, errors);
    check_shapes(&document.shapes, errors);
    if options.shapes.is_empty() || options.shapes.len() > MAX_SHAPES {
        let accepted = format!("1 to {MAX_SHAPES} shapes");
        errors.push(out_of_range("options.shapes", options.shapes.len(), &accepted));
    }
    for (place, shape) in options.shapes.iter().enumerate() {
        for (name, value, _) in shape.named() {
            if value > Amounts::MAX {
                let key = format!("options.shapes[{place}].{name}");
                errors.push(out_of_range(&key, value, &format!("0 to {}", Amounts::MAX)));
            }
        }
    }
}

fn check_shapes(shapes: &[UsualShape], errors: &mut Vec<PolicyError>) {
    if shapes.len() > MAX_USUAL_SHAPES {
        let accepted = format!("at most {MAX_USUAL_SHAPES} shapes");
        errors.push(out_of_range("shapes", shapes.len(), &accepted));
    }
    for (place, shape) in shapes.iter().enumerate() {
        let ranged = [
            ("cpu_milli", shape.cpu_milli, Amounts::MAX),
            ("memory_mib", shape.memory_mib, Amounts::MAX),
            ("weight", shape.weight, MAX_SHAPE_WEIGHT),
        ];
        for (name, value, most) in
            ranged.into_iter().filter(|(_, v, most)| !(1..=*most).contains(v))
        {
            let accepted = format!("1 to {most}");
            errors.push(out_of_range(&format!("shapes[{place}].{name}"), value, &accepted));
        }
    }
}

fn check_defaults(defaults: &Defaults, errors: &mut Vec<PolicyError>) {
    let rules = [
        ("defaults.nodes", defaults.nodes.len()),
        ("defaults.instances", defaults.instances.len()),
    ];
    for (key, count) in rules.into_iter().filter(|(_, count)| *count > Defaults::MAX_RULES) {
        let accepted = format!("at most {} rules", Defaults::MAX_RULES);
        errors.push(out_of_range(key, count, &accepted));
    }
    for (place, rule) in defaults.nodes.iter().enumerate() {
        let key = |name: &str| format!("defaults.nodes[{place}].{name}");
        if rule.names.len() > Defaults::MAX_NAMES {
            let accepted = format!("at most {} nodes", Defaults::MAX_NAMES);
            errors.push(out_of_range(&key("names"), rule.names.len(), &accepted));
        }
        if rule.no_overlay_pool && rule.overlay_pool.is_some() {
            let accepted = "false where the rule has an overlay_pool";
            errors.push(out_of_range(&key("no_overlay_pool"), true, accepted));
        }
    }
    for (key, pool) in defaults.pools() {
        let length = pool.chars().count();
        if !(1..=200).contains(&length) || pool.chars().any(char::is_control) {
            let accepted = "the name of a pool: 1 to 200 characters, none of them control";
            errors.push(out_of_range(&key, format!("{pool:?}"), accepted));
        }
    }
}

fn out_of_range(key: &str, value: impl std::fmt::Display, accepted: &str) -> PolicyError {
    PolicyError::OutOfRange {
        key: key.to_owned(),
        value: value.to_string(),
        accepted: accepted.to_owned(),
    }
}

fn document(policy: &Policy) -> Document {
    let named = |weight: &Weight| (weight.scorer.scorer().name.to_owned(), as_written(weight));
    let scores = policy.all_weights.iter().map(named);
    Document {
        name: policy.name.clone(),
        combine: policy.combine,
        filters: policy.filters.clone(),
        scores: scores.collect(),
        options: policy.options.clone(),
        explain: policy.explain,
        elastic: policy.elastic.clone(),
        defaults: policy.defaults.clone(),
        shapes: policy.shapes.clone(),
    }
}

fn canonical(policy: &Policy) -> String {
    // Plain data with text keys always has a JSON form.
    serde_json::to_string(&document(policy)).unwrap_or_default()
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        document(self).serialize(output)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        check(Document::deserialize(input)?).map_err(first).map_err(D::Error::custom)
    }
}

#[cfg(feature = "schema")]
mod schema {
    use utoipa::openapi::schema::{
        AdditionalProperties, ArrayBuilder, Object, ObjectBuilder, OneOfBuilder, Type,
    };
    use utoipa::openapi::{RefOr, Schema};
    use utoipa::{PartialSchema, ToSchema};

    use super::{Document, Policy};
    use crate::policy::WeightStep;
    use crate::score::SCORERS;

    impl PartialSchema for Policy {
        fn schema() -> RefOr<Schema> {
            Document::schema()
        }
    }

    impl ToSchema for Policy {
        fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
            Document::schemas(schemas);
        }
    }

    /// The weights of a policy: every scorer by name, and no other key.
    pub(super) fn weights() -> Object {
        let weight = || {
            ObjectBuilder::new()
                .schema_type(Type::Number)
                .minimum(Some(0))
                .maximum(Some(Policy::MAX_WEIGHT))
        };
        let about = format!(
            "Weights by scorer, with at most three decimals, at most {} in sum. A scorer that is not \
             named has weight 0. A weight is a number, or it depends on the load of the fleet.",
            Policy::MAX_WEIGHT_SUM
        );
        let steps = || {
            ArrayBuilder::new()
                .items(WeightStep::schema())
                .min_items(Some(1))
                .max_items(Some(Policy::MAX_WEIGHT_STEPS))
        };
        let with_scorer = |object: ObjectBuilder, name: &'static str, formula: &'static str| {
            let forms = OneOfBuilder::new().item(weight()).item(WeightStep::schema()).item(steps());
            object.property(name, forms.description(Some(formula)))
        };
        let all = SCORERS.iter().fold(ObjectBuilder::new(), |object, scorer| {
            with_scorer(object, scorer.name, scorer.formula)
        });
        all.additional_properties(Some(AdditionalProperties::FreeForm(false)))
            .description(Some(about))
            .build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_policy_is_told_the_key_the_value_and_the_range() {
        let table = [
            ("name='p'\n[scores]\nmemory-pack=-1", "scores.memory-pack is -1; accepted is 0 to"),
            ("name='p'\n[scores]\nmemory-pack=0.0001", "at most three decimals"),
            ("name='p'\n[scores]\nram=1", "scores.ram names \"ram\", which does not exist"),
            ("name='p'\n[scores]\nlocality=1000\naffinity=1000\ntent=1", "at most 2000 in sum"),
            ("name='p'\n[filters]\nheartbeat_grace_s=0", "filters.heartbeat_grace_s is 0"),
            ("name='p'\n[filters]\noff=['memory']", "filters.off names \"memory\""),
            ("name='p'\n[filters]\ncpu='firm'", "expected `soft` or `hard`"),
            ("name='p'\nweights=1", "unknown field `weights`"),
            (
                "name='p'\n[filters]\ncpu_ceiling_permille=999",
                "filters.cpu_ceiling_permille is 999; accepted is 1000 to 1000000",
            ),
            (
                "name='p'\n[filters]\ncpu='hard'\ncpu_ceiling_permille=1500",
                "accepted is none with cpu = \"hard\"",
            ),
            (
                "name='p'\n[filters]\ncpu_within_host=false",
                "filters.cpu_within_host is false; accepted is true",
            ),
            (
                "name='p'\n[scores]\nslot-loss=[{weight=1},{weight=2,from_load=1.5}]",
                "scores.slot-loss[1].from_load is 1.5; accepted is 0 to 1",
            ),
            (
                "name='p'\n[scores]\nslot-loss=[{weight=1,from_load=0.5},{weight=2,from_load=0.5}]",
                "scores.slot-loss[1].from_load is 0.5; accepted is 0 to 1 with at most three decimals, \
                 above that of the step before",
            ),
            ("name='p'\n[scores]\nslot-loss={weight=-1}", "scores.slot-loss[0].weight is -1"),
            ("name='p'\n[scores]\nslot-loss=[]", "scores.slot-loss is 0 steps; accepted is 1 to 8"),
            ("name='p'\n[scores]\nslot-loss='high'", "a weight, { weight, from_load }, or a list"),
            (
                "name='p'\n[[shapes]]\ncpu_milli=1\nmemory_mib=0",
                "shapes[0].memory_mib is 0; accepted is 1 to",
            ),
            ("name=''", "name is empty"),
            ("name='p'\n[options.tent]\npeak_ppm=0", "options.tent.peak_ppm is 0; accepted is 1"),
        ];
        for (text, expected) in table {
            let error = Policy::from_toml(text).map(|p| p.name).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_policy_of_an_earlier_version_keeps_its_rules_and_its_hash() {
        // As the version before `cpu_within_host` stored it.
        let stored = Policy::builtin("pack").unwrap().to_json();
        let earlier = stored.replace(r#""cpu_within_host":true,"#, "");
        assert_ne!(stored, earlier);
        let read = Policy::from_stored(&earlier).unwrap();
        assert!(!read.filters.cpu_within_host);
        assert_eq!(read.to_json(), earlier);
        let hash = *blake3::hash(earlier.as_bytes()).as_bytes();
        assert_eq!(read.hash, PolicyHash(hash));
        // What is written now has the rule, whether it is mentioned or not.
        assert!(Policy::from_json(&earlier).unwrap().filters.cpu_within_host);
        assert_eq!(Policy::from_stored(&stored).unwrap(), Policy::builtin("pack").unwrap());
    }

    #[test]
    fn the_hash_follows_the_content_and_not_the_writing() {
        let off = |list: &str| Policy::from_toml(&format!("name='p'\n[filters]\noff={list}"));
        let (one, other) = (off("['kvm','not-sick']"), off("['not-sick','kvm','kvm']"));
        assert_eq!(one.unwrap().hash, other.unwrap().hash);
        let toml = "name='p'\n[scores]\nmemory-pack=2\ndisk-pack=0";
        let json = r#"{"scores":{"memory-pack":2.000},"name":"p"}"#;
        let (a, b) = (Policy::from_toml(toml).unwrap(), Policy::from_json(json).unwrap());
        assert_eq!(a.hash, b.hash);
        let other = Policy::from_toml("name='p'\n[scores]\nmemory-pack=2.001").unwrap();
        assert_ne!(a.hash, other.hash);
        assert_eq!(Policy::from_json(&a.to_json()).unwrap(), a, "the canonical text reads back");
        for name in BUILTIN_POLICIES {
            let policy = Policy::builtin(name).unwrap();
            assert_eq!(Policy::from_toml(&policy.to_toml()).unwrap(), policy, "as a file: {name}");
        }
    }
}
