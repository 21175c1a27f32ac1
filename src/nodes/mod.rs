//! Nodes: where the locks are kept. Each kind implements [`crate::redlock::node::Node`] with the same
//! meaning; none knows of the others, of quorums, or of HTTP.

pub mod any;
pub mod embedded;
pub mod redis;
