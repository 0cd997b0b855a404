//! The built-in policies as the scheduler of pods uses them.
//!
//! They are the engine's, except for `balanced`: fleets of virtual machines pack memory, which would fill one
//! node with pods while others are empty.

use berth_engine::{Policy, PolicyError};

/// `balanced` for pods: evens out CPU, memory and disk. As in the engine's, half the weight of
/// `spread-nodes` exceeds the sum of all weights but those of the caller's own wishes.
const BALANCED: &str = r#"
name = "balanced"
[scores]
cpu-pressure = 1.5
memory-spread = 1.5
disk-spread = 0.5
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

/// A built-in policy by name.
///
/// # Errors
/// When there is none of that name.
pub fn builtin(name: &str) -> Result<Policy, PolicyError> {
    if name == "balanced" { Policy::from_toml(BALANCED) } else { Policy::builtin(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_of_the_engine_is_one_for_pods() {
        for name in ["balanced", "pack", "spread", "triton", "neon"] {
            assert!(builtin(name).is_ok(), "{name}");
        }
        assert!(builtin("other").is_err());
    }
}
