//! What all commands share: values of flags, the connection to a server, output, and failures.
//!
//! It knows no command. Commands import from here by name, never from each other's files.

mod amount_fields;
pub(crate) mod args;
pub(crate) mod client_config;
mod data_error;
mod document;
mod failure;
pub(crate) mod file;
mod output;
mod printable;
mod private;
mod session;
mod suggest;
mod table;
mod text;

pub(crate) use amount_fields::{resolve_instance_units, resolve_node_units};
pub(crate) use data_error::from_value;
pub(crate) use failure::{CmdResult, EXIT_CODES, Exit, Failure, chain};
pub(crate) use output::{Format, NonInteractive, Output, confirm, style};
pub(crate) use private::{create_private_dir, create_private_file, write_private_file};
pub(crate) use session::{
    Global, Query, RawJson, Session, concurrently, decode, decode_all, partition, query_params,
};
pub(crate) use suggest::closest;
pub(crate) use table::{Cell, Column, Table, Tone, columns, pairs, shorten};
pub(crate) use text::{
    age, amounts, api_name, claim_state, cpu_usage, dash, key_values, node_state, now, or_dash,
    plural, ticket_state, timestamp, trait_flag, usage, workload_state,
};
