//! The maximum number of connections that the limit of file descriptors allows.

/// File descriptors reserved for log, listener, runtime and files.
const FILES_KEPT_BACK: usize = 64;
/// File descriptors of one node: connections, a subscription, and their replacements.
const FILES_PER_NODE: usize = 36;

/// The number of connections that the file descriptors allow, at most `wanted`. Raises the soft limit to the hard one, and
/// reserves some for nodes, files and listeners.
pub(crate) fn connections_allowed(nodes: usize, wanted: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    let files = current.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let kept_back = FILES_KEPT_BACK.saturating_add(nodes.saturating_mul(FILES_PER_NODE));
    let allowed = files.saturating_sub(kept_back).max(1);
    if allowed < wanted {
        tracing::info!(
            connections = allowed,
            "the limit of open files (ulimit -n) allows fewer connections than max_connections ({wanted}): waiters have one each"
        );
    }
    allowed.min(wanted)
}
