//! `berth demo`: a first look, in one process and without a server.

use clap::Args;

/// Options of `berth demo`.
#[derive(Args)]
pub(crate) struct Demo {}

impl Demo {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        Ok(())
    }
}
