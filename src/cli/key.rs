//! `redlockd key new`: generates an API key, prints it once, and prints the lines for the access file, which contain only its
//! hash.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use clap::Args;

use super::exit;
use super::output::print_line;
use crate::auth::access_file;
use crate::auth::access_rule::AccessRule;
use crate::auth::api_key::ApiKey;
use crate::auth::principal::PrincipalName;
use crate::redlock::clock::{Clock, SystemClock};
use crate::redlock::random::SystemEntropy;

pub(super) const NEW_EXAMPLES: &str = "\
Examples:
  redlockd key new --name ci --allow 'acquire:deploy/*'
      the key is shown once, on standard error; standard output gets the lines for the access file,
      which have only its SHA-256
  redlockd key new --name ci --allow 'acquire:deploy/*' --to ci.key >> access.toml
      the key goes to a file that only you can read; the service reloads the access file by itself
  redlockd key new --name ops --allow admin --expires 2030-01-31
      may do everything, until then

Rights: read, acquire, force and events, each with names: `acquire:deploy/*` (`*` is any run of
characters within a segment, `**` one segment or more); metrics and admin, without. A second key for
a principal that exists: put the printed { sha256 = … } into its `keys`.

Exit codes: 0 printed, 64 wrong usage, 73 the file of --to cannot be created.";

/// Arguments of `key new`.
#[derive(Debug, Args)]
pub(super) struct NewKey {
    /// Name of the principal, as in logs
    #[arg(long, value_name = "NAME")]
    name: String,
    /// A right, such as 'acquire:deploy/*', 'read:**' or metrics; may be repeated
    #[arg(long, value_name = "RIGHT[:NAMES]", required = true)]
    allow: Vec<String>,
    /// When the key expires: a day (UTC), or a time such as 2030-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// Write the key to this new file, readable by its owner only, and print only the lines for the access file
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

/// `key new`; returns the exit code.
pub(super) fn new(args: &NewKey, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let entry = match entry(args) {
        Ok(entry) => entry,
        Err(why) => {
            print_line(err, &format!("redlockd: {why}"));
            return exit::USAGE;
        }
    };
    let key = ApiKey::generate(&SystemEntropy);
    let entry = entry.replace(HASH, &key.hash().hex());
    let Some(path) = &args.to else {
        // Standard output gets only the lines for the access file, so that it can be appended to that file.
        print_line(err, &format!("key, shown this once:\n\n{}\n\nfor the access file:\n", key.reveal()));
        print_line(out, &entry);
        return exit::OK;
    };
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = made.and_then(|mut file| writeln!(file, "{}", key.reveal()).and_then(|()| file.sync_all()));
    if let Err(error) = written {
        print_line(err, &format!("redlockd: the key file {} cannot be created: {error}", path.display()));
        return exit::CANNOT_CREATE;
    }
    print_line(out, &entry);
    exit::OK
}

/// Placeholder for the hash.
const HASH: &str = "{hash}";

/// The lines for the access file. Errors: an invalid argument.
fn entry(args: &NewKey) -> Result<String, String> {
    let name = PrincipalName::parse(&args.name).map_err(|why| format!("--name: {why}"))?;
    let rules = args.allow.iter().map(|text| text.parse::<AccessRule>()).collect::<Result<Vec<_>, _>>();
    let rules = rules.map_err(|why| format!("--allow: {why}"))?;
    let expires = match &args.expires {
        None => String::new(),
        Some(text) => {
            let until = access_file::parse_expiry(text).map_err(|why| format!("--expires: {why}"))?;
            if until <= SystemClock.wall_ms() {
                return Err(format!("--expires: {text} is over already"));
            }
            format!(", expires = \"{text}\"")
        }
    };
    let rules: Vec<String> = rules.iter().map(|rule| format!("\"{rule}\"")).collect();
    Ok(format!(
        "[[principal]]\nname = \"{name}\"\nkeys = [{{ sha256 = \"{HASH}\"{expires} }}]\nallow = [{}]",
        rules.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::auth::principals::{Credential, PrincipalStore};

    fn args(allow: &[&str], expires: Option<&str>, to: Option<PathBuf>) -> NewKey {
        let allow = allow.iter().map(ToString::to_string).collect();
        NewKey { name: "ci".into(), allow, expires: expires.map(str::to_owned), to }
    }

    fn run(args: &NewKey) -> (u8, String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = new(args, &mut out, &mut err);
        (code, String::from_utf8(out).expect("text"), String::from_utf8(err).expect("text"))
    }

    fn accepts(store: &PrincipalStore, key: &str) -> bool {
        store.identify(&Credential::Key(key.as_bytes()), 0).is_ok()
    }

    #[test]
    fn printed_access_file_accepts_the_key_and_does_not_contain_it() {
        let (code, out, err) = run(&args(&["acquire:deploy/*", "metrics"], Some("2030-01-31"), None));
        assert_eq!(code, 0);
        let key = err.lines().find(|line| line.starts_with("rlk_")).expect("a key");
        assert!(!out.contains(key) && accepts(&access_file::parse(&out).expect("good"), key), "{out}");
    }

    #[test]
    fn key_file_is_private_and_never_overwritten() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ci.key");
        let (code, out, _) = run(&args(&["admin"], None, Some(path.clone())));
        let key = std::fs::read_to_string(&path).expect("written");
        assert_eq!(code, 0);
        assert!(!out.contains("rlk_") && accepts(&access_file::parse(&out).expect("good"), key.trim()), "{out}");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let (code, out, err) = run(&args(&["admin"], None, Some(path)));
        assert!(code == exit::CANNOT_CREATE && out.is_empty() && err.contains("cannot be created"), "{err}");
    }

    #[test]
    fn errors_name_the_option() {
        for (args, flag) in [
            (args(&["write:x"], None, None), "--allow"),
            (args(&["admin"], Some("tomorrow"), None), "--expires"),
            (args(&["admin"], Some("2020-01-01"), None), "--expires: 2020-01-01 is over"),
            (NewKey { name: "a b".into(), ..args(&["admin"], None, None) }, "--name"),
        ] {
            let (code, out, err) = run(&args);
            assert!(code == exit::USAGE && out.is_empty() && err.contains(flag), "{err}");
        }
    }
}
