//! The policies that come with Berth, written as any other policy is.

use super::PolicyError;
use crate::policy::Policy;

/// Names of the built-in policies.
pub const BUILTIN_POLICIES: [&str; 5] = ["balanced", "pack", "spread", "triton", "neon"];

/// What each is for, and its text.
pub(crate) const BUILTINS: [(&str, &str); 5] = [
    (
        "The default: fills memory, evens out CPU, keeps replicas on nodes of their own. A second \
         replica joins a node only when every other node is out, or when the caller's own affinity, \
         locality or preferred place asks for it.",
        BALANCED,
    ),
    (
        "As few nodes in use as can be; the fuller the fleet, the more it keeps room whole for the \
         instances that come most often.",
        PACK,
    ),
    ("As even as can be.", SPREAD),
    ("Triton's defaults: its weights, its order of preference, its limits.", TRITON),
    ("The tent curve of an autoscaling scheduler: fill nodes up to a point, not beyond.", NEON),
];

/// Fills memory, evens out CPU, keeps replicas on nodes of their own. Half the weight of
/// `spread-nodes` exceeds the sum of all weights but those of the caller's own wishes (affinity,
/// locality and preferred places), so a second replica joins a node only when every other node is out.
const BALANCED: &str = r#"
name = "balanced"
[scores]
cpu-pressure = 1
memory-pack = 2
disk-pack = 0.5
spread-nodes = 26
spread-racks = 2
spread-zones = 2
affinity = 60
locality = 60
preferred-place = 60
image-cached = 1
recent-failures = 2
newest-platform = 1
next-reboot = 0.5
hardware-class = 0.5
capacity-preference = 0.25
"#;

/// As few nodes in use as can be, with room kept whole for usual instances. The weights were chosen by
/// replaying public traces on fleets of several sizes: `slot-loss` saves refusals where the fleet is
/// nearly full and costs nodes where it is not, so it weighs four times as much from there on.
const PACK: &str = r#"
name = "pack"
[filters]
cpu = "hard"
[scores]
memory-pack = 0.5
slot-loss = [{ weight = 1 }, { weight = 4, from_load = 0.75 }]
disk-pack = 0.1
affinity = 10
locality = 10
preferred-place = 10
image-cached = 0.25
recent-failures = 1
"#;

/// As even as can be.
const SPREAD: &str = r#"
name = "spread"
[scores]
cpu-pressure = 2
memory-spread = 2
disk-spread = 0.5
spread-nodes = 20
spread-racks = 4
spread-zones = 4
affinity = 60
locality = 60
preferred-place = 60
image-cached = 0.5
recent-failures = 2
"#;

/// Triton's defaults: its weights, its order of preference, its limits.
const TRITON: &str = r#"
name = "triton"
[filters]
cpu = "hard"
disk_headroom_mib = 10240
[options]
owner_spread = true
[scores]
memory-pack-rank = 2
disk-pack-rank = 1
newest-platform = 1
next-reboot = 0.5
random = 0.5
spare-largest = 20
reservoir = 100
preferred-place = 200
locality = 400
affinity = 600
"#;

/// The autoscaling scheduler's tent curve.
const NEON: &str = r#"
name = "neon"
[filters]
cpu = "hard"
[scores]
tent = 10
affinity = 10
locality = 10
preferred-place = 10
"#;

impl Policy {
    /// A built-in policy.
    ///
    /// # Errors
    /// Names the policies there are.
    pub fn builtin(name: &str) -> Result<Self, PolicyError> {
        let named = BUILTIN_POLICIES.iter().zip(BUILTINS).find(|(known, _)| **known == name);
        let Some((_, (_, text))) = named else {
            return Err(PolicyError::UnknownName {
                key: "policy".to_owned(),
                value: name.to_owned(),
                accepted: BUILTIN_POLICIES.join(", "),
            });
        };
        Self::from_toml(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::WeightedScorers;

    #[test]
    fn every_builtin_policy_is_valid_and_named_after_itself() {
        for name in BUILTIN_POLICIES {
            assert_eq!(Policy::builtin(name).unwrap().name, name);
        }
        let error = Policy::builtin("best").unwrap_err().to_string();
        assert!(error.contains("balanced, pack, spread, triton, neon"), "{error}");
    }

    #[test]
    fn a_stored_copy_of_an_earlier_pack_keeps_its_hash_and_its_weights() {
        let earlier = "name = 'pack'\n[filters]\ncpu = 'hard'\n[scores]\ncpu-pack = 0.5\n\
            memory-pack = 3\ndisk-pack = 0.5\nfragmentation = 1\naffinity = 10\nlocality = 10\n\
            preferred-place = 10\nimage-cached = 0.25\nrecent-failures = 1\n";
        let stored = Policy::from_toml(earlier).unwrap().to_json();
        let read = Policy::from_stored(&stored).unwrap();
        assert_eq!(read.hash.to_string(), "213afc4c9736feb9", "as it was before");
        assert_eq!((read.weight("fragmentation"), read.weight("slot-loss")), (1000, 0));
        let others = [("balanced", "b061926f0fa7bce2"), ("neon", "010042b39560a429")];
        for (name, hash) in others {
            assert_eq!(Policy::builtin(name).unwrap().hash.to_string(), hash, "{name}");
        }
    }

    #[test]
    fn in_balanced_a_second_replica_outweighs_everything_but_the_callers_own_wishes() {
        let policy = Policy::builtin("balanced").unwrap();
        let own = ["affinity", "locality", "preferred-place"];
        let wishes: u32 = own.iter().map(|name| policy.weight(name)).sum();
        let all: u32 = policy.weights().map(|(_, weight)| weight).sum();
        let rest = all - wishes - policy.weight("spread-nodes");
        assert!(policy.weight("spread-nodes") / 2 > rest);
    }

    #[test]
    fn all_but_triton_can_be_scanned_from_columns() {
        let columnar =
            |name: &&str| WeightedScorers::new(&Policy::builtin(name).unwrap()).is_columnar;
        assert!(["balanced", "pack", "spread", "neon"].iter().all(columnar));
        assert!(!columnar(&"triton"));
    }
}
