//! The kernel's facts of a TCP connection: how long it has waited to be accepted, and how many bytes the peer
//! has acknowledged.
#![allow(unsafe_code, reason = "the one system call that no safe crate offers")]

use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Where `tcpi_bytes_acked` and `tcpi_notsent_bytes` lie in the kernel's `struct tcp_info`, of which `libc` declares
/// only the beginning. They are there since Linux 4.1 and 4.6.
const BYTES_ACKED: usize = 120;
const NOT_SENT: usize = 144;

/// The part of `struct tcp_info` that is asked for.
type Info = [u8; NOT_SENT + 4];

/// Asks for `TCP_INFO` (tcp(7)). Fields that the kernel does not know are zero.
fn info(socket: BorrowedFd<'_>) -> Option<Info> {
    let mut info: Info = [0; size_of::<Info>()];
    let mut size = size_of::<Info>() as libc::socklen_t;
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most `size` bytes to where
    // `info` lies, which is bytes.
    let done =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, info.as_mut_ptr().cast(), &raw mut size) };
    (done == 0).then_some(info)
}

fn number<const N: usize>(info: &Info, at: usize) -> [u8; N] {
    std::array::from_fn(|n| info[at + n])
}

/// Milliseconds since the last byte came, or since the connection came about if none did
/// (`tcpi_last_data_recv`). 0 if the kernel does not say.
pub(super) fn since_last_byte(socket: BorrowedFd<'_>) -> u64 {
    const AT: usize = offset_of!(libc::tcp_info, tcpi_last_data_recv);
    info(socket).map_or(0, |info| u32::from_ne_bytes(number(&info, AT)).into())
}

/// While the peer has not acknowledged all that was written: how many bytes it has.
pub(super) fn acknowledged(socket: BorrowedFd<'_>) -> Option<u64> {
    const IN_FLIGHT: usize = offset_of!(libc::tcp_info, tcpi_unacked);
    let info = info(socket)?;
    let outstanding = [IN_FLIGHT, NOT_SENT].iter().any(|at| u32::from_ne_bytes(number(&info, *at)) > 0);
    outstanding.then(|| u64::from_ne_bytes(number(&info, BYTES_ACKED)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
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
        // However busy the machine is, at some time it looks soon after a byte.
        while {
            client.write_all(b"x").unwrap();
            accepted.peek(&mut [0]).unwrap();
            since_last_byte(accepted.as_fd()) >= silent
        } {}
    }

    #[test]
    fn what_the_peer_does_not_read_is_not_acknowledged_for_ever() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        let mut written = 0;
        // Until neither side has room for more.
        while let Ok(n) = accepted.write(&[0; 64 << 10]) {
            written += n;
        }
        let before = acknowledged(accepted.as_fd()).expect("more than the client has room for");
        assert!(before < written as u64, "{before} of {written}");
        client.read_exact(&mut vec![0; written]).unwrap();
        let mut last = before;
        while let Some(now) = acknowledged(accepted.as_fd()) {
            assert!(now >= last, "{now} after {last}");
            last = now;
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn no_connection_has_no_age() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(since_last_byte(file.as_fd()), 0);
        assert_eq!(acknowledged(file.as_fd()), None);
    }
}
