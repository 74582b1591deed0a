//! hot path
//!
//! Consistent hashing: the same key goes to the same server, and when servers
//! come or go, only the keys of those move.
//!
//! The ring is that of APISIX (lua-resty-balancer's `resty.chash`) to the byte, so that a gateway
//! of either kind sends a key to the same server, and a fleet of both shares its caches. Each
//! server stands at 160 points for each unit of its weight, weights being divided by what divides
//! them all. A point is the CRC-32 of the server's name and the point before; a key belongs to the
//! first point at or after its own CRC-32.

use std::fmt;
use std::net::IpAddr;

use sdk::Exchange;
use sdk::template::Template;
use sdk::vars::Var;

use super::{Choice, Tier};
use crate::upstream::Endpoint;

/// Points for each unit of weight.
const POINTS: u64 = 160;
/// The approximate maximum of points in a ring (8 bytes each), which is 6,553 units of weight. Beyond
/// it servers get fewer points for their weight, and some keys go elsewhere than in APISIX.
const MOST_POINTS: u64 = 1 << 20;
/// Memory kept for the bytes to hash.
const KEPT: usize = 1 << 10;

/// The hash key; the client's address stands in for an absent one.
#[derive(Debug, Clone, PartialEq)]
pub enum HashOn {
    /// A variable, which also covers headers (`http_x`) and cookies (`cookie_x`).
    Var(Var),
    /// A template with variables; absent if none of them has a value.
    Combination(Template),
    /// The consumer's name.
    Consumer,
}

impl HashOn {
    /// The hash key in readable form.
    pub fn key(&self, x: &Exchange<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let found = match self {
            HashOn::Var(var) => var.write(x, &mut bytes),
            HashOn::Combination(template) => template.render(x, &mut bytes) > 0,
            HashOn::Consumer => x.consumer().is_some_and(|consumer| {
                bytes.extend_from_slice(consumer.name.as_bytes());
                true
            }),
        };
        if found { bytes } else { x.client().ip_text().to_vec() }
    }

    /// `bytes` is scratch memory.
    pub(super) fn hash(&self, x: &Exchange<'_>, bytes: &mut Vec<u8>) -> u32 {
        bytes.clear();
        let found = match self {
            HashOn::Var(var) => var.write(x, bytes),
            HashOn::Combination(template) => template.render(x, bytes) > 0,
            HashOn::Consumer => match x.consumer() {
                Some(consumer) => return crc32fast::hash(consumer.name.as_bytes()),
                None => false,
            },
        };
        if !found {
            return crc32fast::hash(x.client().ip_text());
        }
        let hash = crc32fast::hash(bytes);
        if bytes.capacity() > KEPT {
            bytes.clear();
            bytes.shrink_to(KEPT);
        }
        hash
    }
}

/// The ring of one tier.
#[derive(Clone, PartialEq)]
pub(crate) struct Ring {
    /// Sorted; (hash, index into the endpoints).
    points: Box<[(u32, u32)]>,
}

impl Ring {
    pub fn new(tier: &Tier, endpoints: &[Endpoint]) -> Ring {
        let servers = servers(tier, endpoints);
        let unit = servers.iter().fold(0, |unit, server| gcd(unit, server.weight)).max(1);
        let all: u64 = servers.iter().map(|server| server.weight / unit).sum();
        // Halving keeps the remaining points in place, so few keys move at each step.
        let shift = (0..64).find(|shift| all.saturating_mul(POINTS) >> shift <= MOST_POINTS).unwrap_or(63);
        let mut points = Vec::new();
        for server in servers.iter().filter(|server| server.weight > 0) {
            let count = ((server.weight / unit * POINTS) >> shift).max(1);
            let name = crc32fast::hash(server.name.as_bytes());
            let mut point: u32 = 0;
            for _ in 0..count {
                let mut hasher = crc32fast::Hasher::new_with_initial(name);
                hasher.update(&point.to_le_bytes());
                point = hasher.finalize();
                points.push((point, server.index));
            }
        }
        // APISIX does not define the order of servers at the same point. Here the lower address
        // wins, independent of the configured order.
        points.sort_unstable_by_key(|&(hash, index)| (hash, endpoints[index as usize].addr, index));
        Ring { points: points.into() }
    }

    pub(super) fn pick(&self, hash: u32, choice: Choice<'_>) -> Option<usize> {
        let start = self.points.partition_point(|point| point.0 < hash);
        let (before, from) = self.points.split_at(start);
        let on = |&(_, index): &(u32, u32)| (choice.weight(index as usize) > 0).then_some(index as usize);
        // Normally the first point wins; after failed attempts another server follows soon.
        if let Some(index) = from.iter().chain(before).take(64).find_map(on) {
            return Some(index);
        }
        if choice.tried.is_empty() || !(0..choice.endpoints.len()).any(|index| choice.weight(index) > 0) {
            return None;
        }
        from.iter().chain(before).find_map(on)
    }
}

#[cfg(test)]
impl Ring {
    pub(super) fn points(&self) -> &[(u32, u32)] {
        &self.points
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({} points)", self.points.len())
    }
}

/// A server of the ring.
struct Server {
    name: String,
    weight: u64,
    index: u32,
}

/// The servers of a tier, each address once; the last duplicate counts.
fn servers(tier: &Tier, endpoints: &[Endpoint]) -> Vec<Server> {
    let mut servers: Vec<Server> = Vec::with_capacity(tier.range.len());
    let mut places = hashbrown::HashMap::new();
    for index in tier.range.clone() {
        let endpoint = &endpoints[index];
        let server = Server { name: name(endpoint), weight: u64::from(endpoint.weight), index: index as u32 };
        match places.get(&endpoint.addr) {
            Some(&place) => servers[place] = server,
            None => {
                places.insert(endpoint.addr, servers.len());
                servers.push(server);
            }
        }
    }
    servers
}

/// The text that points are made of: `10.0.0.1`, a zero byte, `80`. Every colon becomes a zero
/// byte, also in IPv6 addresses, which keep their configured brackets.
fn name(endpoint: &Endpoint) -> String {
    let port = format!(":{}", endpoint.addr.port());
    let host = endpoint.authority.strip_suffix(&port).unwrap_or(&endpoint.authority);
    let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    let name = if literal { format!("{host}{port}") } else { endpoint.addr.to_string() };
    name.replace(':', "\0")
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
