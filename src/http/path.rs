//! Resource names in paths: decoded exactly once, then checked. The permission check and the handler both read names here, so
//! that they cannot see different ones.

use axum::http::{Method, Uri};
use percent_encoding::percent_decode_str;

use super::problem::Problem;
use crate::types::{NodeId, ResourceName};

/// The path of several locks.
pub const SETS: &str = "/locks";
/// The prefix of a lock's path.
pub const LOCKS_PREFIX: &str = "/locks/";
/// The prefix of the path of a fence check.
pub const FENCES_PREFIX: &str = "/fences/";

/// The prefix of a ticket's path.
pub const TICKETS_PREFIX: &str = "/tickets/";
/// The prefix of the paths for Terraform.
pub const TERRAFORM_PREFIX: &str = "/terraform/";
/// The suffix after the name in the paths of `POST` and `DELETE` for Terraform.
const TERRAFORM_SUFFIX: &str = "/lock";

/// The path of the login form.
pub const LOGIN: &str = "/ui/login";
/// The path of the first page; every page is below it.
pub const HOME: &str = "/ui/";

/// Whether `path` is path and query of a page of this service, to which a log-in may lead.
pub fn is_page(path: &str) -> bool {
    let is_path = |uri: Uri| uri.authority().is_none() && uri.path().starts_with(HOME) && uri.path() != LOGIN;
    path.starts_with(HOME) && path.parse().is_ok_and(is_path)
}

/// The prefix of a node's path.
pub const NODES_PREFIX: &str = "/nodes/";

/// The name in a node's path. Errors: `invalid`, naming `node`.
pub fn node(uri: &Uri) -> Result<NodeId, Problem> {
    let raw = uri.path().strip_prefix(NODES_PREFIX).unwrap_or_default();
    let name = percent_decode_str(raw).decode_utf8().ok().and_then(|name| NodeId::parse(&name).ok());
    name.ok_or_else(|| Problem::invalid_field("node", "this is not a node's name"))
}

/// The resource in a lock's path.
///
/// Errors: `invalid`, naming `resource`.
pub fn resource(uri: &Uri) -> Result<ResourceName, Problem> {
    resource_after(uri, LOCKS_PREFIX)
}

/// The resource after another prefix. Errors: `invalid`, naming `resource`.
pub fn resource_after(uri: &Uri, prefix: &str) -> Result<ResourceName, Problem> {
    let invalid = |detail: String| Problem::invalid_field("resource", detail);
    let raw = uri.path().strip_prefix(prefix).unwrap_or_default();
    let decoded = if raw.contains('%') { percent_decode_str(raw).decode_utf8() } else { Ok(raw.into()) };
    let name = decoded.map_err(|_| invalid("the resource name is not UTF-8".to_owned()))?;
    ResourceName::parse(&name).map_err(|error| invalid(error.0))
}

/// The resource in a path for Terraform: the name for `LOCK` and `UNLOCK`, followed by `/lock` for the other methods. No name in
/// these paths itself ends in `/lock`, so that one path never means two resources.
///
/// Errors: `invalid`, naming `resource`.
pub fn terraform_resource(method: &Method, uri: &Uri) -> Result<ResourceName, Problem> {
    let whole = resource_after(uri, TERRAFORM_PREFIX)?;
    let invalid = |detail: &str| Err(Problem::invalid_field("resource", detail));
    let name = match method.as_str() {
        "LOCK" | "UNLOCK" => whole.as_str(),
        _ => match whole.as_str().strip_suffix(TERRAFORM_SUFFIX) {
            Some(name) => name,
            None => return invalid("POST and DELETE are for /terraform/{resource}/lock"),
        },
    };
    if name.ends_with(TERRAFORM_SUFFIX) {
        return invalid("a name that ends in /lock cannot be locked by Terraform");
    }
    ResourceName::parse(name).map_err(|error| Problem::invalid_field("resource", error.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_log_in_leads_to_pages_of_this_service_only() {
        for good in ["/ui/", "/ui/locks/a/b", "/ui/?prefix=a&page=2"] {
            assert!(is_page(good), "{good}");
        }
        let header = "/ui/x\r\nSet-Cookie: a=b";
        for other in ["", "/", "//evil.example/ui/", "https://evil.example/ui/", "/ui/login", header, "/ui", "ui/"] {
            assert!(!is_page(other), "{other}");
        }
    }

    fn name(path: &str) -> Result<String, Problem> {
        resource(&path.parse::<Uri>().expect("a URI")).map(|name| name.to_string())
    }

    #[test]
    fn a_path_is_decoded_once() {
        assert_eq!(name("/locks/deploy/prod").expect("valid"), "deploy/prod");
        assert_eq!(name("/locks/deploy%2Fprod").expect("valid"), "deploy/prod");
        assert_eq!(name("/locks/a%3ab%40c~d").expect("valid"), "a:b@c~d");
        assert_eq!(name("/locks/locks/x?prefix=y").expect("valid"), "locks/x");
    }

    #[test]
    fn hostile_paths_are_400_naming_the_resource() {
        for path in [
            "/locks/",
            "/locks//",
            "/locks//a",
            "/locks/a//b",
            "/locks/a/",
            "/locks/a%2F",
            "/locks/a%2F%2Fb",
            "/locks/..",
            "/locks/a/../b",
            "/locks/%2e%2e/a",
            "/locks/a/%2E",
            "/locks/a%00b",
            "/locks/a%0Ab",
            "/locks/a%ff",
            "/locks/%c3%a4",
            "/locks/a%252Fb",
            "/locks/a%zz",
            "/locks/a+b",
            "/locks/a%20b",
            "/locks/redlockd:meta",
            "/locks/redlockd%3Ameta",
            &format!("/locks/{}", "x".repeat(256)),
        ] {
            let errors = name(path).expect_err(path).body("r").members.errors.expect("fields are named");
            assert_eq!(errors[0].field, "resource", "{path}");
        }
    }

    fn uri(text: &str) -> Uri {
        text.parse().expect("a URI")
    }

    #[test]
    fn names_are_decoded_once_and_checked() {
        assert_eq!(resource_after(&uri("/ui/locks/a/b%2Fc"), "/ui/locks/").expect("a name").as_str(), "a/b/c");
        for wrong in ["/ui/locks/", "/ui/locks/a//b", "/ui/locks/%3Cb%3E", "/ui/locks/%ff", "/ui/locks/a%252Fb"] {
            assert!(resource_after(&uri(wrong), "/ui/locks/").is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_path_for_terraform_is_one_resource() {
        let name = |method: &str, path: &str| {
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            terraform_resource(&method, &uri(path)).map(|name| name.to_string()).ok()
        };
        for (method, path, expected) in [
            ("LOCK", "/terraform/tf/net", Some("tf/net")),
            ("UNLOCK", "/terraform/tf%2Fnet", Some("tf/net")),
            ("POST", "/terraform/tf/net/lock", Some("tf/net")),
            ("DELETE", "/terraform/tf%2Fnet%2Flock", Some("tf/net")),
            ("LOCK", "/terraform/lock", Some("lock")),
            ("POST", "/terraform/lock/lock", Some("lock")),
            ("LOCK", "/terraform/net/lock", None),
            ("POST", "/terraform/net/lock/lock", None),
            ("POST", "/terraform/lock", None),
            ("DELETE", "/terraform/net", None),
            ("LOCK", "/terraform/a//b", None),
            ("LOCK", "/terraform/redlockd:x", None),
        ] {
            assert_eq!(name(method, path).as_deref(), expected, "{method} {path}");
        }
    }

    proptest! {
        #[test]
        fn a_path_is_a_name_or_400(path in "/locks/[ -~]{0,20}") {
            if let Ok(uri) = path.parse::<Uri>() {
                let decoded = percent_decode_str(uri.path().strip_prefix(LOCKS_PREFIX).unwrap_or_default()).decode_utf8_lossy();
                prop_assert_eq!(resource(&uri).is_ok(), ResourceName::parse(&decoded).is_ok());
            }
        }
    }
}
