//! The commands that a Redis server receives, as `MONITOR` shows them.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::poll;
use super::redis_server::RedisServer;

/// Collects the commands of one server.
pub struct Monitor(Arc<Mutex<Vec<String>>>);

impl Monitor {
    /// Collects from now on.
    pub async fn of(server: &RedisServer) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).await.expect("a server");
        stream.write_all(b"MONITOR\r\n").await.expect("sent");
        let mut lines = BufReader::new(stream).lines();
        assert_eq!(lines.next_line().await.expect("an answer").as_deref(), Some("+OK"));
        let commands = Arc::new(Mutex::new(Vec::new()));
        let collected = Arc::clone(&commands);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                collected.lock().push(line);
            }
        });
        Self(commands)
    }

    /// The commands so far.
    pub fn commands(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    /// All commands that the server has received until now.
    pub async fn all_commands(&self, server: &RedisServer) -> Vec<String> {
        const MARKER: &str = "end-of-the-monitored-commands";
        server.ask::<String>(&["ECHO", MARKER]).await;
        poll::until_true("the monitor has all commands", || self.0.lock().iter().any(|line| line.contains(MARKER)))
            .await;
        self.commands()
    }
}

/// Whether this line is a script call by a client, and not a command within a script.
pub fn is_script_call(line: &str) -> bool {
    line.to_ascii_lowercase().contains("\"evalsha\"") && !line.contains(" lua]")
}
