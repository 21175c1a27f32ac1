//! What the program prints about itself: completions, manual pages, and the settings in force with
//! their origins. Asks nobody.

use std::io::Write;

use clap::CommandFactory;

use super::args::Cli;
use super::exit;
use super::output::say;
use crate::config::{Config, DEFAULTS};
use crate::duration::format_duration;

/// `completions`.
pub(super) fn completions(shell: clap_complete::Shell, out: &mut dyn Write) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "redlockd", &mut script);
    // Where the other side has gone away there is nobody to tell.
    let _ = out.write_all(&script);
    exit::OK
}

/// `man`: the program's page, or that of one command.
pub(super) fn man(command: Option<&str>, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let mut cli = Cli::command();
    cli.build();
    let page = match command {
        None => Some(clap_mangen::Man::new(cli)),
        Some(name) => {
            let found = cli.find_subcommand(name).filter(|c| !c.is_hide_set()).cloned();
            found.map(clap_mangen::Man::new)
        }
    };
    let Some(page) = page else {
        say(err, &format!("redlockd: there is no command `{}`", command.unwrap_or_default()));
        return exit::USAGE;
    };
    // Where the other side has gone away there is nobody to tell.
    let _ = page.render(out);
    exit::OK
}

/// `config show`: each setting in the order of the shipped file, and where its value came from.
/// Node URLs lose their passwords; nothing else is secret (keys and certificates are paths).
pub(super) fn settings(config: &Config, out: &mut dyn Write) {
    let lines: Vec<(String, String)> = DEFAULTS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(" = ").map(|(key, _)| key))
        .map(|key| {
            let origin = config.origin_of(key).map(|o| o.to_string()).unwrap_or_default();
            // A list of URLs has no place for a password file.
            match key == "nodes" && config.nodes.iter().any(|node| node.password_file.is_some()) {
                true => (format!("node = {}", node_tables(config)), origin),
                false => (format!("{key} = {}", value(config, key)), origin),
            }
        })
        .collect();
    let width = lines.iter().map(|(text, _)| text.chars().count()).max().unwrap_or(0).min(60);
    for (text, origin) in lines {
        say(out, &format!("{text:width$}  # {origin}"));
    }
}

/// One setting as the file would have it. `tests` hold it against the list of keys.
fn value(config: &Config, key: &str) -> String {
    let path = |path: &Option<std::path::PathBuf>| {
        let shown = path.as_ref().map(|p| p.display().to_string()).unwrap_or_default();
        quoted(&shown)
    };
    let time = |period| quoted(&format_duration(period));
    match key {
        "listen" => quoted(&config.listen.to_string()),
        "access_file" => path(&config.access_file),
        "insecure_no_auth" => config.insecure_no_auth.to_string(),
        "requests_per_second" => config.requests_per_second.to_string(),
        "leases_per_principal" => config.leases_per_principal.to_string(),
        "waiters_per_principal" => config.waiters_per_principal.to_string(),
        "listen_tls_cert" => path(&config.listen_tls_cert),
        "listen_tls_key" => path(&config.listen_tls_key),
        "listen_tls_client_ca" => path(&config.listen_tls_client_ca),
        "trusted_proxies" => {
            let nets = config.trusted_proxies.iter().map(|net| quoted(&net.to_string()));
            format!("[{}]", nets.collect::<Vec<_>>().join(", "))
        }
        "max_connections" => config.max_connections.to_string(),
        "idle_timeout" => time(config.idle_timeout),
        "header_timeout" => time(config.header_timeout),
        "head_limit" => config.head_limit.to_string(),
        "uri_limit" => config.uri_limit.to_string(),
        "body_timeout" => time(config.body_timeout),
        "body_limit" => config.body_limit.to_string(),
        "max_wait" => time(config.max_wait),
        "max_hold" => time(config.max_hold),
        "waiters_per_resource" => config.waiters_per_resource.to_string(),
        "waiters_total" => config.waiters_total.to_string(),
        "deadlock_detection" => quoted(if config.deadlock_detection { "on" } else { "off" }),
        "drain_timeout" => time(config.drain_timeout),
        "ui" => quoted(if config.ui { "on" } else { "off" }),
        "allowed_hosts" => quoted(&config.allowed_hosts.join(", ")),
        "nodes" => {
            let node =
                |n: &crate::config::NodeSpec| quoted(&format!("{}={}", n.id(), crate::config::redact(n.url.reveal())));
            format!("[{}]", config.nodes.iter().map(node).collect::<Vec<_>>().join(", "))
        }
        "node_password_file" => path(&config.node_password_file),
        "embedded_nodes" => config.embedded_nodes.to_string(),
        "data_dir" => quoted(&config.data_dir.display().to_string()),
        "key_template" => quoted(&config.key_template),
        "identity" => quoted(match config.identity {
            crate::config::Identity::Handshake => "handshake",
            crate::config::Identity::Script => "script",
        }),
        "node_timeout" => time(config.node_timeout),
        "connect_timeout" => time(config.connect_timeout),
        "lanes" => config.lanes.to_string(),
        "max_in_flight" => config.max_in_flight.to_string(),
        "cleanup_limit" => config.cleanup_limit.to_string(),
        "list_refresh" => time(config.list_refresh),
        "tls_ca" => path(&config.tls_ca),
        "tls_cert" => path(&config.tls_cert),
        "tls_key" => path(&config.tls_key),
        "default_ttl" => time(config.default_ttl),
        "min_ttl" => time(config.min_ttl),
        "max_ttl" => time(config.max_ttl),
        "drift_ppm" => config.drift_ppm.to_string(),
        "drift_floor" => time(config.drift_floor),
        "guard" => time(config.guard),
        "lock_delay" => time(config.lock_delay),
        "min_validity_percent" => config.min_validity_percent.to_string(),
        "retry_min" => time(config.retry_min),
        "retry_max" => time(config.retry_max),
        "fence_ttl" => time(config.fence_ttl),
        "log_format" => quoted(match config.log_format {
            crate::config::LogFormat::Text => "text",
            crate::config::LogFormat::Json => "json",
        }),
        "log_level" => quoted(config.log_level.as_str()),
        "audit_log" => path(&config.audit_log),
        "worker_threads" => config.worker_threads.to_string(),
        // A key that was added to the table and not here: the test below finds it.
        _ => UNKNOWN.to_owned(),
    }
}

/// What the file has as `[[node]]` tables, in one line.
fn node_tables(config: &Config) -> String {
    let table = |node: &crate::config::NodeSpec| {
        let mut fields = vec![
            format!("name = {}", quoted(node.id().as_str())),
            format!("url = {}", quoted(&crate::config::redact(node.url.reveal()))),
        ];
        let file = node.password_file.as_ref().map(|path| path.display().to_string());
        fields.extend(file.map(|path| format!("password_file = {}", quoted(&path))));
        format!("{{ {} }}", fields.join(", "))
    };
    format!("[{}]", config.nodes.iter().map(table).collect::<Vec<_>>().join(", "))
}

const UNKNOWN: &str = "(not shown)";

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(config: &Config) -> String {
        let mut out = Vec::new();
        settings(config, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn every_setting_is_shown_as_the_file_would_have_it() {
        let text = shown(&Config::default());
        let keys = DEFAULTS.lines().filter(|l| !l.starts_with('#') && l.contains(" = ")).count();
        assert_eq!(text.lines().count(), keys);
        assert!(!text.contains(UNKNOWN), "{text}");
        let read: toml::Table = text.parse().expect("the output is a configuration file");
        let defaults: toml::Table = DEFAULTS.parse().expect("TOML");
        for (key, value) in &defaults {
            // The default of the data directory depends on the environment.
            assert!(key == "data_dir" || read.get(key) == Some(value), "{key}: {:?} is not {value}", read.get(key));
        }
    }

    #[test]
    fn completions_and_pages_are_written_and_know_the_commands() {
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut out = Vec::new();
            assert_eq!(completions(shell, &mut out), 0);
            let text = String::from_utf8(out).expect("text");
            assert!(text.contains("skip-if-held") && text.contains("doctor"), "{shell}");
        }
        for (command, word) in [(None, "redlockd"), (Some("run"), "conflict\\-exit\\-code")] {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            assert_eq!(man(command, &mut out, &mut err), 0);
            let text = String::from_utf8(out).expect("text");
            assert!(text.contains(".TH") && text.contains(word), "{text}");
        }
        for unknown in ["frob", "__watchdog"] {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            assert_eq!(man(Some(unknown), &mut out, &mut err), exit::USAGE);
            assert!(out.is_empty() && !err.is_empty());
        }
    }
}
