//! Stream routes: where TCP connections and UDP sessions go.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use ipnet::IpNet;

pub use crate::protocol::{CallLogger, CommandFaults, Faults, Protocol, Spoken};

use crate::plan::Plan;

/// All stream routes of a snapshot, in a searchable form.
///
/// The order is APISIX's: routes with the server name first, an exact name before a wildcard and
/// the longest wildcard first, then those without a name. Routes of equal rank are in the order of
/// their ids.
#[derive(Debug, Default)]
pub struct Streams {
    all: Vec<Arc<StreamPlan>>,
    exact: HashMap<Box<str>, Vec<Arc<StreamPlan>>>,
    /// By what follows the `*`.
    wild: HashMap<Box<str>, Vec<Arc<StreamPlan>>>,
    /// Routes without a name for these ports, merged with those for any port.
    by_port: HashMap<u16, Vec<Arc<StreamPlan>>>,
    /// Those for any port, in order.
    any_port: Vec<Arc<StreamPlan>>,
    /// Ports on which the server name matters.
    named_ports: HashSet<u16>,
    /// The server name matters on every port.
    named_everywhere: bool,
}

/// A compiled stream route.
#[derive(Debug, Clone)]
pub struct StreamPlan {
    pub rule: StreamRule,
    pub plan: Plan,
    /// The protocol to inspect, if any. TCP only.
    pub protocol: Option<Box<Protocol>>,
}

/// The conditions of a stream route; `None` matches anything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamRule {
    pub remote: Option<IpNet>,
    pub server: Option<IpNet>,
    pub port: Option<u16>,
    /// In lower case, possibly with a leading `*`.
    pub name: Option<Box<str>>,
}

/// A connection to be routed.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    pub remote: IpAddr,
    pub server: SocketAddr,
    /// The server name of a TLS client, in lower case.
    pub name: Option<&'a str>,
}

impl Streams {
    /// Builds the table from plans in order of their ids.
    pub fn new(all: Vec<Arc<StreamPlan>>) -> Streams {
        let mut streams = Streams::default();
        for plan in &all {
            let rule = &plan.rule;
            let list = match rule.name.as_deref() {
                Some(name) => {
                    match rule.port {
                        Some(port) => _ = streams.named_ports.insert(port),
                        None => streams.named_everywhere = true,
                    }
                    match name.strip_prefix('*') {
                        Some(suffix) => streams.wild.entry(suffix.into()).or_default(),
                        None => streams.exact.entry(name.into()).or_default(),
                    }
                }
                None => match rule.port {
                    Some(port) => {
                        let before = &streams.any_port;
                        streams.by_port.entry(port).or_insert_with(|| before.clone())
                    }
                    None => {
                        streams.by_port.values_mut().for_each(|list| list.push(plan.clone()));
                        &mut streams.any_port
                    }
                },
            };
            list.push(plan.clone());
        }
        streams.all = all;
        streams
    }

    /// Whether routing on this port depends on the server name of TLS clients.
    #[inline]
    pub fn asks_for_name(&self, port: u16) -> bool {
        self.named_everywhere || self.named_ports.contains(&port)
    }

    /// Finds the route of a connection.
    pub fn find(&self, arrival: &Arrival<'_>) -> Option<&Arc<StreamPlan>> {
        if let Some(name) = arrival.name
            && let Some(found) = self.named(name, arrival)
        {
            return Some(found);
        }
        let list = self.by_port.get(&arrival.server.port()).unwrap_or(&self.any_port);
        list.iter().find(|plan| plan.rule.fits(arrival))
    }

    fn named(&self, name: &str, arrival: &Arrival<'_>) -> Option<&Arc<StreamPlan>> {
        let fitting =
            |list: Option<&'_ Vec<Arc<StreamPlan>>>| list?.iter().position(|plan| plan.rule.fits(arrival));
        if let Some(at) = fitting(self.exact.get(name)) {
            return self.exact.get(name)?.get(at);
        }
        if self.wild.is_empty() {
            return None;
        }
        // The longest suffix first. A name has at most 255 bytes, so this is a bounded search.
        (0..name.len()).filter(|at| name.is_char_boundary(*at)).find_map(|at| {
            let list = self.wild.get(&name[at..])?;
            list.iter().find(|plan| plan.rule.fits(arrival))
        })
    }

    pub fn all(&self) -> &[Arc<StreamPlan>] {
        &self.all
    }
}

impl StreamRule {
    /// Whether addresses and port match; the name has been checked already.
    fn fits(&self, arrival: &Arrival<'_>) -> bool {
        let within = |network: Option<IpNet>, ip: IpAddr| network.is_none_or(|network| network.contains(&ip));
        self.port.is_none_or(|port| port == arrival.server.port())
            && within(self.remote, arrival.remote)
            && within(self.server, arrival.server.ip().to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use sdk::RouteInfo;

    use super::*;

    /// `name remote server port`, with `-` for anything.
    fn streams(rules: &[&str]) -> Streams {
        let plan = |(at, text): (usize, &&str)| {
            let words: Vec<Option<&str>> =
                text.split(' ').map(|word| Some(word).filter(|word| *word != "-")).collect();
            let network =
                |text: &str| text.parse::<IpNet>().unwrap_or_else(|_| text.parse::<IpAddr>().unwrap().into());
            let rule = StreamRule {
                name: words[0].map(Into::into),
                remote: words[1].map(network),
                server: words[2].map(network),
                port: words[3].map(|port| port.parse().unwrap()),
            };
            let plan = Plan::new(RouteInfo::new(&at.to_string(), Default::default()));
            Arc::new(StreamPlan { rule, plan, protocol: None })
        };
        Streams::new(rules.iter().enumerate().map(plan).collect())
    }

    fn found(streams: &Streams, remote: &str, server: &str, name: Option<&str>) -> String {
        let arrival = Arrival { remote: remote.parse().unwrap(), server: server.parse().unwrap(), name };
        streams.find(&arrival).map_or("none".to_owned(), |plan| plan.plan.info.id.to_string())
    }

    #[test]
    fn addresses_and_ports_must_all_match() {
        let streams = streams(&["- 10.0.0.0/8 - 9100", "- - 127.0.0.2 -", "- - - 9100", "- ::1 - -"]);
        let of = |remote, server| found(&streams, remote, server, None);
        assert_eq!(of("10.1.1.1", "127.0.0.1:9100"), "0");
        assert_eq!(of("10.1.1.1", "127.0.0.2:9101"), "1");
        assert_eq!(of("11.1.1.1", "127.0.0.2:9100"), "1", "the earlier id");
        assert_eq!(of("11.1.1.1", "127.0.0.1:9100"), "2");
        assert_eq!(of("::1", "[::1]:1"), "3");
        assert_eq!(of("11.1.1.1", "127.0.0.1:1"), "none");
        assert!(!streams.asks_for_name(9100));
    }

    #[test]
    fn routes_with_names_come_first_longest_name_first() {
        let streams = streams(&[
            "- - - 9100",
            "*.test - - 9100",
            "*.a.test - - 9100",
            "x.a.test 10.0.0.1 - 9100",
            "x.a.test - - 9100",
            "y.test - - 9101",
        ]);
        let of = |name| found(&streams, "127.0.0.1", "127.0.0.1:9100", name);
        assert_eq!(of(Some("x.a.test")), "4");
        assert_eq!(found(&streams, "10.0.0.1", "127.0.0.1:9100", Some("x.a.test")), "3");
        assert_eq!(of(Some("y.a.test")), "2");
        assert_eq!(of(Some("z.y.a.test")), "2");
        assert_eq!(of(Some("a.test")), "1");
        assert_eq!(of(Some("y.test")), "1", "the exact one is for another port");
        assert_eq!(of(Some("test")), "0");
        assert_eq!(of(Some("other")), "0");
        assert_eq!(of(None), "0");
        assert!(streams.asks_for_name(9101) && !streams.asks_for_name(9102));
        assert!(
            super::Streams::default()
                .find(&Arrival {
                    remote: "::1".parse().unwrap(),
                    server: "[::1]:1".parse().unwrap(),
                    name: Some("a"),
                })
                .is_none()
        );
    }
}
