//! The TLS of a QUIC connection (RFC 9001). The certificate is chosen as for TCP: when the client has said
//! whom it wants, from what is published at that moment.

use std::any::Any;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::{Arc, OnceLock};

use bytes::BytesMut;
use quinn::ConnectionId;
use quinn::crypto::{self, CryptoError, KeyPair, Keys, UnsupportedVersion};
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{Side, TransportError, TransportErrorCode};
use rustls::quic::{KeyChange, PacketKey, Secrets, ServerConnection, Version};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sdk::client::TlsSession;
use snapshot::certs::Certificate;
use wire::client_hello;

use crate::down::tls::{client_fault, session};
use crate::exchange::fault::{FaultKind, TlsNames};
use crate::rt::quic::Address;
use crate::worker::Worker;

/// Alerts (RFC 8446 section 6.2).
const UNEXPECTED_MESSAGE: u8 = 10;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;
const UNRECOGNIZED_NAME: u8 = 112;

thread_local! {
    /// The worker of this thread: quinn wants what it holds to be `Send`, which no worker is.
    static WORKER: RefCell<Weak<Worker>> = const { RefCell::new(Weak::new()) };
}

/// From now on handshakes on this thread are this worker's.
pub(super) fn serve_here(worker: &Rc<Worker>) {
    WORKER.set(Rc::downgrade(worker));
}

/// The TLS of a port; [`Crypto::watched`] makes one for each connection.
#[derive(Clone)]
pub(super) struct Crypto {
    /// For what is not TLS: the keys of first packets and the tags of Retry.
    initial: Arc<QuicServerConfig>,
    seen: Arc<Seen>,
    /// The client's address, if it is to be proved.
    address: Option<Arc<Address>>,
}

/// Facts of a handshake, for the log.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) name: OnceLock<Box<str>>,
    pub(super) fault: OnceLock<FaultKind>,
    /// The names in it, where a fault follows from them.
    pub(super) names: OnceLock<TlsNames>,
}

impl Crypto {
    pub(super) fn new() -> Result<Crypto, rustls::Error> {
        /// No connection is served with this.
        #[derive(Debug)]
        struct NoCertificate;
        impl ResolvesServerCert for NoCertificate {
            fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
                None
            }
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(NoCertificate));
        let initial = QuicServerConfig::try_from(config)
            .map_err(|_| rustls::Error::General("no cipher suite for QUIC's first packets".to_owned()))?;
        Ok(Crypto { initial: Arc::new(initial), seen: Arc::default(), address: None })
    }

    /// The same for one connection. Its handshake proves the address, if there is one to prove.
    pub(super) fn watched(&self, seen: &Arc<Seen>, address: Option<Arc<Address>>) -> Arc<Crypto> {
        Arc::new(Crypto { initial: self.initial.clone(), seen: seen.clone(), address })
    }
}

impl crypto::ServerConfig for Crypto {
    fn initial_keys(&self, version: u32, dst_cid: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.initial.initial_keys(version, dst_cid)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.initial.retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(
        self: Arc<Self>,
        version: u32,
        params: &TransportParameters,
    ) -> Box<dyn crypto::Session> {
        let mut ours = Vec::new();
        params.write(&mut ours);
        Box::new(Session {
            version,
            crypto: self,
            state: State::Hello { ours, read: Vec::new() },
            next: None,
        })
    }
}

/// A connection's handshake and what comes of it.
struct Session {
    version: u32,
    crypto: Arc<Crypto>,
    state: State,
    next: Option<Secrets>,
}

enum State {
    /// The client has not said all of its first message. Our transport parameters wait.
    Hello {
        ours: Vec<u8>,
        read: Vec<u8>,
    },
    Chosen(Box<Chosen>),
    Failed,
}

struct Chosen {
    tls: ServerConnection,
    certificate: Arc<Certificate>,
    name: Option<Box<str>>,
}

impl Session {
    fn tls(&self) -> Option<&ServerConnection> {
        match &self.state {
            State::Chosen(chosen) => Some(&chosen.tls),
            _ => None,
        }
    }

    fn fail(&mut self, alert: u8, fault: FaultKind) -> TransportError {
        let _ = self.crypto.seen.fault.set(fault);
        self.state = State::Failed;
        TransportError { code: TransportErrorCode::crypto(alert), frame: None, reason: String::new() }
    }

    /// Reads the client's first message; says whether it is whole.
    fn read_hello(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        let State::Hello { ours, read } = &mut self.state else { return Ok(false) };
        read.extend_from_slice(buf);
        let name = match client_hello::parse_bare(read) {
            Ok(None) => return Ok(false),
            Ok(Some(name)) => name,
            Err(client_hello::Refusal::NotAHello) => {
                let why = client_hello::Refusal::NotAHello;
                return Err(self.fail(UNEXPECTED_MESSAGE, FaultKind::BadClientHello(why)));
            }
            Err(why) => return Err(self.fail(DECODE_ERROR, FaultKind::BadClientHello(why))),
        };
        let (ours, read) = (std::mem::take(ours), std::mem::take(read));
        if let Some(name) = &name {
            let _ = self.crypto.seen.name.set(name.clone());
        }
        let worker = WORKER.with_borrow(Weak::upgrade);
        let found = worker.and_then(|worker| worker.lease().certificates.find(name.as_deref()).cloned());
        let Some(certificate) = found else {
            return Err(self.fail(UNRECOGNIZED_NAME, FaultKind::NoCertificate));
        };
        match ServerConnection::new(certificate.config_of_h3(), Version::V1, ours) {
            Ok(tls) => self.state = State::Chosen(Box::new(Chosen { tls, certificate, name })),
            // The certificate's own settings leave TLS 1.3 out.
            Err(_) => {
                let why = "HTTP/3 needs TLS 1.3, which the certificate's `ssl_protocols` leave out";
                return Err(self.fail(PROTOCOL_VERSION, FaultKind::HandshakeFailed(why)));
            }
        }
        self.read_on(&read)?;
        Ok(true)
    }

    fn read_on(&mut self, buf: &[u8]) -> Result<(), TransportError> {
        let State::Chosen(chosen) = &mut self.state else { return Ok(()) };
        if let Err(error) = chosen.tls.read_hs(buf) {
            let alert = chosen.tls.alert().map_or(DECODE_ERROR, u8::from);
            let names = TlsNames::refused(chosen.name.as_deref(), Some(&error));
            let _ = self.crypto.seen.names.set(names);
            return Err(self.fail(alert, FaultKind::HandshakeFailed(client_fault(&error))));
        }
        Ok(())
    }
}

impl crypto::Session for Session {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        debug_assert!(side == Side::Server);
        match crypto::ServerConfig::initial_keys(&*self.crypto, self.version, dst_cid) {
            Ok(keys) => keys,
            // A session is only begun in a version for which there were keys.
            Err(_) => unreachable!("the version was looked at before"),
        }
    }

    /// Returns what was agreed on, as a [`TlsSession`].
    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let State::Chosen(chosen) = &self.state else { return None };
        let now = WORKER.with_borrow(Weak::upgrade)?.clock.coarse_unix_ms() / 1000;
        let agreed: TlsSession = session(&chosen.tls, &chosen.certificate, chosen.name.clone(), now);
        Some(Box::new(agreed))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn crypto::HeaderKey>, Box<dyn crypto::PacketKey>)> {
        // Early data can be replayed by anybody, so it is not accepted.
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.tls().is_none_or(|tls| tls.is_handshaking())
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        match &self.state {
            State::Hello { .. } => self.read_hello(buf),
            State::Chosen(_) => self.read_on(buf).map(|()| false),
            State::Failed => Ok(false),
        }
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(theirs) = self.tls().and_then(|tls| tls.quic_transport_parameters()) else {
            return Ok(None);
        };
        match TransportParameters::read(Side::Server, &mut &*theirs) {
            Ok(params) => Ok(Some(params)),
            Err(error) => Err(error.into()),
        }
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let State::Chosen(chosen) = &mut self.state else { return None };
        let (keys, proves) = match chosen.tls.write_hs(buf)? {
            KeyChange::Handshake { keys } => (keys, self.crypto.address.clone()),
            KeyChange::OneRtt { keys, next } => {
                self.next = Some(next);
                (keys, None)
            }
        };
        let remote: Box<dyn crypto::PacketKey> = match proves {
            Some(address) => Box::new(Proof { key: keys.remote.packet, address }),
            None => Box::new(keys.remote.packet),
        };
        Some(Keys {
            header: KeyPair { local: Box::new(keys.local.header), remote: Box::new(keys.remote.header) },
            packet: KeyPair { local: Box::new(keys.local.packet), remote },
        })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn crypto::PacketKey>>> {
        let keys = self.next.as_mut()?.next_packet_keys();
        Some(KeyPair { local: Box::new(keys.local), remote: Box::new(keys.remote) })
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        // Only servers send Retry.
        false
    }

    fn export_keying_material(
        &self,
        _: &mut [u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<(), crypto::ExportKeyingMaterialError> {
        // Nothing here derives keys from a session.
        Err(crypto::ExportKeyingMaterialError)
    }
}

/// The key of the client's packets in the handshake. One that it decrypts proves the address: the client has read
/// the answer that was sent there (RFC 9000 section 8.1).
struct Proof {
    key: Box<dyn PacketKey>,
    address: Arc<Address>,
}

impl crypto::PacketKey for Proof {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        crypto::PacketKey::encrypt(&self.key, packet, buf, header_len);
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        crypto::PacketKey::decrypt(&self.key, packet, header, payload)?;
        self.address.prove();
        Ok(())
    }

    fn tag_len(&self) -> usize {
        crypto::PacketKey::tag_len(&self.key)
    }

    fn confidentiality_limit(&self) -> u64 {
        crypto::PacketKey::confidentiality_limit(&self.key)
    }

    fn integrity_limit(&self) -> u64 {
        crypto::PacketKey::integrity_limit(&self.key)
    }
}
