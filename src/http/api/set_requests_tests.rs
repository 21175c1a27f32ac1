//! What is a request about several locks, and what is not: each refusal names its field.

use std::time::Duration;

use axum::body::Body;
use axum::http::Method;

use super::*;
use crate::http::state::shipped_settings;

fn request(method: Method, query: &str, (kind, body): (&str, &str)) -> Request {
    let builder = Request::builder().method(method).uri(format!("/locks{query}")).header("content-type", kind);
    let builder = builder.header("lock-token", "8fJ2kQ0wYb7Lr5VxTn3cZg");
    builder.body(Body::from(body.to_owned())).expect("a request")
}

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

async fn names_of(query: &str, kind: &str, body: &str) -> Result<Vec<String>, String> {
    let read = acquire(request(Method::POST, query, (kind, body)), &shipped_settings()).await;
    let read = read.map_err(|problem| problem.sentence().to_owned())?;
    Ok(std::iter::once(&read.request.resource).chain(&read.others).map(ToString::to_string).collect())
}

#[tokio::test]
async fn names_come_as_an_array_or_repeated() {
    for (query, kind, body) in [
        ("", JSON, r#"{"resources":["db/a","db/b"]}"#),
        ("", FORM, "resource=db/a&resource=db%2Fb&ttl=30s"),
        ("?resource=db/a&resource=db/b", FORM, "ttl=30s&owner=me"),
        ("?resource=db/a&resource=db/b", JSON, "{}"),
        ("?resource=db/a", FORM, "resource=db/b"),
    ] {
        assert_eq!(names_of(query, kind, body).await, Ok(vec!["db/a".to_owned(), "db/b".to_owned()]), "{query} {body}");
    }
}

#[tokio::test]
async fn what_is_no_set_is_refused_naming_the_field() {
    let many = |count: usize| (0..count).map(|i| format!("\"r{i}\"")).collect::<Vec<_>>().join(",");
    let resources = |list: &str| format!("{{\"resources\":[{list}]}}");
    for (body, expected) in [
        (resources(""), "resources: names 0; at least 2 are needed"),
        (resources("\"a\""), "resources: names 1; at least 2 are needed"),
        (resources(&many(17)), "resources: names more than 16"),
        (resources(&many(5_000)), "resources: names more than 16"),
        (resources("\"a\",\"b\",\"a\""), "resources: names a twice"),
        (resources("\"a\",\"b//c\""), "resources: number 2: "),
        (resources("\"a\",\"redlockd:meta\""), "resources: number 2: "),
        (resources("\"a\",7"), "resources: must be an array of strings, and has a number"),
        (resources("\"a\",[\"b\"]"), "resources: must be an array of strings, and has an array"),
        ("{\"resources\":null}".to_owned(), "resources: must be an array of strings, not null"),
        ("{\"resources\":\"a,b\"}".to_owned(), "resources: must be an array of strings, not a string"),
        ("{}".to_owned(), "resource: names 0"),
        ("{\"resources\":[\"a\",\"b\"],\"resource\":\"c\"}".to_owned(), "resource: is given beside `resources`"),
        ("{\"resources\":[\"a\",\"b\"],\"hold\":true}".to_owned(), "hold: is for one lock"),
        ("{\"resources\":[\"a\",\"b\"],\"keep\":\"2h\",\"ttl\":\"1s\"}".to_owned(), "ttl: must be at least 5s"),
        ("{\"resources\":[\"a\",\"b\"],\"mode\":\"permit\"}".to_owned(), "mode: must be exclusive or shared"),
        ("{\"resources\":[\"a\",\"b\"],\"limit\":3}".to_owned(), "limit: is for one lock"),
        ("{\"resources\":[\"a\",\"b\"],\"tll\":\"3s\"}".to_owned(), "tll: is unknown"),
    ] {
        let refused = names_of("", JSON, &body).await.expect_err(&body);
        assert!(refused.contains(expected), "{body}: {refused}");
    }
    let sixteen = names_of("", JSON, &resources(&many(16))).await;
    assert_eq!(sixteen.map(|names| names.len()), Ok(16));
}

#[tokio::test]
async fn one_name_or_more_may_be_extended_and_released() {
    let settings = shipped_settings();
    let read = extend(request(Method::PATCH, "?resource=a&resource=b", (FORM, "ttl=2m")), &settings).await;
    let read = read.expect("two names");
    assert_eq!((read.resources.len(), read.request.ttl.map(|ttl| ttl.as_ms())), (2, Some(120_000)));
    let (names, ..) = release(request(Method::DELETE, "?resource=a", ("", "")), &settings).await.expect("one name");
    assert_eq!(names.len(), 1);
    let refused = |problem: Problem| problem.sentence().to_owned();
    for (query, expected) in [("", "resource: names 0"), ("?resource=a&force=now", "force: is unknown")] {
        let found = release(request(Method::DELETE, query, ("", "")), &settings).await.map_err(refused);
        assert!(found.as_ref().is_err_and(|sentence| sentence.contains(expected)), "{query}: {found:?}");
    }
    let found = extend(request(Method::PATCH, "", (JSON, "{}")), &settings).await.map_err(refused);
    assert!(found.as_ref().is_err_and(|sentence| sentence.contains("resource: names 0")), "{found:?}");
    let found = extend(request(Method::PATCH, "?resource=a&resource=b", (JSON, "{\"keep\":\"2h\"}")), &settings).await;
    assert_eq!(found.map_err(refused).map(|read| read.request.kept_for), Ok(Some(Duration::from_secs(7_200))));
    let mut with_tag = request(Method::DELETE, "?resource=a&resource=b", ("", ""));
    with_tag.headers_mut().insert("if-match", "\"7\"".parse().expect("a value"));
    let found = release(with_tag, &settings).await.map_err(refused);
    assert!(found.is_err_and(|sentence| sentence.contains("If-Match: is for one lock")));
}
