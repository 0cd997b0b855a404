//! The service of Berth: the HTTP API, who may use it, the claim path behind it, and the loops
//! beside it.
//!
//! A request goes from `http` (read, signed in, allowed) to `placement` (whose, which ids), to
//! `placer` (planned on the fleet in memory, claimed in the ledger, planned again when others were
//! faster) and back. Readers ask the `catalog`, streams the `feed`.

pub mod access;
pub mod catalog;
pub mod config;
pub mod debug;
pub mod drain;
pub mod elastic;
pub mod evacuation;
pub mod feed;
mod housekeeping;
pub mod http;
pub mod metrics;
pub mod migrations;
mod mirror;
mod pages;
pub mod placement;
mod placer;
mod policy_effects;
pub mod policy_file;
pub mod queue;
pub mod rebalance;
pub mod relief;
mod replay;
mod seats;
pub mod serve;
pub mod service;
pub mod telemetry;
pub mod volume_moves;
pub mod wire;
pub mod workloads;

pub use access::{Caller, Scope, TokenError, TokenRecord};
pub use housekeeping::{Chores, Housekeeper};
pub use http::{Access, ApiError, HttpLimits, ROUTES, openapi, router};
pub use mirror::Mirror;
pub use placer::{
    Actor, Clock, Granted, MoveAnswer, MoveRequest, PlaceAnswer, PlaceJob, PlaceRequest, Placer,
    PlacerOptions, WantedSeat,
};
pub use replay::replay;
