//! The scripts as Redis commands: how a command names its script, the common arguments of scripts, and the builder of keys and
//! arguments.

use std::time::Duration;

use deadpool_redis::redis::{Cmd, Script};

use super::keys::KeyTemplate;
use super::params::{ClusterParams, RequestTime};
use super::view::ViewId;

/// The maximum lifetime that is sent to a node, 34 years (2^40 ms, as [`crate::types::Ttl`]): a longer one would overflow the
/// node's own sum.
pub(super) const LIFETIME_MAX_MS: u64 = 1 << 40;

/// A script and its SHA-1, which identifies it in Redis.
#[derive(Debug)]
pub struct NodeScript {
    body: &'static str,
    sha: String,
    /// The first words of a command that names the script by its SHA-1.
    by_sha: Command,
}

impl NodeScript {
    pub(super) fn new(body: &'static str) -> Self {
        let (sha, mut by_sha) = (Script::new(body).get_hash().to_owned(), Command::default());
        by_sha.word(&[b"EVALSHA"]);
        by_sha.word(&[sha.as_bytes()]);
        Self { body, sha, by_sha }
    }

    /// The command that loads the script.
    pub fn load(&self) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("SCRIPT").arg("LOAD").arg(self.body);
        cmd
    }

    /// The script's SHA-1 in hex.
    pub fn sha(&self) -> &str {
        &self.sha
    }

    #[cfg(test)]
    pub(super) fn body(&self) -> &'static str {
        self.body
    }
}

/// Declares the script of an operation from its Lua files, one after the other; `with_marker` puts `marker.lua` and `vote.lua`
/// before them.
macro_rules! node_script {
    ($($file:literal),+) => {
        pub(super) static SCRIPT: std::sync::LazyLock<crate::protocol::script::NodeScript> =
            std::sync::LazyLock::new(|| crate::protocol::script::NodeScript::new(concat!($(include_str!($file)),+)));
    };
    (with_marker $($file:literal),+) => {
        pub(super) static SCRIPT: std::sync::LazyLock<crate::protocol::script::NodeScript> =
            std::sync::LazyLock::new(|| {
                crate::protocol::script::NodeScript::new(concat!(
                    include_str!("../marker.lua"),
                    include_str!("../vote.lua"),
                    $(include_str!($file)),+
                ))
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

/// The data that scripts receive besides the request.
#[derive(Debug, Clone, Copy)]
pub struct ScriptContext<'a> {
    /// The parameters on which all instances agree.
    pub params: &'a ClusterParams,
    /// Names of lock keys.
    pub template: &'a KeyTemplate,
    /// A script compares it with the node's marker, see [`marker_fingerprint`].
    pub marker_fingerprint: &'a str,
}

/// The data that a script compares with the marker of a voting node: the process that got the vote, and the cluster, in one text,
/// so that the common case is one comparison; then the view in which the vote counts, and the quarantine that this instance's
/// longest lease needs. `run` is the process to which the connection is bound, see
/// [`NodeStatus::run`](super::reply::NodeStatus::run); if it is empty, each script reads it itself.
pub fn marker_fingerprint(params: &ClusterParams, run: &str, view: ViewId) -> String {
    format!("{run}|{}|{view}|{}", params.cluster.get(), millis(params.quarantine))
}

/// Whole milliseconds in the range that a node can add up.
pub(super) fn millis(period: Duration) -> u64 {
    u64::try_from(period.as_millis()).unwrap_or(u64::MAX).clamp(1, LIFETIME_MAX_MS)
}

/// A command, encoded for the wire except for its first line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Command {
    words: usize,
    /// `\r\n$LENGTH\r\nWORD` for each word.
    bytes: Vec<u8>,
}

impl Command {
    /// Appends the complete command. Source: the Redis serialization protocol, arrays of bulk strings.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.bytes.len() + 16);
        out.push(b'*');
        out.extend_from_slice(itoa::Buffer::new().format(self.words).as_bytes());
        out.extend_from_slice(&self.bytes);
        out.extend_from_slice(b"\r\n");
    }

    pub(super) fn words(&self) -> usize {
        self.words
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The command's words, for the driver.
    pub fn to_cmd(&self) -> Cmd {
        let (mut cmd, mut rest) = (Cmd::new(), self.bytes.as_slice());
        while let Some(line) = rest.strip_prefix(b"\r\n$") {
            let end = line.iter().position(|byte| *byte == b'\r').unwrap_or(line.len());
            let digits = std::str::from_utf8(&line[..end]).unwrap_or_default();
            let (begin, length) = (end + 2, digits.parse::<usize>().unwrap_or_default());
            cmd.arg(&line[begin..begin + length]);
            rest = &line[begin + length..];
        }
        cmd
    }

    fn word(&mut self, parts: &[&[u8]]) {
        self.words += 1;
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.bytes.reserve(length + 28);
        // A command has dozens of words, most of them short: formatting each length would take most of the time.
        let digit = |divisor: usize| b'0' + (length / divisor % 10) as u8;
        match length {
            0..=9 => self.bytes.extend_from_slice(&[b'\r', b'\n', b'$', digit(1), b'\r', b'\n']),
            10..=99 => self.bytes.extend_from_slice(&[b'\r', b'\n', b'$', digit(10), digit(1), b'\r', b'\n']),
            _ => {
                self.bytes.extend_from_slice(b"\r\n$");
                self.bytes.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
                self.bytes.extend_from_slice(b"\r\n");
            }
        }
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
    }
}

/// Keys and arguments of one request of several that may share a command: all but what these share.
#[derive(Debug, Clone)]
pub(super) struct EncodedRequest {
    words: Command,
    /// How many of the words, and of the bytes, are keys.
    keys: (usize, usize),
    /// Of an acquire: see [`super::acquire::TokenUse`].
    pub(super) is_again: bool,
}

impl EncodedRequest {
    /// Keys, then arguments.
    pub(super) fn new(keys: impl FnOnce(&mut CommandBuilder), args: impl FnOnce(&mut CommandBuilder)) -> Self {
        let mut builder = CommandBuilder(Command { words: 0, bytes: Vec::with_capacity(CommandBuilder::BYTES_EACH) });
        keys(&mut builder);
        let keys = (builder.0.words, builder.0.bytes.len());
        args(&mut builder);
        Self { words: builder.0, keys, is_again: false }
    }

    /// The number of keys, and of arguments.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.keys.0, self.words.words - self.keys.0)
    }

    /// The encoded arguments.
    pub(super) fn args(&self) -> &[u8] {
        &self.words.bytes[self.keys.1..]
    }

    /// The length of all words.
    pub(super) fn len(&self) -> usize {
        self.words.bytes.len()
    }
}

/// Builds a command: the script, its keys, its arguments.
pub(super) struct CommandBuilder(Command);

impl CommandBuilder {
    /// Capacity for acquires with usual names, so that the command does not reallocate.
    pub(super) const BYTES: usize = 320;
    const BYTES_EACH: usize = 720;

    /// A command with `keys` keys for `requests` requests.
    pub(super) fn new(script: &'static NodeScript, script_ref: ScriptRef, keys: usize, requests: usize) -> Self {
        Self::onto(Vec::with_capacity(Self::BYTES + Self::BYTES_EACH * requests), script, script_ref, keys)
    }

    /// As [`Self::new`], behind these bytes.
    pub(super) fn onto(bytes: Vec<u8>, script: &'static NodeScript, script_ref: ScriptRef, keys: usize) -> Self {
        let mut builder = Self(Command { words: 0, bytes });
        match script_ref {
            ScriptRef::Hash => builder.append(script.by_sha.words, &script.by_sha.bytes),
            ScriptRef::Body => {
                builder.text("EVAL").text(script.body);
            }
        }
        builder.number(keys as u64);
        builder
    }

    pub(super) fn keys<const N: usize>(&mut self, keys: [&str; N]) -> &mut Self {
        for key in keys {
            self.text(key);
        }
        self
    }

    /// The keys of a request that were encoded before.
    pub(super) fn encoded_keys(&mut self, request: &EncodedRequest) {
        let (words, bytes) = request.keys;
        self.append(words, &request.words.bytes[..bytes]);
    }

    /// The arguments of a request that were encoded before.
    pub(super) fn encoded_args(&mut self, request: &EncodedRequest) {
        let (words, bytes) = request.keys;
        self.append(request.words.words - words, &request.words.bytes[bytes..]);
    }

    fn append(&mut self, words: usize, bytes: &[u8]) {
        self.0.words += words;
        self.0.bytes.extend_from_slice(bytes);
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    /// One key or argument of several parts.
    pub(super) fn joined<const N: usize>(&mut self, parts: [&str; N]) -> &mut Self {
        self.0.word(&parts.map(str::as_bytes));
        self
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.word(&[bytes]);
        self
    }

    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        self.bytes(itoa::Buffer::new().format(number).as_bytes())
    }

    /// The first arguments of every script that begins with `marker.lua`.
    pub(super) fn marker_args(&mut self, context: &ScriptContext<'_>, sent_at: RequestTime) -> &mut Self {
        self.text(context.marker_fingerprint).periods(context.params).number(sent_at.0)
    }

    /// The arguments of [`Self::marker_args`] that all requests of a batch share, in the order of `plain.lua`: the quarantine, which
    /// a voting node compares alone, has its own.
    pub(super) fn shared_marker_args(&mut self, context: &ScriptContext<'_>) -> &mut Self {
        let (pass, ask) = context.marker_fingerprint.rsplit_once('|').unwrap_or((context.marker_fingerprint, ""));
        self.text(pass).periods(context.params).text(ask)
    }

    /// The last of the arguments that acquires of a batch share.
    pub(super) fn names(&mut self, template: &KeyTemplate, is_again: bool) -> &mut Self {
        match (template.head().len(), template.tail().len()) {
            (0, 0) if !is_again => self.text(""),
            (head, tail) => self.text(&format!("{} {head} {tail}", u8::from(is_again))),
        }
    }

    fn periods(&mut self, params: &ClusterParams) -> &mut Self {
        self.number(u64::try_from(params.guard.as_micros()).unwrap_or(u64::MAX).min(LIFETIME_MAX_MS));
        self.number(millis(params.fence_ttl))
    }

    pub(super) fn build(self) -> Command {
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

    #[test]
    fn commands_are_encoded_as_the_driver_encodes_them() {
        static EMPTY: std::sync::LazyLock<NodeScript> = std::sync::LazyLock::new(|| NodeScript::new(""));
        let mut command = CommandBuilder::new(&EMPTY, ScriptRef::Hash, 12, 1);
        command.keys(["", "a"]).joined(["b", "", "\r\n"]).number(0).number(u64::MAX).bytes(&[255; 100]);
        command.bytes(&[1; 9]).bytes(&[2; 10]).bytes(b"$1\r\n*2\r\n").bytes(&[3; 99]).bytes(&[4; 1_000]);
        let command = command.build();
        let mut cmd = Cmd::new();
        cmd.arg("EVALSHA").arg(EMPTY.sha()).arg(12).arg("").arg("a").arg("b\r\n");
        cmd.arg(0).arg(u64::MAX).arg(&[255_u8; 100]);
        cmd.arg(&[1_u8; 9]).arg(&[2_u8; 10]).arg(b"$1\r\n*2\r\n").arg(&[3_u8; 99]).arg(&[4_u8; 1_000]);
        let mut written = b"before".to_vec();
        command.write_to(&mut written);
        assert_eq!(written, [&b"before"[..], &cmd.get_packed_command()].concat());
        assert_eq!(command.to_cmd().get_packed_command(), cmd.get_packed_command());
    }
}
