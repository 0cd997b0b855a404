//! The scheduler against an imitation of the API server.

mod binding;
mod drains;
mod faults;
mod gangs;
mod leadership;
mod preemption;
mod support;
mod telling;
mod volumes;
