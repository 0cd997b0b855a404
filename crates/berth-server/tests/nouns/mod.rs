//! Each noun of the API: what it takes, what it refuses, and what tenants see of it.

mod access;
mod defaults;
mod facts;
mod groups;
mod limits;
mod node_states;
mod policies;
mod volumes;
mod workloads;
