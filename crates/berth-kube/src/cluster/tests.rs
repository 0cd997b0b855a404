//! Scenarios of the rules, through `Cluster` alone.
