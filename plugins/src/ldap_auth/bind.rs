//! A simple bind (RFC 4511 section 4.2): one request and one answer over a connection of the worker.
//!
//! Connections are kept: each bind replaces the state that the one before left.

use std::io;
use std::time::Duration;

use sdk::World;
use sdk::connection::{AsyncReadExt, AsyncWriteExt, Connect, Connection};

use crate::within::within;

/// Why a bind failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// The name or the password is not accepted.
    Refused,
    /// The directory does not answer, or answers that it cannot judge; for the log.
    Server(&'static str),
}

/// The longest answer, in bytes: it may have a text for people.
const MOST: usize = 16 << 10;

/// How long a connection without a bind stays open.
const IDLE: Duration = Duration::from_secs(60);

/// Number of the message; there is one at a time on a connection.
const ID: u8 = 1;

const BROKEN: Failure = Failure::Server("the directory closed the connection");
const INVALID: Failure = Failure::Server("the answer of the directory is not one of LDAP to a bind");

/// Binds as `dn`.
pub(super) async fn bind(
    world: &dyn World,
    to: &Connect,
    timeout: Duration,
    dn: &str,
    password: &[u8],
) -> Result<(), Failure> {
    let request = request(dn, password);
    loop {
        let mut connection =
            world.connect(to.clone()).await.map_err(|error| Failure::Server(error.as_str()))?;
        let was_used = connection.is_reused();
        let answer = within(world, timeout, exchange(&mut connection, &request)).await;
        match answer.ok_or(Failure::Server("the directory does not answer in time"))? {
            // The directory may have closed an idle connection. Each one is tried once; a new one ends the loop.
            Err(_) if was_used => {}
            Err(_) => return Err(BROKEN),
            Ok(answer) => {
                let result = outcome(&answer);
                // An answer from before, such as the notice of a disconnection (RFC 4511 section 4.4.1).
                if was_used && result == Err(INVALID) {
                    continue;
                }
                if matches!(result, Ok(()) | Err(Failure::Refused)) {
                    connection.keep(IDLE);
                }
                return result;
            }
        }
    }
}

async fn exchange(connection: &mut Connection, request: &[u8]) -> io::Result<Vec<u8>> {
    connection.write_all(request).await?;
    connection.flush().await?;
    // Tag and length; a short length is one byte, a long one says how many follow.
    let mut answer = vec![0; 2];
    connection.read_exact(&mut answer).await?;
    let mut length = usize::from(answer[1]);
    if length >= 0x80 {
        let mut long = [0; 4];
        let long = long.get_mut(..length - 0x80).ok_or(io::ErrorKind::InvalidData)?;
        connection.read_exact(long).await?;
        length = long.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    }
    if length > MOST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let start = answer.len();
    answer.resize(start + length, 0);
    connection.read_exact(&mut answer[start..]).await?;
    Ok(answer)
}

/// The message of a bind.
fn request(dn: &str, password: &[u8]) -> Vec<u8> {
    let version = element(0x02, &[3]);
    let bind = element(0x60, &[version, element(0x04, dn.as_bytes()), element(0x80, password)].concat());
    element(0x30, &[element(0x02, &[ID]), bind].concat())
}

/// A value in BER, behind its tag and length.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match content.len() {
        short @ 0..0x80 => out.push(short as u8),
        length @ 0x80..0x1_0000 => {
            out.push(0x82);
            out.extend((length as u16).to_be_bytes());
        }
        length => {
            out.push(0x84);
            out.extend((length as u32).to_be_bytes());
        }
    }
    out.extend_from_slice(content);
    out
}

/// Returns the result of an answer, whose first two bytes are its tag and a part of its length.
fn outcome(answer: &[u8]) -> Result<(), Failure> {
    let (start, mut rest) = answer.split_at_checked(2).ok_or(INVALID)?;
    let id = read(&mut rest, 0x02);
    let code = read(&mut rest, 0x61).and_then(|mut bind| read(&mut bind, 0x0a));
    let (Some([ID]), Some([code]), 0x30) = (id, code, start[0]) else { return Err(INVALID) };
    match code {
        0 => Ok(()),
        // noSuchObject, invalidDNSyntax, inappropriateAuthentication, invalidCredentials, insufficientAccessRights,
        // unwillingToPerform.
        32 | 34 | 48 | 49 | 50 | 53 => Err(Failure::Refused),
        8 | 13 => Err(Failure::Server("the directory requires TLS for a bind: use_tls")),
        _ => Err(Failure::Server("the directory cannot judge the bind now")),
    }
}

/// Takes a value with this tag.
fn read<'a>(from: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (&[found, length], rest) = from.split_first_chunk()?;
    let (length, rest) = match length {
        0x81..=0x84 => {
            let (long, rest) = rest.split_at_checked(usize::from(length - 0x80))?;
            (long.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        length => (usize::from(length), rest),
    };
    let (value, rest) = rest.split_at_checked(length)?;
    *from = rest;
    (found == tag).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_the_message_of_rfc_4511() {
        let known = b"\x30\x1f\x02\x01\x01\x60\x1a\x02\x01\x03\x04\x0dcn=a,dc=b,c=d\x80\x06secret";
        assert_eq!(request("cn=a,dc=b,c=d", b"secret"), known);
        let long = request("a", &[b'x'; 300]);
        assert_eq!(&long[..4], &[0x30, 0x82, 0x01, 0x3d]);
        assert_eq!(long.len(), 4 + 0x13d);
    }

    #[test]
    fn answers_are_judged_by_their_code() {
        let answer = |code: u8| {
            let bind = element(
                0x61,
                &[element(0x0a, &[code]), element(0x04, b""), element(0x04, &[b'x'; 200])].concat(),
            );
            [&[0x30, 0x82][..], &element(0x02, &[1]), &bind].concat()
        };
        assert_eq!(outcome(&answer(0)), Ok(()));
        for code in [32, 34, 48, 49, 50, 53] {
            assert_eq!(outcome(&answer(code)), Err(Failure::Refused), "{code}");
        }
        for code in [1, 8, 13, 51, 52, 80, 200] {
            assert!(matches!(outcome(&answer(code)), Err(Failure::Server(_))), "{code}");
        }
        let whole = answer(0);
        for end in 0..whole.len() {
            assert_eq!(outcome(&whole[..end]), Err(INVALID), "{end}");
        }
        // Another message, another number, and a value of another kind.
        for (at, byte) in [(0, 0x31), (4, 2), (5, 0x78), (9, 0x02)] {
            let mut wrong = answer(0);
            wrong[at] = byte;
            assert_eq!(outcome(&wrong), Err(INVALID), "{at}");
        }
    }
}
