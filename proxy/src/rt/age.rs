//! How long a connection has waited to be accepted.
//!
//! The one system call that no safe crate offers.
#![allow(unsafe_code)]

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Milliseconds since the last byte came, or since the connection came about if none did
/// (tcp(7), `tcpi_last_data_recv`). 0 if the kernel does not say.
pub(super) fn since_last_byte(socket: BorrowedFd<'_>) -> u64 {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most `size`
    // bytes to where `info` lies.
    let done =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, info.as_mut_ptr().cast(), &raw mut size) };
    // SAFETY: it is all integers, was zeroed, and whatever the kernel wrote over it is integers too.
    let info = unsafe { info.assume_init() };
    if done == 0 { u64::from(info.tcpi_last_data_recv) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::since_last_byte;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::Duration;

    #[test]
    fn the_age_is_that_of_the_last_byte() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let (accepted, _) = listener.accept().unwrap();
        let silent = since_last_byte(accepted.as_fd());
        assert!(silent >= 250, "{silent} ms after it came about");
        client.write_all(b"x").unwrap();
        accepted.peek(&mut [0]).unwrap();
        let spoken = since_last_byte(accepted.as_fd());
        assert!(spoken < silent, "{spoken} ms after a byte");
    }

    #[test]
    fn no_connection_has_no_age() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(since_last_byte(file.as_fd()), 0);
    }
}
