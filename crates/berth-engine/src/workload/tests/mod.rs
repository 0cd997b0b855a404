//! What `reconcile` promises, tried in a small world that does the steps.

mod handovers;
mod properties;
mod rollouts;
mod spot;
mod world;
