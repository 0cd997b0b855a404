//! Flags of elastic instances: how far they may shrink and grow.

use berth_api::InstanceSpec;
use berth_api::engine::elastic::Size;
use berth_api::engine::{Amounts, Elastic};
use clap::Args;

use super::flags::CommandLine;
use crate::cmdutil::args;

/// Bounds of an elastic instance, and its treatment.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ElasticFlags {
    /// Elastic: smallest size, CPU and memory: 0.5,1GiB; its initial size by default.
    #[arg(long, value_parser = args::cpu_and_memory, value_name = "CPU,MEMORY")]
    pub(crate) min: Option<Size>,
    /// Elastic: largest size, CPU and memory: 4,16GiB; its initial size by default.
    #[arg(long, value_parser = args::cpu_and_memory, value_name = "CPU,MEMORY")]
    pub(crate) max: Option<Size>,
    /// Elastic: class, as defined in the active policy.
    #[arg(long, value_name = "NAME")]
    pub(crate) class: Option<String>,
    /// Elastic: step in which it grows: 1,4GiB; from the policy by default.
    #[arg(long, value_parser = args::cpu_and_memory, value_name = "CPU,MEMORY")]
    pub(crate) compute_unit: Option<Size>,
    /// Elastic: never move it, except on request.
    #[arg(long)]
    pub(crate) stays: bool,
}

impl ElasticFlags {
    /// Makes an instance elastic if any flag was given.
    pub(crate) fn apply(&self, spec: &mut InstanceSpec) {
        if *self == Self::default() {
            return;
        }
        let own = Size::new(spec.resources.cpu_milli, spec.resources.memory_mib);
        let own = own.within(Amounts::default());
        let elastic = spec.elastic.get_or_insert_with(|| Elastic::new(own, own));
        if let Some(min) = self.min {
            elastic.min = min.within(elastic.min);
        }
        if let Some(max) = self.max {
            elastic.max = max.within(elastic.max);
        }
        if self.class.is_some() {
            elastic.class.clone_from(&self.class);
        }
        elastic.compute_unit = self.compute_unit.or(elastic.compute_unit);
        elastic.stays |= self.stays;
    }

    /// Adds the flags to a command line.
    pub(crate) fn add_words(&self, line: &mut CommandLine) {
        line.flag("--min", self.min.map(args::cpu_and_memory_flag));
        line.flag("--max", self.max.map(args::cpu_and_memory_flag));
        line.flag("--class", self.class.clone());
        line.flag("--compute-unit", self.compute_unit.map(args::cpu_and_memory_flag));
        line.switch("--stays", self.stays);
    }
}

#[cfg(test)]
mod tests {
    use berth_api::Resources;

    use super::*;

    #[test]
    fn a_bound_that_is_not_given_is_the_initial_size() {
        let resources = Resources { cpu_milli: 1000, memory_mib: 4096, ..Resources::default() };
        let mut spec = InstanceSpec::new(resources);
        ElasticFlags::default().apply(&mut spec);
        assert_eq!(spec.elastic, None);
        let max = Some(Size::new(4000, 16384));
        ElasticFlags { max, ..ElasticFlags::default() }.apply(&mut spec);
        let elastic = spec.elastic.clone().unwrap();
        assert_eq!(Size::of(&elastic.min), Size::new(1000, 4096));
        assert_eq!(Size::of(&elastic.max), Size::new(4000, 16384));
        // Flags override the file.
        let min = Some(Size::new(500, 1024));
        ElasticFlags { min, stays: true, ..ElasticFlags::default() }.apply(&mut spec);
        let elastic = spec.elastic.unwrap();
        assert_eq!(Size::of(&elastic.min), Size::new(500, 1024));
        assert_eq!(Size::of(&elastic.max), Size::new(4000, 16384));
        assert!(elastic.stays);
    }
}
