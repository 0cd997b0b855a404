//! Compiled selectors, and which devices match them.
//!
//! What a selector says of a device does not depend on nodes or pods, so that it is evaluated once per
//! version of a slice.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::cel::{DeviceVariable, Expression, on_large_stack};
use super::objects::Slice;
use super::pools::Pools;

/// Selectors that are kept; beyond this, all are dropped.
const SELECTORS_MAX: usize = 256;

/// What a selector says of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Matches,
    Differs,
    /// It cannot be evaluated.
    Failed(Arc<str>),
}

/// What a selector says of devices, by slice and position.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdicts {
    by_slice: FxHashMap<Arc<str>, Vec<Verdict>>,
}

impl Verdicts {
    /// The verdict on a device.
    pub(super) fn of(&self, slice: &Slice, position: usize) -> &Verdict {
        let known = self.by_slice.get(&slice.name).and_then(|it| it.get(position));
        // All slices were evaluated when the pod was prepared.
        known.unwrap_or(&Verdict::Differs)
    }
}

#[derive(Debug)]
struct Selector {
    expression: Result<Expression, String>,
    verdicts: Arc<Verdicts>,
    /// The version of the slices that the verdicts are for.
    version: Option<u64>,
}

/// All selectors in use.
#[derive(Debug, Default)]
pub(super) struct SelectorCache {
    selectors: FxHashMap<Arc<str>, Selector>,
    /// Increases with every change of a slice.
    version: u64,
}

impl SelectorCache {
    /// A slice changed, or is gone.
    pub(super) fn forget_slice(&mut self, name: &str) {
        self.version += 1;
        for selector in self.selectors.values_mut() {
            Arc::make_mut(&mut selector.verdicts).by_slice.remove(name);
        }
    }

    /// The verdicts of a selector on all devices.
    ///
    /// # Errors
    /// Why the expression is not usable.
    pub(super) fn verdicts(
        &mut self,
        source: &Arc<str>,
        pools: &Pools,
    ) -> Result<Arc<Verdicts>, String> {
        if self.selectors.len() >= SELECTORS_MAX && !self.selectors.contains_key(source) {
            self.selectors.clear();
        }
        let selector = self.selectors.entry(Arc::clone(source)).or_insert_with(|| Selector {
            expression: Expression::compile(source),
            verdicts: Arc::default(),
            version: None,
        });
        let expression = selector.expression.as_ref().map_err(Clone::clone)?;
        if selector.version != Some(self.version) {
            let verdicts = Arc::make_mut(&mut selector.verdicts);
            let missing: Vec<&Slice> =
                pools.slices().filter(|it| !verdicts.by_slice.contains_key(&it.name)).collect();
            if !missing.is_empty() {
                let evaluate = |it: &&Slice| (Arc::clone(&it.name), evaluate(expression, it));
                let found = on_large_stack(|| missing.iter().map(evaluate).collect::<Vec<_>>())?;
                verdicts.by_slice.extend(found);
            }
            selector.version = Some(self.version);
        }
        Ok(Arc::clone(&selector.verdicts))
    }
}

fn evaluate(expression: &Expression, slice: &Slice) -> Vec<Verdict> {
    let evaluate = |device: &super::objects::Device| {
        let variable = DeviceVariable::new(&device.id.pool.driver, &device.device);
        let result = variable.and_then(|variable| expression.matches(variable));
        match result {
            Ok(true) => Verdict::Matches,
            Ok(false) => Verdict::Differs,
            Err(why) => Verdict::Failed(why.into()),
        }
    };
    slice.devices.iter().map(evaluate).collect()
}
