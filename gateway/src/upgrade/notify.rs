//! Notifications to a service manager (systemd's `NOTIFY_SOCKET`).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends a state such as `READY=1`, if there is a service manager. Nothing depends on it, so a failure is only
/// logged.
pub fn send_state(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(name.as_encoded_bytes(), state) {
        tracing::warn!("sd_notify({state}) failed: {error} (NOTIFY_SOCKET)");
    }
}

/// Reports that the files are being read again; `READY=1` has to follow.
pub fn reloading() {
    // systemd wants the time in microseconds, so that it knows to which reload the message belongs.
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    send_state(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.tv_sec * 1_000_000 + now.tv_nsec / 1_000));
}

fn send(name: &[u8], state: &str) -> std::io::Result<()> {
    let address = match name {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        path => {
            use std::os::unix::ffi::OsStrExt;
            SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?
        }
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_notified_by_path_or_by_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let name = format!("sluice-notify-{}", std::process::id());
        let hidden = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(path.as_os_str().as_encoded_bytes(), "READY=1").unwrap();
        send(format!("@{name}").as_bytes(), "MAINPID=7").unwrap();
        let mut bytes = [0; 32];
        for (socket, state) in [(manager, "READY=1"), (hidden, "MAINPID=7")] {
            let n = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..n], state.as_bytes());
        }
    }
}
