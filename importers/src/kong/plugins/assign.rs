//! Decides which plugins each route, service, consumer and group gets.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use model::{Key, Kind};
use serde_json::{Value, json};

use super::super::entities::{Instance, Kong};
use super::super::routes::Layout;
use super::super::{Output, consumers, finding, services};
use super::auth::{self, Auth};
use super::transform::Rewrite;
use super::{Assigned, Converted, Piece, Plugins, access, convert};
use crate::finding::Severity;

/// How narrow the scope of an instance is; the larger one wins.
pub(super) fn level(instance: &Instance<'_>) -> u8 {
    u8::from(instance.route.is_some()) * 2 + u8::from(instance.service.is_some())
}

/// The instances by what they belong to, in the order of the file.
pub(in crate::kong) struct Scopes {
    /// Those of all routes, except those of consumers.
    global: Vec<usize>,
    /// Those of consumers and groups on all routes.
    of_consumers: Vec<usize>,
    by_service: Vec<Vec<usize>>,
    by_route: Vec<Vec<usize>>,
}

impl Scopes {
    pub(in crate::kong) fn of(kong: &Kong<'_>) -> Scopes {
        let mut scopes = Scopes {
            global: Vec::new(),
            of_consumers: Vec::new(),
            by_service: vec![Vec::new(); kong.services.len()],
            by_route: vec![Vec::new(); kong.routes.len()],
        };
        for (number, instance) in kong.plugins.iter().enumerate() {
            let list = match (instance.route, instance.service) {
                (Some(route), _) => &mut scopes.by_route[route],
                (None, Some(service)) => &mut scopes.by_service[service],
                (None, None) if instance.consumer.is_some() || instance.group.is_some() => {
                    &mut scopes.of_consumers
                }
                (None, None) => &mut scopes.global,
            };
            list.push(number);
        }
        scopes
    }

    /// How many instances of whole services and of all routes the routes meet.
    pub(in crate::kong) fn shared(&self, kong: &Kong<'_>) -> usize {
        let of_services = services::routes_of(kong).into_iter().zip(&self.by_service);
        let of_services = of_services.map(|(routes, instances)| routes.len() * instances.len());
        kong.routes.len() * self.global.len() + of_services.sum::<usize>()
    }

    /// The instances that a route meets, except those of consumers on all routes.
    pub(super) fn of_route(&self, kong: &Kong<'_>, index: usize) -> Vec<usize> {
        let service = kong.routes[index].service;
        let fits = |number: &&usize| {
            let of = kong.plugins[**number].service;
            of.is_none() || of == service
        };
        let of_service = service.map(|service| self.by_service[service].as_slice()).unwrap_or_default();
        let own = self.by_route[index].iter().filter(fits);
        let mut all: Vec<usize> = self.global.iter().chain(of_service).chain(own).copied().collect();
        all.sort_unstable();
        all
    }
}

/// Decides what each resource gets.
pub(in crate::kong) fn assign(kong: &Kong<'_>, layout: &Layout, out: &mut Output) -> Assigned {
    let usernames = consumers::usernames(kong, out);
    let context = convert::Context::of(kong, &usernames);
    let mut converted: Vec<Converted> =
        kong.plugins.iter().map(|instance| context.convert(instance)).collect();
    // The instances of each route that do not depend on a consumer, the winner of each name.
    let mut winners: Vec<BTreeMap<&str, usize>> = vec![BTreeMap::new(); kong.routes.len()];
    let served: Vec<usize> =
        (0..kong.routes.len()).filter(|index| !layout.routes[*index].is_empty()).collect();
    let mut concerned: Vec<Cow<'_, [usize]>> = vec![Cow::default(); kong.plugins.len()];
    let scopes = Scopes::of(kong);
    for index in &served {
        let index = *index;
        for number in scopes.of_route(kong, index) {
            let instance = &kong.plugins[number];
            if instance.consumer.is_some() || instance.group.is_some() {
                concerned[number].to_mut().push(index);
                continue;
            }
            let best = winners[index].entry(&instance.name).or_insert(number);
            if level(instance) > level(&kong.plugins[*best]) {
                *best = number;
            }
        }
        for number in winners[index].values() {
            concerned[*number].to_mut().push(index);
        }
    }
    // Those of a consumer on all routes share a list.
    for number in &scopes.of_consumers {
        concerned[*number] = Cow::Borrowed(&served);
    }
    let authenticated: Vec<bool> = winners
        .iter()
        .map(|winners| {
            winners
                .values()
                .any(|number| converted[*number].pieces.iter().any(|piece| matches!(piece, Piece::Auth(_))))
        })
        .collect();
    let terminates = |(_, instance): &(usize, &Instance<'_>)| {
        instance.name == "request-termination" && instance.consumer.is_none()
    };
    let terminating = kong.plugins.iter().enumerate().filter(terminates);
    let terminating = terminating.flat_map(|(number, _)| concerned[number].iter().copied()).collect();
    let mut assigner = Assigner {
        kong,
        layout,
        authenticated,
        terminating,
        concerned: &concerned,
        assigned: Assigned {
            routes: kong.routes.iter().map(|_| Plugins::new()).collect(),
            rewrites: kong.routes.iter().map(|_| Rewrite::default()).collect(),
            shared: kong.routes.iter().map(|_| None).collect(),
            services: kong.services.iter().map(|_| Plugins::new()).collect(),
            consumers: kong.consumers.iter().map(|_| Plugins::new()).collect(),
            groups: kong.groups.iter().map(|_| Plugins::new()).collect(),
            usernames: Vec::new(),
            global_rules: Vec::new(),
            limit_headers: None,
        },
    };
    assigner.routes(&winners, &mut converted, out);
    assigner.scoped(&winners, &mut converted);
    assigner.report(converted, out);
    let mut assigned = assigner.assigned;
    for (index, parts) in layout.routes.iter().enumerate() {
        if parts.len() > 1 && !assigned.routes[index].is_empty() {
            let id = out.names.id(Kind::PluginConfig, &kong.routes[index].name);
            assigned.shared[index] = Some((id, kong.routes[index].entity.node.place()));
        }
    }
    assigned.usernames = usernames;
    assigned
}

struct Assigner<'k, 'a> {
    kong: &'k Kong<'a>,
    layout: &'k Layout,
    authenticated: Vec<bool>,
    /// The routes that answer themselves.
    terminating: HashSet<usize>,
    /// The routes of each instance, in the order of the file.
    concerned: &'k [Cow<'k, [usize]>],
    assigned: Assigned,
}

impl Assigner<'_, '_> {
    /// Gives each route the plugins of its instances, and each service those that all its routes have.
    fn routes(&mut self, winners: &[BTreeMap<&str, usize>], converted: &mut [Converted], out: &mut Output) {
        // A limit's value depends on all its routes.
        let limits: HashMap<usize, Value> = (0..converted.len())
            .filter_map(|number| Some((number, self.limit(number, converted)?)))
            .collect();
        let mut levels: Vec<BTreeMap<String, u8>> = vec![BTreeMap::new(); winners.len()];
        for (index, winners) in winners.iter().enumerate() {
            let mut auths: Vec<(&Auth, u8)> = Vec::new();
            let mut taken: Vec<(String, Value, u8)> = Vec::new();
            for number in winners.values() {
                let level = level(&self.kong.plugins[*number]);
                for piece in &converted[*number].pieces {
                    match piece {
                        Piece::Plugin(name, value) => taken.push(((*name).to_owned(), value.clone(), level)),
                        Piece::Auth(auth) => auths.push((auth, level)),
                        Piece::Limit(_) => {
                            let value = limits.get(number).cloned();
                            taken.extend(value.map(|value| ("limit-count".to_owned(), value, level)));
                        }
                        Piece::Rewrite(rewrite) => self.assigned.rewrites[index].merge(rewrite),
                    }
                }
            }
            taken.extend(auth::compose(&auths));
            taken.extend(self.of_protocols(index));
            for (name, value, level) in taken {
                if self.assigned.routes[index].contains_key(&name) {
                    let node = &self.kong.routes[index].entity.node;
                    let mut finding = finding(
                        Severity::Guard,
                        node,
                        format!("two of its plugins become `{name}`, and only one of them counts"),
                    );
                    finding.resources = self.layout.keys(index);
                    out.findings.push(finding);
                    continue;
                }
                levels[index].insert(name.clone(), level);
                self.assigned.routes[index].insert(name, value);
            }
        }
        for (service, mut routes) in services::routes_of(self.kong).into_iter().enumerate() {
            routes.retain(|route| !self.layout.routes[*route].is_empty());
            self.lift(service, &routes, &levels);
        }
    }

    /// Moves what all routes of a service have from the service, or from the whole file, to the service.
    fn lift(&mut self, service: usize, routes: &[usize], levels: &[BTreeMap<String, u8>]) {
        let mut seen = HashSet::new();
        let names = routes.iter().flat_map(|route| self.assigned.routes[*route].keys());
        let names: Vec<String> = names.filter(|name| seen.insert(*name)).cloned().collect();
        for name in names {
            let shared =
                routes.iter().find(|route| levels[**route].get(&name).is_some_and(|level| *level < 2));
            let everywhere = routes.iter().all(|route| self.assigned.routes[*route].contains_key(&name));
            let (Some(shared), true) = (shared, everywhere) else { continue };
            let value = self.assigned.routes[*shared][&name].clone();
            for route in routes {
                let same = self.assigned.routes[*route].get(&name) == Some(&value);
                if same && levels[*route].get(&name).is_some_and(|level| *level < 2) {
                    self.assigned.routes[*route].remove(&name);
                }
            }
            self.assigned.services[service].insert(name, value);
        }
    }

    /// The configuration of a limit; none if it is a global rule, or no limit.
    fn limit(&mut self, number: usize, converted: &mut [Converted]) -> Option<Value> {
        let instance = &self.kong.plugins[number];
        let notes = &mut converted[number];
        let limit = notes.pieces.iter().find_map(|piece| match piece {
            Piece::Limit(limit) => Some(limit.clone()),
            _ => None,
        })?;
        if limit.shows_headers {
            self.assigned.limit_headers.get_or_insert(instance.node.place());
        }
        if instance.consumer.is_some() || instance.group.is_some() {
            return Some(limit.value(Some(true), None));
        }
        let routes = &self.concerned[number];
        let with = routes.iter().filter(|route| self.authenticated[**route]).count();
        let authenticated = match with {
            0 => Some(false),
            _ if with == routes.len() => Some(true),
            _ => None,
        };
        let mut holders: Vec<Option<usize>> =
            routes.iter().map(|route| self.kong.routes[*route].service).collect();
        holders.sort_unstable();
        holders.dedup();
        let many = level(instance) == 0 && (holders.len() > 1 || holders == [None] && routes.len() > 1);
        if !many {
            if authenticated.is_none() && limit.is_by_consumer_in_several_windows() {
                notes.notes.behaviour(
                    &instance.node,
                    "counted by address: some of its routes identify no consumers",
                );
            }
            return Some(limit.value(authenticated, None));
        }
        if limit.windows() == 1 {
            let group = format!("kong-{}-{number}", instance.name);
            return Some(limit.value(authenticated, Some(group)));
        }
        // A group has one window. A global rule counts all routes together, except those with a limit of their own.
        let overridden =
            |index: &usize| routes.binary_search(index).is_err() && !self.layout.routes[*index].is_empty();
        let others: Vec<Key> = (0..self.kong.routes.len())
            .filter(overridden)
            .flat_map(|route| self.layout.keys(route))
            .collect();
        let mut value = limit.value(authenticated, None);
        let mut filter = vec![json!(["route_id", "~=", null])];
        if !others.is_empty() {
            let ids: Vec<&str> = others.iter().map(|key| key.id.as_str()).collect();
            filter.push(json!(["route_id", "!", "in", ids]));
        }
        value["_meta"]["filter"] = Value::Array(filter);
        let place = instance.node.place();
        self.assigned.global_rules.push((Plugins::from_iter([("limit-count".to_owned(), value)]), place));
        None
    }

    /// The plugins that a route's protocols and a missing service mean.
    fn of_protocols(&self, index: usize) -> Vec<(String, Value, u8)> {
        let route = &self.kong.routes[index];
        if self.layout.routes[index].is_empty() {
            return Vec::new();
        }
        let has = |name: &str| route.protocols.iter().any(|protocol| protocol == name);
        let secure = (has("https") || has("grpcs")) && !has("http") && !has("grpc");
        let mut plugins = Vec::new();
        if secure {
            let status = route.entity.u64("https_redirect_status_code").unwrap_or(426);
            let abort = match status {
                301 | 302 | 307 | 308 => json!({
                    "http_status": status,
                    "headers": {"Location": "https://$host$request_uri"},
                    "vars": [[["scheme", "==", "http"]]],
                }),
                _ => json!({
                    "http_status": 426,
                    "body": "{\"message\":\"Please use HTTPS protocol\"}",
                    "headers": {"Content-Type": "application/json; charset=utf-8"},
                    "vars": [[["scheme", "==", "http"]]],
                }),
            };
            plugins.push(("fault-injection".to_owned(), json!({ "abort": abort }), 2));
        }
        if route.service.is_none() && !self.terminates(index) {
            let value = access::answer(
                503,
                "{\"message\":\"no Service found with those values\"}",
                "application/json; charset=utf-8",
            );
            plugins.push(("mocking".to_owned(), value, 2));
        }
        plugins
    }

    fn terminates(&self, index: usize) -> bool {
        self.terminating.contains(&index)
    }

    /// Gives consumers and groups their instances.
    fn scoped(&mut self, winners: &[BTreeMap<&str, usize>], converted: &mut [Converted]) {
        // The routes with an instance of a name that is no consumer's.
        let mut having: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, winners) in winners.iter().enumerate() {
            winners.keys().for_each(|name| having.entry(*name).or_default().push(index));
        }
        for (number, converted) in converted.iter_mut().enumerate() {
            let instance = &self.kong.plugins[number];
            let target = match (instance.consumer, instance.group) {
                (Some(consumer), _) => &mut self.assigned.consumers[consumer],
                (None, Some(group)) => &mut self.assigned.groups[group],
                (None, None) => continue,
            };
            let Converted { pieces, notes } = converted;
            let narrow = level(instance) > 0;
            let elsewhere = |route: &usize| self.concerned[number].binary_search(route).is_err();
            let has = having.get(instance.name.as_str()).map(Vec::as_slice).unwrap_or_default();
            if narrow && has.iter().any(elsewhere) {
                notes.guard(&instance.node, "not supported: an instance of a consumer counts on all routes, and others have an instance of this plugin, too");
                continue;
            }
            for piece in pieces {
                let (name, mut value) = match piece {
                    Piece::Plugin(name, value) => (*name, value.clone()),
                    Piece::Limit(limit) => ("limit-count", limit.value(Some(true), None)),
                    Piece::Rewrite(_) | Piece::Auth(_) => {
                        notes.behaviour(
                            &instance.node,
                            format!("`{}` is not carried over to consumers", instance.name),
                        );
                        continue;
                    }
                };
                if narrow {
                    let routes = self.concerned[number].iter();
                    let ids: Vec<String> =
                        routes.flat_map(|route| self.layout.keys(*route)).map(|key| key.id).collect();
                    let own = json!(["route_id", "in", ids]);
                    let filter = match value.get("_meta").and_then(|meta| meta.get("filter")).cloned() {
                        Some(other) => json!(["AND", own, other]),
                        None => json!([own]),
                    };
                    value["_meta"]["filter"] = filter;
                }
                if target.contains_key(name) {
                    notes.guard(
                        &instance.node,
                        format!("another plugin of the same consumer is `{name}` here, too"),
                    );
                    continue;
                }
                target.insert(name.to_owned(), value);
            }
        }
    }

    /// Reports what is different, with the routes of guards.
    fn report(&self, converted: Vec<Converted>, out: &mut Output) {
        for (number, Converted { notes, .. }) in converted.into_iter().enumerate() {
            for mut finding in notes.0 {
                let routes = &self.concerned[number];
                if routes.is_empty() {
                    finding.severity = Severity::Cosmetic;
                } else if finding.severity == Severity::Guard || level(&self.kong.plugins[number]) > 0 {
                    // Others concern all.
                    finding.resources = routes.iter().flat_map(|route| self.layout.keys(*route)).collect();
                }
                out.findings.push(finding);
            }
        }
    }
}
