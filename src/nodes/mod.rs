//! Nodes, which store the locks: Redis masters, or nodes embedded in this process. Both implement [`crate::redlock::node::Node`]
//! with the same meaning.

pub mod any_node;
pub mod call_observer;
pub mod embedded;
pub mod redis;
