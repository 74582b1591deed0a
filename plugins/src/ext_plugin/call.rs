//! Calls of a runner over a connection of the worker.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use sdk::budget::Reservation;
use sdk::connection::{AsyncReadExt, AsyncWriteExt, Connect, Connection, Server};
use sdk::exchange::Body;
use sdk::vars::Var;
use sdk::{Build, Exchange, World};

use super::messages::{
    self, ERROR, EXTRA_INFO, LONGEST, PREPARE_CONF, REQUEST, RESPONSE, Request, Response, Wanted,
};
use super::runner::Runner;
use super::{Config, Named};
use crate::within::within;

/// To connect, and for a whole call, as in APISIX.
const CONNECT: Duration = Duration::from_secs(1);
const CALL: Duration = Duration::from_secs(60);

/// How long a connection stays open between calls, and a token is used: nine tenths of its time in the runner.
const IDLE: Duration = Duration::from_secs(180);
const TOKEN_MS: u64 = 3_240_000;

/// Calls whose token the runner did not know, and questions of a runner during one call.
const MOST_TRIES: u32 = 3;
const MOST_QUESTIONS: u32 = 1000;

/// Bytes of all answers to the questions of a call: a body several times.
const MOST_ANSWERS: usize = 4 * LONGEST;

/// Bytes of a message that are read at a time, so that memory is taken as they come.
const PIECE: usize = 64 << 10;

/// Why a call has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    Broken(&'static str),
    /// The connection was idle and is dead; the runner has not got the message.
    Stale,
    UnknownToken,
    /// The runner asks for the request's body, which is not buffered.
    NeedsBody,
    NoMemory,
}

const INVALID: Failure = Failure::Broken("the runner's answer is invalid");
const BROKEN: Failure = Failure::Broken("the connection to the runner broke off");

/// The subject of a call.
pub(super) enum Subject<'a> {
    Request(Request),
    Response(Response, &'a [u8]),
}

/// A message of the runner, and its memory.
pub(super) struct Message {
    kind: u8,
    pub bytes: Vec<u8>,
    _held: Reservation,
}

/// Calls for one plugin instance.
pub(super) struct Caller {
    plugin: &'static str,
    runner: Arc<Runner>,
    conf: Vec<(String, String)>,
    /// Differs between all configurations: a runner returns the token of a key that it knows.
    key: String,
    /// The token and the runner's epoch that it belongs to, and until when it is used.
    token: AtomicU64,
    token_until: AtomicU64,
    /// The runner has asked for a request's body: those of later requests are buffered first.
    pub wants_body: AtomicBool,
}

impl Caller {
    pub(super) fn new(plugin: &'static str, config: Config, runner: Arc<Runner>, cx: &Build<'_>) -> Caller {
        let conf: Vec<_> = config.conf.into_iter().map(|Named { name, value }| (name, value)).collect();
        let mut hasher = DefaultHasher::new();
        conf.hash(&mut hasher);
        let key = format!("{}#{}#{plugin}#{:016x}", cx.owner.collection, cx.owner.id, hasher.finish());
        Caller {
            plugin,
            runner,
            conf,
            key,
            token: AtomicU64::new(0),
            token_until: AtomicU64::new(0),
            wants_body: AtomicBool::new(false),
        }
    }

    /// Calls the runner. Its configuration is sent before, if it has not got it yet.
    pub(super) async fn call(&self, x: &Exchange<'_>, subject: &Subject<'_>) -> Result<Message, Failure> {
        let mut failure = Failure::UnknownToken;
        for _ in 0..MOST_TRIES {
            failure = match within(x.world(), CALL, self.once(x, subject)).await {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(failure)) => failure,
                None => Failure::Broken("the runner does not answer in time"),
            };
            if failure != Failure::UnknownToken {
                break;
            }
            self.runner.forget_tokens();
        }
        if failure == Failure::UnknownToken {
            return Err(Failure::Broken("the runner does not know the configuration that it was sent"));
        }
        Err(failure)
    }

    /// Idle connections may be dead: each is tried once; a new one ends the loop. A message that the runner may have got
    /// is not sent again.
    async fn once(&self, x: &Exchange<'_>, subject: &Subject<'_>) -> Result<Message, Failure> {
        loop {
            let to = Connect {
                server: Server::Unix(self.runner.path()),
                pool: "ext-plugin".into(),
                timeout: CONNECT,
            };
            let connection = x.world().connect(to).await;
            let mut connection = connection.map_err(|error| Failure::Broken(error.as_str()))?;
            match self.over(&mut connection, x, subject).await {
                Err(Failure::Stale) => {}
                Err(failure) => return Err(failure),
                Ok(answer) => {
                    connection.keep(IDLE);
                    return Ok(answer);
                }
            }
        }
    }

    async fn over(
        &self,
        connection: &mut Connection,
        x: &Exchange<'_>,
        subject: &Subject<'_>,
    ) -> Result<Message, Failure> {
        let token = match self.known_token(x.world()) {
            Some(token) => token,
            None => self.prepare(connection, x.world()).await?,
        };
        let id = id();
        let (kind, message) = match subject {
            Subject::Request(request) => (REQUEST, request.message(id, token)),
            Subject::Response(response, _) => (RESPONSE, response.message(id, token)),
        };
        let mut answer = exchange(connection, x.world(), kind, &message).await?;
        let (mut questions, mut answered) = (0, 0);
        while answer.kind == EXTRA_INFO {
            questions += 1;
            if questions > MOST_QUESTIONS {
                return Err(Failure::Broken("the runner asks too many questions during a call"));
            }
            let reply = self.extra_info(x, subject, &answer.bytes)?;
            answered += reply.len();
            if answered > MOST_ANSWERS {
                return Err(Failure::Broken("the runner asks for too many bytes during a call"));
            }
            answer = exchange(connection, x.world(), EXTRA_INFO, &reply).await?;
        }
        if answer.kind == kind { Ok(answer) } else { Err(INVALID) }
    }

    fn known_token(&self, world: &dyn World) -> Option<u32> {
        let token = self.token.load(Ordering::Relaxed);
        let is_known = self.token_until.load(Ordering::Relaxed) > world.steady_ms()
            && (token >> 32) as u32 == self.runner.epoch();
        is_known.then_some(token as u32)
    }

    /// Sends the configuration; the answer is its token.
    async fn prepare(&self, connection: &mut Connection, world: &dyn World) -> Result<u32, Failure> {
        let epoch = self.runner.epoch();
        let message = messages::prepare_conf(&self.conf, &self.key);
        let answer = exchange(connection, world, PREPARE_CONF, &message).await?;
        if answer.kind != PREPARE_CONF {
            return Err(INVALID);
        }
        let token = messages::conf_token(&answer.bytes).ok_or(INVALID)?;
        self.token.store(u64::from(epoch) << 32 | u64::from(token), Ordering::Relaxed);
        self.token_until.store(world.steady_ms().saturating_add(TOKEN_MS), Ordering::Relaxed);
        Ok(token)
    }

    /// The answer to a question of the runner.
    fn extra_info(
        &self,
        x: &Exchange<'_>,
        subject: &Subject<'_>,
        question: &[u8],
    ) -> Result<Vec<u8>, Failure> {
        match (Wanted::read(question).ok_or(INVALID)?, subject) {
            (Wanted::Var(name), _) => {
                let var = Var::parse(&String::from_utf8_lossy(name));
                let mut value = Vec::new();
                let is_set = var.write(x, &mut value);
                Ok(messages::extra_info(is_set.then_some(&value[..])))
            }
            (Wanted::RequestBody, _) => match x.body_state() {
                Body::Whole => Ok(messages::extra_info(Some(x.body()))),
                Body::None => Ok(messages::extra_info(None)),
                Body::Streaming if matches!(subject, Subject::Request(_)) => {
                    self.wants_body.store(true, Ordering::Relaxed);
                    Err(Failure::NeedsBody)
                }
                Body::Streaming | Body::TooLarge => {
                    x.complain(self.plugin, "the runner asks for a request body that is not buffered");
                    Ok(messages::extra_info(None))
                }
            },
            (Wanted::ResponseBody, Subject::Response(_, body)) => Ok(messages::extra_info(Some(body))),
            (Wanted::ResponseBody, Subject::Request(_)) => Ok(messages::extra_info(None)),
        }
    }
}

/// A number for the runner's log.
fn id() -> u32 {
    static ID: AtomicU32 = AtomicU32::new(0);
    ID.fetch_add(1, Ordering::Relaxed)
}

/// Sends a message, and receives the next one.
async fn exchange(
    connection: &mut Connection,
    world: &dyn World,
    kind: u8,
    message: &[u8],
) -> Result<Message, Failure> {
    let length = u32::try_from(message.len()).ok().filter(|_| message.len() <= LONGEST);
    let length = length.ok_or(Failure::Broken("a message to the runner is too long"))?.to_be_bytes();
    let mut sent = Reservation::default();
    sent.resize(world.budget(), message.len()).map_err(|_| Failure::NoMemory)?;
    // A short message leaves with its head; of a long one there is no second copy.
    let (first, rest) = message.split_at(message.len().min(PIECE));
    let mut frame = Vec::with_capacity(4 + first.len());
    frame.extend([kind, length[1], length[2], length[3]]);
    frame.extend_from_slice(first);
    let is_reused = connection.is_reused() && kind != EXTRA_INFO;
    // A Unix socket whose other end is closed takes nothing, and is reset only if bytes were left unread there.
    let unsent = |_: io::Error| if is_reused { Failure::Stale } else { BROKEN };
    connection.write_all(&frame).await.map_err(unsent)?;
    connection.write_all(rest).await.map_err(unsent)?;
    connection.flush().await.map_err(unsent)?;
    let mut head = [0; 4];
    let read = connection.read_exact(&mut head).await;
    read.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionReset => unsent(error),
        _ => BROKEN,
    })?;
    let length = usize::from(head[1]) << 16 | usize::from(head[2]) << 8 | usize::from(head[3]);
    let (mut bytes, mut held) = (Vec::new(), Reservation::default());
    while bytes.len() < length {
        let start = bytes.len();
        let end = length.min(start + PIECE);
        held.reserve(world.budget(), &mut bytes, end - start, LONGEST).map_err(|_| Failure::NoMemory)?;
        bytes.resize(end, 0);
        let read = connection.read_exact(&mut bytes[start..]).await;
        read.map_err(|_| BROKEN)?;
    }
    if head[0] == ERROR {
        return Err(match messages::error(&bytes) {
            (_, true) => Failure::UnknownToken,
            (words, false) => Failure::Broken(words),
        });
    }
    Ok(Message { kind: head[0], bytes, _held: held })
}
