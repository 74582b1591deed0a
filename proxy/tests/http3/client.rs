//! An HTTP/3 client that sends any bytes, valid or not, and scripted servers behind the gateway.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use proxy::testing::{self, Gateway, H3, Port, Schedule};
use proxy::{FaultKind, FaultRecord, Settings};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    Connection, ConnectionError, Endpoint, ReadError, RecvStream, SendStream, TransportConfig, VarInt,
};
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sdk::meters::Meters;
use wire::h3::{self, qpack};

pub use crate::support::recorder::faults;
use crate::support::{self, Do, Got, SERVER};

/// Frames (RFC 9114 section 7.2).
pub const DATA: u64 = 0;
pub const HEADERS: u64 = 1;
pub const CANCEL_PUSH: u64 = 3;
pub const SETTINGS: u64 = 4;
pub const PUSH_PROMISE: u64 = 5;
pub const GOAWAY: u64 = 7;
pub const MAX_PUSH_ID: u64 = 13;
/// A reserved frame type, which must be ignored (section 7.2.8).
pub const GREASE: u64 = 0x1f * 7 + 0x21;

/// Types of unidirectional streams (section 6.2, RFC 9204 section 4.2).
pub const CONTROL: u8 = 0;
pub const PUSH: u8 = 1;
pub const ENCODER: u8 = 2;
pub const DECODER: u8 = 3;

/// Error codes (section 8.1, RFC 9204 section 6).
pub const NO_ERROR: u64 = 0x100;
pub const INTERNAL_ERROR: u64 = 0x102;
pub const STREAM_CREATION_ERROR: u64 = 0x103;
pub const CLOSED_CRITICAL_STREAM: u64 = 0x104;
pub const FRAME_UNEXPECTED: u64 = 0x105;
pub const FRAME_ERROR: u64 = 0x106;
pub const EXCESSIVE_LOAD: u64 = 0x107;
pub const ID_ERROR: u64 = 0x108;
pub const SETTINGS_ERROR: u64 = 0x109;
pub const MISSING_SETTINGS: u64 = 0x10a;
pub const REQUEST_REJECTED: u64 = 0x10b;
pub const REQUEST_CANCELLED: u64 = 0x10c;
pub const REQUEST_INCOMPLETE: u64 = 0x10d;
pub const MESSAGE_ERROR: u64 = 0x10e;
pub const DECOMPRESSION_FAILED: u64 = 0x200;
pub const ENCODER_STREAM_ERROR: u64 = 0x201;
pub const DECODER_STREAM_ERROR: u64 = 0x202;

/// Returns the log message for an error code.
pub fn named(code: u64) -> String {
    let name = match code {
        STREAM_CREATION_ERROR => "H3_STREAM_CREATION_ERROR",
        CLOSED_CRITICAL_STREAM => "H3_CLOSED_CRITICAL_STREAM",
        FRAME_UNEXPECTED => "H3_FRAME_UNEXPECTED",
        FRAME_ERROR => "H3_FRAME_ERROR",
        EXCESSIVE_LOAD => "H3_EXCESSIVE_LOAD",
        ID_ERROR => "H3_ID_ERROR",
        SETTINGS_ERROR => "H3_SETTINGS_ERROR",
        MISSING_SETTINGS => "H3_MISSING_SETTINGS",
        DECOMPRESSION_FAILED => "QPACK_DECOMPRESSION_FAILED",
        ENCODER_STREAM_ERROR => "QPACK_ENCODER_STREAM_ERROR",
        DECODER_STREAM_ERROR => "QPACK_DECODER_STREAM_ERROR",
        _ => "?",
    };
    format!("the client broke a rule of HTTP/3 ({name})")
}

/// Takes the faults reported since the last call, except those of requests that were under way.
pub fn rules(reported: &Receiver<FaultRecord>) -> Vec<&'static str> {
    let reported = reported.try_iter().filter(|fault| fault.fault.kind != FaultKind::ClientGone);
    reported.map(|fault| fault.fault.kind.words()).collect()
}

pub const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Returns a frame.
pub fn frame(kind: u64, payload: impl AsRef<[u8]>) -> Vec<u8> {
    cut_off(kind, payload.as_ref().len(), payload)
}

/// Returns the first bytes of a frame whose header announces `length`.
pub fn cut_off(kind: u64, length: usize, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    h3::put_frame(kind, length, &mut out);
    out.extend_from_slice(payload.as_ref());
    out
}

pub fn number(value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    h3::put_number(value, &mut out);
    out
}

/// Encodes an integer with these leading flag bits (RFC 7541 section 5.1).
pub fn integer(flags: u8, bits: u32, value: usize) -> Vec<u8> {
    let most = (1 << bits) - 1;
    if value < most {
        return vec![flags | value as u8];
    }
    let (mut out, mut rest) = (vec![flags | most as u8], value - most);
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
    out
}

/// Encodes a list of fields, each as a literal (RFC 9204 section 4.5.6); fields may be invalid.
pub fn list(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = vec![0, 0];
    for (name, value) in fields {
        out.extend(integer(0x20, 3, name.len()));
        out.extend_from_slice(name.as_bytes());
        out.extend(integer(0, 7, value.len()));
        out.extend_from_slice(value.as_bytes());
    }
    out
}

/// Returns the pseudo-header fields of a request, then `more`.
pub fn ask<'a>(method: &'a str, path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let before = [(":method", method), (":scheme", "https"), (":authority", "a"), (":path", path)];
    before.into_iter().chain(more.iter().copied()).collect()
}

/// Returns the HEADERS frame of a request.
pub fn head<'a>(method: &'a str, path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<u8> {
    frame(HEADERS, list(&ask(method, path, more)))
}

/// The whole script of a server that answers once.
pub fn answers(answer: &'static str) -> Vec<Do> {
    vec![Do::Until("\r\n\r\n"), Do::Send(answer), Do::ToEnd]
}

/// A gateway, its HTTP/3 port, and the servers behind it.
pub struct Site {
    pub gateway: Rc<Gateway>,
    pub meters: Arc<Meters>,
    pub port: Port,
    servers: Rc<Servers>,
    clients: Cell<u16>,
    /// The number of panics that the test expects.
    pub panics: Cell<u64>,
}

#[derive(Default)]
struct Servers {
    scripts: RefCell<VecDeque<Vec<Do>>>,
    heard: RefCell<Vec<Rc<RefCell<Got>>>>,
    playing: Cell<usize>,
}

/// Runs a test with a gateway that has an HTTP/3 port, and checks that no connection and no request is left over.
pub fn beside(settings: impl FnOnce(&mut Settings), test: impl AsyncFnOnce(&Site) + 'static) {
    beside_port(H3, settings, test);
}

pub fn beside_port(
    at: SocketAddr,
    settings: impl FnOnce(&mut Settings),
    test: impl AsyncFnOnce(&Site) + 'static,
) {
    let mut ours = Settings::with(|settings| settings.timeouts.keepalive = Duration::from_secs(5));
    settings(&mut ours);
    support::with_gateways(ours, 1, async move |mut gateways, meters| {
        let gateway = Rc::new(gateways.next().unwrap());
        let port = gateway.open_h3(at).unwrap();
        let servers = Rc::<Servers>::default();
        let (of_gateway, of_server) = (gateway.clone(), servers.clone());
        testing::serve(SocketAddr::from(SERVER), move || {
            let script = of_server.scripts.borrow_mut().pop_front();
            let script = script.ok_or(std::io::ErrorKind::ConnectionRefused)?;
            let (end, theirs) = testing::pair(Schedule::default(), Schedule::default());
            let got = Rc::<RefCell<Got>>::default();
            of_server.heard.borrow_mut().push(got.clone());
            of_server.playing.set(of_server.playing.get() + 1);
            let (gateway, servers) = (of_gateway.clone(), of_server.clone());
            testing::spawn(async move {
                support::play("the server", &script, end, &got, &gateway).await;
                servers.playing.set(servers.playing.get() - 1);
            });
            Ok(theirs)
        });
        let site = Site { gateway, meters, port, servers, clients: Cell::new(40_000), panics: Cell::new(0) };
        test(&site).await;
        support::settle(&site.gateway, "afterwards").await;
        site.heard().await;
        let totals = site.meters.read(1, |reading| reading.totals());
        assert_eq!(totals.panics, site.panics.get(), "panics");
        assert_eq!(
            (totals.waiting, totals.began - totals.ended),
            (0, 0),
            "clients and requests that are gone"
        );
    });
}

impl Site {
    /// Adds the script of the next connection to a server.
    pub fn serves(&self, script: Vec<Do>) {
        self.gateway.close_idle_upstreams();
        self.servers.scripts.borrow_mut().push_back(script);
    }

    /// Returns the bytes that each server got since the last call. All scripts must have been used.
    pub async fn heard(&self) -> Vec<String> {
        self.gateway.close_idle_upstreams();
        let over = testing::within(Duration::from_secs(600), async {
            while self.servers.playing.get() > 0 {
                testing::sleep(Duration::from_millis(50)).await;
                self.gateway.close_idle_upstreams();
            }
        });
        assert!(over.await.is_some(), "a server still waits");
        let unasked = std::mem::take(&mut *self.servers.scripts.borrow_mut());
        assert!(unasked.is_empty(), "the gateway did not connect for {unasked:?}");
        let heard = std::mem::take(&mut *self.servers.heard.borrow_mut());
        heard.iter().map(|got| String::from_utf8_lossy(&got.borrow().bytes).into_owned()).collect()
    }

    /// Drops the scripts that have not been used.
    pub fn forget(&self) {
        self.servers.scripts.borrow_mut().clear();
    }

    /// Connects a client, which sends nothing on its connection yet.
    pub async fn mute(&self, transport: TransportConfig) -> Result<Client, ConnectionError> {
        self.connect(tls("h3", transport), H3, "server.test").await
    }

    /// Connects a client to this address and server name.
    pub async fn connect(
        &self,
        config: quinn::ClientConfig,
        to: SocketAddr,
        name: &str,
    ) -> Result<Client, ConnectionError> {
        let (endpoint, at) = self.endpoint();
        let conn = within(endpoint.connect_with(config, to, name).unwrap()).await?;
        Ok(Client { conn, endpoint, at, kept: Vec::new() })
    }

    /// Starts a client that begins a handshake and then sends nothing more.
    pub async fn stall(&self) -> Endpoint {
        let (endpoint, at) = self.endpoint();
        self.port.lets_through(at, Some(0));
        let config = tls("h3", TransportConfig::default());
        let connecting = endpoint.connect_with(config, H3, "server.test").unwrap();
        lull().await;
        self.port.silence(at);
        drop(connecting);
        endpoint
    }

    /// Returns an endpoint with an unused address.
    pub fn endpoint(&self) -> (Endpoint, SocketAddr) {
        self.clients.set(self.clients.get() + 1);
        let at = SocketAddr::from(([127, 0, 0, 1], self.clients.get()));
        (self.port.client(at).unwrap(), at)
    }

    /// Connects a client and sends its empty SETTINGS.
    pub async fn client(&self) -> Client {
        self.client_with(TransportConfig::default()).await
    }

    pub async fn client_with(&self, transport: TransportConfig) -> Client {
        let mut client = self.mute(transport).await.unwrap();
        let control = client.one_way(&[&[CONTROL], &frame(SETTINGS, [])[..]].concat()).await;
        client.kept.push(control);
        client
    }
}

macro_rules! pem {
    ($name:literal) => {
        include_bytes!(concat!("../../../tests/certs/", $name)).as_slice()
    };
}
pub(crate) use pem;

/// Configures a client with this ALPN protocol that trusts the test CA.
pub fn tls(alpn: &str, transport: TransportConfig) -> quinn::ClientConfig {
    trusting(pem!("ca.crt"), alpn, transport, None)
}

/// Configures an HTTP/3 client with datagrams of this size. Its first message fits into one.
pub fn brief(size: u16) -> quinn::ClientConfig {
    let mut transport = TransportConfig::default();
    transport.min_mtu(size).initial_mtu(size);
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    // Keys of ML-KEM would fill a datagram.
    provider.kx_groups = vec![rustls::crypto::aws_lc_rs::kx_group::X25519];
    made_of(provider, pem!("ca.crt"), "h3", transport, None)
}

/// Configures a client that trusts this CA, with a client certificate and key if there are any.
pub fn trusting(
    ca: &[u8],
    alpn: &str,
    transport: TransportConfig,
    own: Option<(&[u8], &[u8])>,
) -> quinn::ClientConfig {
    made_of(rustls::crypto::aws_lc_rs::default_provider(), ca, alpn, transport, own)
}

fn made_of(
    provider: CryptoProvider,
    ca: &[u8],
    alpn: &str,
    transport: TransportConfig,
    own: Option<(&[u8], &[u8])>,
) -> quinn::ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca).unwrap()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(provider));
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let builder = builder.with_root_certificates(roots);
    let mut tls = match own {
        Some((chain, key)) => {
            let chain = CertificateDer::pem_slice_iter(chain).map(Result::unwrap).collect();
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key).unwrap()).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    tls.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    config.transport_config(Arc::new(transport));
    config
}

pub struct Client {
    pub conn: Connection,
    pub endpoint: Endpoint,
    pub at: SocketAddr,
    /// Streams that stay open: dropping one ends it.
    pub kept: Vec<SendStream>,
}

/// Waits until all bytes under way have arrived.
pub async fn lull() {
    testing::sleep(Duration::from_millis(1)).await;
}

/// Waits up to ten minutes of the virtual clock, then panics.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    testing::within(Duration::from_secs(600), future).await.expect("it comes")
}

/// Sends bytes, all at once or singly. Ignores errors: later checks show whether the gateway read them.
pub async fn say(send: &mut SendStream, bytes: &[u8], singly: bool) {
    let piece = if singly { 1 } else { bytes.len().max(1) };
    for (at, piece) in bytes.chunks(piece).enumerate() {
        if at > 0 {
            lull().await;
        }
        if within(send.write_all(piece)).await.is_err() {
            return;
        }
    }
}

impl Client {
    /// Opens a unidirectional stream and sends these bytes.
    pub async fn one_way(&self, bytes: &[u8]) -> SendStream {
        let mut send = within(self.conn.open_uni()).await.unwrap();
        say(&mut send, bytes, false).await;
        send
    }

    /// Opens a request stream and sends these bytes.
    pub async fn begin(&self, bytes: &[u8]) -> (SendStream, RecvStream) {
        let (mut send, recv) = within(self.conn.open_bi()).await.unwrap();
        say(&mut send, bytes, false).await;
        (send, recv)
    }

    /// Sends a request and reads the response.
    pub async fn ask(&self, bytes: &[u8]) -> String {
        self.ask_in_pieces(bytes, false).await
    }

    pub async fn ask_in_pieces(&self, bytes: &[u8], singly: bool) -> String {
        let (mut send, mut recv) = self.begin(b"").await;
        say(&mut send, bytes, singly).await;
        let _ = send.finish();
        answer(&mut recv).await
    }

    /// Checks that the connection still serves requests.
    pub async fn is_served(&self, site: &Site, about: &str) {
        site.heard().await;
        site.serves(answers(OK));
        assert_eq!(self.ask(&head("GET", "/a", &[])).await, WELL, "{about}: what is asked next");
        site.heard().await;
    }

    /// Returns the error code with which the gateway closed the connection.
    pub async fn closed(&self) -> u64 {
        match within(self.conn.closed()).await {
            ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
            other => panic!("{other}"),
        }
    }

    /// Accepts a unidirectional stream of the gateway and reads its type.
    pub async fn hear(&self) -> (u8, RecvStream) {
        let mut stream = within(self.conn.accept_uni()).await.unwrap();
        let mut kind = [0];
        within(stream.read_exact(&mut kind)).await.unwrap();
        (kind[0], stream)
    }

    pub fn bye(&self) {
        self.conn.close(VarInt::from_u32(NO_ERROR as u32), b"");
    }
}

/// The response [`OK`], as [`answer`] shows it.
pub const WELL: &str = "200 content-length: 2 | \"ok\" | end";

/// Reads a stream to its end: the bytes, and how it ended.
pub async fn rest(recv: &mut RecvStream) -> (Vec<u8>, String) {
    let mut bytes = Vec::new();
    let end = loop {
        match within(recv.read_chunk(usize::MAX, true)).await {
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk.bytes),
            Ok(None) => break "end".to_owned(),
            Err(ReadError::Reset(code)) => break format!("reset {:x}", code.into_inner()),
            Err(ReadError::ConnectionLost(ConnectionError::ApplicationClosed(close))) => {
                break format!("closed {:x}", close.error_code.into_inner());
            }
            Err(other) => break other.to_string(),
        }
    };
    (bytes, end)
}

/// Reads a response as one line: its heads without Date and Server, its body, and how it ended.
pub async fn answer(recv: &mut RecvStream) -> String {
    let (bytes, end) = rest(recv).await;
    let mut parts = parts(&bytes);
    parts.push(end);
    parts.join(" | ")
}

/// Reads one frame as text.
pub async fn next(recv: &mut RecvStream) -> String {
    let (kind, payload) = next_frame(recv).await;
    parts(&frame(kind, payload)).pop().unwrap_or_default()
}

/// Reads one frame.
pub async fn next_frame(recv: &mut RecvStream) -> (u64, Vec<u8>) {
    let mut head = Vec::new();
    let (kind, length) = loop {
        let mut byte = [0];
        within(recv.read_exact(&mut byte)).await.unwrap();
        head.push(byte[0]);
        if let Some((kind, length, _)) = h3::frame_head(&head) {
            break (kind, length);
        }
    };
    let mut payload = vec![0; length as usize];
    within(recv.read_exact(&mut payload)).await.unwrap();
    (kind, payload)
}

/// Shows DATA and HEADERS frames as text, an incomplete one as far as it has arrived. Panics on other frames.
pub fn parts(mut bytes: &[u8]) -> Vec<String> {
    let (mut parts, mut body) = (Vec::new(), Vec::new());
    while let Some((kind, length, begins)) = h3::frame_head(bytes) {
        let whole = bytes.len().min(begins + length as usize);
        let payload = &bytes[begins..whole];
        bytes = &bytes[whole..];
        match kind {
            DATA => body.extend_from_slice(payload),
            HEADERS => {
                flush(&mut body, &mut parts);
                parts.push(fields(payload));
            }
            other => panic!("a frame of kind {other:x} in an answer"),
        }
    }
    flush(&mut body, &mut parts);
    parts
}

fn flush(body: &mut Vec<u8>, parts: &mut Vec<String>) {
    if !body.is_empty() {
        parts.push(format!("{:?}", String::from_utf8_lossy(body)));
        body.clear();
    }
}

fn fields(coded: &[u8]) -> String {
    let mut list = wire::List::default();
    qpack::decode(coded, &mut list, 1 << 20, 1000).unwrap();
    let (mut words, mut ours) = (Vec::new(), 0);
    for (name, value, _) in list.iter() {
        let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        match &name[..] {
            ":status" => words.push(value.into_owned()),
            "date" if value.ends_with(" GMT") => ours += 1,
            "server" if value == Settings::default().server => ours += 1,
            _ => words.push(format!("{name}: {value}")),
        }
    }
    let is_final = list.iter().any(|(name, value, _)| name == b":status" && value[0] > b'1');
    match (is_final, ours) {
        (true, 2) | (false, 0) => {}
        (true, 0) => words.push("undated".to_owned()),
        _ => panic!("Date and Server are there once each, or not at all: {words:?}"),
    }
    words.join(" ")
}
