//! Reports the service's state to systemd (`Type=notify`): one datagram per state, to the socket in `NOTIFY_SOCKET`.
//!
//! Source: sd_notify(3).

use std::os::unix::net::UnixDatagram;

use crate::config::Environment;

/// The service is ready.
pub(super) const READY: &str = "READY=1";
/// The service is stopping and finishes its requests.
pub(super) const STOPPING: &str = "STOPPING=1";

/// Sends a state if there is a socket. Errors are ignored: systemd has its own timeout.
pub(super) fn notify(env: &impl Environment, state: &str) {
    let Some(address) = env.get("NOTIFY_SOCKET").filter(|address| !address.is_empty()) else { return };
    let Ok(socket) = UnixDatagram::unbound() else { return };
    let bytes = address.as_encoded_bytes();
    match bytes.strip_prefix(b"@") {
        #[cfg(target_os = "linux")]
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            if let Ok(address) = std::os::unix::net::SocketAddr::from_abstract_name(name) {
                let _ = socket.send_to_addr(state.as_bytes(), &address);
            }
        }
        #[cfg(not(target_os = "linux"))]
        Some(_) => {}
        None => drop(socket.send_to(state.as_bytes(), &address)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn with(address: &str) -> BTreeMap<String, String> {
        [("NOTIFY_SOCKET".to_owned(), address.to_owned())].into()
    }

    #[test]
    fn state_is_sent_and_missing_socket_is_ignored() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        notify(&with(&path.display().to_string()), READY);
        let socket = UnixDatagram::bind(&path).expect("a socket");
        notify(&with(&path.display().to_string()), READY);
        notify(&BTreeMap::<String, String>::new(), STOPPING);
        let mut received = [0; 64];
        let n = socket.recv(&mut received).expect("a datagram");
        assert_eq!(&received[..n], READY.as_bytes());
    }
}
