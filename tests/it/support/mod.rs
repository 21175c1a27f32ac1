//! What the integration tests stand on: real servers, a network that misbehaves on command, the
//! service as a process and as a library, and waiting for a condition with a bound.

pub mod balancer;
pub mod chaos_proxy;
pub mod client;
pub mod clock_shim;
pub mod cluster;
pub mod daemon;
pub mod monitor;
pub mod plain_http;
pub mod poll;
pub mod programs;
pub mod prometheus;
pub mod redis_server;
pub mod seeded;
pub mod service;
pub mod temp_dir;
pub mod terraform;
