//! The scripts as Redis commands: how a command names one, what each gets beside its request, and the builder of its keys and
//! arguments.

use std::time::Duration;

use deadpool_redis::redis::{Cmd, Script};

use super::keys::KeyTemplate;
use super::params::{ClusterParams, RequestTime};
use super::view::ViewId;

/// The longest lifetime that is sent to a node, 34 years (2^40 ms, as [`crate::types::Ttl`]): a longer one would overflow
/// the node's own sum.
pub(super) const LIFETIME_MAX_MS: u64 = 1 << 40;

/// A script and its SHA-1, by which Redis knows it.
#[derive(Debug)]
pub struct NodeScript {
    body: &'static str,
    sha: String,
}

impl NodeScript {
    pub(super) fn new(body: &'static str) -> Self {
        Self { body, sha: Script::new(body).get_hash().to_owned() }
    }

    /// The command that loads it.
    pub fn load(&self) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("SCRIPT").arg("LOAD").arg(self.body);
        cmd
    }

    /// Its SHA-1 in hex.
    pub fn sha(&self) -> &str {
        &self.sha
    }

    #[cfg(test)]
    pub(super) fn body(&self) -> &'static str {
        self.body
    }
}

/// Declares the script of an operation from its Lua file; `with_marker` puts `marker.lua` before it.
macro_rules! node_script {
    ($file:literal) => {
        pub(super) static SCRIPT: std::sync::LazyLock<crate::protocol::script::NodeScript> =
            std::sync::LazyLock::new(|| crate::protocol::script::NodeScript::new(include_str!($file)));
    };
    (with_marker $file:literal) => {
        pub(super) static SCRIPT: std::sync::LazyLock<crate::protocol::script::NodeScript> =
            std::sync::LazyLock::new(|| {
                crate::protocol::script::NodeScript::new(concat!(include_str!("../marker.lua"), include_str!($file)))
            });
    };
}
pub(super) use node_script;

/// How a command names its script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptRef {
    /// By its SHA-1: short, but the node must have loaded it.
    Hash,
    /// By its full text, which also loads it: used after the node replied `NOSCRIPT`.
    Body,
}

/// What scripts get beside the request.
#[derive(Debug, Clone, Copy)]
pub struct ScriptContext<'a> {
    /// What all instances agree on.
    pub params: &'a ClusterParams,
    /// Names of lock keys.
    pub template: &'a KeyTemplate,
    /// Compared with the node's marker, see [`marker_fingerprint`].
    pub marker_fingerprint: &'a str,
}

/// What a script compares with the marker of a node that votes: the process that got the vote, and the cluster, in one text,
/// so that the common case is one comparison; then the view in which the vote is to count, and the quarantine that this
/// instance's longest lease needs. `run` is the
/// process to which the connection is bound, see [`NodeStatus::run`](super::reply::NodeStatus::run); if it is empty, each
/// script reads it itself.
pub fn marker_fingerprint(params: &ClusterParams, run: &str, view: ViewId) -> String {
    format!("{run}|{}|{view}|{}", params.cluster, millis(params.quarantine))
}

/// Whole milliseconds in the range that a node can add up.
pub(super) fn millis(period: Duration) -> u64 {
    u64::try_from(period.as_millis()).unwrap_or(u64::MAX).clamp(1, LIFETIME_MAX_MS)
}

/// Builds a command: the script, its keys, its arguments.
pub(super) struct CommandBuilder(Cmd);

impl CommandBuilder {
    /// Capacity for acquires with usual names, so that the command does not reallocate.
    const ARGS: usize = 5;
    const ARGS_EACH: usize = 11;
    const BYTES: usize = 160;
    const BYTES_EACH: usize = 640;

    /// A command with `keys` keys for `requests` requests.
    pub(super) fn new(script: &'static NodeScript, script_ref: ScriptRef, keys: usize, requests: usize) -> Self {
        let args = Self::ARGS + Self::ARGS_EACH * requests;
        let mut cmd = Cmd::with_capacity(args, Self::BYTES + Self::BYTES_EACH * requests);
        match script_ref {
            ScriptRef::Hash => cmd.arg("EVALSHA").arg(script.sha.as_str()),
            ScriptRef::Body => cmd.arg("EVAL").arg(script.body),
        };
        cmd.arg(keys);
        Self(cmd)
    }

    pub(super) fn keys<const N: usize>(&mut self, keys: [&str; N]) -> &mut Self {
        for key in keys {
            self.0.arg(key);
        }
        self
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.0.arg(text);
        self
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.arg(bytes);
        self
    }

    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        self.0.arg(number);
        self
    }

    /// The arguments with which every script that begins with `marker.lua` starts.
    pub(super) fn marker_args(&mut self, context: &ScriptContext<'_>, sent_at: RequestTime) -> &mut Self {
        self.shared_marker_args(context).number(sent_at.0)
    }

    /// Those of [`Self::marker_args`] that all requests of a batch share.
    pub(super) fn shared_marker_args(&mut self, context: &ScriptContext<'_>) -> &mut Self {
        let params = context.params;
        self.text(context.marker_fingerprint);
        self.number(u64::try_from(params.guard.as_micros()).unwrap_or(u64::MAX).min(LIFETIME_MAX_MS));
        self.number(millis(params.fence_ttl))
    }

    pub(super) fn build(self) -> Cmd {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_clamped_to_what_a_node_can_add() {
        assert_eq!(millis(Duration::MAX), LIFETIME_MAX_MS);
        assert_eq!(millis(Duration::ZERO), 1);
    }
}
