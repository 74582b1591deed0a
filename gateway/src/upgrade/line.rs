//! Messages between the old and the new process, on a pair of Unix sockets.
//!
//! Each message is one packet: a word, its argument, and descriptors beside it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// The version of these messages. A program that speaks another one refuses to be started by this.
const VERSION: &str = "1";

/// Descriptors in one message; the kernel takes 253.
const DESCRIPTORS: usize = 128;

/// The longest message.
const LONGEST: usize = 8 * 1024;

/// One message.
#[derive(Debug)]
pub enum Message {
    /// Old to new, first: what version is spoken.
    Hello(String),
    /// Old to new: listening sockets.
    Sockets(Vec<OwnedFd>),
    /// Old to new: that was all of them.
    End,
    /// New to old: it wants the store. Old to new: it may open it.
    Store,
    /// New to old: it serves; what it is.
    Ready(String),
    /// Old to new: all is the new one's.
    Yours,
    /// New to old: why it cannot serve.
    Failed(String),
}

impl Message {
    pub fn hello() -> Message {
        Message::Hello(VERSION.to_owned())
    }

    /// Whether it is that of a program that speaks as this one does.
    pub fn is_our_hello(&self) -> bool {
        matches!(self, Message::Hello(version) if version == VERSION)
    }

    /// Descriptors, in as many messages as they need.
    pub fn sockets(all: Vec<OwnedFd>) -> Vec<Message> {
        let mut all = all.into_iter().peekable();
        let mut messages = Vec::new();
        while all.peek().is_some() {
            messages.push(Message::Sockets(all.by_ref().take(DESCRIPTORS).collect()));
        }
        messages.push(Message::End);
        messages
    }

    fn text(&self) -> String {
        match self {
            Message::Hello(version) => format!("hello {version}"),
            Message::Sockets(_) => "sockets".to_owned(),
            Message::End => "end".to_owned(),
            Message::Store => "store".to_owned(),
            Message::Ready(who) => format!("ready {who}"),
            Message::Yours => "yours".to_owned(),
            Message::Failed(why) => format!("failed {why}"),
        }
    }

    fn parse(text: &str, descriptors: Vec<OwnedFd>) -> io::Result<Message> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        Ok(match word {
            "hello" => Message::Hello(rest.to_owned()),
            "sockets" => Message::Sockets(descriptors),
            "end" => Message::End,
            "store" => Message::Store,
            "ready" => Message::Ready(rest.to_owned()),
            "yours" => Message::Yours,
            "failed" => Message::Failed(rest.to_owned()),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "an unknown message")),
        })
    }
}

/// A pair of sockets: the old process's, which does not block, and the new one's.
///
/// # Errors
/// No descriptors are left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

/// Whether this can be the new process's end of a pair.
pub fn is_line(descriptor: BorrowedFd<'_>) -> bool {
    socket_type(descriptor).is_ok_and(|kind| kind == SocketType::SEQPACKET)
}

/// Bounds every wait for the other side.
///
/// # Errors
/// It is no socket.
pub fn bound(line: &OwnedFd, patience: Duration) -> io::Result<()> {
    set_socket_timeout(line, Timeout::Recv, Some(patience))?;
    Ok(set_socket_timeout(line, Timeout::Send, Some(patience))?)
}

/// Sends one message.
///
/// # Errors
/// The other side is gone, or takes nothing more.
pub fn send(line: BorrowedFd<'_>, message: &Message) -> io::Result<()> {
    let mut text = message.text();
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text.truncate(end);
    }
    let descriptors: Vec<BorrowedFd<'_>> = match message {
        Message::Sockets(all) => all.iter().map(AsFd::as_fd).collect(),
        _ => Vec::new(),
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    sendmsg(line, &[IoSlice::new(text.as_bytes())], &mut beside, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next message; `None` when the other side is gone.
///
/// # Errors
/// The packet is not a valid message, or none has come on a socket that does not block.
pub fn receive(line: BorrowedFd<'_>) -> io::Result<Option<Message>> {
    let mut bytes = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(line, &mut [IoSliceMut::new(&mut bytes)], &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(all) = message {
            descriptors.extend(all);
        }
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    let text = std::str::from_utf8(&bytes[..got.bytes]);
    let text = text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Message::parse(text, descriptors).map(Some)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn messages_and_sockets_come_as_they_were_sent() {
        let (ours, theirs) = pair().unwrap();
        assert!(is_line(theirs.as_fd()) && !is_line(std::fs::File::open("/dev/null").unwrap().as_fd()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let copies = (0..DESCRIPTORS + 2).map(|_| listener.try_clone().unwrap().into()).collect();
        for message in [Message::hello()].into_iter().chain(Message::sockets(copies)) {
            send(ours.as_fd(), &message).unwrap();
        }
        send(ours.as_fd(), &Message::Failed("é".repeat(LONGEST))).unwrap();
        drop(ours);
        assert!(receive(theirs.as_fd()).unwrap().unwrap().is_our_hello());
        let mut sockets = Vec::new();
        loop {
            match receive(theirs.as_fd()).unwrap().unwrap() {
                Message::Sockets(more) => sockets.extend(more),
                end => break assert!(matches!(end, Message::End)),
            }
        }
        assert_eq!(sockets.len(), DESCRIPTORS + 2);
        for socket in sockets {
            assert_eq!(TcpListener::from(socket).local_addr().unwrap(), address);
        }
        let Some(Message::Failed(why)) = receive(theirs.as_fd()).unwrap() else { panic!() };
        assert!(why.len() > LONGEST / 2 && why.chars().all(|c| c == 'é'));
        assert!(receive(theirs.as_fd()).unwrap().is_none());
    }

    #[test]
    fn a_missing_or_invalid_message_is_an_error() {
        let (ours, theirs) = pair().unwrap();
        assert_eq!(receive(ours.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        rustix::net::send(&theirs, b"unknown", SendFlags::empty()).unwrap();
        assert_eq!(receive(ours.as_fd()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
