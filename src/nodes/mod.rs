//! Nodes: where locks are stored. Redis masters, or nodes embedded in this process; both implement
//! [`crate::redlock::node::Node`] with the same meaning.

pub mod any;
pub mod embedded;
pub mod observer;
pub mod redis;
