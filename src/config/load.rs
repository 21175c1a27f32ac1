//! Puts the layers together: defaults < file < environment < flags, then the rules across
//! settings. The only file here that knows all the others.

use std::path::PathBuf;

use super::environment::{self, Environment, FILE_VARIABLE};
use super::error::{ConfigError, ConfigErrors, Origin, Warning};
use super::file::{self, DEFAULTS};
use super::layers::Values;
use super::raw::{Layer, NodeEntry, Raw};
use super::rules;
use super::settings::Config;

/// Where embedded nodes keep their state where neither the settings nor the environment say.
const DATA_DIR: &str = "/var/lib/redlockd";

/// What the command line said.
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    /// `--config`; without it the variable `REDLOCKD_CONFIG`, and without that no file.
    pub file: Option<PathBuf>,
    /// Keys with their values as text, from flags; of two for one key the later prevails.
    pub flags: Vec<(String, String)>,
    /// `--node`, each `URL` or `NAME=URL`; none: the other layers' nodes.
    pub nodes: Vec<String>,
}

/// A configuration and what is odd about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// To be logged at start.
    pub warnings: Vec<Warning>,
}

impl Inputs {
    /// Reads and checks all layers. Reads one file at most and changes nothing.
    ///
    /// Errors: [`ConfigErrors`], everything that is wrong at once; rules across settings are only
    /// checked where each setting is right by itself.
    pub fn load(self, env: &impl Environment) -> Result<Loaded, ConfigErrors> {
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        let mut values = defaults();
        let path = self.file.or_else(|| environment::set(env, FILE_VARIABLE).map(PathBuf::from));
        match path.map(|path| file::read(&path)) {
            None => {}
            Some(Ok(layer)) => values.lay(layer, &mut errors),
            Some(Err(problems)) => errors.extend(problems),
        }
        values.lay(environment::layer(env, &mut errors, &mut warnings), &mut errors);
        let mut flags = Layer::new(Origin::Flag);
        for (key, value) in self.flags {
            flags.put(key, Raw::Text(value));
        }
        if !self.nodes.is_empty() {
            flags.put("nodes", Raw::Nodes(self.nodes.iter().map(|node| NodeEntry::split(node)).collect()));
        }
        values.lay(flags, &mut errors);
        finish(&values, data_dir(env), errors, warnings)
    }
}

fn finish(
    values: &Values,
    data_dir: PathBuf,
    mut errors: Vec<ConfigError>,
    mut warnings: Vec<Warning>,
) -> Result<Loaded, ConfigErrors> {
    let config = Config::from_values(values, data_dir);
    if errors.is_empty() {
        let (broken, odd) = rules::check(&config);
        errors.extend(broken);
        warnings.extend(odd);
    }
    if errors.is_empty() { Ok(Loaded { config, warnings }) } else { Err(ConfigErrors(errors)) }
}

fn defaults() -> Values {
    let mut errors = Vec::new();
    let layer = file::parse(DEFAULTS, Origin::Default).expect("the shipped defaults are TOML");
    let mut values = Values::default();
    values.lay(layer, &mut errors);
    assert!(errors.is_empty(), "the shipped defaults are in their ranges: {errors:?}");
    values
}

/// A place that is the same at the next start, wherever that is made from.
fn data_dir(env: &impl Environment) -> PathBuf {
    let under = |variable: &str, rest: &str| {
        environment::set(env, variable).map(PathBuf::from).filter(|dir| dir.is_absolute()).map(|dir| dir.join(rest))
    };
    // systemd separates several directories by colons; the first is as good as any.
    let state = environment::set(env, "STATE_DIRECTORY")
        .and_then(|dirs| dirs.into_string().ok())
        .and_then(|dirs| dirs.split(':').next().map(PathBuf::from));
    state
        .or_else(|| under("XDG_STATE_HOME", "redlockd"))
        .or_else(|| under("HOME", ".local/state/redlockd"))
        .unwrap_or_else(|| DATA_DIR.into())
}

impl Default for Config {
    /// The shipped defaults, without looking at the environment.
    fn default() -> Self {
        Self::from_values(&defaults(), DATA_DIR.into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Write;
    use std::time::Duration;

    use super::super::keys::{Form, KEYS};
    use super::*;
    use proptest::prelude::*;

    type Variables = BTreeMap<String, String>;

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("writable");
        file
    }

    fn flags(pairs: &[(&str, &str)]) -> Inputs {
        Inputs { flags: pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(), ..Inputs::default() }
    }

    fn refusal(inputs: Inputs, env: &Variables) -> String {
        inputs.load(env).expect_err("refused").to_string()
    }

    #[test]
    fn the_defaults_are_the_shipped_file_without_a_warning() {
        let loaded = Inputs::default().load(&Variables::new()).expect("the defaults are good");
        assert_eq!(loaded, Loaded { config: Config::default(), warnings: vec![] });
        let c = loaded.config;
        assert_eq!((c.listen.to_string().as_str(), c.nodes.len(), c.embedded_nodes), ("127.0.0.1:5625", 0, 1));
        assert_eq!((c.node_timeout, c.default_ttl), (Duration::from_millis(50), Duration::from_secs(30)));
        assert!(KEYS.iter().all(|key| c.origin_of(key.name) == Some(Origin::Default)));
        assert_eq!(c.origin_of("frobnicate"), None);
    }

    #[test]
    fn each_layer_prevails_over_the_one_before() {
        let file = file("lanes = 2\nretry_max = \"1s\"\nnode_timeout = \"40ms\"\n");
        let env = variables(&[("REDLOCKD_RETRY_MAX", "2s"), ("REDLOCKD_NODE_TIMEOUT", "30ms")]);
        let inputs = Inputs { file: Some(file.path().into()), ..flags(&[("node_timeout", "20ms")]) };
        let c = inputs.load(&env).expect("good").config;
        assert_eq!((c.lanes, c.origin_of("lanes")), (2, Some(Origin::File)));
        assert_eq!((c.retry_max, c.origin_of("retry_max")), (Duration::from_secs(2), Some(Origin::Environment)));
        assert_eq!((c.node_timeout, c.origin_of("node_timeout")), (Duration::from_millis(20), Some(Origin::Flag)));
    }

    #[test]
    fn a_list_of_nodes_replaces_the_one_before() {
        let file = file("[[node]]\nname = \"f\"\nurl = \"redis://f\"\n");
        let env = variables(&[("REDLOCKD_NODES", "redis://a, b=redis://b ,redis://c")]);
        let ids = |inputs: Inputs, env: &Variables| -> Vec<String> {
            let config = inputs.load(env).expect("good").config;
            config.nodes.iter().map(|n| n.id().as_str().to_owned()).collect()
        };
        let from_file = || Inputs { file: Some(file.path().into()), ..Inputs::default() };
        assert_eq!(ids(from_file(), &Variables::new()), ["f"]);
        assert_eq!(ids(from_file(), &env), ["a:6379", "b", "c:6379"]);
        assert_eq!(ids(Inputs { nodes: vec!["x=redis://x".into()], ..from_file() }, &env), ["x"]);
    }

    #[test]
    fn the_file_may_be_named_in_the_environment_and_the_flag_prevails() {
        let (one, two) = (file("lanes = 2"), file("lanes = 3"));
        let env = variables(&[("REDLOCKD_CONFIG", one.path().to_str().expect("a plain path"))]);
        assert_eq!(Inputs::default().load(&env).expect("good").config.lanes, 2);
        let inputs = Inputs { file: Some(two.path().into()), ..Inputs::default() };
        assert_eq!(inputs.load(&env).expect("good").config.lanes, 3);
    }

    #[test]
    fn an_unknown_key_is_refused_and_the_nearest_named() {
        let file = file("node_timout = \"50ms\"\n[server]\nport = 1");
        let inputs = Inputs { file: Some(file.path().into()), ..Inputs::default() };
        let text = refusal(inputs, &Variables::new());
        assert!(
            text.contains("`node_timout` in the configuration file is not a setting: did you mean `node_timeout`?"),
            "{text}"
        );
        assert!(text.contains("`server` in the configuration file is not a setting"), "{text}");
    }

    #[test]
    fn an_unknown_variable_is_warned_about_and_an_empty_one_is_not_set() {
        let env = variables(&[
            ("REDLOCKD_LANE", "2"),
            ("REDLOCKD_LANES", ""),
            ("LANES", "x"),
            ("REDLOCKD_SERVICE_HOST", "x"),
        ]);
        let loaded = Inputs::default().load(&env).expect("good");
        assert_eq!(loaded.config.lanes, 1);
        let texts: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "the environment variable REDLOCKD_LANE is not a setting and is ignored: did you mean REDLOCKD_LANES?",
                "the environment variable REDLOCKD_SERVICE_HOST is not a setting and is ignored",
            ]
        );
    }

    #[test]
    fn everything_wrong_is_told_at_once_and_rules_wait_for_good_values() {
        let env = variables(&[("REDLOCKD_LANES", "0"), ("REDLOCKD_GUARD", "1s")]);
        let text = refusal(flags(&[("retry_max", "5"), ("frob", "1")]), &env);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(!text.contains("lock_delay"), "{text}");
        assert!(refusal(Inputs::default(), &variables(&[("REDLOCKD_GUARD", "1s")])).contains("`lock_delay`"));
    }

    #[test]
    fn state_has_a_place_that_does_not_depend_on_the_working_directory() {
        let dir = |pairs: &[(&str, &str)]| Inputs::default().load(&variables(pairs)).expect("good").config.data_dir;
        assert_eq!(dir(&[]), PathBuf::from("/var/lib/redlockd"));
        assert_eq!(dir(&[("HOME", "/home/a")]), PathBuf::from("/home/a/.local/state/redlockd"));
        assert_eq!(dir(&[("HOME", "/home/a"), ("XDG_STATE_HOME", "/s")]), PathBuf::from("/s/redlockd"));
        assert_eq!(
            dir(&[("HOME", "/home/a"), ("XDG_STATE_HOME", "s")]),
            PathBuf::from("/home/a/.local/state/redlockd")
        );
        assert_eq!(dir(&[("STATE_DIRECTORY", "/var/lib/r:/x"), ("HOME", "/h")]), PathBuf::from("/var/lib/r"));
        assert_eq!(dir(&[("REDLOCKD_DATA_DIR", "here"), ("HOME", "/h")]), PathBuf::from("here"));
    }

    #[test]
    fn the_shipped_file_says_the_range_of_the_table_and_keeps_its_order() {
        let keys: Vec<&str> = DEFAULTS
            .lines()
            .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
            .filter_map(|line| line.split_once(" = ").map(|(key, _)| key))
            .collect();
        assert_eq!(keys, KEYS.iter().map(|k| k.name).collect::<Vec<_>>());
        for key in KEYS {
            let (head, _) = DEFAULTS.split_once(&format!("\n{} = ", key.name)).expect("every key is there");
            let comment = head.rsplit("\n\n").next().expect("a split has a part");
            let line = |word: &str| {
                let found = comment.lines().find_map(|l| l.strip_prefix("# ").and_then(|l| l.strip_prefix(word)));
                found.unwrap_or_else(|| panic!("{} has no line `# {word}`", key.name)).trim().to_owned()
            };
            assert!(!line("Why:").is_empty());
            let range = line("Range:");
            match key.form {
                Form::Duration { .. } if key.name == "default_ttl" => assert_eq!(range, "min_ttl to max_ttl"),
                Form::Duration { .. } | Form::Integer { .. } => {
                    let described = key.form.describe();
                    let bounds = described.split("from ").nth(1).expect("from … to …");
                    assert!(range.starts_with(bounds), "{}: {range}, not {bounds}", key.name);
                }
                Form::Odd { min, max } => assert_eq!(range, format!("odd, {min} to {max}")),
                Form::Choice(words) => assert!(words.iter().all(|word| range.contains(word))),
                Form::Flag => assert_eq!(range, "true or false"),
                Form::Address | Form::Nodes | Form::Template | Form::Path | Form::Networks | Form::Hosts => {}
            }
        }
    }

    proptest! {
        /// Of any set of layers that name a key, the highest one wins, and is named as the origin.
        #[test]
        fn the_highest_layer_that_names_a_key_wins(
            in_file in proptest::option::of(1_u64..=16), in_env in proptest::option::of(1_u64..=16),
            in_flags in proptest::option::of(1_u64..=16),
        ) {
            let file = file(&in_file.map_or(String::new(), |n| format!("lanes = {n}")));
            let env = in_env.map(|n| ("REDLOCKD_LANES".to_owned(), n.to_string())).into_iter().collect::<Variables>();
            let flags = in_flags.map(|n| ("lanes".to_owned(), n.to_string())).into_iter().collect();
            let config = Inputs { file: Some(file.path().into()), flags, nodes: vec![] }.load(&env).expect("good").config;
            let (expected, origin) = match (in_file, in_env, in_flags) {
                (_, _, Some(n)) => (n, Origin::Flag),
                (_, Some(n), None) => (n, Origin::Environment),
                (Some(n), None, None) => (n, Origin::File),
                (None, None, None) => (1, Origin::Default),
            };
            prop_assert_eq!((config.lanes as u64, config.origin_of("lanes")), (expected, Some(origin)));
        }

        /// Every key can be set to its default by each of file, environment and flag, and the
        /// configuration is the same but for the origin.
        #[test]
        fn every_key_can_be_set_in_every_layer(index in 0..KEYS.len(), layer in 0..3_usize) {
            let key = &KEYS[index];
            let line = DEFAULTS.lines().find(|l| l.starts_with(&format!("{} = ", key.name))).expect("there");
            let text = line.split_once(" = ").expect("there").1.trim_matches('"').to_owned();
            // An empty text, or the empty list, is not something to write outside a file.
            let is_list = matches!(key.form, Form::Nodes | Form::Networks);
            prop_assume!(layer == 0 || (!text.is_empty() && !is_list));
            let file = file(if layer == 0 { line } else { "" });
            let env = (layer == 1).then(|| (key.variable(), text.clone())).into_iter().collect::<Variables>();
            let flags = (layer == 2).then(|| (key.name.to_owned(), text)).into_iter().collect();
            let loaded = Inputs { file: Some(file.path().into()), flags, nodes: vec![] }.load(&env).expect("good");
            let mut config = loaded.config;
            prop_assert_eq!(config.origin_of(key.name), Some([Origin::File, Origin::Environment, Origin::Flag][layer]));
            config.origins = Config::default().origins;
            prop_assert_eq!(config, Config::default());
        }
    }
}
