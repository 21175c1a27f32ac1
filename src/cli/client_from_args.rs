//! Creates the client from arguments and environment: instances, key, and whether the key may be sent to these instances.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use super::client_args::{LabelArgs, ServiceArgs};
use super::exit;
use super::output::print_line;
use crate::client::base_url::BaseUrl;
use crate::client::key::{ClientKey, KeyFile};
use crate::client::names::LockNames;
use crate::client::requests::LockRequest;
use crate::client::transport::{Client, ClientSettings};
use crate::config::Environment;
use crate::types::{NOTE_MAX_BYTES, OWNER_MAX_BYTES, WantedMode};

/// The service's default address.
const DEFAULT_URL: &str = "http://127.0.0.1:5625";

/// A variable that is set and not empty.
pub(super) fn set(env: &impl Environment, name: &str) -> Option<std::ffi::OsString> {
    env.get(name).filter(|value| !value.is_empty())
}

fn text(env: &impl Environment, name: &str) -> Option<String> {
    set(env, name).and_then(|value| value.into_string().ok())
}

/// Creates the client. Prints an error on `err` and returns the exit code.
pub(super) fn client(args: &ServiceArgs, env: &impl Environment, err: &mut dyn Write) -> Result<Client, u8> {
    settings(args, env, err).and_then(|settings| Client::new(settings).map_err(|why| why.0)).map_err(|why| {
        print_line(err, &format!("redlockd: {why}"));
        exit::USAGE
    })
}

/// A client of this machine's own service. It sends no key, and does not compare the certificate's name with the address: the
/// answer only says that the service runs.
pub(super) fn own_client(url: &str, err: &mut dyn Write) -> Result<Client, u8> {
    BaseUrl::parse(url).and_then(Client::of_own_service).map_err(|why| {
        print_line(err, &format!("redlockd: {}", why.0));
        exit::USAGE
    })
}

fn settings(args: &ServiceArgs, env: &impl Environment, err: &mut dyn Write) -> Result<ClientSettings, String> {
    let mut urls = args.urls.clone();
    if urls.is_empty() {
        let listed = text(env, "REDLOCKD_URL").unwrap_or_else(|| DEFAULT_URL.to_owned());
        urls.extend(listed.split(',').map(|url| url.trim().to_owned()).filter(|url| !url.is_empty()));
    }
    let urls = urls.iter().map(|url| BaseUrl::parse(url)).collect::<Result<Vec<_>, _>>().map_err(|why| why.0)?;
    let key = key(args, env, err)?;
    if let (Some(_), Some(url)) = (&key, urls.iter().find(|url| url.is_plain() && !url.is_loopback()))
        && !args.insecure_key
    {
        return Err(format!(
            "the API key would be sent unencrypted to {url}: use https, or --insecure-key if that is intended"
        ));
    }
    let ca_pem = args.ca_file.as_ref().map(|path| {
        std::fs::read(path).map_err(|error| format!("the CA file {} cannot be read: {error}", path.display()))
    });
    Ok(ClientSettings { urls, key, ca_pem: ca_pem.transpose()? })
}

/// The key from `--key-file`, `REDLOCKD_KEY_FILE`, or the default file if it exists.
fn key(args: &ServiceArgs, env: &impl Environment, err: &mut dyn Write) -> Result<Option<ClientKey>, String> {
    let named = args.key_file.clone().or_else(|| set(env, "REDLOCKD_KEY_FILE").map(PathBuf::from));
    let path = named.or_else(|| {
        let config = set(env, "XDG_CONFIG_HOME").map(PathBuf::from);
        let config = config.or_else(|| set(env, "HOME").map(|home| PathBuf::from(home).join(".config")));
        config.map(|dir| dir.join("redlockd/key")).filter(|path| path.exists())
    });
    let Some(path) = path else { return Ok(None) };
    let KeyFile { key, readable_by_others } = KeyFile::read(&path).map_err(|error| error.to_string())?;
    if readable_by_others {
        let shown = path.display();
        print_line(err, &format!("redlockd: warning: other users can read the key file {shown}: chmod 600 {shown}"));
    }
    Ok(Some(key))
}

/// The name of this process' user, or `uid` and its number if the system has no name for it.
fn user_name() -> String {
    let uid = rustix::process::getuid().as_raw();
    let known = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
    known.map_or_else(|| format!("uid{uid}"), |user| user.name)
}

/// The process that started this one: all commands of a script get one owner, and the script's process outlives them.
pub(super) fn parent() -> u32 {
    rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs())
}

/// The request for locks; the default owner names the process `pid`. Errors: a label that is too long.
pub(super) fn lock_request(
    names: LockNames,
    ttl: Option<Duration>,
    labels: LabelArgs,
    pid: u32,
    env: &impl Environment,
) -> Result<LockRequest, String> {
    let owner = labels.owner.unwrap_or_else(|| {
        let user = text(env, "USER").or_else(|| text(env, "LOGNAME")).unwrap_or_else(user_name);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let full = format!("{user}@{host}:{pid}");
        full.chars().filter(|c| !c.is_control()).take(OWNER_MAX_BYTES / char::MAX.len_utf8()).collect()
    });
    let note = labels.note.unwrap_or_default();
    for (name, text, max) in [("--owner", &owner, OWNER_MAX_BYTES), ("--note", &note, NOTE_MAX_BYTES)] {
        if text.len() > max {
            return Err(format!("{name} has {} bytes; at most {max} are allowed", text.len()));
        }
    }
    let metadata = labels.meta.into_iter().collect::<BTreeMap<_, _>>();
    let mode = WantedMode::Exclusive;
    Ok(LockRequest { names, mode, ttl, owner, note, metadata, kept_for: None, refuses_deadlock: false })
}
