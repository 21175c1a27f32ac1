//! `redlockd doctor`: looks at the Redis nodes themselves and says in plain words what is wrong. It
//! reads and changes nothing; the service's own probes are not used, because they would put a
//! marker on a node that has none.

mod collect;
mod diagnose;

use std::io::Write;
use std::path::PathBuf;

use super::exit;
use super::output::say;
use crate::config::{Config, Loaded};
use diagnose::{Judgement, Rules, judge};

/// Looks, judges, prints; the exit code.
pub(super) fn doctor(loaded: &Loaded, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let config = &loaded.config;
    if config.nodes.is_empty() {
        say(
            err,
            "redlockd: no Redis node is configured (--node, --config or REDLOCKD_NODES); embedded nodes need no doctor",
        );
        return exit::USAGE;
    }
    let looks = prepare(config).and_then(|settings| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("the runtime cannot be made: {error}"))?;
        Ok(runtime.block_on(collect::everywhere(&settings)))
    });
    let looks = match looks {
        Ok(looks) => looks,
        Err(why) => {
            say(err, &format!("redlockd: {why}"));
            return exit::CONFIG;
        }
    };
    let rules = Rules { node_timeout: config.node_timeout, guard: config.guard };
    let Judgement { lines, problems, mut remarks } = judge(&looks, &rules);
    remarks.extend(loaded.warnings.iter().map(ToString::to_string));
    for line in lines {
        say(out, &line);
    }
    for remark in remarks {
        say(out, &format!("remark: {remark}"));
    }
    for problem in &problems {
        say(out, &format!("PROBLEM: {problem}"));
    }
    match problems.len() {
        0 => {
            say(out, "nothing to do");
            exit::OK
        }
        _ => exit::NO,
    }
}

/// Errors: a file with certificates or a password that cannot be read, in one sentence.
fn prepare(config: &Config) -> Result<collect::Settings, String> {
    let read = |path: &Option<PathBuf>| match path {
        None => Ok(None),
        Some(path) => {
            std::fs::read(path).map(Some).map_err(|error| format!("{} cannot be read: {error}", path.display()))
        }
    };
    let urls = config.node_urls().map_err(|error| error.to_string())?;
    let template = config.key_template.split_once("{resource}").unwrap_or_default();
    Ok(collect::Settings {
        nodes: config.nodes.iter().map(|n| n.id().to_string()).zip(urls).collect(),
        ca: read(&config.tls_ca)?,
        client: read(&config.tls_cert)?.zip(read(&config.tls_key)?),
        connect_timeout: config.connect_timeout,
        key_head: template.0.to_owned(),
        key_tail: template.1.to_owned(),
    })
}
