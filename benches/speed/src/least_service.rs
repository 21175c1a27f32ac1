//! The least that an HTTP service over these nodes does: the bare endpoint ([`crate::peers::serve_bare`]), whose requests of a turn
//! share the commands of the service's scripts, which the fastest client sends. It keeps no lease, checks and
//! limits nothing, repeats and undoes nothing, and counts nothing.

use std::net::SocketAddr;
use std::rc::Rc;

use axum::extract::{Json, Path, State};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::routing::post;
use redlockd::protocol::Request;
use redlockd::protocol::commands::{self, BATCH_MAX};
use redlockd::redlock::random::{Entropy, SystemEntropy};
use redlockd::types::Token;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};

use crate::Failure;
use crate::floor::Script;
use crate::pipelined_client::PipelinedClient;
use crate::servers::{connection, fingerprints};

/// A request, and who learns whether a majority of the nodes did it.
type Asked = (Request, oneshot::Sender<bool>);

/// Requests of one turn that are taken at once.
const TURN_MAX: usize = 1_024;

/// Serves until the process is ended, over nodes that an instance has declared. Prints its address.
///
/// Errors: where a node cannot be reached.
pub async fn serve(nodes: &[String]) -> Result<(), Failure> {
    let nodes: Vec<SocketAddr> = nodes.iter().map(|node| node.parse()).collect::<Result<_, _>>()?;
    let fingerprints = fingerprints(&nodes)?;
    for node in &nodes {
        let mut connection = connection(*node)?;
        commands::all_scripts().into_iter().try_for_each(|script| script.load().exec(&mut connection))?;
    }
    let (asked, queue) = mpsc::channel(TURN_MAX);
    let served = async {
        spawn_local(send(PipelinedClient::connect(&nodes).await?, fingerprints, queue));
        let app = axum::Router::new().route("/locks/{*resource}", post(acquire).delete(release)).with_state(asked);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        axum::serve(listener, app).await?;
        Ok(())
    };
    LocalSet::new().run_until(served).await
}

async fn acquire(
    State(queue): State<mpsc::Sender<Asked>>,
    Path(resource): Path<String>,
    Json(body): Json<Value>,
) -> (StatusCode, [(HeaderName, String); 1], Json<Value>) {
    let token = SystemEntropy.token();
    let is_granted = ask(&queue, Script::acquire(&resource, token.hash())).await;
    let code = if is_granted { StatusCode::CREATED } else { StatusCode::CONFLICT };
    let token = token.reveal().to_owned();
    let body = json!({ "ttl": body["ttl"], "token": token, "fence": 1 });
    (code, [(HeaderName::from_static("lock-token"), token)], Json(body))
}

async fn release(
    State(queue): State<mpsc::Sender<Asked>>,
    Path(resource): Path<String>,
    headers: HeaderMap,
) -> StatusCode {
    let token = headers.get("lock-token").and_then(|value| value.to_str().ok()).and_then(|raw| Token::parse(raw).ok());
    let Some(token) = token else { return StatusCode::BAD_REQUEST };
    match ask(&queue, Script::release(&resource, token.hash())).await {
        true => StatusCode::NO_CONTENT,
        false => StatusCode::CONFLICT,
    }
}

/// Whether a majority did it.
async fn ask(queue: &mpsc::Sender<Asked>, request: Request) -> bool {
    let (done, is_done) = oneshot::channel();
    queue.send((request, done)).await.is_ok() && is_done.await.unwrap_or(false)
}

/// Sends what was asked for in a turn, acquires and releases in commands of their own.
async fn send(client: PipelinedClient, fingerprints: Vec<String>, mut queue: mpsc::Receiver<Asked>) {
    let (client, fingerprints, script) = (Rc::new(client), Rc::new(fingerprints), Script::new());
    let mut turn = Vec::new();
    while queue.recv_many(&mut turn, TURN_MAX).await > 0 {
        let (acquires, releases): (Vec<Asked>, Vec<Asked>) =
            turn.drain(..).partition(|(request, _)| matches!(request, Request::Acquire(_)));
        for asked in [acquires, releases] {
            let mut asked = asked.into_iter().peekable();
            while asked.peek().is_some() {
                let (requests, callers): (Vec<Request>, Vec<_>) = asked.by_ref().take(BATCH_MAX).unzip();
                let packed = script.pack_for_each(&requests.iter().collect::<Vec<_>>(), &fingerprints[0]);
                let (client, fingerprints) = (Rc::clone(&client), Rc::clone(&fingerprints));
                spawn_local(async move {
                    let is_done = client.ask(|node, queue| packed.write_to(queue, &fingerprints[node])).await;
                    for caller in callers {
                        // Fails if the caller has gone, which does not matter.
                        let _ = caller.send(is_done);
                    }
                });
            }
        }
    }
}
