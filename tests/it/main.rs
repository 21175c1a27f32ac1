//! The one integration binary: a module per promise, and one for what they stand on.

mod access;
mod audit;
mod cases;
mod cli;
mod cli_doctor;
mod cli_examples;
mod cli_packages;
mod command_line;
mod documents;
mod faults;
mod fuzz_corpus;
mod http_contract;
mod interop;
mod logs;
mod metrics;
mod prometheus;
mod recipes;
mod redis_node;
mod run;
mod run_lost;
mod run_signals;
mod schemathesis;
mod stress;
mod support;
mod waiting;
