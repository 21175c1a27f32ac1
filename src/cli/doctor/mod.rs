//! `redlockd doctor`: checks the Redis nodes directly and reports problems. It only reads. It does not use the service's own
//! probes, because they would write a marker to a node that has none.

mod collect;
mod diagnose;
mod views;

use std::io::Write;

use super::exit;
use super::output::print_line;
use crate::app::{cluster_name, node_tls};
use crate::config::{Config, Loaded};
use crate::protocol::Terms;
use diagnose::{Diagnosis, Thresholds, diagnose};

/// Checks the nodes and prints the findings; returns the exit code.
pub(super) fn doctor(loaded: &Loaded, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let config = &loaded.config;
    if config.nodes.is_empty() {
        print_line(
            err,
            "redlockd: no Redis node is configured (--node, --config or REDLOCKD_NODES); embedded nodes cannot be checked",
        );
        return exit::USAGE;
    }
    let checks = prepare(config).and_then(|settings| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("the runtime cannot be made: {error}"))?;
        Ok(runtime.block_on(collect::check_all(&settings)))
    });
    let checks = match checks {
        Ok(checks) => checks,
        Err(why) => {
            print_line(err, &format!("redlockd: {why}"));
            return exit::CONFIG;
        }
    };
    let cluster = cluster_name(config);
    let Config { guard, lock_delay, fence_ttl, node_timeout, .. } = *config;
    let terms = Terms { guard, lock_delay, fence_ttl, template: Some(config.key_template.clone()) };
    let thresholds = Thresholds { node_timeout, terms, cluster: &cluster };
    let Diagnosis { lines, problems, mut remarks } = diagnose(&checks, &thresholds);
    remarks.extend(loaded.warnings.iter().map(ToString::to_string));
    for line in lines {
        print_line(out, &line);
    }
    for remark in remarks {
        print_line(out, &format!("remark: {remark}"));
    }
    for problem in &problems {
        print_line(out, &format!("PROBLEM: {problem}"));
    }
    match problems.len() {
        0 => {
            print_line(out, "no problems");
            exit::OK
        }
        _ => exit::NO,
    }
}

/// Reads the files that connecting requires. Errors: a file cannot be read.
fn prepare(config: &Config) -> Result<collect::CheckSettings, String> {
    let urls = config.node_urls().map_err(|error| error.to_string())?;
    Ok(collect::CheckSettings {
        nodes: config.nodes.iter().map(|n| n.id().to_string()).zip(urls).collect(),
        tls: node_tls(config).map_err(|error| with_source(&error))?,
        connect_timeout: config.connect_timeout,
        allow_replicas: config.allow_replicas,
        durable: config.durable_nodes,
        template: config.key_template.clone(),
    })
}

fn with_source(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}
