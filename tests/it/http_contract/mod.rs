//! The HTTP contract against the running binary, with real sockets: status codes, headers and members of
//! the answers, and the state of the nodes afterwards.

mod fences;
mod hang_up;
mod input;
mod leases;
mod lifecycle;
mod list;
mod operators;
mod waiting;
