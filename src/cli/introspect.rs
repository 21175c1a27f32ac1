//! Prints completions, manual pages, and the settings in force with their origins. Sends no request.

use std::ffi::OsString;
use std::io::Write;

use clap::CommandFactory;

use super::args::Cli;
use super::exit;
use super::output::print_line;
use crate::config::{Config, NodeSpec, SETTINGS, Setting, redact};

/// The command that these arguments name, as `redlockd ticket show`: all leading subcommands.
pub(super) fn command_of(args: &[OsString]) -> String {
    let mut words = vec!["redlockd".to_owned()];
    let mut command = Cli::command();
    for word in args.iter().skip(1) {
        let Some(found) = word.to_str().and_then(|word| command.find_subcommand(word)).cloned() else { break };
        words.push(found.get_name().to_owned());
        command = found;
    }
    words.join(" ")
}

/// Runs `redlockd completions`; returns the exit code.
pub(super) fn completions(shell: clap_complete::Shell, out: &mut dyn Write) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "redlockd", &mut script);
    // If standard output is closed, nobody reads it.
    let _ = out.write_all(&script);
    exit::OK
}

/// `man`: the manual page of the program, or of one command.
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
        print_line(err, &format!("redlockd: there is no command `{}`", command.unwrap_or_default()));
        return exit::USAGE;
    };
    // If standard output is closed, nobody reads it.
    let _ = page.render(out);
    exit::OK
}

/// `config show`: each setting in the order of the shipped file, and the layer that set it. Node URLs are shown without
/// passwords; nothing else is secret (keys and certificates are paths).
pub(super) fn settings(config: &Config, out: &mut dyn Write) {
    let line = |setting: &Setting| {
        let value = config.value_of(setting.name)?;
        // A list of URLs cannot contain a password file.
        let has_files = config.nodes.iter().any(|node| node.password_file.is_some());
        let text = match setting.name == "nodes" && has_files {
            true => format!("node = {}", node_tables(config)),
            false => format!("{} = {value}", setting.name),
        };
        Some((text, config.origin_of(setting.name)?))
    };
    let lines: Vec<_> = SETTINGS.iter().filter_map(line).collect();
    let width = lines.iter().map(|(text, _)| text.chars().count()).max().unwrap_or(0).min(60);
    for (text, origin) in lines {
        print_line(out, &format!("{text:width$}  # {origin}"));
    }
}

/// `[[node]]` tables, in one line.
fn node_tables(config: &Config) -> toml::Value {
    let table = |node: &NodeSpec| {
        let mut fields = toml::Table::new();
        fields.insert("name".into(), node.id().as_str().into());
        fields.insert("url".into(), redact(node.url.reveal()).into());
        let file = node.password_file.as_ref().map(|path| path.display().to_string());
        fields.extend(file.map(|path| ("password_file".to_owned(), path.into())));
        toml::Value::Table(fields)
    };
    config.nodes.iter().map(table).collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DEFAULTS;

    fn shown(config: &Config) -> String {
        let mut out = Vec::new();
        settings(config, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn every_setting_is_shown_as_the_file_would_have_it() {
        let text = shown(&Config::default());
        assert_eq!(text.lines().count(), SETTINGS.len());
        let read: toml::Table = text.parse().expect("the output is a configuration file");
        let defaults: toml::Table = DEFAULTS.parse().expect("TOML");
        for (key, value) in &defaults {
            // The default of the data directory depends on the environment.
            assert!(key == "data_dir" || read.get(key) == Some(value), "{key}: {:?} is not {value}", read.get(key));
        }
    }

    #[test]
    fn completions_and_pages_are_written_and_know_the_commands() {
        for shell in [
            clap_complete::Shell::Bash,
            clap_complete::Shell::Zsh,
            clap_complete::Shell::Fish,
            clap_complete::Shell::Elvish,
        ] {
            let mut out = Vec::new();
            assert_eq!(completions(shell, &mut out), 0);
            let text = String::from_utf8(out).expect("text");
            assert!(text.contains("skip-if-held") && text.contains("doctor"), "{shell}");
            assert!(!text.contains("watchdog"), "{shell}: it is no command for people");
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
