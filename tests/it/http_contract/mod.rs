//! The HTTP contract against the running binary, with real sockets: who asks what gets which code,
//! headers and members, and what is then on the nodes.

mod hang_up;
mod input;
mod leases;
mod lifecycle;
mod list;
mod operators;
mod waiting;
