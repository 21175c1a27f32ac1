//! Formats answers: tables for people, tab-separated or `key=value` lines for scripts. Control characters in external
//! text are escaped here.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};

use super::client_args::OutputArgs;
use crate::api;
use crate::client::answers::{ExtendAnswer, LeaseAnswer};
use crate::client::error::one_line;
use crate::config::Environment;

/// The format of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputFormat {
    /// The service's answer.
    Json,
    /// Lines for scripts: tab-separated, or `key=value`.
    Plain,
    /// For people, with colours or without.
    Human { colour: bool },
}

impl OutputFormat {
    /// The format that the options select; by default human-readable on a terminal, plain elsewhere.
    pub(super) fn of(args: OutputArgs, env: &impl Environment) -> Self {
        match args {
            OutputArgs { json: true, .. } => Self::Json,
            OutputArgs { plain: true, .. } => Self::Plain,
            _ if !io::stdout().is_terminal() => Self::Plain,
            _ => {
                let is_dumb = super::client_from_args::set(env, "TERM").is_none_or(|term| term == "dumb");
                Self::Human { colour: !is_dumb && super::client_from_args::set(env, "NO_COLOR").is_none() }
            }
        }
    }
}

/// `key=value` lines.
pub(super) fn pairs(pairs: &[(&str, String)]) -> String {
    pairs.iter().map(|(key, value)| format!("{key}={}", one_line(value))).collect::<Vec<_>>().join("\n")
}

/// One line per row, with tabs between the cells.
fn tabs(rows: &[Vec<String>]) -> String {
    rows.iter().map(|row| row.join("\t")).collect::<Vec<_>>().join("\n")
}

/// Columns under headings.
fn table(headings: &[&str], rows: &[Vec<String>], colour: bool) -> String {
    let width = |i: usize| {
        let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count());
        cells.chain(headings.get(i).map(|h| h.len())).max().unwrap_or(0)
    };
    let line = |cells: &[String]| {
        let padded = cells.iter().enumerate().map(|(i, cell)| {
            let fill = width(i).saturating_sub(cell.chars().count());
            format!("{cell}{}", " ".repeat(fill))
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let heading = line(&headings.iter().map(ToString::to_string).collect::<Vec<_>>());
    let heading = if colour { format!("\x1b[1m{heading}\x1b[0m") } else { heading };
    std::iter::once(heading).chain(rows.iter().map(|row| line(row))).collect::<Vec<_>>().join("\n")
}

/// Rows in a format other than JSON.
fn rows(form: OutputFormat, headings: &[&str], cells: &[Vec<String>]) -> String {
    match form {
        OutputFormat::Human { colour } => table(headings, cells, colour),
        _ => tabs(cells),
    }
}

/// The mode that is left out of the output.
const EXCLUSIVE: &str = "exclusive";
/// Targets and hooks.
pub(super) fn hooks(hooks: &api::Hooks, form: OutputFormat) -> String {
    let answer = |last: &Option<api::HookTry>| {
        last.as_ref().map(|last| one_line(&format!("{} at {}", last.answer, last.at))).unwrap_or_default()
    };
    let target =
        |t: &api::HookTarget| vec!["target".into(), t.name.clone(), t.origin.clone(), String::new(), answer(&t.last)];
    let hook = |h: &api::HookState| {
        vec!["hook".into(), h.name.clone(), h.state.clone(), h.queued.to_string(), answer(&h.last)]
    };
    let cells: Vec<_> = hooks.targets.iter().map(target).chain(hooks.hooks.iter().map(hook)).collect();
    rows(form, &["KIND", "NAME", "STATE", "WAITING", "LAST TRY"], &cells)
}

/// The members of a lease that are shown, in this order, if the answer has them.
const LEASE_KEYS: [&str; 10] =
    ["slot", "limit", "token_id", "fence", "owner", "note", "ttl_ms", "valid_for_ms", "kept_until", "expires_at"];

/// A lease; with its token if given.
fn lease(lease: &api::Lease, token: Option<&str>, form: OutputFormat) -> String {
    let members = serde_json::to_value(lease).expect("answers are plain data");
    let mut all = vec![("resource", lease.resource.clone())];
    all.extend((lease.mode != EXCLUSIVE).then(|| ("mode", lease.mode.clone())));
    all.extend(token.map(|token| ("token", token.to_owned())));
    all.extend(known(&members, &LEASE_KEYS));
    facts(&all, form)
}

/// A lease, or several, with their token if given.
pub(super) fn acquired(answer: &LeaseAnswer, token: Option<&str>, form: OutputFormat) -> String {
    let set = match answer {
        LeaseAnswer::One(one) => return lease(one, token, form),
        LeaseAnswer::Set(set) => set,
    };
    let each = set.leases.iter().flat_map(|one| [("resource", one.resource.clone()), ("fence", one.fence.to_string())]);
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let common = [
        ("token_id", set.token_id.clone()),
        ("owner", text(&set.owner)),
        ("note", text(&set.note)),
        ("ttl_ms", set.ttl_ms.to_string()),
        ("valid_for_ms", set.valid_for_ms.to_string()),
        ("expires_at", set.expires_at.clone()),
    ];
    let token = token.map(|token| ("token", token.to_owned()));
    facts(&each.chain(token).chain(common).collect::<Vec<_>>(), form)
}

/// The members of a ticket that are shown, in this order, if the answer has them.
const TICKET_KEYS: [&str; 12] = [
    "ended_by",
    "resource",
    "position",
    "token_id",
    "fence",
    "owner",
    "note",
    "made_at",
    "expires_at",
    "valid_for_ms",
    "kept_for_ms",
    "kept_until",
];

/// A ticket; with its token if given.
pub(super) fn ticket(ticket: &api::TicketStatus, token: Option<&str>, form: OutputFormat) -> String {
    let members = serde_json::to_value(ticket).expect("answers are plain data");
    let mut all = vec![("ticket", ticket.ticket.clone()), ("state", ticket.state.clone())];
    all.extend(token.map(|token| ("token", token.to_owned())));
    // For several locks, shown as a set once the fences are known.
    let names = ticket.resources.iter().flatten().filter(|_| ticket.leases.is_none());
    all.extend(names.map(|name| ("resource", name.clone())));
    let leases = ticket.leases.iter().flatten();
    all.extend(leases.flat_map(|one| [("resource", one.resource.clone()), ("fence", one.fence.to_string())]));
    all.extend(known(&members, &TICKET_KEYS));
    facts(&all, form)
}

/// These members of an answer, if it has them.
fn known(members: &serde_json::Value, keys: &[&'static str]) -> Vec<(&'static str, String)> {
    let of = |key: &&'static str| match members.get(key)? {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some((*key, text.clone())),
        other => Some((*key, other.to_string())),
    };
    keys.iter().filter_map(of).collect()
}

/// A lease after an extend, or several.
pub(super) fn extended(answer: &ExtendAnswer, form: OutputFormat) -> String {
    let set = match answer {
        ExtendAnswer::One(one) => return lease(one, None, form),
        ExtendAnswer::Set(set) => set,
    };
    let number = |number: Option<u64>| number.map(|n| n.to_string()).unwrap_or_default();
    let each = set.results.iter().flat_map(|one| [("resource", one.resource.clone()), ("fence", number(one.fence))]);
    facts(&each.chain([("valid_for_ms", number(set.valid_for_ms))]).collect::<Vec<_>>(), form)
}

/// `key=value` lines; for people two columns, without empty values, and with human-readable times.
fn facts(all: &[(&str, String)], form: OutputFormat) -> String {
    if !matches!(form, OutputFormat::Human { .. }) {
        return pairs(all);
    }
    let shown = all.iter().filter(|(_, value)| !value.is_empty() && value != "false").map(|(key, value)| {
        let name = key.trim_end_matches("_ms").replace('_', " ");
        let value = match value.parse() {
            Ok(ms) if key.ends_with("_ms") => left(ms),
            _ => one_line(value),
        };
        format!("{name:<FACT_WIDTH$}{value}")
    });
    shown.collect::<Vec<_>>().join("\n")
}

/// Width of the first column of [`facts`].
const FACT_WIDTH: usize = 13;

/// Labels of a lease, in the notation of the command line.
fn labels(metadata: &BTreeMap<String, String>) -> String {
    metadata.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ")
}

/// A human-readable duration: `59 s`, `4 m 59 s`, `2 h 5 m`; rounded down, so that it promises nothing.
fn left(ms: u64) -> String {
    match ms / 1_000 {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3_600 => format!("{} m {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} m", seconds / 3_600, seconds / 60 % 60),
    }
}

/// One lock with its holders, waiters and nodes.
pub(super) fn lock(lock: &api::LockDetails, form: OutputFormat) -> String {
    let mut all = vec![
        ("resource", lock.resource.clone()),
        ("state", lock.state.clone()),
        ("foreign", lock.foreign.to_string()),
        ("waiting", lock.waiting.to_string()),
        ("nodes", format!("{}/{}", lock.quorum.granted, lock.quorum.nodes)),
    ];
    if lock.mode != EXCLUSIVE {
        all.extend([("mode", lock.mode.clone()), ("holders", lock.holders.len().to_string())]);
    }
    all.extend(lock.limit.map(|limit| ("limit", limit.to_string())));
    all.extend(lock.free.map(|free| ("free", free.to_string())));
    if let Some(holder) = lock.holders.first() {
        all.extend([
            ("token_id", holder.token_id.clone()),
            ("owner", holder.owner.clone()),
            ("note", holder.note.clone()),
            ("fence", holder.fence.to_string()),
            ("acquired_at", holder.acquired_at.clone()),
            ("valid_for_ms", holder.valid_for_ms.unwrap_or_default().to_string()),
            ("renewals", holder.renewals.to_string()),
        ]);
        all.extend(holder.kept_until.clone().map(|until| ("kept_until", until)));
        all.extend((!holder.metadata.is_empty()).then(|| ("meta", labels(&holder.metadata))));
    }
    let head = facts(&all, form);
    let OutputFormat::Human { colour } = form else { return head };
    let nodes: Vec<Vec<String>> = lock
        .nodes
        .iter()
        .map(|n| {
            let holds = if n.foreign { Some("foreign".to_owned()) } else { n.holds.clone() };
            vec![one_line(&n.node), one_line(&n.state), holds.unwrap_or_default(), shown(n.ttl_ms)]
        })
        .collect();
    let waiters: Vec<Vec<String>> = lock
        .waiters
        .iter()
        .map(|w| vec![one_line(&w.instance), w.position.to_string(), one_line(&w.owner), w.waiting_ms.to_string()])
        .collect();
    let holders: Vec<Vec<String>> = lock
        .holders
        .iter()
        .map(|h| {
            vec![
                shown(h.slot),
                one_line(&h.owner),
                h.fence.to_string(),
                h.token_id.clone(),
                left(h.valid_for_ms.unwrap_or_default()),
            ]
        })
        .collect();
    let mut text = format!("{head}\n\n{}", table(&["NODE", "STATE", "HOLDS", "TTL ms"], &nodes, colour));
    if holders.len() > 1 {
        text.push_str(&format!("\n\n{}", table(&["SLOT", "HOLDER", "FENCE", "LEASE", "LEFT"], &holders, colour)));
    }
    if !waiters.is_empty() {
        text.push_str(&format!("\n\n{}", table(&["INSTANCE", "POSITION", "WAITER", "WAITING ms"], &waiters, colour)));
    }
    text
}

/// A list of locks: name, state, owner, milliseconds left, fence, waiters, note; for scripts also the age of the list.
pub(super) fn list(list: &api::List, form: OutputFormat) -> String {
    let is_human = matches!(form, OutputFormat::Human { .. });
    let cells: Vec<Vec<String>> = list
        .items
        .iter()
        .map(|item| {
            let holder = item.holders.first();
            let of = |read: fn(&api::Holder) -> String| holder.map(read).unwrap_or_default();
            let mut cells = vec![
                item.resource.clone(),
                item.state.clone(),
                of(|h| one_line(&h.owner)),
                holder
                    .and_then(|h| h.valid_for_ms)
                    .map(|ms| if is_human { left(ms) } else { ms.to_string() })
                    .unwrap_or_default(),
                of(|h| h.fence.to_string()),
                item.waiting.to_string(),
                of(|h| one_line(&h.note)),
            ];
            cells.extend((!is_human).then(|| list.age_ms.to_string()));
            cells
        })
        .collect();
    let text = rows(form, &["RESOURCE", "STATE", "OWNER", "LEFT", "FENCE", "WAITING", "NOTE"], &cells);
    match form {
        OutputFormat::Human { .. } => format!("{text}\n\nread from the nodes {} ms ago", list.age_ms),
        _ => text,
    }
}

/// The nodes: name, state, votes, latency, clock offset, reason; for people also findings.
pub(super) fn nodes(nodes: &api::Nodes, form: OutputFormat) -> String {
    let is_human = matches!(form, OutputFormat::Human { .. });
    let cells: Vec<Vec<String>> = nodes
        .nodes
        .iter()
        .map(|n| {
            let votes = if n.votes { "yes" } else { "no" };
            let mut row = vec![one_line(&n.node), one_line(&n.state), votes.to_owned(), shown(n.latency_us)];
            row.push(shown(n.clock_offset_ms));
            let why = one_line(n.why.as_deref().unwrap_or_default());
            row.push(if is_human && !n.votes { format!("{why}{}", times(n)) } else { why });
            row
        })
        .collect();
    let mut text = rows(form, &["NODE", "STATE", "VOTES", "LATENCY us", "CLOCK ms", "WHY"], &cells);
    if matches!(form, OutputFormat::Human { .. }) {
        for (node, finding) in nodes.nodes.iter().flat_map(|n| n.findings.iter().map(move |f| (n, f))) {
            text.push_str(&format!("\n{}: {}", one_line(&node.node), one_line(&finding.detail)));
        }
    }
    text
}

/// For how long a node has had no vote, and when it votes again, if known.
fn times(node: &api::NodeState) -> String {
    let since = format!("; for {} s", node.state_for_ms / 1_000);
    let votes_in = node.votes_in_ms.map(|left| format!(", votes in {} s", left.div_ceil(1_000)));
    since + &votes_in.unwrap_or_default()
}

/// One event, in one line: time, what, resource or node, owner, fence, token_id, reason.
pub(super) fn event(event: &api::Event, form: OutputFormat) -> String {
    let text = |value: &Option<String>| one_line(value.as_deref().unwrap_or_default());
    let time = event.at.clone().unwrap_or_else(|| event.at_ms.to_string());
    let subject = event.resource.as_ref().or(event.node.as_ref()).or(event.instance.as_ref());
    let subject = text(&subject.cloned());
    let cells = [text(&event.owner), shown(event.fence), text(&event.token_id), text(&event.reason)];
    let OutputFormat::Human { colour } = form else {
        let all: Vec<String> = [one_line(&time), one_line(&event.event), subject].into_iter().chain(cells).collect();
        return tabs(&[all]);
    };
    let [owner, fence, token_id, reason] = cells;
    // Only the time of day: the events are live.
    let clock = time.split_once('T').map_or(time.as_str(), |(_, rest)| rest.trim_end_matches('Z'));
    let word = format!("{:<11}", one_line(&event.event));
    let word = if colour { format!("\x1b[1m{word}\x1b[0m") } else { word };
    let mut line = format!("{}  {word}  {subject}", one_line(clock));
    let after = shown(event.after_ms.map(|ms| format!("{ms} ms")));
    let (principal, detail) = (text(&event.principal), text(&event.detail));
    let more = [("after", after), ("principal", principal), ("detail", detail), ("refused", shown(event.refused))];
    let known = [("by", owner), ("fence", fence), ("lease", token_id), ("reason", reason)];
    for (name, value) in known.into_iter().chain(more) {
        if !value.is_empty() {
            line.push_str(&format!("  {name} {value}"));
        }
    }
    line
}

/// A period whose events the answering instance does not know.
pub(super) fn gap(gap: &api::EventGap) -> String {
    let to = one_line(&gap.to);
    let when = match &gap.from {
        Some(from) => format!("from {} to {to}", one_line(from)),
        None => format!("before {to}"),
    };
    match gap.reason.as_str() {
        "cut-off" => format!("{when} no node passed anything on to the instance that answers"),
        _ => format!("{when} the instance that answers did not run"),
    }
}

fn shown<T: ToString>(value: Option<T>) -> String {
    value.map(|v| v.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_plain_lines_have_tabs() {
        let cells = vec![vec!["a".to_owned(), "long cell".to_owned()], vec!["bbb".to_owned(), String::new()]];
        let headings = ["X", "YY"];
        assert_eq!(rows(OutputFormat::Human { colour: false }, &headings, &cells), "X    YY\na    long cell\nbbb");
        assert_eq!(
            rows(OutputFormat::Human { colour: true }, &headings, &cells).lines().next(),
            Some("\x1b[1mX    YY\x1b[0m")
        );
        assert_eq!(rows(OutputFormat::Plain, &headings, &cells), "a\tlong cell\nbbb\t");
    }

    #[test]
    fn event_is_one_line_in_each_format() {
        let acquired = api::Event {
            event: "acquired".into(),
            at: Some("2026-11-20T18:07:03.120Z".into()),
            resource: Some("deploy/prod".into()),
            owner: Some("ci\n4711".into()),
            fence: Some(17),
            token_id: Some("9c1f02ab".into()),
            ..api::Event::default()
        };
        let human = event(&acquired, OutputFormat::Human { colour: false });
        assert_eq!(human, "18:07:03.120  acquired     deploy/prod  by ci\\n4711  fence 17  lease 9c1f02ab");
        let plain = event(&acquired, OutputFormat::Plain);
        assert_eq!(plain, "2026-11-20T18:07:03.120Z\tacquired\tdeploy/prod\tci\\n4711\t17\t9c1f02ab\t");
        let node = api::Event { event: "node_down".into(), node: Some("n1".into()), ..api::Event::default() };
        assert!(event(&node, OutputFormat::Plain).starts_with("0\tnode_down\tn1\t"));
    }

    #[test]
    fn people_get_words_and_scripts_get_milliseconds() {
        let all = [("resource", "a/b".to_owned()), ("note", String::new()), ("valid_for_ms", "299999".to_owned())];
        assert_eq!(facts(&all, OutputFormat::Plain), "resource=a/b\nnote=\nvalid_for_ms=299999");
        assert_eq!(facts(&all, OutputFormat::Human { colour: true }), "resource     a/b\nvalid for    4 m 59 s");
        for (ms, words) in
            [(0, "0 s"), (59_999, "59 s"), (60_000, "1 m 0 s"), (3_599_999, "59 m 59 s"), (7_500_000, "2 h 5 m")]
        {
            assert_eq!(left(ms), words);
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(pairs(&[("note", "a\nb\u{1b}[2J\tc".to_owned())]), "note=a\\nb\\u{1b}[2J\\tc");
    }
}
