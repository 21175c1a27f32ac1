//! Nodes: where locks are stored. Redis masters, or nodes embedded in this process; both implement
//! [`crate::redlock::node::Node`] with the same meaning.

pub mod any_node;
pub mod call_observer;
pub mod embedded;
pub mod redis;
