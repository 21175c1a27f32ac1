//! What a file may have, and that no mistake repeats a value.

use std::fs;

use super::super::resolver::SystemLookup;
use super::*;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = Self(tempfile::tempdir().expect("a directory"));
        dir.write("a.whsec", &format!("{SECRET}\n"));
        dir.write("github.header", "Authorization: Bearer ghp_SECRET\nAccept: application/vnd.github+json\n");
        dir.write("trigger", "glptt-SECRET\n");
        dir
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).expect("writable");
    }

    fn read(&self, text: &str) -> Result<WebhooksFile, String> {
        self.write("webhooks.toml", text);
        let lookup: Arc<dyn Lookup> = Arc::new(SystemLookup);
        read(&self.0.path().join("webhooks.toml"), &lookup).map_err(|error| error.to_string())
    }
}

const GOOD: &str = r#"
sealing_secret_files = ["a.whsec"]
[[target]]
name = "n8n"
url = "https://n8n.example.com/webhook-waiting/"
secret_files = ["a.whsec"]
principals = ["ci"]
[[target]]
name = "github"
url = "https://api.github.com/repos/acme/app/dispatches"
form = "github-dispatch"
headers_file = "github.header"
[[target]]
name = "gitlab"
url = "https://gitlab.example.com/api/v4/projects/7/trigger/pipeline"
form = "gitlab-trigger"
token_file = "trigger"
ref = "main"
[[target]]
name = "here"
url = "http://127.0.0.1:9000/hooks"
private = true
method = "PUT"
secret_files = ["a.whsec", "a.whsec"]
[[hook]]
name = "ops"
target = "here"
events = ["lock.forced", "lock.waiting_long", "quorum.lost"]
names = "deploy/**"
waiting_longer = "90s"
[[hook]]
name = "all"
target = "n8n"
events = ["lock.acquired"]
names = ["a/*", "b"]
"#;

#[test]
fn a_file_with_every_field_is_read_and_prints_no_secret() {
    let dir = Dir::new();
    let file = dir.read(GOOD).expect("good");
    assert_eq!(file.sealing.len(), 1);
    let names: Vec<_> = file.targets.iter().map(|target| (target.name.as_str(), target.form.as_str())).collect();
    let forms =
        [("n8n", "standard"), ("github", "github-dispatch"), ("gitlab", "gitlab-trigger"), ("here", "standard")];
    assert_eq!(names, forms);
    let here = file.target("here").expect("read");
    assert!(here.connector.policy.private && here.connector.policy.loopback_only && here.method == Method::PUT);
    assert_eq!(file.target("github").expect("read").headers["authorization"], "Bearer ghp_SECRET");
    let ops = file.hook("ops").expect("read");
    assert_eq!((ops.waiting_longer.as_secs(), ops.names_text.len()), (90, 1));
    assert_eq!(file.hook("all").map(|hook| hook.names.len()), Some(2));
    let files: Vec<_> = file.files.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    assert!(
        ["webhooks.toml", "a.whsec", "github.header", "trigger"].iter().all(|name| files.contains(name)),
        "{files:?}"
    );
    let printed = format!("{file:?}");
    assert!(
        !printed.contains("SECRET") && !printed.contains("whsec_") && !printed.contains("webhook-waiting"),
        "{printed}"
    );
}

#[test]
fn mistakes_are_reported_with_their_place_and_without_values() {
    let dir = Dir::new();
    dir.write("short", "whsec_SECRET\n");
    dir.write("lines", &format!("{SECRET}\n{SECRET}\n"));
    dir.write("own.header", "Webhook-Id: SECRET\n");
    let target =
        |more: &str| format!("[[target]]\nname = \"t\"\nurl = \"https://a/\"\nsecret_files = [\"a.whsec\"]\n{more}\n");
    let no_secret = "[[target]]\nname = \"t\"\nurl = \"https://a/\"\n";
    let hook = |more: &str| format!("{}[[hook]]\nname = \"h\"\ntarget = \"t\"\n{more}\n", target(""));
    for (text, expected) in [
        ("[[target]".to_owned(), "is not TOML: see line 1"),
        ("secret = \"SECRET\"".to_owned(), "none of `sealing_secret_files`, [[target]] and [[hook]]"),
        ("sealing_secret_files = [\"short\"]".to_owned(), "24 to 64 bytes"),
        ("sealing_secret_files = \"a.whsec\"".to_owned(), "must be a list of texts"),
        ("[target]\nname = \"SECRET\"".to_owned(), "double brackets"),
        (target("SECRET = 1"), "unknown field"),
        (target("private = \"SECRET\""), "`private` must be true or false"),
        (target("method = \"GET\""), "`method` must be"),
        (target("form = \"SECRET\""), "`form` must be"),
        (target("form = \"gitlab-trigger\""), "needs `token_file` and `ref`"),
        (target("ref = \"main\""), "belong to"),
        (target("principals = [\"a b\"]"), "`principals`"),
        (target("headers_file = \"SECRET\""), "a file of `headers_file` cannot be read"),
        (target("headers_file = \"own.header\""), "names a header that the service sets"),
        (target("ca_file = \"a.whsec\""), "`ca_file`"),
        (no_secret.to_owned(), "needs `secret_files`"),
        (format!("{no_secret}secret_files = [\"short\"]"), "24 to 64 bytes"),
        (format!("{no_secret}secret_files = [\"lines\"]"), "must have one line"),
        (format!("{no_secret}secret_files = [\"{SECRET}\"]"), "a file of `secret_files` cannot be read"),
        (format!("{no_secret}secret_files = [\"a\", \"b\", \"c\"]"), "at most 2 entries"),
        (target("").replace("https://a/", "https://u:SECRET@a/"), "`url`: must not have a user name"),
        (target("").replace("https://a/", "http://10.0.0.1/"), "say `insecure = true`"),
        (target("").replace("https://a/", "http://internal/"), "say `insecure = true`"),
        (target("").replace("name = \"t\"", ""), "needs a `name`"),
        (target("").repeat(2), "another target has the same name"),
        (target("[[hook]]\nname = \"h\"\ntarget = \"SECRET\"\nevents = [\"lock.lost\"]"), "needs a `target`"),
        (hook(""), "needs `events`"),
        (hook("events = [\"lock.SECRET\"]"), "unknown one; there are lock.acquired"),
        (hook("events = [\"lock.lost\"]\nnames = \"SECRET//b\""), "`names`, entry 1: a pattern that cannot match"),
        (hook("events = [\"lock.lost\"]\nnames = [\"a\", \"SECRET**\"]"), "`names`, entry 2: `**` must be"),
        (hook("events = [\"lock.lost\"]\nwaiting_longer = \"SECRET\""), "`waiting_longer`"),
    ] {
        let why = dir.read(&text).expect_err(&text);
        assert!(why.contains(expected), "{text}\n{why}");
        assert!(!why.contains("SECRET") && !why.contains("MfKQ"), "{text}\n{why}");
    }
    assert!(dir.read("").expect("empty").targets.is_empty());
}
