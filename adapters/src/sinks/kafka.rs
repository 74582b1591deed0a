//! Apache Kafka: each batch is a message to the leader of a partition of a topic.
//!
//! A producer of our own, over the connections of sinks: requests of fixed versions that Kafka 0.11 to 4.x take
//! (Metadata 1, Produce 3, SaslHandshake 1, SaslAuthenticate 0), one at a time, so entries stay in order. Without a
//! key, messages go to the partitions in turn; with one, to that of its checksum, as with `lua-resty-kafka`.

mod crc;
mod sasl;
mod wire;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sdk::chain::LocalFuture;
use sdk::sink::{Batch, Deliver, Destination, Outcome};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Context, Format, Kind, Server, Stream, Tls, is_open, within};
use crate::Trust;
use sasl::Login;
use wire::{Metadata, Request};

pub const KIND: Kind = Kind { name: "kafka", blocks: false, make };

/// The most bytes of a response; that with the most is the list of brokers and partitions.
const RESPONSE: usize = 1 << 20;

/// Connections that are kept.
const KEPT: usize = 16;

#[derive(Deserialize)]
struct Settings {
    topic: String,
    key: Option<String>,
    /// 1 for the leader, -1 for all replicas in step.
    acks: i16,
    format: Format,
    /// Milliseconds for each step.
    timeout: u64,
    /// Seconds for which the list of partitions holds.
    refresh: u64,
    verify: Option<bool>,
    login: Option<Login>,
}

struct Kafka {
    /// The brokers of the configuration, asked in turn for all others.
    brokers: Vec<(String, u16)>,
    settings: Settings,
    trust: Arc<OnceLock<Trust>>,
    known: RefCell<Option<(Instant, Metadata)>>,
    kept: RefCell<HashMap<(String, u16), Stream>>,
    /// Of the next message without a key.
    turn: Cell<usize>,
    correlation: Cell<i32>,
}

/// A message that was not stored.
#[derive(Debug)]
enum Failure {
    /// The list of partitions may be old.
    Moved(String),
    MayPass(String),
    Stays(String),
}

fn make(to: &Destination, context: &Context) -> Result<Box<dyn Deliver>, String> {
    super::server(to)?;
    Ok(Box::new(Kafka {
        brokers: to.servers.clone(),
        settings: super::settings(to)?,
        trust: context.trust.clone(),
        known: RefCell::default(),
        kept: RefCell::default(),
        turn: Cell::default(),
        correlation: Cell::default(),
    }))
}

impl Deliver for Kafka {
    fn deliver<'a>(&'a self, batch: Batch<'a>) -> LocalFuture<'a, Outcome> {
        Box::pin(async move {
            let message = self.settings.format.text(batch.records);
            let mut failed = self.produce(batch, &message).await;
            if let Err(Failure::Moved(_)) = failed {
                // The leader may have changed since the list was read.
                failed = self.produce(batch, &message).await;
            }
            let said = |why: String| format!("failed to send data to Kafka topic: {why}");
            match failed {
                Ok(()) => Outcome::Delivered,
                Err(Failure::Moved(why) | Failure::MayPass(why)) => Outcome::retry(said(why)),
                Err(Failure::Stays(why)) => Outcome::Rejected(said(why)),
            }
        })
    }
}

impl Kafka {
    async fn produce(&self, batch: Batch<'_>, message: &[u8]) -> Result<(), Failure> {
        let (partition, leader) = self.leader(batch).await?;
        let mut stream = self.connection(&leader, batch).await.map_err(Failure::MayPass)?;
        let Settings { topic, key, acks, timeout, .. } = &self.settings;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
        let records = wire::record_batch(key.as_deref().map(str::as_bytes), message, now);
        let timeout = i32::try_from(*timeout).unwrap_or(i32::MAX);
        let request = Request::produce(self.next(), *acks, timeout, topic, partition, &records);
        let answered = self.exchange(&mut stream, &request).await;
        let answer = answered.map_err(Failure::MayPass)?;
        let code = wire::produced(&answer, topic, partition)
            .ok_or_else(|| Failure::MayPass("the broker's response is malformed".to_owned()))?;
        self.keep(leader, stream);
        let why = |code| format!("{topic}/{partition}: error {code} ({})", wire::error_name(code));
        match code {
            0 => Ok(()),
            // Unknown topic or partition, leader not available, not the leader.
            3 | 5 | 6 => {
                self.known.take();
                Err(Failure::Moved(why(code)))
            }
            // Time-outs, and too few replicas.
            7 | 8 | 9 | 13 | 14 | 19 | 20 | 56 | 72 | 89 => Err(Failure::MayPass(why(code))),
            _ => Err(Failure::Stays(why(code))),
        }
    }

    /// The partition of the next message, and its leader.
    async fn leader(&self, batch: Batch<'_>) -> Result<(i32, (String, u16)), Failure> {
        let refresh = Duration::from_secs(self.settings.refresh);
        let is_fresh = self.known.borrow().as_ref().is_some_and(|(read, _)| read.elapsed() < refresh);
        if !is_fresh {
            let metadata = self.metadata(batch).await.map_err(Failure::MayPass)?;
            if metadata.error != 0 {
                let (topic, code) = (&self.settings.topic, metadata.error);
                let why = format!("{topic}: error {code} ({})", wire::error_name(code));
                // A topic may be made by the first question about it.
                return Err(if matches!(code, 3 | 5) { Failure::MayPass(why) } else { Failure::Stays(why) });
            }
            self.known.replace(Some((Instant::now(), metadata)));
        }
        let known = self.known.borrow();
        let chosen = known.as_ref().and_then(|(_, metadata)| {
            let partitions = metadata.partitions.len();
            let at = match &self.settings.key {
                Some(key) => crc::ieee(key.as_bytes()) as usize,
                None => self.turn.replace(self.turn.get().wrapping_add(1)),
            };
            let (partition, leader) = metadata.partitions.get(at.checked_rem(partitions)?)?;
            Some((*partition, metadata.brokers.get(leader)?.clone()))
        });
        drop(known);
        chosen.ok_or_else(|| {
            self.known.take();
            Failure::MayPass(format!("{}: its partition has no leader", self.settings.topic))
        })
    }

    /// Asks the batch's broker for the partitions of the topic.
    async fn metadata(&self, batch: Batch<'_>) -> Result<Metadata, String> {
        let broker = self.brokers.get(batch.server).cloned().unwrap_or_else(|| self.brokers[0].clone());
        let mut stream = self.connection(&broker, batch).await?;
        let topic = &self.settings.topic;
        let answer = self.exchange(&mut stream, &Request::metadata(self.next(), topic)).await?;
        self.keep(broker, stream);
        wire::metadata(&answer, topic).ok_or_else(|| "the broker's response is malformed".to_owned())
    }

    /// A kept connection or a new one, logged in.
    async fn connection(&self, to: &(String, u16), batch: Batch<'_>) -> Result<Stream, String> {
        let mut kept = self.kept.borrow_mut().remove(to);
        if let Some(stream) = kept.take_if(is_open) {
            return Ok(stream);
        }
        let (host, port) = to;
        let timeout = Duration::from_millis(self.settings.timeout);
        let tls = self.settings.verify.map(|verify| Tls { name: None, verify });
        let server =
            Server { host: host.clone(), port: *port, tls, timeout, trust: self.trust.clone(), http2: false };
        let is_configured = self.brokers.get(batch.server) == Some(to);
        let found =
            if is_configured { batch.addresses.to_vec() } else { addresses(host, *port, timeout).await? };
        let place = |error: String| format!("host[{host}] port[{port}] {error}");
        let mut stream = server.connect(&found).await.map_err(place)?;
        if let Some(login) = &self.settings.login {
            self.log_in(&mut stream, login).await.map_err(place)?;
        }
        Ok(stream)
    }

    async fn log_in(&self, stream: &mut Stream, login: &Login) -> Result<(), String> {
        let answer = self.exchange(stream, &Request::handshake(self.next(), login.mechanism())).await?;
        match wire::code(&answer) {
            Some(0) => {}
            Some(code) => return Err(format!("the broker refuses {}: error {code}", login.mechanism())),
            None => return Err("the broker's response is malformed".to_owned()),
        }
        let mut steps = login.start()?;
        while let Some(text) = steps.next_text() {
            let answer = self.exchange(stream, &Request::authenticate(self.next(), &text)).await?;
            let (code, text) = wire::authenticated(&answer).ok_or("the broker's response is malformed")?;
            if code != 0 {
                // Its own text may repeat the name or the password.
                return Err(format!("the broker refuses the account: error {code}"));
            }
            steps.answer(&text)?;
        }
        Ok(())
    }

    /// Sends a request and reads the response to it.
    async fn exchange(&self, stream: &mut Stream, request: &Request) -> Result<Vec<u8>, String> {
        let timeout = Duration::from_millis(self.settings.timeout);
        let sent = async {
            stream.write_all(&request.bytes).await?;
            stream.flush().await
        };
        within(timeout, sent).await?;
        let read = async {
            let length = stream.read_i32().await.map_err(|error| error.to_string())?;
            let length = usize::try_from(length).ok().filter(|length| (4..=RESPONSE).contains(length));
            let length = length.ok_or("the broker's response has an invalid length")?;
            let mut bytes = Vec::new();
            let mut limited = (&mut *stream).take(length as u64);
            limited.read_to_end(&mut bytes).await.map_err(|error| error.to_string())?;
            if bytes.len() < length {
                return Err("the broker closed the connection".to_owned());
            }
            Ok(bytes)
        };
        let mut bytes = within(timeout, read).await?;
        if bytes[..4] != request.correlation.to_be_bytes() {
            return Err("the broker answers another request".to_owned());
        }
        bytes.drain(..4);
        Ok(bytes)
    }

    fn keep(&self, to: (String, u16), stream: Stream) {
        let mut kept = self.kept.borrow_mut();
        if kept.len() < KEPT || kept.contains_key(&to) {
            kept.insert(to, stream);
        }
    }

    /// The number of the next request of this sink.
    fn next(&self) -> i32 {
        self.correlation.replace(self.correlation.get().wrapping_add(1))
    }
}

/// The addresses of a broker that another one named.
async fn addresses(host: &str, port: u16, timeout: Duration) -> Result<Vec<SocketAddr>, String> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let found = within(timeout, tokio::net::lookup_host((host, port))).await?;
    Ok(found.collect())
}
