//! How far an instance may shrink and grow, as flags.

use berth_api::InstanceSpec;
use berth_api::engine::elastic::Size;
use berth_api::engine::{Amounts, Elastic};
use clap::Args;

use super::flags::Words;
use crate::cli::args;

/// Bounds of an elastic instance, and how it is treated.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ElasticFlags {
    /// Elastic: the least it may shrink to, CPU and memory: 0.5,1GiB; its own size when not given.
    #[arg(long, value_parser = args::both, value_name = "CPU,MEMORY")]
    pub(crate) min: Option<Size>,
    /// Elastic: the most it may grow to, CPU and memory: 4,16GiB; its own size when not given.
    #[arg(long, value_parser = args::both, value_name = "CPU,MEMORY")]
    pub(crate) max: Option<Size>,
    /// Elastic: its class, which the policy in force knows.
    #[arg(long, value_name = "NAME")]
    pub(crate) class: Option<String>,
    /// Elastic: what it grows in steps of: 1,4GiB; what the policy says when not given.
    #[arg(long, value_parser = args::both, value_name = "CPU,MEMORY")]
    pub(crate) compute_unit: Option<Size>,
    /// Elastic: it is not moved unless somebody asks for it.
    #[arg(long)]
    pub(crate) stays: bool,
}

impl ElasticFlags {
    /// Makes an instance elastic if any of them was given.
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

    /// The flags as words of a command line.
    pub(crate) fn words(&self, line: &mut Words) {
        line.flag("--min", self.min.map(args::both_typed));
        line.flag("--max", self.max.map(args::both_typed));
        line.flag("--class", self.class.clone());
        line.flag("--compute-unit", self.compute_unit.map(args::both_typed));
        line.switch("--stays", self.stays);
    }
}

#[cfg(test)]
mod tests {
    use berth_api::Resources;

    use super::*;

    #[test]
    fn a_bound_that_is_not_given_is_the_size_it_begins_with() {
        let resources = Resources { cpu_milli: 1000, memory_mib: 4096, ..Resources::default() };
        let mut spec = InstanceSpec::new(resources);
        ElasticFlags::default().apply(&mut spec);
        assert_eq!(spec.elastic, None);
        let max = Some(Size::new(4000, 16384));
        ElasticFlags { max, ..ElasticFlags::default() }.apply(&mut spec);
        let elastic = spec.elastic.clone().unwrap();
        assert_eq!(Size::of(&elastic.min), Size::new(1000, 4096));
        assert_eq!(Size::of(&elastic.max), Size::new(4000, 16384));
        // What a file says stays, unless a flag says otherwise.
        let min = Some(Size::new(500, 1024));
        ElasticFlags { min, stays: true, ..ElasticFlags::default() }.apply(&mut spec);
        let elastic = spec.elastic.unwrap();
        assert_eq!(Size::of(&elastic.min), Size::new(500, 1024));
        assert_eq!(Size::of(&elastic.max), Size::new(4000, 16384));
        assert!(elastic.stays);
    }
}
