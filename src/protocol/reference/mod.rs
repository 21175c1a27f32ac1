//! A node in Rust: the same keys, replies and effects as the scripts have on Redis, as a plain value that receives the time as an
//! argument. It runs as the embedded node and in the simulation; `tests/contract.rs` and its differential test compare it with
//! Redis.
//!
//! It differs on purpose in three points: pages of the list follow places instead of scores and `ZSCAN` cursors; an index entry
//! is removed with its lease instead of by a sweep; a node that knows its fences from another source (see
//! [`ReferenceNode::resume`]) needs no seed.

pub(in crate::protocol) mod blocks;
pub(in crate::protocol) mod disk;
pub(in crate::protocol) mod fences;
pub(in crate::protocol) mod locks;
pub(in crate::protocol) mod marker;
pub(in crate::protocol) mod memory;
pub(in crate::protocol) mod names;
mod node;
pub(in crate::protocol) mod shared_holders;
mod simulation;
pub(in crate::protocol) mod store;

pub use node::{EffectBound, KeyCounts, ReferenceNode, Resumed};
pub use simulation::{EvictedKey, ForeignValue};
