//! The settings of policies and of sessions, as APISIX has them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use model::Invalid;
use sdk::build::split_authority;
use sdk::connection::{Addresses, Connect, Server as Transport, Tls, Trust};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha1::{Digest, Sha1};

use super::command::command;
use super::link::Server;
use super::servers::Kind;

/// The settings of one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub kind: Kind,
    login: Login,
    sentinel_login: Login,
    /// Whether servers speak TLS, and whether their certificates are verified.
    tls: Option<bool>,
    /// The name in certificates, if it is not that of the server.
    server_name: Option<String>,
    /// To connect.
    connect_timeout: Duration,
    /// Of a decision, all in all.
    pub timeout: Duration,
    idle: Duration,
}

#[derive(Clone, PartialEq, Default)]
struct Login {
    user: Option<String>,
    password: Option<String>,
    database: u64,
}

/// Settings are part of keys of state; passwords are not shown in full.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|password| Sha1::digest(password).to_vec());
        f.debug_tuple("Login").field(&self.user).field(&password).field(&self.database).finish()
    }
}

#[derive(Deserialize)]
struct Single {
    redis_host: String,
    #[serde(default = "port")]
    redis_port: u64,
    redis_username: Option<String>,
    redis_password: Option<String>,
    #[serde(default)]
    redis_database: u64,
    #[serde(default = "second")]
    redis_timeout: u64,
    #[serde(default)]
    redis_ssl: bool,
    #[serde(default)]
    redis_ssl_verify: bool,
    #[serde(default = "ten_seconds")]
    redis_keepalive_timeout: u64,
}

/// The settings of sessions.
#[derive(Deserialize)]
struct OfSessions {
    host: String,
    port: u64,
    username: Option<String>,
    password: Option<String>,
    database: u64,
    ssl: bool,
    ssl_verify: bool,
    server_name: Option<String>,
    connect_timeout: u64,
    send_timeout: u64,
    read_timeout: u64,
    keepalive_timeout: u64,
}

#[derive(Deserialize)]
struct Cluster {
    redis_cluster_nodes: Vec<String>,
    redis_password: Option<String>,
    #[serde(default = "second")]
    redis_timeout: u64,
    #[serde(default)]
    redis_cluster_ssl: bool,
    #[serde(default)]
    redis_cluster_ssl_verify: bool,
    #[serde(default = "ten_seconds")]
    redis_keepalive_timeout: u64,
}

#[derive(Deserialize)]
struct Sentinels {
    redis_sentinels: Vec<Sentinel>,
    redis_master_name: String,
    #[serde(default)]
    redis_role: String,
    #[serde(default = "second")]
    redis_connect_timeout: u64,
    #[serde(default = "second")]
    redis_read_timeout: u64,
    #[serde(default = "minute")]
    redis_keepalive_timeout: u64,
    #[serde(default)]
    redis_database: u64,
    redis_username: Option<String>,
    redis_password: Option<String>,
    sentinel_username: Option<String>,
    sentinel_password: Option<String>,
}

#[derive(Deserialize)]
struct Sentinel {
    host: String,
    port: u16,
}

fn port() -> u64 {
    6379
}

fn second() -> u64 {
    1_000
}

fn ten_seconds() -> u64 {
    10_000
}

fn minute() -> u64 {
    60_000
}

impl Settings {
    /// Reads settings that have passed the schema.
    ///
    /// # Errors
    /// Faults beyond the schema, with a pointer to the field.
    pub fn read(policy: &str, settings: &Map<String, Value>) -> Result<Settings, Invalid> {
        let millis = Duration::from_millis;
        Ok(match policy {
            "redis" => {
                let single: Single = typed(settings)?;
                let port = number_of_port("redis_port", single.redis_port)?;
                let login = Login {
                    user: single.redis_username,
                    password: single.redis_password,
                    database: single.redis_database,
                };
                Settings {
                    kind: Kind::Single(single.redis_host, port),
                    login,
                    sentinel_login: Login::default(),
                    tls: single.redis_ssl.then_some(single.redis_ssl_verify),
                    server_name: None,
                    connect_timeout: millis(single.redis_timeout),
                    timeout: millis(single.redis_timeout),
                    idle: millis(single.redis_keepalive_timeout),
                }
            }
            "redis-cluster" => {
                let cluster: Cluster = typed(settings)?;
                let nodes = cluster.redis_cluster_nodes.iter().enumerate().map(|(index, node)| {
                    // A reference (`$env://`) has no value while a configuration is only checked.
                    let known = split_authority(node, 6379);
                    let node = known.or(node.starts_with('$').then_some((node, 6379))).ok_or_else(|| {
                        Invalid::new(format!("failed to parse address: {node}"))
                            .at(format!("/redis_cluster_nodes/{index}"))
                            .expected("host:port")
                    })?;
                    Ok((node.0.to_owned(), node.1))
                });
                Settings {
                    kind: Kind::Cluster(nodes.collect::<Result<_, Invalid>>()?),
                    login: Login { password: cluster.redis_password, ..Login::default() },
                    sentinel_login: Login::default(),
                    tls: cluster.redis_cluster_ssl.then_some(cluster.redis_cluster_ssl_verify),
                    server_name: None,
                    connect_timeout: millis(cluster.redis_timeout),
                    timeout: millis(cluster.redis_timeout),
                    idle: millis(cluster.redis_keepalive_timeout),
                }
            }
            _ => {
                let all: Sentinels = typed(settings)?;
                let sentinels = all.redis_sentinels.into_iter().map(|it| (it.host, it.port)).collect();
                let replica = all.redis_role == "slave";
                Settings {
                    kind: Kind::Sentinels { sentinels, master: all.redis_master_name, replica },
                    login: Login {
                        user: all.redis_username,
                        password: all.redis_password,
                        database: all.redis_database,
                    },
                    sentinel_login: Login {
                        user: all.sentinel_username,
                        password: all.sentinel_password,
                        database: 0,
                    },
                    tls: None,
                    server_name: None,
                    connect_timeout: millis(all.redis_connect_timeout),
                    timeout: millis(all.redis_connect_timeout.max(all.redis_read_timeout)),
                    idle: millis(all.redis_keepalive_timeout),
                }
            }
        })
    }

    /// Reads settings of sessions that have passed the schema.
    ///
    /// # Errors
    /// Faults beyond the schema, with a pointer to the field.
    pub fn of_sessions(settings: &Map<String, Value>) -> Result<Settings, Invalid> {
        let all: OfSessions = typed(settings)?;
        let millis = Duration::from_millis;
        Ok(Settings {
            kind: Kind::Single(all.host, number_of_port("port", all.port)?),
            login: Login { user: all.username, password: all.password, database: all.database },
            sentinel_login: Login::default(),
            tls: all.ssl.then_some(all.ssl_verify),
            server_name: all.server_name.filter(|name| !name.is_empty()),
            connect_timeout: millis(all.connect_timeout),
            timeout: millis(all.connect_timeout.max(all.send_timeout).max(all.read_timeout)),
            idle: millis(all.keepalive_timeout),
        })
    }

    /// A server that counts.
    pub fn server(&self, host: &str, port: u16) -> Server {
        self.reach(host, port, &self.login)
    }

    pub fn sentinel(&self, host: &str, port: u16) -> Server {
        self.reach(host, port, &self.sentinel_login)
    }

    fn reach(&self, host: &str, port: u16, login: &Login) -> Server {
        let at = match host.parse::<IpAddr>() {
            Ok(ip) => Addresses::Known([SocketAddr::new(ip, port)].into()),
            Err(_) => Addresses::Host { name: host.into(), port },
        };
        let trust = |verify| if verify { Trust::Common } else { Trust::Any };
        let server_name = self.server_name.as_deref().unwrap_or(host);
        let tls = self.tls.map(|verify| Tls { server_name: server_name.into(), trust: trust(verify) });
        Server {
            connect: Connect {
                server: Transport::Tcp { at, tls },
                pool: format!("redis {login:?} {:?} {:?}", self.tls, self.server_name).into(),
                timeout: self.connect_timeout,
            },
            login: login.commands(),
            idle: self.idle,
        }
    }
}

impl Login {
    /// As APISIX does it: without a password, the user is ignored.
    fn commands(&self) -> (Vec<u8>, usize) {
        let mut commands = Vec::new();
        if let Some(password) = self.password.as_deref().filter(|password| !password.is_empty()) {
            commands.push(match &self.user {
                Some(user) => command(&[b"AUTH", user.as_bytes(), password.as_bytes()]),
                None => command(&[b"AUTH", password.as_bytes()]),
            });
        }
        if self.database != 0 {
            commands.push(command(&[b"SELECT", self.database.to_string().as_bytes()]));
        }
        (commands.concat(), commands.len())
    }
}

fn number_of_port(name: &str, port: u64) -> Result<u16, Invalid> {
    u16::try_from(port).map_err(|_| {
        Invalid::new(format!("{name} should be at most 65535")).at(format!("/{name}")).got(port.to_string())
    })
}

fn typed<T: DeserializeOwned>(settings: &Map<String, Value>) -> Result<T, Invalid> {
    serde_json::from_value(Value::Object(settings.clone())).map_err(|error| Invalid::new(error.to_string()))
}
