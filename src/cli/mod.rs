//! The command line: parses it, runs the command and returns the exit code. Results go to standard output; messages, one
//! sentence each, and the log go to standard error.

mod args;
mod client_args;
mod client_from_args;
mod client_help;
mod commands;
mod doctor;
pub mod exit;
mod format;
mod hook;
mod introspect;
mod key;
mod local_service;
mod mode_args;
mod nodes;
mod output;
mod progress;
mod run;
mod sd_notify;
mod serve;
mod ticket;
mod watch;

use std::ffi::OsString;
use std::io::Write;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::config::{DEFAULTS, Environment, Loaded, redact};
use args::{Cli, CliCommand, ConfigArgs, ConfigCommand, KeyCommand};
use commands::CommandIo;
use hook::HookCommand;
use output::print_line;

/// Runs the program with these arguments, the first of which is its own name, and returns its exit code (see [`exit`]). Blocks
/// until it ends; `serve` takes over SIGTERM and SIGINT, and the log.
pub fn run(
    args: impl IntoIterator<Item = OsString>,
    env: &impl Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    // `run` starts this one: it is no clap command, so that help and completions do not show it.
    if let [_, name, args @ ..] = args.as_slice()
        && name == run::watchdog::COMMAND
    {
        return run::watchdog::main(args, err);
    }
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, &args, out, err),
    };
    match cli.command.unwrap_or(CliCommand::Serve(cli.settings)) {
        CliCommand::Serve(settings) => match load_for_service(settings, env, err) {
            Ok(loaded) => serve::serve(loaded, env, out, err),
            Err(code) => code,
        },
        CliCommand::Init(settings) => match load(settings, env, err) {
            Ok(loaded) => serve::init(loaded, out, err),
            Err(code) => code,
        },
        CliCommand::Run(run) => run::run(*run, &args, env, err),
        CliCommand::Elect(args) => run::elect(*args, env, err),
        CliCommand::Version => {
            print_line(out, concat!("redlockd ", env!("CARGO_PKG_VERSION")));
            exit::OK
        }
        CliCommand::Config { command: ConfigCommand::Check(settings) } => match load_for_service(settings, env, err) {
            Ok(loaded) => report(&loaded, out, err),
            Err(code) => code,
        },
        CliCommand::Config { command: ConfigCommand::Show(settings) } => match load(settings, env, err) {
            Ok(loaded) => {
                introspect::settings(&loaded.config, out);
                exit::OK
            }
            Err(code) => code,
        },
        CliCommand::Config { command: ConfigCommand::Default } => {
            print_line(out, DEFAULTS.trim_end());
            exit::OK
        }
        CliCommand::Key { command: KeyCommand::New(args) } => key::new(&args, out, err),
        CliCommand::Hook { command: HookCommand::Secret(args) } => hook::secret(&args, out, err),
        CliCommand::Hook { command: HookCommand::Verify(args) } => hook::verify(&args, env, err),
        CliCommand::Doctor(settings) => match load(settings, env, err) {
            Ok(loaded) => doctor::doctor(&loaded, out, err),
            Err(code) => code,
        },
        CliCommand::Completions { shell } => introspect::completions(shell, out),
        CliCommand::Man { command } => introspect::man(command.as_deref(), out, err),
        command => {
            remote_command(command, &mut CommandIo { env, out, err, is_json: false }).unwrap_or_else(|code| code)
        }
    }
}

fn load(settings: ConfigArgs, env: &impl Environment, err: &mut dyn Write) -> Result<Loaded, u8> {
    settings.into_inputs().load(env).map_err(|errors| {
        for error in errors.0 {
            print_line(err, &format!("redlockd: {error}"));
        }
        exit::CONFIG
    })
}

/// As [`load`]; also reads the access file, the webhooks file and the nodes' passwords; their errors are the configuration's.
fn load_for_service(settings: ConfigArgs, env: &impl Environment, err: &mut dyn Write) -> Result<Loaded, u8> {
    let loaded = load(settings, env, err)?;
    if let Some(Err(error)) = loaded.config.access_file.as_deref().map(crate::auth::access_file::read) {
        print_line(err, &format!("redlockd: {error}"));
        return Err(exit::CONFIG);
    }
    if let Some(Err(error)) = loaded.config.webhooks_file.as_deref().map(crate::webhooks::check) {
        print_line(err, &format!("redlockd: {error}"));
        return Err(exit::CONFIG);
    }
    if let Err(error) = loaded.config.node_urls() {
        print_line(err, &format!("redlockd: {error}"));
        return Err(exit::CONFIG);
    }
    Ok(loaded)
}

/// `config check`: prints the warnings, and one line about the service that would run.
fn report(loaded: &Loaded, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    for warning in &loaded.warnings {
        print_line(err, &format!("redlockd: warning: {warning}"));
    }
    let config = &loaded.config;
    let nodes = match config.nodes.len() {
        0 => format!("{} embedded, state in {}", config.embedded_nodes, config.data_dir.display()),
        n => {
            let names: Vec<&str> = config.nodes.iter().map(|node| node.id().as_str()).collect();
            format!("{n} ({})", names.join(", "))
        }
    };
    print_line(out, &format!("the configuration is good: listen on {}, nodes: {nodes}", config.listen));
    exit::OK
}

/// Help and version are results; every other error of clap is a usage error, reported in one sentence.
fn usage(error: &clap::Error, args: &[OsString], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let text = error.render().to_string();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        print_line(out, text.trim_end());
        return exit::OK;
    }
    let before_usage = text.split("\nUsage:").next().unwrap_or(&text);
    let before_usage = before_usage.split("\nFor more information").next().unwrap_or(before_usage);
    let lines: Vec<&str> = before_usage.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // If a line ends in a colon, a list follows it.
    let sentence = lines.join("; ").replace(":; ", ": ");
    let sentence = sentence.strip_prefix("error: ").unwrap_or(&sentence);
    let command = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => help_command(&usage.to_string()),
        // Errors of values do not name their command.
        _ => introspect::command_of(args),
    };
    print_line(err, &format!("redlockd: {} (see {command} --help)", redact(sentence)));
    exit::USAGE
}

/// The command in a usage line: its first words, up to an argument or option.
fn help_command(usage: &str) -> String {
    let words = usage.trim_start_matches("Usage:").split_whitespace();
    words.take_while(|word| word.chars().all(|c| c.is_ascii_lowercase())).collect::<Vec<_>>().join(" ")
}

/// The commands that send requests to a running service; `Ok` and `Err` are exit codes.
fn remote_command<E: Environment>(command: CliCommand, console: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    match command {
        CliCommand::Acquire(args) => ticket::ask(*args, console),
        CliCommand::Ticket { command } => ticket::remote(command, console),
        CliCommand::Keep(args) => {
            let kept_for = args.kept_for.or(args.until);
            commands::acquire(args.acquire, kept_for, console)
        }
        CliCommand::Extend(args) => commands::extend(&args, console),
        CliCommand::Release(args) => commands::release(&args, console),
        CliCommand::Status(args) => commands::status(&args, console),
        CliCommand::Fence(args) => commands::fence(&args, console),
        CliCommand::List(args) => commands::list(&args, console),
        CliCommand::Nodes(args) => nodes::nodes(&args, console),
        CliCommand::Hook { command } => hook::remote(command, console),
        CliCommand::Force(args) => commands::force(&args, console),
        CliCommand::Watch(args) => watch::watch(&args, console),
        CliCommand::Events(args) => commands::events(&args, console),
        CliCommand::Health(args) => commands::health(&args, console),
        _ => unreachable!("every other command was handled before"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn run_with(args: &[&str], env: &[(&str, &str)]) -> (u8, String, String) {
        let env: BTreeMap<String, String> = env.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let args = std::iter::once("redlockd").chain(args.iter().copied()).map(OsString::from);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(args, &env, &mut out, &mut err);
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (code, text(out), text(err))
    }

    #[test]
    fn clap_definition_is_valid() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn help_and_version_exit_with_zero() {
        let (code, out, err) = run_with(&["--version"], &[]);
        assert_eq!((code, out.trim(), err.as_str()), (0, concat!("redlockd ", env!("CARGO_PKG_VERSION")), ""));
        assert_eq!(run_with(&["version"], &[]), (code, out, err));
        for args in [&["--help"][..], &["serve", "--help"], &["config", "check", "--help"], &["help"], &["help", "run"]]
        {
            let (code, out, err) = run_with(args, &[]);
            assert_eq!((code, err.as_str()), (0, ""));
            assert!(out.contains("Examples:") && out.contains("Exit codes:"), "{args:?}: {out}");
        }
    }

    #[test]
    fn wrong_usage_is_one_sentence_and_64() {
        for (args, word) in [
            (&["--nod", "x"][..], "'--node'"),
            (&["serv"], "'serve'"),
            (&["config"], "check"),
            (&["key"], "requires a subcommand"),
            (&["hook"], "requires a subcommand"),
            (&["ticket"], "requires a subcommand"),
            (&["ticket", "show", "tk_1"], "32 hexadecimal digits"),
            (&["acquire", "--async", "x"], "--keep"),
            (&["acquire", "--keep", "1m", "--accept", "1m", "x"], "--callback"),
            (&["acquire", "--keep", "1m", "--callback", "https://n8n.example.com/1", "x"], "--callback-file"),
            (&["--listen"], "--listen"),
            (&["--set", "ui"], "there is no `=` in it"),
            (&["redis://user:hunter2@h"], "redis://…@h"),
            (&["--listen", "127.0.0.1:1", "serve"], "serve"),
        ] {
            let (code, out, err) = run_with(args, &[]);
            assert_eq!((code, out.as_str(), err.lines().count()), (64, "", 1), "{args:?}: {err}");
            assert!(err.starts_with("redlockd: ") && err.contains(word) && !err.contains("hunter2"), "{args:?}: {err}");
        }
    }

    #[test]
    fn wrong_values_name_the_help_of_their_command() {
        for (args, help) in [
            (&["run", "--ttl", "30", "x", "true"][..], "redlockd run --help"),
            (&["acquire", "a//b"], "redlockd acquire --help"),
            (&["ticket", "show", "tk_abc"], "redlockd ticket show --help"),
        ] {
            let (code, _, err) = run_with(args, &[]);
            assert!(code == 64 && err.trim_end().ends_with(&format!("(see {help})")), "{args:?}: {err}");
        }
    }

    #[test]
    fn invalid_configuration_is_78_and_one_sentence_for_each_error() {
        let args = ["config", "check", "--listen", "nowhere", "--set", "frob=1", "--node", "redis://:hunter2@"];
        let (code, out, err) = run_with(&args, &[]);
        assert_eq!((code, out.as_str(), err.lines().count()), (78, "", 3), "{err}");
        assert!(err.lines().all(|line| line.starts_with("redlockd: `")) && !err.contains("hunter2"), "{err}");
        let (code, _, err) = run_with(&["serve", "--config", "/nowhere.toml"], &[]);
        assert_eq!(code, 78);
        assert!(err.starts_with("redlockd: the configuration file /nowhere.toml cannot be read: "), "{err}");
    }

    #[test]
    fn valid_configuration_is_reported_in_one_line_with_its_warnings() {
        let args = ["config", "check", "--node", "a=redis://:hunter2@h:1", "--node", "redis://i"];
        let (code, out, err) = run_with(&args, &[("REDLOCKD_LISTEN", "[::1]:1"), ("REDLOCKD_LISTEN_TO", "1")]);
        assert_eq!((code, out.as_str()), (0, "the configuration is good: listen on [::1]:1, nodes: 2 (a, i:6379)\n"));
        assert_eq!(err.lines().count(), 2, "{err}");
        assert!(err.lines().all(|line| line.starts_with("redlockd: warning: ")), "{err}");
        let (_, out, _) = run_with(&["config", "check", "--data-dir", "/d"], &[]);
        assert_eq!(out, "the configuration is good: listen on 127.0.0.1:5625, nodes: 1 embedded, state in /d\n");
    }

    #[test]
    fn defaults_are_printed() {
        let (code, out, _) = run_with(&["config", "default"], &[]);
        assert_eq!((code, out.trim_end()), (0, DEFAULTS.trim_end()));
    }
}
