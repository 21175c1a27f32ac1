//! Call-backs and hooks: what may be sent where (`file`, `target`, `address`), how a message looks and is signed (`message`,
//! `signing`), one try (`transport`, `resolver`), and all tries of a message (`deliveries`; `hooks` for subscriptions).

pub mod address;
pub mod deliveries;
pub mod event;
pub mod file;
pub mod message;
pub mod resolver;
pub mod signing;
mod table;
pub mod target;
pub mod transport;
