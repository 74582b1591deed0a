//! Handshakes, from either side. The time bound is the caller's.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::ServerName;
use rustls::server::{Accepted, Acceptor, ClientHello};
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig};

use super::{CIPHERTEXT, Tls, poll_send};
use crate::rt::io::Io;

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// The transport failed or ended.
    Transport,
    /// Nothing is served under the name that the client wants.
    NoCertificate,
    /// The client speaks HTTP without TLS.
    PlainHttp,
    /// The peers do not agree, or one does not trust the other.
    Tls(rustls::Error),
}

/// A client's handshake that failed.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: HandshakeError,
    /// The transport. The client may have to read an alert there.
    pub(crate) io: Io,
}

impl From<io::Error> for HandshakeError {
    fn from(_: io::Error) -> HandshakeError {
        HandshakeError::Transport
    }
}

/// The alert `unrecognized_name` (RFC 6066 section 3), fatal, as a record of its own.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// Does the handshake with a client; `choose` returns the configuration for the name it asks for. A client that sends
/// a request of HTTP without TLS gets `plain`.
pub(crate) async fn accept(
    mut io: Io,
    plain: &[u8],
    choose: impl FnOnce(&ClientHello<'_>) -> Option<Arc<ServerConfig>>,
) -> Result<Io, Refused> {
    let mut acceptor = Acceptor::default();
    let mut surplus = Vec::new();
    let mut begun = false;
    let accepted =
        match poll_fn(|cx| poll_hello(&mut io, &mut acceptor, &mut begun, plain, &mut surplus, cx)).await {
            Ok(accepted) => accepted,
            Err(error) => return Err(Refused { error, io }),
        };
    let Some(config) = choose(&accepted.client_hello()) else {
        say(&mut io, &UNRECOGNIZED_NAME).await;
        return Err(Refused { error: HandshakeError::NoCertificate, io });
    };
    let session = match accepted.into_connection(config) {
        Ok(session) => session,
        Err((error, alert)) => {
            say(&mut io, &bytes_of(alert)).await;
            return Err(Refused { error: HandshakeError::Tls(error), io });
        }
    };
    shake(io, Connection::Server(session), surplus).await
}

/// Opens TLS towards a server.
pub(crate) async fn connect(
    io: Io,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> Result<Io, HandshakeError> {
    let session = ClientConnection::new(config, name).map_err(HandshakeError::Tls)?;
    shake(io, Connection::Client(session), Vec::new()).await.map_err(|refused| refused.error)
}

/// Reads until the client's first message is whole.
fn poll_hello(
    io: &mut Io,
    acceptor: &mut Acceptor,
    begun: &mut bool,
    plain: &[u8],
    surplus: &mut Vec<u8>,
    cx: &mut Context<'_>,
) -> Poll<Result<Accepted, HandshakeError>> {
    loop {
        let accepted = CIPHERTEXT.with_borrow_mut(|ciphertext| {
            let n = match io.split().0.poll_read(cx, ciphertext) {
                Poll::Ready(Ok(0)) => Err(io::Error::from(io::ErrorKind::UnexpectedEof))?,
                Poll::Ready(read) => read?,
                Poll::Pending => return Poll::Pending,
            };
            if !std::mem::replace(begun, true) && !plain.is_empty() && is_http(&ciphertext[..n]) {
                let _ = io.split().1.poll_write(cx, plain);
                return Poll::Ready(Err(HandshakeError::PlainHttp));
            }
            let mut rest = &ciphertext[..n];
            while !rest.is_empty() {
                acceptor.read_tls(&mut rest)?;
                match acceptor.accept() {
                    Ok(None) => {}
                    Ok(Some(accepted)) => {
                        surplus.extend_from_slice(rest);
                        return Poll::Ready(Ok(Some(accepted)));
                    }
                    Err((error, alert)) => {
                        let _ = io.split().1.poll_write(cx, &bytes_of(alert));
                        return Poll::Ready(Err(HandshakeError::Tls(error)));
                    }
                }
            }
            Poll::Ready(Ok(None))
        });
        match accepted {
            Poll::Ready(Ok(None)) => {}
            Poll::Ready(Ok(Some(accepted))) => return Poll::Ready(Ok(accepted)),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
    }
}

/// Whether these are the first bytes of a request: a method. No record of TLS begins with a letter.
pub(super) fn is_http(bytes: &[u8]) -> bool {
    let method = bytes.iter().take(24).position(|byte| *byte == b' ');
    method.is_some_and(|end| end > 2 && bytes[..end].iter().all(u8::is_ascii_uppercase))
}

/// Does the handshake to its end, and sends the records that are left to send.
async fn shake(mut io: Io, mut session: Connection, mut surplus: Vec<u8>) -> Result<Io, Refused> {
    let shaken = poll_fn(|cx| {
        loop {
            // The surplus first: it was read before.
            let taken = std::mem::take(&mut surplus);
            if let Err(error) = digest(&mut session, &taken, &mut surplus) {
                let _ = poll_send(&mut io, &mut session, cx);
                return Poll::Ready(Err(error));
            }
            let sent = poll_send(&mut io, &mut session, cx)?;
            if !session.is_handshaking() {
                return sent.map(|()| Ok(()));
            }
            let read = CIPHERTEXT.with_borrow_mut(|ciphertext| {
                let read = io.split().0.poll_read(cx, ciphertext);
                if let Poll::Ready(Ok(n)) = read {
                    surplus.extend_from_slice(&ciphertext[..n]);
                }
                read
            });
            match read {
                Poll::Ready(Ok(0)) => Err(io::Error::from(io::ErrorKind::UnexpectedEof))?,
                Poll::Ready(read) => _ = read?,
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
    match shaken {
        Ok(()) => Ok(Io::Tls(Box::new(Tls::new(io, session, &surplus)))),
        Err(error) => Err(Refused { error, io }),
    }
}

/// Gives the session what was read, as long as the handshake runs; the rest is kept.
fn digest(
    session: &mut Connection,
    mut ciphertext: &[u8],
    surplus: &mut Vec<u8>,
) -> Result<(), HandshakeError> {
    while !ciphertext.is_empty() {
        if !session.is_handshaking() {
            surplus.extend_from_slice(ciphertext);
            break;
        }
        session.read_tls(&mut ciphertext)?;
        session.process_new_packets().map_err(HandshakeError::Tls)?;
    }
    Ok(())
}

fn bytes_of(mut alert: rustls::server::AcceptedAlert) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A vector takes everything.
    let _ = alert.write_all(&mut bytes);
    bytes
}

/// Sends an alert, if the transport takes it at once.
async fn say(io: &mut Io, alert: &[u8]) {
    poll_fn(|cx| {
        let _ = io.split().1.poll_write(cx, alert);
        Poll::Ready(())
    })
    .await;
}
