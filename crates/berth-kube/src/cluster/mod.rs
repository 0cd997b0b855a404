//! The cluster as the scheduler knows it, and where its pods go. Pure: no I/O, no clock.

pub mod budgets;
pub mod node;
pub mod outcome;
pub mod pod;
pub mod quantity;
pub mod resources;
pub mod selector;
pub mod volumes;
