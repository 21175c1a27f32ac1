//! The safety bugs of other Redlock clients, T01 to T39, as tests of this service, with real servers behind a proxy that
//! causes network faults. `docs/cases.md` names the test of each case; [`table`] checks that table.

mod extend;
mod partial_locks;
mod quorum_and_validity;
mod release_and_identity;
mod table;
