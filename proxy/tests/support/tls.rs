//! A client that speaks TLS.

use std::future::poll_fn;
use std::io::{self, ErrorKind, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use proxy::testing::End;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// TLS over an end of a connection.
pub struct Tls {
    end: End,
    session: ClientConnection,
    unsent: Vec<u8>,
}

/// A client that speaks this version of TLS and, in it, one of these protocols (ALPN).
pub fn speaks(version: &'static SupportedProtocolVersion, alpn: &[&str]) -> Arc<ClientConfig> {
    shows(version, alpn, None)
}

/// Like [`speaks`], with a client certificate and key if there are any.
pub fn shows(
    version: &'static SupportedProtocolVersion,
    alpn: &[&str],
    own: Option<(&[u8], &[u8])>,
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let ca = include_bytes!("../../../tests/certs/ca.crt");
    roots.add(CertificateDer::from_pem_slice(ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
    let builder = builder.with_root_certificates(roots);
    let mut config = match own {
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key).unwrap()).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

impl Tls {
    /// Does the handshake with a server of this name.
    pub async fn shake(end: End, config: &Arc<ClientConfig>, name: &str) -> io::Result<Tls> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let session = ClientConnection::new(config.clone(), name).unwrap();
        let mut tls = Tls { end, session, unsent: Vec::new() };
        poll_fn(|cx| {
            loop {
                ready!(tls.poll_send(cx))?;
                if !tls.session.is_handshaking() {
                    return Poll::Ready(Ok(()));
                }
                if !ready!(tls.poll_more(cx))? {
                    return Poll::Ready(Err(io::Error::from(ErrorKind::UnexpectedEof)));
                }
            }
        })
        .await?;
        Ok(tls)
    }

    /// Sends this text, and reads until the gateway closes the connection.
    pub async fn ask(&mut self, text: &str) -> String {
        self.session.writer().write_all(text.as_bytes()).unwrap();
        let (mut got, mut part) = (Vec::new(), [0; 4096]);
        loop {
            let mut buf = ReadBuf::new(&mut part);
            poll_fn(|cx| Pin::new(&mut *self).poll_read(cx, &mut buf)).await.unwrap();
            if buf.filled().is_empty() {
                return String::from_utf8(got).unwrap();
            }
            got.extend_from_slice(buf.filled());
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.unsent.is_empty() && self.session.wants_write() {
                self.session.write_tls(&mut self.unsent)?;
            }
            if self.unsent.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let n = ready!(self.end.poll_write(cx, &self.unsent))?;
            self.unsent.drain(..n);
        }
    }

    /// Reads more bytes. False at the end.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut part = [0; 4096];
        let n = ready!(self.end.poll_read(cx, &mut part))?;
        let mut rest = &part[..n];
        while !rest.is_empty() {
            self.session.read_tls(&mut rest)?;
            if let Err(error) = self.session.process_new_packets() {
                // Sends the alert to the gateway.
                let _ = self.poll_send(cx);
                return Poll::Ready(Err(io::Error::other(error)));
            }
        }
        Poll::Ready(Ok(n > 0))
    }
}

impl AsyncRead for Tls {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let tls = self.get_mut();
        loop {
            let _ = tls.poll_send(cx)?;
            match tls.session.reader().read(buf.initialize_unfilled()) {
                Ok(n) => {
                    buf.advance(n);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            if !ready!(tls.poll_more(cx))? {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for Tls {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let tls = self.get_mut();
        ready!(tls.poll_send(cx))?;
        let n = tls.session.writer().write(bytes)?;
        let _ = tls.poll_send(cx)?;
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_send(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tls = self.get_mut();
        tls.session.send_close_notify();
        ready!(tls.poll_send(cx))?;
        tls.end.shut_down();
        Poll::Ready(Ok(()))
    }
}
