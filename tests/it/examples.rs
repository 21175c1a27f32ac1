//! The programs under `examples/` do what they say, against a service of their own.

#[path = "../../clients/rust/examples/client.rs"]
#[allow(dead_code, reason = "its `main` is for cargo run")]
mod client;
#[path = "../../examples/fenced_write.rs"]
#[allow(dead_code, reason = "its `main` is for cargo run")]
mod fenced_write;

use crate::support::service::Service;

#[tokio::test]
async fn the_example_client_renews_and_releases() {
    let service = Service::embedded(&[]).await;
    client::run(service.client().base()).await.expect("the work is done under the lock");
    service.client().inspect("example/client").await.expect_problem(404, "not-held");
}

#[tokio::test]
async fn the_example_store_refuses_the_late_write() {
    let service = Service::embedded(&[]).await;
    fenced_write::run(service.client().base()).await.expect("the late write is refused");
}
