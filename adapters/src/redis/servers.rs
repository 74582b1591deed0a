//! The servers behind a policy, as one worker sees them: one, the master that sentinels name, or a cluster.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use redis::{ServerErrorKind, Value};
use sdk::state::WorkerState;
use sdk::{Build, World};

use super::command::{Call, command, integer, list, slot, text};
use super::link::{Deadline, Failure, Link, Posted};
use super::settings::Settings;

/// Redirections of one command.
const MOST_REDIRECTS: usize = 5;
/// Nodes of a cluster.
const MOST_NODES: usize = 1000;

/// The servers that a policy names.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Single(String, u16),
    Sentinels { sentinels: Vec<(String, u16)>, master: String, replica: bool },
    Cluster(Vec<(String, u16)>),
}

/// The servers of one plugin instance, on each worker. Instances with the same settings share their connections.
pub struct Access {
    settings: Arc<Settings>,
    servers: WorkerState<Option<Rc<Servers>>>,
}

impl Access {
    pub fn new(settings: Settings, cx: &Build<'_>) -> Access {
        let servers = cx.shared_worker_state(&format!("redis\n{settings:?}"));
        Access { settings: Arc::new(settings), servers }
    }

    pub fn servers(&self, world: &dyn World) -> Rc<Servers> {
        self.servers.with(world, |servers| {
            servers.get_or_insert_with(|| Rc::new(Servers::new(self.settings.clone()))).clone()
        })
    }

    /// The end of a call that begins now.
    pub fn deadline(&self, world: &dyn World) -> Deadline {
        Deadline::after(world, self.settings.timeout)
    }
}

/// The servers of one worker.
pub struct Servers {
    settings: Arc<Settings>,
    links: RefCell<HashMap<(String, u16), Rc<Link>>>,
    sentinels: RefCell<HashMap<(String, u16), Rc<Link>>>,
    /// The current master.
    master: RefCell<Option<Rc<Link>>>,
    /// The ends of ranges of slots with their nodes, in order.
    slots: RefCell<Vec<(u16, (String, u16))>>,
    /// A node answered with a redirection.
    stale: Cell<bool>,
}

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq)]
pub enum Error {
    Failure(Failure),
    /// An error of Redis, by its code.
    Server(String),
    NoMaster,
    NoNode,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        Error::Failure(failure)
    }
}

impl Error {
    pub fn as_str(&self) -> &'static str {
        match self {
            Error::Failure(failure) => failure.as_str(),
            Error::NoMaster => "no sentinel names a master",
            Error::NoNode => "no node of the Redis cluster has the key's slot",
            Error::Server(code) => match code.as_str() {
                "OOM" => "the Redis server is out of memory",
                "READONLY" => "the Redis server is a replica and takes no writes",
                "LOADING" => "the Redis server is loading its data",
                "CLUSTERDOWN" => "the Redis cluster is down",
                "NOAUTH" | "WRONGPASS" => "the Redis server wants another user or password",
                "NOPERM" => "the Redis user may not run the command",
                "MISCONF" => "the Redis server takes no writes: it cannot save its data",
                _ => "the Redis server answered with an error",
            },
        }
    }
}

/// A result and the connection it came over.
pub type Answer = Result<(Value, Rc<Link>), Error>;

impl Servers {
    pub fn new(settings: Arc<Settings>) -> Servers {
        Servers {
            settings,
            links: RefCell::default(),
            sentinels: RefCell::default(),
            master: RefCell::default(),
            slots: RefCell::default(),
            stale: Cell::new(false),
        }
    }

    /// Whether a script may have keys in different slots.
    pub fn takes_any_keys(&self) -> bool {
        !matches!(self.settings.kind, Kind::Cluster(_))
    }

    /// Calls a script, with its text where the server does not know it.
    pub async fn run(&self, world: &dyn World, call: &Call<'_>, deadline: &mut Deadline) -> Answer {
        let key = call.keys.first().map_or(&[][..], Vec::as_slice);
        match self.call(world, key, &call.command(false), deadline).await {
            Err(Error::Server(code)) if code == "NOSCRIPT" => {
                self.call(world, key, &call.command(true), deadline).await
            }
            answer => answer,
        }
    }

    /// Sends a command to the server that has the key.
    pub async fn call(
        &self,
        world: &dyn World,
        key: &[u8],
        command: &[u8],
        deadline: &mut Deadline,
    ) -> Answer {
        match &self.settings.kind {
            Kind::Single(host, port) => {
                let link = self.link(host, *port);
                answer(link.call(world, command, 1, deadline).await?, link)
            }
            Kind::Sentinels { .. } => self.call_master(world, command, deadline).await,
            Kind::Cluster(_) => self.call_node(world, slot(key), command, deadline).await,
        }
    }

    /// Sends a command whose answer does not matter, where the key is.
    pub fn tell(&self, key: &[u8], command: &[u8]) {
        match &self.settings.kind {
            // Replicas refuse it.
            Kind::Single(..) | Kind::Sentinels { .. } => {
                self.links.borrow().values().for_each(|link| link.tell(command));
            }
            Kind::Cluster(_) => {
                if let Some((host, port)) = self.owner(slot(key)) {
                    self.link(&host, port).tell(command);
                }
            }
        }
    }

    /// Sends a command over a connection that is open; without one, there is no answer to await.
    pub fn post(&self, key: &[u8], command: &[u8]) -> Option<Posted> {
        let link = match &self.settings.kind {
            Kind::Single(host, port) => self.link(host, *port),
            Kind::Sentinels { .. } => self.master.borrow().clone()?,
            Kind::Cluster(_) => self.owner(slot(key)).map(|(host, port)| self.link(&host, port))?,
        };
        link.post(command)
    }

    fn link(&self, host: &str, port: u16) -> Rc<Link> {
        let mut links = self.links.borrow_mut();
        if let Some(link) = links.get(&(host.to_owned(), port)) {
            return link.clone();
        }
        if links.len() >= MOST_NODES {
            links.clear();
        }
        let link = Link::new(self.settings.server(host, port));
        links.insert((host.to_owned(), port), link.clone());
        link
    }

    // ---- sentinels ----

    async fn call_master(&self, world: &dyn World, command: &[u8], deadline: &mut Deadline) -> Answer {
        let mut again = true;
        loop {
            let known = self.master.borrow().clone();
            let is_known = known.is_some();
            let link = match known {
                Some(link) => link,
                None => self.find_master(world, deadline).await?,
            };
            let error = match link.call(world, command, 1, deadline).await {
                Ok(value) => match answer(value, link) {
                    Err(Error::Server(code)) if code == "READONLY" || code == "LOADING" => {
                        Error::Server(code)
                    }
                    answer => return answer,
                },
                Err(failure) => Error::Failure(failure),
            };
            // The sentinels may know another master by now.
            self.master.take();
            if !again || !is_known || error == Error::Failure(Failure::Timeout) {
                return Err(error);
            }
            again = false;
        }
    }

    async fn find_master(&self, world: &dyn World, deadline: &mut Deadline) -> Result<Rc<Link>, Error> {
        let Kind::Sentinels { sentinels, master, replica } = &self.settings.kind else {
            return Err(Error::NoMaster);
        };
        let question = match replica {
            true => command(&[b"SENTINEL", b"replicas", master.as_bytes()]),
            false => command(&[b"SENTINEL", b"get-master-addr-by-name", master.as_bytes()]),
        };
        let mut error = Error::NoMaster;
        for (host, port) in sentinels {
            let known = self.sentinels.borrow().get(&(host.clone(), *port)).cloned();
            let link = known.unwrap_or_else(|| {
                let link = Link::new(self.settings.sentinel(host, *port));
                self.sentinels.borrow_mut().insert((host.clone(), *port), link.clone());
                link
            });
            match link.call(world, &question, 1, deadline).await {
                Ok(value) => {
                    if let Some((host, port)) = if *replica { replica_of(&value) } else { address(&value) } {
                        let link = self.link(&host, port);
                        self.master.replace(Some(link.clone()));
                        return Ok(link);
                    }
                    error = answer(value, link).err().unwrap_or(Error::NoMaster);
                }
                Err(Failure::Timeout) => return Err(Failure::Timeout.into()),
                Err(failure) => error = failure.into(),
            }
        }
        Err(error)
    }

    // ---- clusters ----

    async fn call_node(&self, world: &dyn World, slot: u16, bytes: &[u8], deadline: &mut Deadline) -> Answer {
        if self.stale.take() || self.slots.borrow().is_empty() {
            self.read_slots(world, deadline, None).await?;
        }
        let mut at = self.owner(slot).ok_or(Error::NoNode)?;
        let (mut asking, mut again) = (false, true);
        for _ in 0..=MOST_REDIRECTS {
            let link = self.link(&at.0, at.1);
            let result = match asking {
                true => {
                    let both = [command(&[b"ASKING"]), bytes.to_vec()].concat();
                    link.call(world, &both, 2, deadline).await
                }
                false => link.call(world, bytes, 1, deadline).await,
            };
            match result {
                Ok(Value::ServerError(error)) => match (error.kind(), error.details()) {
                    (Some(kind @ (ServerErrorKind::Moved | ServerErrorKind::Ask)), Some(to)) => {
                        at = redirection(to, &at.0).ok_or(Error::NoNode)?;
                        asking = kind == ServerErrorKind::Ask;
                        if !asking {
                            self.stale.set(true);
                        }
                    }
                    _ => return Err(Error::Server(error.code().to_owned())),
                },
                Ok(value) => return Ok((value, link)),
                // Another node may have its slots by now.
                Err(failure @ (Failure::Connect(_) | Failure::Broken | Failure::Hung)) if again => {
                    again = false;
                    self.read_slots(world, deadline, Some(&at)).await?;
                    match self.owner(slot) {
                        Some(now) if now != at => at = now,
                        _ => {
                            self.stale.set(true);
                            return Err(failure.into());
                        }
                    }
                }
                Err(failure) => {
                    self.stale.set(true);
                    return Err(failure.into());
                }
            }
        }
        Err(Error::NoNode)
    }

    fn owner(&self, slot: u16) -> Option<(String, u16)> {
        let slots = self.slots.borrow();
        let range = slots.get(slots.partition_point(|(end, _)| *end < slot))?;
        Some(range.1.clone())
    }

    /// Reads the map of slots from the first node that gives it.
    async fn read_slots(
        &self,
        world: &dyn World,
        deadline: &mut Deadline,
        except: Option<&(String, u16)>,
    ) -> Result<(), Error> {
        let Kind::Cluster(seeds) = &self.settings.kind else { return Err(Error::NoNode) };
        let mut nodes: Vec<(String, u16)> =
            self.slots.borrow().iter().map(|(_, node)| node.clone()).collect();
        nodes.extend(seeds.iter().cloned());
        // Those with a connection come first: one that hangs would take all of the time.
        let is_open = |node: &(String, u16)| self.links.borrow().get(node).is_some_and(|link| link.is_open());
        nodes.sort_by_key(|node| !is_open(node));
        nodes.dedup();
        let question = command(&[b"CLUSTER", b"SLOTS"]);
        let mut error = Error::NoNode;
        for node in nodes.iter().filter(|node| Some(*node) != except) {
            let link = self.link(&node.0, node.1);
            match link.call(world, &question, 1, deadline).await {
                Ok(value) => {
                    if let Some(slots) = ranges(&value, &node.0).filter(|slots| !slots.is_empty()) {
                        let used = |node: &(String, u16)| {
                            slots.iter().any(|(_, other)| other == node) || seeds.contains(node)
                        };
                        self.links.borrow_mut().retain(|node, _| used(node));
                        self.slots.replace(slots);
                        return Ok(());
                    }
                    error = answer(value, link).err().unwrap_or(Error::NoNode);
                }
                Err(Failure::Timeout) => return Err(Failure::Timeout.into()),
                Err(failure) => error = failure.into(),
            }
        }
        Err(error)
    }
}

/// Tells errors of the server from results.
fn answer(value: Value, link: Rc<Link>) -> Answer {
    match value {
        Value::ServerError(error) => Err(Error::Server(error.code().to_owned())),
        value => Ok((value, link)),
    }
}

/// `[host, port]`.
fn address(value: &Value) -> Option<(String, u16)> {
    let [host, port, ..] = list(value)? else { return None };
    Some((text(host)?.to_owned(), u16::try_from(integer(port)?).ok()?))
}

/// The first replica that sentinels do not take for down, of lists of names and values.
fn replica_of(value: &Value) -> Option<(String, u16)> {
    list(value)?.iter().find_map(|replica| {
        let fields = list(replica)?;
        let field = |name: &str| {
            fields.chunks_exact(2).find(|pair| text(&pair[0]) == Some(name)).and_then(|pair| text(&pair[1]))
        };
        let down = field("flags")?.contains("down") || field("flags")?.contains("disconnected");
        Some((field("ip")?.to_owned(), field("port")?.parse().ok()?)).filter(|_| !down)
    })
}

/// `12182 10.0.0.1:6379`; without a host, that of the node that answered.
fn redirection(details: &str, asked: &str) -> Option<(String, u16)> {
    let (host, port) = details.split_whitespace().nth(1)?.rsplit_once(':')?;
    let host = if host.is_empty() { asked } else { host };
    Some((host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?))
}

/// `[[first, last, [host, port, …], …], …]`, in order; an unknown host is that of the node that answered.
fn ranges(value: &Value, asked: &str) -> Option<Vec<(u16, (String, u16))>> {
    let mut ranges = Vec::new();
    for range in list(value)?.iter().take(16_384) {
        let [_, last, master, ..] = list(range)? else { return None };
        let [host, port, ..] = list(master)? else { return None };
        let host = text(host).filter(|host| !host.is_empty()).unwrap_or(asked);
        let node = (host.to_owned(), u16::try_from(integer(port)?).ok()?);
        ranges.push((u16::try_from(integer(last)?).ok()?, node));
    }
    ranges.sort_by_key(|(last, _)| *last);
    Some(ranges)
}
