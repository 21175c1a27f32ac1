//! Call-backs and hooks end to end: what arrives, signed so that the packages of others verify it; what may be reached, and
//! that nothing else is; hooks of locks, nodes and the quorum.

mod alerts;
mod kills;
mod reach;
pub mod receiver;
mod service;
mod tickets;
mod verify;
