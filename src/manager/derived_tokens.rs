//! Leases of protocols whose clients send no secret (Terraform). The token is derived from the lock's ID in that protocol and
//! from the principal, so only that principal can end the lease by the ID.

use super::acquire::principal_tag;
use super::service::LockManager;
use super::types::NoQuorum;
use crate::auth::principal::Principal;
use crate::redlock::clock::Clock;
use crate::redlock::inspect::ResourceState;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::{ResourceName, Token};

/// How a protocol names its locks.
#[derive(Debug, Clone, Copy)]
pub struct Naming {
    /// Distinguishes the tokens of this protocol from those of others.
    pub protocol: &'static str,
    /// The member of the metadata that has the name.
    pub member: &'static str,
}

/// The holder of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DerivedHolder {
    /// No lease has a quorum.
    Nobody,
    /// A lease with the client's own token, several leases, or another Redlock client.
    Other,
    /// A lease with a derived token.
    Lease {
        /// The name that the protocol gave the lock.
        name: String,
        /// Whether the same principal acquired it. Without authentication every caller counts as that principal.
        is_own: bool,
        /// The ETag of the lease.
        etag: String,
    },
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// The token of this principal's lock with this name.
    pub fn derived_token(&self, naming: Naming, principal: Option<&Principal>, name: &str) -> Token {
        Token::derived(naming.protocol, &principal_tag(&self.engine().settings.params.cluster.get(), principal), name)
    }

    /// The holder of the resource. Metadata that a client chose make no derived lease: the token must derive from them.
    ///
    /// Errors: too few nodes answered. Cancel: nothing is left behind.
    pub async fn derived_holder(
        &self,
        resource: &ResourceName,
        naming: Naming,
        principal: Option<&Principal>,
    ) -> Result<DerivedHolder, NoQuorum> {
        let view = self.engine().inspect(resource).await;
        let view = view.map_err(|answers| self.no_quorum(0, self.engine().outcomes(&answers)))?;
        let record = match &view.state {
            ResourceState::Free => return Ok(DerivedHolder::Nobody),
            ResourceState::Lease { record, .. } => record,
            ResourceState::Members(_) | ResourceState::Foreign { .. } => return Ok(DerivedHolder::Other),
        };
        let mut labels = record.labels();
        let name = labels.metadata.remove(naming.member).unwrap_or_default();
        if Token::derived(naming.protocol, &labels.principal, &name).hash() != record.token {
            let agreement = view.agreement(&record.token, self.engine().quorum());
            return match agreement.is_none_or(|agreement| agreement.may_be_written()) {
                true => Ok(DerivedHolder::Other),
                false => Err(self.no_quorum(0, self.engine().outcomes(&view.answers))),
            };
        }
        let is_own = labels.principal == principal_tag(&self.engine().settings.params.cluster.get(), principal);
        Ok(DerivedHolder::Lease { name, is_own, etag: record.fence.to_string() })
    }
}
