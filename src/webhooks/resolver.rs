//! Resolves the name of a receiver for one connection, and filters its addresses by what the target allows. The check
//! is made here, not earlier, since a name may resolve to another address a moment later (DNS rebinding).

use std::io;
use std::net::IpAddr;

use futures_util::future::BoxFuture;

use super::allowed_addresses::{self, AddressPolicy, Refused};

/// Maximum number of addresses that are considered for one name.
const ADDRESSES_MAX: usize = 64;

/// Looks up names. Tests have their own name server.
pub trait Lookup: Send + Sync + 'static {
    /// The addresses of a name.
    ///
    /// Errors: those of the lookup.
    fn lookup(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The machine's resolver.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|found| found.ip()).collect()) })
    }
}

/// No address of the name is allowed for its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.0)]
pub struct AddressRefused(pub Refused);

/// The allowed addresses. Errors: the rule that refused the first address, if no address is left.
pub(super) fn allowed(found: &[IpAddr], policy: AddressPolicy) -> Result<Vec<IpAddr>, AddressRefused> {
    let mut refused = None;
    let mut allowed = Vec::new();
    for ip in found.iter().take(ADDRESSES_MAX) {
        match allowed_addresses::check(*ip, policy) {
            Ok(()) => allowed.push(*ip),
            Err(rule) => _ = refused.get_or_insert(rule),
        }
    }
    match (allowed.is_empty(), refused) {
        (true, Some(rule)) => Err(AddressRefused(rule)),
        _ => Ok(allowed),
    }
}
