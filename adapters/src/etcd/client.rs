//! Requests to a cluster: over one connection at a time, to whichever member answers.
//!
//! If a member fails or does not answer, the next one is used. A request that may have been carried out is not sent
//! again: its caller decides that.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_channel::mpsc;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use http::uri::PathAndQuery;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::link::{Host, Link, Tls};
use super::proto::{
    AuthenticateRequest, AuthenticateResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest,
    LeaseKeepAliveResponse, RangeRequest, RangeResponse, StatusRequest, StatusResponse, TxnRequest,
    TxnResponse, WatchRequest, WatchResponse,
};
use crate::Names;

/// How long a member may take to accept a connection and its handshakes.
const CONNECT: Duration = Duration::from_secs(1);

/// After so long without a connection the next member is tried as well.
const STAGGER: Duration = Duration::from_millis(150);

/// The largest message taken. Larger pages are asked for in smaller pieces.
pub const MOST_MESSAGE: usize = 64 << 20;

/// How long an answer may take that is small.
pub const ANSWER: Duration = Duration::from_secs(2);

/// Why there is no answer.
#[derive(Debug, Clone)]
pub enum Trouble {
    /// No member took a connection; nothing was sent.
    Unreachable(String),
    /// It was sent, and what became of it is unknown.
    Lost(String),
    /// etcd refused.
    Refused(String),
    /// The requested revision was compacted.
    Compacted,
    /// The answer is larger than [`MOST_MESSAGE`].
    TooLarge,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Unreachable(why) | Trouble::Lost(why) | Trouble::Refused(why) => f.write_str(why),
            Trouble::Compacted => f.write_str("etcd has compacted the revision that was asked for"),
            Trouble::TooLarge => write!(f, "an answer of etcd is larger than {MOST_MESSAGE} bytes"),
        }
    }
}

/// The members of a cluster, and the user for it.
#[derive(Debug, Clone)]
pub struct Cluster {
    pub hosts: Vec<Host>,
    pub tls: Option<Tls>,
    pub user: Option<User>,
    pub names: Option<Names>,
}

/// A user of etcd's.
#[derive(Clone)]
pub struct User {
    pub name: String,
    pub password: String,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Asks a cluster.
#[derive(Debug)]
pub struct Client {
    cluster: Cluster,
    current: Mutex<Option<Current>>,
    /// The member that is tried first.
    next: AtomicUsize,
    made: AtomicUsize,
}

/// The connection in use.
#[derive(Debug, Clone)]
struct Current {
    link: Link,
    host: Host,
    token: Option<MetadataValue<Ascii>>,
    number: usize,
}

impl Client {
    pub fn new(cluster: Cluster) -> Client {
        let next = AtomicUsize::new(fastrand::usize(..cluster.hosts.len().max(1)));
        Client { cluster, current: Mutex::default(), next, made: AtomicUsize::new(0) }
    }

    /// A page may take longer than other answers.
    pub async fn range(&self, request: RangeRequest, patience: Duration) -> Result<RangeResponse, Trouble> {
        self.unary("/etcdserverpb.KV/Range", request, patience).await
    }

    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Trouble> {
        self.unary("/etcdserverpb.KV/Txn", request, ANSWER).await
    }

    /// Grants a lease of `ttl` seconds.
    pub async fn lease(&self, ttl: u64) -> Result<i64, Trouble> {
        let ttl = i64::try_from(ttl.max(1)).unwrap_or(i64::MAX);
        let answer: LeaseGrantResponse =
            self.unary("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl }, ANSWER).await?;
        match answer.error.as_str() {
            "" => Ok(answer.id),
            error => Err(Trouble::Refused(error.to_owned())),
        }
    }

    /// Renews a lease; false if it has ended.
    pub async fn keep_alive(&self, id: i64) -> Result<bool, Trouble> {
        // A stream in etcd's API; one request on it has one answer.
        let request = LeaseKeepAliveRequest { id };
        let answer: LeaseKeepAliveResponse =
            self.unary("/etcdserverpb.Lease/LeaseKeepAlive", request, ANSWER).await?;
        Ok(answer.ttl > 0)
    }

    /// The version of the member that is asked.
    pub async fn version(&self) -> Result<String, Trouble> {
        let answer: StatusResponse =
            self.unary("/etcdserverpb.Maintenance/Status", StatusRequest {}, ANSWER).await?;
        Ok(answer.version)
    }

    /// Opens a stream of watches, with this first request on it.
    pub async fn watch(&self, first: WatchRequest) -> Result<Watching, Trouble> {
        let current = self.current().await?;
        let (mut asks, requests) = mpsc::channel(8);
        let full = |_| Trouble::Lost("the stream of watches takes no requests".to_owned());
        asks.try_send(first).map_err(full)?;
        let mut request = current.request(requests);
        // A member that has lost the others ends the stream instead of keeping silent.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let opening = async {
            let mut grpc = current.grpc().await?;
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            Ok(grpc.streaming(request, path, codec).await?.into_inner())
        };
        match timeout(ANSWER, opening).await {
            Ok(Ok(answers)) => Ok(Watching { asks, answers, number: current.number }),
            Ok(Err(status)) => Err(self.trouble(&current, &status).await.0),
            Err(_) => Err(self.silent(&current, ANSWER).await),
        }
    }

    /// The next request takes another connection, unless that was done already.
    pub async fn leave(&self, watching: &Watching) {
        self.drop_link(watching.number).await;
    }

    /// Why a stream ended.
    pub fn why(status: &Status) -> Trouble {
        classify(status).0
    }

    /// Sends a request, and again over a new connection if etcd does not accept the token. A connection without an
    /// answer within `patience` is given up.
    async fn unary<Q, A>(&self, path: &'static str, message: Q, patience: Duration) -> Result<A, Trouble>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut again = true;
        loop {
            let current = self.current().await?;
            match timeout(patience, current.ask(path, message.clone())).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) => {
                    let (trouble, stranger) = self.trouble(&current, &status).await;
                    if !(stranger && again) {
                        return Err(trouble);
                    }
                    again = false;
                }
                Err(_) => return Err(self.silent(&current, patience).await),
            }
        }
    }

    async fn silent(&self, current: &Current, patience: Duration) -> Trouble {
        self.drop_link(current.number).await;
        Trouble::Lost(format!("{} does not answer within {patience:?}", current.host))
    }

    /// Classifies a status; true if etcd does not accept the token. Drops a connection that is of no use.
    async fn trouble(&self, current: &Current, status: &Status) -> (Trouble, bool) {
        let (trouble, stranger) = classify(status);
        if stranger || matches!(trouble, Trouble::Lost(_)) {
            self.drop_link(current.number).await;
        }
        let trouble = match trouble {
            Trouble::Lost(why) => Trouble::Lost(format!("{}: {why}", current.host)),
            Trouble::Refused(why) => Trouble::Refused(format!("{}: {why}", current.host)),
            other => other,
        };
        (trouble, stranger)
    }

    async fn drop_link(&self, number: usize) {
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|current| current.number == number) {
            *current = None;
        }
    }

    /// Returns the open connection, or a new one.
    async fn current(&self) -> Result<Current, Trouble> {
        let mut current = self.current.lock().await;
        if let Some(there) = current.as_ref().filter(|there| !there.link.is_closed()) {
            return Ok(there.clone());
        }
        *current = None;
        let made = self.dial().await?;
        Ok(current.insert(made).clone())
    }

    /// Tries the members one after the other, the next one before the last has failed; the first that
    /// answers is taken.
    async fn dial(&self) -> Result<Current, Trouble> {
        let count = self.cluster.hosts.len();
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut waiting = (0..count).map(|at| self.cluster.hosts[(first + at) % count].clone());
        let mut dialling = FuturesUnordered::new();
        let mut failed = Vec::new();
        dialling.extend(waiting.next().map(|host| self.dial_one(host)));
        loop {
            let next = tokio::select! {
                done = dialling.next() => match done {
                    Some(Ok(current)) => return Ok(current),
                    Some(Err(why)) => { failed.push(why); waiting.next() }
                    None => return Err(Trouble::Unreachable(failed.join("; "))),
                },
                () = tokio::time::sleep(STAGGER) => waiting.next(),
            };
            dialling.extend(next.map(|host| self.dial_one(host)));
        }
    }

    async fn dial_one(&self, host: Host) -> Result<Current, String> {
        let dial = async {
            let link = Link::connect(&host, self.cluster.tls.as_ref(), self.cluster.names.as_ref()).await?;
            let number = self.made.fetch_add(1, Ordering::Relaxed);
            let mut current = Current { link, host: host.clone(), token: None, number };
            if let Some(User { name, password }) = self.cluster.user.clone() {
                let asked = AuthenticateRequest { name, password };
                let asking = current.ask("/etcdserverpb.Auth/Authenticate", asked);
                match asking.await {
                    Ok(AuthenticateResponse { token }) => {
                        current.token =
                            Some(token.parse().map_err(|_| "a token that is no text".to_owned())?);
                    }
                    // The settings name a user, but the cluster has no authentication.
                    Err(status) if status.message().contains("authentication is not enabled") => {}
                    Err(status) => return Err(status.message().to_owned()),
                }
            }
            Ok(current)
        };
        let late = || Err(format!("no connection within {} s", CONNECT.as_secs()));
        let dialled = timeout(CONNECT, dial).map(|done| done.unwrap_or_else(|_| late())).await;
        dialled.map_err(|why| format!("{host}: {why}"))
    }
}

impl Current {
    async fn grpc(&self) -> Result<Grpc<Link>, Status> {
        let mut grpc =
            Grpc::with_origin(self.link.clone(), self.host.uri()).max_decoding_message_size(MOST_MESSAGE);
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(grpc)
    }

    fn request<Q>(&self, message: Q) -> Request<Q> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    async fn ask<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = self.grpc().await?;
        let codec = ProstCodec::<Q, A>::default();
        Ok(grpc.unary(self.request(message), PathAndQuery::from_static(path), codec).await?.into_inner())
    }
}

/// A stream of watches.
#[derive(Debug)]
pub struct Watching {
    pub asks: mpsc::Sender<WatchRequest>,
    pub answers: tonic::Streaming<WatchResponse>,
    number: usize,
}

/// Classifies a status; true if etcd does not accept the token, or not any more.
fn classify(status: &Status) -> (Trouble, bool) {
    let text = status.message();
    let stranger = text.contains("invalid auth token")
        || text.contains("user name is empty")
        || text.contains("revision of auth store is old")
        || text.contains("auth: auth store is old");
    let trouble = match status.code() {
        Code::OutOfRange if text.contains("compacted") => Trouble::Compacted,
        Code::OutOfRange if text.contains("message length too large") => Trouble::TooLarge,
        // Of etcd: no leader, a time-out of its own; of us: a connection that broke.
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded | Code::Internal => {
            let why =
                std::error::Error::source(status).map_or_else(String::new, |source| format!(" ({source})"));
            Trouble::Lost(format!("{text}{why}"))
        }
        _ => Trouble::Refused(text.to_owned()),
    };
    (trouble, stranger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_etcd_says_is_understood() {
        let of = |code, text: &str| classify(&Status::new(code, text));
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        assert!(matches!(of(Code::OutOfRange, compacted), (Trouble::Compacted, false)));
        assert!(matches!(
            of(Code::OutOfRange, "Error, decoded message length too large: found 9 bytes"),
            (Trouble::TooLarge, false)
        ));
        assert!(matches!(of(Code::Unavailable, "etcdserver: no leader"), (Trouble::Lost(_), false)));
        assert!(matches!(
            of(Code::Unauthenticated, "etcdserver: invalid auth token"),
            (Trouble::Refused(_), true)
        ));
        assert!(matches!(
            of(Code::PermissionDenied, "etcdserver: permission denied"),
            (Trouble::Refused(_), false)
        ));
    }

    #[tokio::test]
    async fn an_unreachable_cluster_is_reported_with_every_address() {
        let hosts =
            ["http://127.0.0.1:1", "http://127.0.0.1:2"].map(|url| Host::parse(url).unwrap()).to_vec();
        let client = Client::new(Cluster { hosts, tls: None, user: None, names: None });
        let Err(Trouble::Unreachable(why)) = client.lease(1).await else { panic!() };
        assert!(why.contains("http://127.0.0.1:1: ") && why.contains("http://127.0.0.1:2: "), "{why}");
    }
}
