//! `openapi.yaml` against the code: the route table both ways, the slugs, and its examples of
//! request bodies through the code that reads requests.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::extract::Request;
use serde_yaml_ng::Value;

use super::documents::OPENAPI;
use super::{lock_requests, set_requests, tickets};
use crate::api;
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::http::routes::ROUTES;
use crate::http::state::shipped_settings;
use crate::protocol::Terms;

const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

fn document() -> Value {
    serde_yaml_ng::from_str(OPENAPI).expect("YAML")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a string")
}

/// Every operation: method, path, and what is said of it.
fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_mapping().expect("paths") {
        for (key, operation) in item.as_mapping().expect("a path item") {
            if METHODS.contains(&text(key)) {
                found.push((text(key).to_ascii_uppercase(), text(path).to_owned(), operation.clone()));
            }
        }
        for (method, operation) in item["x-additionalOperations"].as_mapping().into_iter().flatten() {
            found.push((text(method).to_owned(), text(path).to_owned(), operation.clone()));
        }
    }
    found
}

#[test]
fn document_and_table_have_the_same_operations_and_codes() {
    let document = document();
    let documented: BTreeSet<_> = operations(&document)
        .into_iter()
        .map(|(method, path, operation)| {
            let codes = operation["responses"].as_mapping().expect("responses").keys().map(text);
            let codes: BTreeSet<u16> = codes.filter(|c| *c != "default").map(|c| c.parse().expect("a code")).collect();
            (method, path, codes)
        })
        .collect();
    let routed: BTreeSet<_> =
        ROUTES.iter().map(|r| (r.method.to_owned(), r.path.to_owned(), r.codes.iter().copied().collect())).collect();
    assert_eq!(documented, routed);
}

/// L12: the kinds of events of the page, and that no form of a page takes other fields.
#[test]
fn l12_the_pages_are_documented_as_strictly_as_they_are() {
    let document = document();
    let parameters = document["paths"]["/ui/events"]["get"]["parameters"].as_sequence().expect("parameters");
    let kinds = parameters.iter().find(|p| text(&p["name"]) == "kind").expect("a kind");
    let kinds: Vec<_> = kinds["schema"]["enum"].as_sequence().expect("an enum").iter().map(text).collect();
    let known = crate::pages::events::KINDS.map(|(word, _)| word);
    assert_eq!(kinds, [&[""], &known[..]].concat());
    let forms =
        operations(&document).into_iter().filter(|(method, path, _)| method == "POST" && path.starts_with("/ui/"));
    let mut seen = 0;
    for (_, path, operation) in forms {
        let schema = &operation["requestBody"]["content"]["application/x-www-form-urlencoded"]["schema"];
        assert_eq!(schema["additionalProperties"].as_bool(), Some(false), "{path}");
        seen += 1;
    }
    assert!(seen >= 4, "{seen} forms");
}

#[test]
fn every_slug_is_documented_and_no_other() {
    let document = document();
    let listed = document["components"]["schemas"]["Problem"]["properties"]["type"]["enum"].as_sequence();
    let listed: BTreeSet<_> = listed.expect("an enum").iter().map(|v| text(v).to_owned()).collect();
    let known: BTreeSet<_> = ProblemKind::all().map(|s| format!("/problems/{}", s.as_str())).collect();
    assert_eq!(listed, known);
    for kind in ProblemKind::all() {
        assert!(OPENAPI.contains(&format!("`{}`", kind.as_str())), "`{}` is not explained", kind.as_str());
    }
}

#[test]
fn every_status_code_of_a_problem_can_be_found() {
    let routed: BTreeSet<u16> = ROUTES.iter().flat_map(|r| r.codes.iter().copied()).collect();
    use ProblemKind::{HeadTooLarge, Internal, MethodNotAllowed, NotImplemented, UriTooLong};
    let of_every_path = [MethodNotAllowed, NotImplemented, UriTooLong, HeadTooLarge, Internal];
    for kind in ProblemKind::all().filter(|kind| !of_every_path.contains(kind)) {
        assert!(routed.contains(&kind.status().as_u16()), "{}", kind.as_str());
    }
    let document = document();
    for (method, path, operation) in operations(&document) {
        let default = &operation["responses"]["default"]["$ref"];
        assert_eq!(default.as_str(), Some("#/components/responses/Default"), "{method} {path} has 405 and 500");
    }
}

/// Follows every `$ref` and every link's operation.
#[test]
fn references_and_links_lead_somewhere() {
    fn walk(value: &Value, document: &Value, ids: &BTreeSet<String>, seen: &mut usize) {
        match value {
            Value::Mapping(map) => {
                if let Some(Value::String(target)) = map.get("$ref") {
                    let path = target.strip_prefix("#/").expect("a local reference");
                    let found = path.split('/').try_fold(document, |at, key| at.get(key));
                    assert!(found.is_some(), "{target} leads nowhere");
                    *seen += 1;
                }
                if let Some(Value::Mapping(links)) = map.get("links") {
                    for (name, link) in links {
                        assert!(ids.contains(text(&link["operationId"])), "link {name:?}");
                        *seen += 1;
                    }
                }
                map.values().for_each(|v| walk(v, document, ids, seen));
            }
            Value::Sequence(items) => items.iter().for_each(|v| walk(v, document, ids, seen)),
            _ => {}
        }
    }
    let document = document();
    let operations = operations(&document);
    let ids: BTreeSet<_> = operations.iter().map(|(_, _, o)| text(&o["operationId"]).to_owned()).collect();
    assert_eq!(ids.len(), operations.len(), "operation ids are unique");
    let mut seen = 0;
    walk(&document, &document, &ids, &mut seen);
    assert!(seen > 50, "{seen} references and links");
}

/// The body of a named example as it travels.
fn body_of(kind: &str, value: &Value) -> String {
    if kind.ends_with("json") {
        serde_json::to_string(value).expect("an example is JSON")
    } else {
        text(value).to_owned()
    }
}

#[tokio::test]
async fn every_example_of_a_request_body_is_accepted() {
    let (document, settings) = (document(), shipped_settings());
    let mut tried = 0;
    for (method, path, operation) in operations(&document) {
        // A page's form is sent by a browser that was given it: tests/browser does.
        if path.starts_with("/ui/") {
            continue;
        }
        let Some(content) = operation["requestBody"]["content"].as_mapping() else { continue };
        for (kind, media) in content {
            for (name, example) in media["examples"].as_mapping().expect("every body has examples") {
                let body = body_of(text(kind), &example["value"]);
                let request = Request::builder()
                    .method(method.as_str())
                    .uri(path.replace("{resource}", "deploy/prod").replace("{node}", "n1"))
                    .header("content-type", text(kind));
                // What the operation wants besides its body; an acquire brings its token in the body.
                let request = match method.as_str() {
                    "POST" => request,
                    _ => request.header("lock-token", "8fJ2kQ0wYb7Lr5VxTn3cZg"),
                };
                let request = request.body(Body::from(body.clone())).expect("a request");
                let read: Result<(), Problem> = match method.as_str() {
                    "POST" if path == "/locks" => set_requests::acquire(request, &settings).await.map(drop),
                    "PATCH" if path == "/locks" => set_requests::extend(request, &settings).await.map(drop),
                    "DELETE" if path == "/locks" => set_requests::release(request, &settings).await.map(drop),
                    _ if path.starts_with("/terraform/") => {
                        super::terraform_info::SentLock::parse(body.as_bytes()).map(drop)
                    }
                    "POST" if path.starts_with("/nodes/") => {
                        lock_requests::change_node(request, &settings).await.map(drop)
                    }
                    "POST" if path == "/nodes" => {
                        let second = std::time::Duration::from_secs(1);
                        let present =
                            Terms { guard: second / 2, lock_delay: second, fence_ttl: second * 60, template: None };
                        lock_requests::change_terms(request, &settings, present).await.map(drop)
                    }
                    "POST" => lock_requests::acquire(request, &settings).await.map(drop),
                    "PATCH" if path.starts_with("/tickets/") => tickets::read_keep(request, &settings).await.map(drop),
                    "PATCH" => lock_requests::extend(request, &settings).await.map(drop),
                    "DELETE" => lock_requests::release(request, &settings).await.map(drop),
                    other => panic!("{other} {path} has a body that nothing reads"),
                };
                read.unwrap_or_else(|problem| panic!("{method} {name:?} {body}: {:?}", problem.body("r")));
                tried += 1;
            }
        }
    }
    assert!(tried >= 12, "{tried} examples");
}

/// The example of an answer reads as its wire type, and says nothing that the type does not know.
fn reads_as<T: serde::de::DeserializeOwned + serde::Serialize>(example: &Value) {
    let json = serde_json::to_value(example).expect("an example is JSON");
    let read: T = serde_json::from_value(json.clone()).unwrap_or_else(|e| panic!("{e}: {json}"));
    assert_eq!(serde_json::to_value(read).expect("plain data"), json);
}

#[test]
fn examples_of_answers_are_what_is_sent() {
    let document = document();
    let json = "application/json";
    let lock = &document["paths"]["/locks/{resource}"];
    reads_as::<api::Lease>(&lock["post"]["responses"]["201"]["content"][json]["example"]);
    reads_as::<api::LockDetails>(&lock["get"]["responses"]["200"]["content"][json]["example"]);
    reads_as::<api::Revoked>(&lock["delete"]["responses"]["202"]["content"][json]["example"]);
    reads_as::<api::List>(&document["paths"]["/locks"]["get"]["responses"]["200"]["content"][json]["example"]);
    let locks = &document["paths"]["/locks"];
    reads_as::<api::LeaseSet>(&locks["post"]["responses"]["201"]["content"][json]["example"]);
    reads_as::<api::SetResults>(&locks["patch"]["responses"]["200"]["content"][json]["example"]);
    reads_as::<api::SetResults>(&locks["delete"]["responses"]["200"]["content"][json]["example"]);
    reads_as::<api::Nodes>(&document["paths"]["/nodes"]["get"]["responses"]["200"]["content"][json]["example"]);
    reads_as::<api::Hooks>(&document["paths"]["/hooks"]["get"]["responses"]["200"]["content"][json]["example"]);
    let test = &document["paths"]["/hooks/{name}/test"]["post"];
    reads_as::<api::HookTry>(&test["responses"]["200"]["content"][json]["example"]);
    reads_as::<api::FenceCheck>(
        &document["paths"]["/fences/{resource}"]["get"]["responses"]["200"]["content"][json]["example"],
    );
    let problems = &document["components"]["responses"];
    for name in ["Locked", "LeaseExpired", "Unavailable"] {
        let example = &problems[name]["content"]["application/problem+json"]["example"];
        reads_as::<api::ProblemDetails>(example);
        let kind = text(&example["type"]).strip_prefix("/problems/").and_then(ProblemKind::parse).expect("a slug");
        assert_eq!(text(&example["title"]), kind.title());
        assert_eq!(example["status"].as_u64(), Some(kind.status().as_u16().into()));
    }
}
