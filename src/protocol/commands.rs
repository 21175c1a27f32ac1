//! Requests as Redis commands, and Redis' replies as [`Reply`]s: selects the operation's module, and decides which requests may
//! share a command.

use std::borrow::{Borrow, Cow};
use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::params::{RequestStamp, RequestTime};
use super::release::ScriptArgs;
use super::reply::{Reply, Unreachable, UnreachableKind};
use super::reply_reader::{Malformed, malformed};
use super::request::Request;
pub use super::script::{Command, ScriptContext, ScriptRef, marker_fingerprint};
use super::script::{CommandBuilder, EncodedRequest, NodeScript};
use super::{
    acquire, acquire_set, acquire_shared, admin, delete_foreign, downgrade, fill, index, inspect, intent, kept, list,
    read_all, release, rename, restore, revoke, ticket, ticket_exchange, update, view_change, waiters,
};

/// The maximum number of requests that one command carries: such a command occupies the node for some 200 microseconds.
pub const BATCH_MAX: usize = 32;

/// Which requests may share a command: successive requests of one kind about different resources. The script decides each as if
/// it were the only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchKind {
    /// Acquires of one exclusive lease each.
    Acquire,
    /// Releases and cancels.
    Release,
}

impl BatchKind {
    fn script(self) -> &'static NodeScript {
        match self {
            Self::Acquire => &acquire::SCRIPT,
            Self::Release => &release::SCRIPT,
        }
    }
}

/// The kind of batch that a request may be part of, if any.
pub fn batch_kind(request: &Request) -> Option<BatchKind> {
    match request {
        Request::Acquire(_) => Some(BatchKind::Acquire),
        Request::Release(_) | Request::Cancel(_) => Some(BatchKind::Release),
        _ => None,
    }
}

/// Every script, for loading on a new connection.
pub fn all_scripts() -> [&'static NodeScript; 22] {
    [
        &acquire::SCRIPT,
        &acquire_shared::SCRIPT,
        &downgrade::SCRIPT,
        &intent::SCRIPT,
        &acquire_set::SCRIPT,
        &update::SCRIPT,
        &restore::SCRIPT,
        &inspect::SCRIPT,
        &admin::SCRIPT,
        &view_change::SCRIPT,
        &release::SCRIPT,
        &revoke::SCRIPT,
        &delete_foreign::SCRIPT,
        &list::SCRIPT,
        &index::SCRIPT,
        &kept::SCRIPT,
        &waiters::SCRIPT,
        &ticket::SCRIPT,
        &ticket_exchange::SCRIPT,
        &read_all::SCRIPT,
        &fill::SCRIPT,
        &rename::SCRIPT,
    ]
}

/// The command for a request.
pub fn build(context: &ScriptContext<'_>, sent_at: RequestTime, request: &Request, script_ref: ScriptRef) -> Command {
    build_batch(context, &[(sent_at, request)], script_ref)
}

/// The command for several requests of one [`batch_kind`], each with its time of sending, or for one request of any other kind.
/// An empty batch gives an empty command.
pub fn build_batch(context: &ScriptContext<'_>, batch: &[(RequestTime, &Request)], script_ref: ScriptRef) -> Command {
    let Some(&(sent_at, request)) = batch.first() else { return Command::default() };
    if let Some(kind) = batch_kind(request) {
        let encoded = batch.iter().filter_map(|(sent_at, request)| encode(context, *sent_at, request));
        let encoded: Vec<EncodedRequest> = encoded.collect();
        let arguments = Arguments::of(kind, &encoded);
        let builder = CommandBuilder::new(kind.script(), script_ref, arguments.keys, encoded.len());
        return join(builder, context, arguments.form, &encoded).build();
    }
    match request {
        // They have a kind.
        Request::Acquire(_) | Request::Cancel(_) | Request::Release(_) => Command::default(),
        Request::AcquireShared(args) => acquire_shared::build(context, sent_at, args, script_ref),
        Request::Downgrade(args) => downgrade::build(context, sent_at, args, script_ref),
        Request::Intent(args) => intent::build(args, script_ref),
        Request::AcquireSet(args) => acquire_set::build(context, sent_at, args, script_ref),
        Request::Update(args) => update::build(context, sent_at, args, script_ref),
        Request::Restore(args) => restore::build(context, sent_at, args, script_ref),
        Request::Revoke(args) => revoke::build(context, args, script_ref),
        Request::DeleteForeign(args) => delete_foreign::build(context, args, script_ref),
        Request::Inspect { resource } => inspect::build(context, sent_at, resource, script_ref),
        Request::List(args) => list::build(context, args, script_ref),
        Request::Index(args) => index::build(context, args, script_ref),
        Request::Kept(args) => kept::build(context, args, script_ref),
        Request::Waiters(args) => waiters::build(args, script_ref),
        Request::Ticket(args) => ticket::build(context, sent_at, args, script_ref),
        Request::Tickets(args) => ticket_exchange::build(args, script_ref),
        Request::Read(args) => read_all::build(context, sent_at, args, script_ref),
        Request::Fill(args) => fill::build(context, sent_at, args, script_ref),
        Request::Rename(args) => rename::build(context, sent_at, args, script_ref),
        Request::Probe(_) | Request::Init { .. } | Request::Quarantine { .. } => {
            admin::build(context, sent_at, request, script_ref)
        }
        Request::Promise { .. } | Request::Install { .. } | Request::Admit(_) => {
            view_change::build(context, sent_at, request, script_ref)
        }
    }
}

/// A request that has a [`batch_kind`], encoded; `None` for any other.
pub(super) fn encode(context: &ScriptContext<'_>, sent_at: RequestTime, request: &Request) -> Option<EncodedRequest> {
    match request {
        Request::Acquire(args) => Some(acquire::encode(context, sent_at, args)),
        Request::Release(args) => Some(release::encode(context, &ScriptArgs::release(args))),
        Request::Cancel(args) => Some(release::encode(context, &ScriptArgs::cancel(args, context.params))),
        _ => None,
    }
}

/// Appends the complete command for requests of one kind; they are encoded where no other node of their round has.
pub fn write_batch<'a>(
    out: &mut Vec<u8>,
    context: &ScriptContext<'_>,
    kind: BatchKind,
    batch: impl ExactSizeIterator<Item = (&'a RequestStamp, &'a Arc<Request>)>,
    script_ref: ScriptRef,
) {
    let mut encoded: Vec<Cow<'_, EncodedRequest>> = Vec::with_capacity(batch.len());
    encoded.extend(batch.filter_map(|(stamp, request)| stamp.encoded(context, request)));
    let arguments = Arguments::of(kind, &encoded);
    let length: usize = encoded.iter().map(|request| request.len()).sum();
    let words = 3 + arguments.keys + arguments.count;
    let mut bytes = std::mem::take(out);
    bytes.reserve(CommandBuilder::BYTES + length);
    bytes.push(b'*');
    bytes.extend_from_slice(itoa::Buffer::new().format(words).as_bytes());
    let builder = CommandBuilder::onto(bytes, kind.script(), script_ref, arguments.keys);
    let command = join(builder, context, arguments.form, &encoded).build();
    debug_assert_eq!(command.words(), words);
    *out = command.into_bytes();
    out.extend_from_slice(b"\r\n");
}

/// How the requests of a batch have their arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArgumentForm {
    /// Those of the marker, then those of each request.
    WithMarker,
    /// Releases for one reason, which is the only argument.
    OneReason,
    /// Two for each: a release has an empty one before its reason.
    Pairs,
}

/// What the first words of a command say of its requests.
struct Arguments {
    form: ArgumentForm,
    keys: usize,
    count: usize,
}

impl Arguments {
    fn of(kind: BatchKind, batch: &[impl Borrow<EncodedRequest>]) -> Self {
        let (mut keys, mut count, mut is_one_reason) = (0, 0, true);
        let first = batch.first().map_or(&[][..], |request| request.borrow().args());
        for request in batch.iter().map(Borrow::borrow) {
            let (of_keys, of_args) = request.counts();
            (keys, count) = (keys + of_keys, count + of_args);
            is_one_reason &= of_args == 1 && request.args() == first;
        }
        let (form, count) = match kind {
            BatchKind::Acquire => (ArgumentForm::WithMarker, 5 + count),
            BatchKind::Release if is_one_reason => (ArgumentForm::OneReason, 1),
            BatchKind::Release => (ArgumentForm::Pairs, 2 * batch.len()),
        };
        Self { form, keys, count }
    }
}

/// Adds keys and arguments of these requests.
fn join(
    mut command: CommandBuilder,
    context: &ScriptContext<'_>,
    form: ArgumentForm,
    batch: &[impl Borrow<EncodedRequest>],
) -> CommandBuilder {
    batch.iter().for_each(|request| command.encoded_keys(request.borrow()));
    if form == ArgumentForm::WithMarker {
        let is_again = batch.iter().any(|request| request.borrow().is_again);
        command.shared_marker_args(context).names(context.template, is_again);
    }
    let those_with_args = if form == ArgumentForm::OneReason { 1 } else { batch.len() };
    for request in batch.iter().take(those_with_args).map(Borrow::borrow) {
        if form == ArgumentForm::Pairs && request.counts().1 == 1 {
            command.text("");
        }
        command.encoded_args(request);
    }
    command
}

/// Reads the reply to `request`, which was sent alone.
///
/// Errors: [`UnreachableKind::Protocol`] if it is malformed.
pub fn parse(request: &Request, value: &Value) -> Result<Reply, Unreachable> {
    parse_in_batch(1, 0, request, value)
}

/// Reads the reply to `request`, the one at `index` in a command of `count`.
///
/// Errors: [`UnreachableKind::Protocol`] if it is malformed.
pub fn parse_in_batch(count: usize, index: usize, request: &Request, value: &Value) -> Result<Reply, Unreachable> {
    let reply = match (batch_kind(request), value) {
        (None, value) => parse_one(request, value),
        (Some(_), Value::Array(items)) if items.len() == count => {
            items.get(index).map_or_else(|| malformed("is missing"), |item| parse_one(request, item))
        }
        (Some(_), Value::Array(items)) => malformed(format!("is for {} requests instead of {count}", items.len())),
        (Some(_), Value::BulkString(_)) if count == 1 => parse_one(request, value), // a list is slow to make
        (Some(_), _) => malformed("is not a list"),
    };
    reply.map_err(|Malformed(problem)| {
        Unreachable::new(UnreachableKind::Protocol, format!("{}: the reply {problem}", request.operation()))
    })
}

fn parse_one(request: &Request, value: &Value) -> Result<Reply, Malformed> {
    match request {
        Request::Acquire(_) => acquire::parse(value),
        Request::AcquireShared(_) => acquire_shared::parse(value),
        Request::Downgrade(_) => downgrade::parse(value),
        Request::Intent(_) => intent::parse(value),
        Request::AcquireSet(args) => acquire_set::parse(args, value),
        Request::Update(_) => update::parse(value),
        Request::Restore(_) => restore::parse(value),
        Request::Cancel(_) | Request::Release(_) => release::parse(value),
        Request::Revoke(_) => revoke::parse(value),
        Request::DeleteForeign(_) => delete_foreign::parse(value),
        Request::Inspect { .. } => inspect::parse(value),
        Request::List(_) => list::parse(value),
        Request::Index(_) => index::parse(value),
        Request::Kept(_) => kept::parse(value),
        Request::Waiters(_) => waiters::parse(value),
        Request::Ticket(_) => ticket::parse(value),
        Request::Tickets(args) => ticket_exchange::parse(args, value),
        Request::Read(_) => read_all::parse(value),
        Request::Fill(_) => fill::parse(value),
        Request::Rename(_) => rename::parse(value),
        Request::Probe(_) | Request::Init { .. } | Request::Quarantine { .. } => admin::parse(value),
        Request::Promise { .. } | Request::Install { .. } | Request::Admit(_) => view_change::parse(value),
    }
}

#[cfg(test)]
#[path = "commands_tests.rs"]
mod tests;
