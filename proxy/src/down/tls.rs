//! A client's TLS connection until its handshake is over. Then it is served as any other.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use rustls::{CipherSuite, CommonState, HandshakeKind, NamedGroup, ProtocolVersion};
use sdk::Client;
use sdk::client::{TlsSession, Verdict};
use snapshot::certs::{Certificate, client_certificate};

use super::refusal::report_handshake;
use super::{h1, h2};
use crate::exchange::answer::PLAIN_HTTP;
use crate::exchange::fault::{Fault, FaultKind, TlsNames};
use crate::exchange::proven;
use crate::io;
use crate::rt::Io;
use crate::rt::tls::{HandshakeError, Refused, accept};
use crate::worker::Worker;

/// Does the handshake and serves the connection. A client that takes too long for the handshake is
/// disconnected, even while it sends; until its end, the connection counts as idle and gives way to others.
pub(crate) async fn serve(worker: Rc<Worker>, io: Io, mut client: Client, h2: bool) {
    // Boxed, as it is large and soon over.
    let Some((io, session)) =
        Box::pin(shake(&worker, io, &client, PLAIN_HTTP, |found| found.config(h2))).await
    else {
        return;
    };
    client.session = Some(Arc::new(session));
    if io.agreed_on_h2() {
        return Box::pin(h2::serve(worker, io, client, None)).await;
    }
    // Boxed, too: HTTP/2 should not carry its size around.
    Box::pin(h1::serve(worker, io, client, false)).await;
}

/// The same for a stream. Its client has proved itself in the handshake, or is cut off.
pub(crate) async fn serve_stream(
    worker: Rc<Worker>,
    io: Io,
    mut client: Client,
    listener: SocketAddr,
    port: crate::listener::StreamPort,
) {
    let shaken = Box::pin(shake(&worker, io, &client, b"", Certificate::config_of_streams)).await;
    let Some((mut io, session)) = shaken else { return };
    if let Err(fault) = proven::check_stream(&worker.lease(), &session) {
        worker.shard.request_refused();
        report_handshake(&worker, &client, fault, TlsNames::of(&session));
        return io::linger(&worker, &worker.clock.waiter(), &mut io).await;
    }
    client.session = Some(Arc::new(session));
    crate::stream::tcp::serve(worker, io, client, listener, port).await;
}

async fn shake(
    worker: &Rc<Worker>,
    io: Io,
    client: &Client,
    plain: &[u8],
    config: impl Fn(&Certificate) -> Arc<rustls::ServerConfig>,
) -> Option<(Io, TlsSession)> {
    let lease = worker.lease();
    let mut chosen: Option<(Arc<Certificate>, Option<Box<str>>)> = None;
    let mut asked: Option<Box<str>> = None;
    let waiter = worker.clock.waiter();
    let shaken = {
        let mut handshake = std::pin::pin!(accept(io, plain, |hello| {
            let name = hello.server_name();
            asked = name.map(|name| name.to_ascii_lowercase().into());
            if let Some(proofs) = &worker.settings.proofs
                && hello.alpn().into_iter().flatten().any(|protocol| protocol == b"acme-tls/1")
            {
                // Nothing is chosen: when the name is proved, the connection ends.
                return proofs(name?);
            }
            let found = lease.certificates.find(name)?;
            chosen = Some((found.clone(), asked.clone()));
            Some(config(found))
        }));
        let deadline = worker.clock.after(worker.settings.timeouts.handshake);
        worker.shard.waiting(1);
        waiter.rest();
        let shaken = waiter
            .until(deadline, |cx| match handshake.as_mut().poll(cx) {
                Poll::Pending if waiter.is_unwanted() => Poll::Ready(None),
                polled => polled.map(Some),
            })
            .await;
        waiter.end_rest();
        worker.shard.waiting(-1);
        shaken
    };
    let (kind, names, left) = match shaken {
        Ok(Some(Ok(io))) => {
            let (certificate, name) = chosen?;
            let now = worker.clock.coarse_unix_ms() / 1000;
            let session = io.tls().map(|tls| tls.agreed(|agreed| session(agreed, &certificate, name, now)));
            let session = session.unwrap_or_default();
            worker.shard.handshake(true, session.reused);
            return Some((io, session));
        }
        // It gave way to others.
        Ok(None) => return None,
        // A client that connects and leaves without a byte is a probe, and not logged.
        Ok(Some(Err(Refused { error: HandshakeError::Transport, .. }))) => {
            worker.shard.handshake(false, false);
            return None;
        }
        Ok(Some(Err(Refused { error, io }))) => {
            let (kind, error) = match &error {
                HandshakeError::NoCertificate if asked.is_none() => (
                    FaultKind::HandshakeFailed(
                        "the client named no server (SNI), as by an IP address, and `apisix.ssl.fallback_sni` names none for it",
                    ),
                    None,
                ),
                HandshakeError::NoCertificate | HandshakeError::Transport => (FaultKind::NoCertificate, None),
                HandshakeError::PlainHttp => (
                    FaultKind::HandshakeFailed("the client sent a plain HTTP request to an HTTPS port"),
                    None,
                ),
                HandshakeError::Tls(error) => (FaultKind::HandshakeFailed(client_fault(error)), Some(error)),
            };
            (kind, TlsNames::refused(asked.as_deref(), error), Some(io))
        }
        Err(_) => (FaultKind::HandshakeTimeout, TlsNames::refused(asked.as_deref(), None), None),
    };
    worker.shard.handshake(false, false);
    report_handshake(worker, client, Fault::client(kind), names);
    if let Some(mut io) = left {
        // A client of TLS 1.3 has sent its first requests before it can know that its certificate is refused.
        io::linger(worker, &waiter, &mut io).await;
    }
    None
}

/// Why a client's handshake came to nothing, in words.
pub(super) fn client_fault(error: &rustls::Error) -> &'static str {
    use rustls::{CertificateError, Error, PeerIncompatible};
    match error {
        Error::NoCertificatesPresented => "the client sent no certificate, and one is required",
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "the client's certificate has expired"
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the client's certificate is from an authority that is not trusted"
        }
        Error::InvalidCertificate(CertificateError::BadEncoding) => {
            "the client's certificate is malformed, or not of X.509 version 3"
        }
        Error::InvalidCertificate(CertificateError::InvalidPurpose) => {
            "the client's certificate is not for clients (extended key usage)"
        }
        Error::InvalidCertificate(_) => "the client's certificate is not trusted",
        Error::AlertReceived(_) => "the client ended the TLS handshake",
        Error::NoApplicationProtocol => "the client speaks no protocol that is served here (ALPN)",
        Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::Tls13RequiredForQuic
            | PeerIncompatible::SupportedVersionsExtensionRequired,
        ) => "the client speaks no version of TLS that is served here",
        Error::PeerIncompatible(_) => "the client and the gateway have no TLS parameters in common",
        Error::InvalidMessage(_) => "what the client sent is not TLS",
        _ => "the TLS handshake failed",
    }
}

pub(super) fn session(
    agreed: &CommonState,
    certificate: &Certificate,
    server_name: Option<Box<str>>,
    now: u64,
) -> TlsSession {
    let sent = agreed.peer_certificates();
    TlsSession {
        server_name,
        protocol: match agreed.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "",
        },
        cipher: agreed.negotiated_cipher_suite().map_or("", |suite| cipher(suite.suite())),
        curve: agreed.negotiated_key_exchange_group().map_or("", |group| curve(group.name())),
        reused: agreed.handshake_kind() == Some(HandshakeKind::Resumed),
        alpn: match agreed.alpn_protocol() {
            Some(b"h2") => "h2",
            Some(b"h3") => "h3",
            Some(b"http/1.1") => "http/1.1",
            Some(b"http/1.0") => "http/1.0",
            _ => "",
        },
        rules: certificate.client.as_ref().map(|rules| *rules.digest()),
        verdict: if certificate.client.is_some() { certificate.verdict(sent, now) } else { Verdict::None },
        certificate: sent.and_then(|sent| client_certificate(sent.first()?)).map(Box::new),
    }
}

/// OpenSSL's name of a cipher suite.
fn cipher(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => "ECDHE-ECDSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => "ECDHE-ECDSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-ECDSA-CHACHA20-POLY1305",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => "ECDHE-RSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => "ECDHE-RSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-RSA-CHACHA20-POLY1305",
        _ => "",
    }
}

fn curve(group: NamedGroup) -> &'static str {
    match group {
        NamedGroup::X25519MLKEM768 => "X25519MLKEM768",
        NamedGroup::X25519 => "X25519",
        NamedGroup::secp256r1 => "prime256v1",
        NamedGroup::secp384r1 => "secp384r1",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};
    use std::collections::HashSet;

    #[test]
    fn each_reason_of_a_failed_handshake_has_its_words() {
        let faults = [
            (Error::NoCertificatesPresented, "no certificate"),
            (Error::InvalidCertificate(CertificateError::Expired), "expired"),
            (Error::InvalidCertificate(CertificateError::UnknownIssuer), "authority"),
            (Error::InvalidCertificate(CertificateError::BadEncoding), "malformed"),
            (Error::InvalidCertificate(CertificateError::InvalidPurpose), "not for clients"),
            (Error::InvalidCertificate(CertificateError::BadSignature), "is not trusted"),
            (Error::AlertReceived(AlertDescription::BadCertificate), "the client ended"),
            (Error::NoApplicationProtocol, "ALPN"),
            (Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered), "version of TLS"),
            (Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon), "parameters in common"),
            (Error::InvalidMessage(InvalidMessage::InvalidContentType), "not TLS"),
            (Error::General("x".into()), "failed"),
        ];
        let mut all = HashSet::new();
        for (fault, word) in &faults {
            let text = client_fault(fault);
            assert!(text.contains(word), "{fault:?}: {text}");
            all.insert(text);
        }
        assert_eq!(all.len(), faults.len(), "each has a text of its own");
    }

    /// As OpenSSL, and so NGINX's `$ssl_cipher` and `$ssl_curve`, call them.
    #[test]
    fn what_was_agreed_on_has_openssls_names() {
        use rustls::crypto::aws_lc_rs::{ALL_CIPHER_SUITES, ALL_KX_GROUPS};
        let suites: Vec<_> = ALL_CIPHER_SUITES.iter().map(|suite| cipher(suite.suite())).collect();
        let expected = [
            "TLS_AES_256_GCM_SHA384",
            "TLS_AES_128_GCM_SHA256",
            "TLS_CHACHA20_POLY1305_SHA256",
            "ECDHE-ECDSA-AES256-GCM-SHA384",
            "ECDHE-ECDSA-AES128-GCM-SHA256",
            "ECDHE-ECDSA-CHACHA20-POLY1305",
            "ECDHE-RSA-AES256-GCM-SHA384",
            "ECDHE-RSA-AES128-GCM-SHA256",
            "ECDHE-RSA-CHACHA20-POLY1305",
        ];
        assert_eq!(suites, expected);
        let groups: HashSet<_> = ALL_KX_GROUPS.iter().map(|group| curve(group.name())).collect();
        let expected = ["X25519MLKEM768", "X25519", "prime256v1", "secp384r1"];
        assert!(expected.iter().all(|name| groups.contains(name)), "{groups:?}");
    }
}
