//! Call-backs and hooks: what may be sent where (`file`, `target`, `allowed_addresses`), how a message is written and signed
//! (`message`, `signing`), what is stored of an address (`sealing`), one try (`transport`, `connection`, `resolver`), and all
//! tries of a message (`deliveries` for call-backs, `hook_queue` for hooks; `try_slots` limits simultaneous tries, `under_way`
//! counts call-backs). `hooks` turns events into messages and sends them; `hook_status` has what operators see.

pub mod allowed_addresses;
pub mod connection;
pub mod deliveries;
pub mod event;
pub mod file;
mod file_fields;
mod hook_queue;
pub mod hook_status;
pub mod hooks;
pub mod message;
pub mod resolver;
pub mod sealing;
pub mod signing;
pub mod target;
pub mod transport;
mod try_slots;
mod under_way;

use std::path::Path;
use std::sync::Arc;

use crate::redlock::clock::SystemClock;
use crate::redlock::random::SystemEntropy;

/// Call-backs and hooks of the service.
pub type ServiceWebhooks = hooks::Webhooks<SystemClock, SystemEntropy, transport::HttpTransport>;

impl ServiceWebhooks {
    /// Without a file: there are no targets, and no call-back is allowed.
    pub fn none() -> Self {
        let parts = (SystemClock, SystemEntropy, transport::HttpTransport);
        let lookup = Arc::new(resolver::SystemLookup);
        Self::without_file(parts, lookup, Box::new(|_, _, _| {}))
    }
}

/// Reads a file as the service would, to check the file. Blocks on the disk.
///
/// Errors: [`file::WebhooksFileError`].
pub fn check(path: &Path) -> Result<(), file::WebhooksFileError> {
    let lookup: Arc<dyn resolver::Lookup> = Arc::new(resolver::SystemLookup);
    file::read(path, &lookup).map(drop)
}
