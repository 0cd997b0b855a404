//! The numbers: one constant for each kind of text, list and map.
//!
//! They are generous for people and tight for machines: no request within them may take more
//! memory or time than the planner can spare for one caller.

use super::Limit;
use crate::affinity::MAX_EXPRESSION_BYTES;
use crate::node_selector::NodeSelector;

/// A name, an id, a tenant, a class, a word of a trait.
pub const NAME: Limit = Limit::Text(200);
/// The name of a token.
pub const TOKEN_NAME: Limit = Limit::Text(100);
/// Why something is done, for events and the audit log.
pub const REASON: Limit = Limit::Text(200);
/// An explanation that is sent back, such as the reason of a planned move.
pub const SENTENCE: Limit = Limit::Text(2000);
/// An image.
pub const IMAGE: Limit = Limit::Text(512);
/// The value of a tag.
pub const TAG_VALUE: Limit = Limit::Text(256);
/// The value of a node's label.
pub const LABEL_VALUE: Limit = Limit::Text(1024);
/// A policy in TOML.
pub const POLICY_TEXT: Limit = Limit::Lines(65_536);
/// A value in the query of a URL. A URL has at most 64 KiB, and a character may take twelve bytes there.
pub const QUERY_VALUE: Limit = Limit::Lines(512);
/// A selector in the query of a URL.
pub const QUERY_SELECTOR: Limit = Limit::Lines(4096);

/// The limit of a value in the query of a URL.
#[must_use]
pub fn query_value(name: &str) -> Limit {
    if name == "where" { QUERY_SELECTOR } else { QUERY_VALUE }
}

/// Tags of one instance.
pub const TAGS: Limit = Limit::Map(64, &NAME, &TAG_VALUE);
/// A trait's value: a switch, a word, or so many words.
pub const TRAIT_VALUE: Limit = Limit::List(32, &NAME);
/// Traits that one instance asks for.
pub const TRAITS: Limit = Limit::Map(64, &NAME, &TRAIT_VALUE);
/// Networks of which one must be up.
pub const NETWORK_SET: Limit = Limit::List(16, &NAME);
/// Sets of networks that one instance asks for.
pub const NETWORKS: Limit = Limit::List(32, &NETWORK_SET);
/// Further resources of one instance.
pub const EXTRA: Limit = Limit::Map(32, &NAME, &Limit::Parts);
/// Platform versions in one bound.
pub const PLATFORMS: Limit = Limit::Map(32, &Limit::Parts, &Limit::Parts);
/// Volumes of one instance, or of one attachment.
pub const VOLUMES: Limit = Limit::List(64, &NAME);
/// Attachments of one instance.
pub const ATTACHMENTS: Limit = Limit::List(16, &NAME);
/// Groups of one instance.
pub const GROUPS: Limit = Limit::List(32, &NAME);
/// An affinity rule.
pub const RULE: Limit = Limit::Text(MAX_EXPRESSION_BYTES);
/// Affinity rules of one instance.
pub const RULES: Limit = Limit::List(64, &RULE);
/// A selector of nodes.
pub const SELECTOR: Limit = Limit::Text(NodeSelector::MAX_BYTES);
/// Places that one instance prefers.
pub const PREFERRED_PLACES: Limit = Limit::List(8, &SELECTOR);
/// Locality hints of one instance, near or far.
pub const HINTS: Limit = Limit::List(64, &Limit::Parts);
/// Pools of one request or workload.
pub const POOLS: Limit = Limit::List(16, &NAME);
/// Instances of one request.
pub const INSTANCES: Limit = Limit::List(1000, &Limit::Parts);

/// Labels of one node.
pub const NODE_LABELS: Limit = Limit::Map(128, &NAME, &LABEL_VALUE);
/// The path of a fact, such as `labels.hall`.
pub const FACT_PATH: Limit = Limit::Text(256);
/// Facts of one node that are unset at once.
pub const UNSET_FIELDS: Limit = Limit::List(100, &FACT_PATH);
/// Facts of one node that are not as reported.
pub const NODE_OVERRIDES: Limit = Limit::Map(1024, &FACT_PATH, &Limit::Parts);
/// Traits of one node.
pub const NODE_TRAITS: Limit = Limit::Map(128, &NAME, &TRAIT_VALUE);
/// Networks of one node.
pub const NODE_NETWORKS: Limit = Limit::List(512, &Limit::Parts);
/// Further resources of one node.
pub const NODE_EXTRA: Limit = Limit::Map(64, &NAME, &Limit::Parts);
/// Images that one node holds.
pub const NODE_IMAGES: Limit = Limit::List(4096, &IMAGE);
/// Boots of one node.
pub const NODE_BOOTS: Limit = Limit::List(256, &Limit::Parts);
/// Instances that one heartbeat reports.
pub const REPORTED: Limit = Limit::List(10_000, &Limit::Parts);
/// Nodes of one request about several.
pub const NODES: Limit = Limit::List(10_000, &NAME);
/// Tenants of one token.
pub const TENANTS: Limit = Limit::List(256, &NAME);
/// Steps of one rebalance.
pub const MOVES: Limit = Limit::List(1000, &Limit::Parts);

/// Instances that are preempted for one request.
pub const VICTIMS: Limit = Limit::List(1000, &Limit::Parts);

/// Most regular expressions in the affinity rules of one instance: each takes memory many times
/// its length.
pub const REGEXES: usize = 16;
/// Most regular expressions in the affinity rules of one request.
pub const REQUEST_REGEXES: usize = 512;
/// Most different hard `!=` rules of a tenant's placed instances: every further request is matched with
/// all of them.
pub const TENANT_RULES: usize = 1024;
/// Most of those that have a regular expression.
pub const TENANT_REGEXES: usize = 128;
/// Most bytes of texts and items in the specification of one instance.
pub const SPEC_BYTES: usize = 16 * 1024;
/// Most bytes of texts and items of all instances of a request, each counted `count` times.
pub const REQUEST_BYTES: usize = 4 * 1024 * 1024;
/// Most bytes of texts and items in the facts of one node.
pub const NODE_BYTES: usize = 512 * 1024;
/// Most bytes of a stored workload: its specification and the revisions that are kept.
pub const STORED_WORKLOAD_BYTES: usize = 1024 * 1024;
/// Most bytes of another stored document, such as a ticket with its request and answer.
pub const STORED_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;
/// Most bytes of a stored policy.
pub const STORED_POLICY_BYTES: usize = 512 * 1024;

/// A request id as the ledger has it: what a server appends to one counts too.
pub const STORED_REQUEST_ID: Limit = Limit::Text(512);
/// Most bytes of texts and items of one instance as the ledger stores it: what a server adds to a
/// specification, such as the volumes of its attachments, counts too.
pub const STORED_INSTANCE_BYTES: usize = 4 * SPEC_BYTES;
/// Most bytes of the same as JSON.
pub const STORED_SPEC_BYTES: usize = 8 * STORED_INSTANCE_BYTES;
/// Most bytes of a text that a server writes for people, such as the subject of an audit entry.
pub const STORED_TEXT_BYTES: usize = 64 * 1024;

/// The limits on sums, with what each is about.
pub const SUMS: [(&str, usize, &str); 11] = [
    ("texts and lists of one instance", SPEC_BYTES, "bytes"),
    (
        "texts and lists of one placement, each instance counted `count` times",
        REQUEST_BYTES,
        "bytes",
    ),
    ("affinity rules of one instance with a regular expression", REGEXES, "rules"),
    ("affinity rules of one placement with a regular expression", REQUEST_REGEXES, "rules"),
    ("different hard `!=` rules of one tenant's placed instances", TENANT_RULES, "rules"),
    (
        "different hard `!=` rules of one tenant's placed instances with a regular expression",
        TENANT_REGEXES,
        "rules",
    ),
    ("texts and lists of one node's facts", NODE_BYTES, "bytes"),
    ("texts and lists of one instance as the ledger stores it", STORED_INSTANCE_BYTES, "bytes"),
    ("a stored workload", STORED_WORKLOAD_BYTES, "bytes"),
    ("a stored policy", STORED_POLICY_BYTES, "bytes"),
    ("another stored document", STORED_DOCUMENT_BYTES, "bytes"),
];
