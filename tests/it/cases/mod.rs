//! The safety bugs of other Redlock clients, T01 to T39, as tests of this service: against real
//! servers behind a network that misbehaves on command. `docs/cases.md` says where each of them is
//! tested, or why it does not apply; [`table`] holds it to that.

mod extend;
mod partial_locks;
mod quorum_and_validity;
mod release_and_identity;
mod table;
