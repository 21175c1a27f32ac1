//! Who may vote: which nodes get a vote back that they lost. Pure rules; the node monitor carries them out.

pub(super) mod admission;
