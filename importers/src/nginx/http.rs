//! The `http` block: servers, their locations, and the routes that come of them.

mod auth;
mod error_pages;
mod files;
mod jumps;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use model::{Key, Kind};
use serde_json::{Map, Value, json};

use super::access::{self, Access, Zones};
use super::answers::{self, Site};
use super::cases::{Case, Evaluation, Groups, Outcome, State};
use super::directive::{Block, Directive};
use super::draft::Draft;
use super::locations::{self, Location, LocationKind, Reach};
use super::maps::Maps;
use super::proxying::Proxying;
use super::report::Report;
use super::scope::Scope;
use super::servers::{Selection, Server};
use super::text::Text;
use super::upstreams::Upstreams;
use super::{responses, values};
use crate::finding::Place;
use crate::{Imported, Severity, Source};

/// An import of the `http` block.
pub(super) struct Http<'s, 'a> {
    pub source: &'s Source<'s>,
    pub report: Report,
    pub upstreams: Upstreams<'a>,
    maps: Maps<'a>,
    zones: Zones<'a>,
    access: Access<'s>,
    declared: BTreeSet<String>,
    routes: Vec<Imported>,
    /// Sets of limits by their settings, with their ids.
    limits: Vec<(Value, String, Place)>,
    ids: HashSet<String>,
    /// The folders whose files are served, and where they are named first.
    roots: Vec<(String, Place)>,
    /// The file is one of conf.d, included in an `http` block that is not here.
    pub is_snippet: bool,
    /// The routes of each block, for findings about directives in it.
    pub routes_of: HashMap<usize, Vec<Key>>,
}

/// The most routes of a configuration.
const MAX_ROUTES: usize = 50_000;

/// A server while its routes are made.
struct Current<'c, 'a> {
    server: &'c Server<'a>,
    locations: &'c [Location<'a>],
    origin: String,
    hosts: Vec<String>,
}

impl<'s, 'a> Http<'s, 'a> {
    pub(super) fn new(source: &'s Source<'s>, block: &'a Block, mut report: Report) -> Http<'s, 'a> {
        let mut declared = BTreeSet::new();
        collect_set(&block.directives, &mut declared);
        Http {
            source,
            upstreams: Upstreams::read(block),
            maps: Maps::read(block),
            zones: Zones::read(block, &mut report),
            report,
            access: Access { source, users: Vec::new() },
            declared,
            routes: Vec::new(),
            limits: Vec::new(),
            ids: HashSet::new(),
            roots: Vec::new(),
            is_snippet: false,
            routes_of: HashMap::new(),
        }
    }

    /// Makes the routes of a server.
    pub(super) fn server(&mut self, server: &Server<'a>, selections: &[Selection]) {
        let Some(block) = &server.directive.block else { return };
        let mut locations = Location::read(block, &server.scope);
        if !locations.iter().any(|location| location.is_prefix() && location.path == "/") {
            locations.push(Location {
                kind: LocationKind::Prefix,
                path: "/".to_owned(),
                directive: None,
                scope: server.scope.clone(),
                children: Vec::new(),
            });
        }
        let reachable = locations::order(&locations);
        for location in &reachable.unreachable {
            if let Some(directive) = location.directive {
                directive.mark_all_used();
                self.report.add(directive, Severity::Cosmetic, "no request reaches it, in nginx either");
            }
        }
        mark_named(&locations);
        let slashes = locations::without_slash(&reachable.routes, |location| {
            location.scope.own("proxy_pass").is_some() || location.scope.own("grpc_pass").is_some()
        });
        for selection in selections {
            let current = Current {
                server,
                locations: &locations,
                origin: origin(server, selection),
                hosts: if selection.hosts.is_empty() && !server.names.is_empty() {
                    server.plain_hosts()
                } else {
                    selection.hosts.iter().filter(|host| !host.starts_with('*')).cloned().collect()
                },
            };
            for location in &slashes {
                self.slash(&current, selection, location);
            }
            // The first one has the highest priority.
            let mut drafts = Vec::new();
            for reach in &reachable.routes {
                self.location(&current, selection, reach, &mut drafts);
            }
            let count = drafts.len();
            for (index, (reach, key, draft, conditions, place)) in drafts.into_iter().enumerate() {
                let priority = if count > 1 { count - index } else { 0 };
                self.route(selection, reach, key, draft, conditions, priority, place);
            }
        }
    }

    /// The redirect to a proxied prefix for its path without the slash.
    fn slash(&mut self, current: &Current<'_, 'a>, selection: &Selection, location: &Location<'a>) {
        let Some(short) = location.path.strip_suffix('/') else { return };
        let mut draft = Draft::default();
        let uri = format!("{}{}", current.origin, location.path);
        let settings = json!({"uri": uri, "ret_code": 301, "append_query_string": true});
        draft.plugins.insert("redirect".to_owned(), settings);
        let key = self.key(current, selection, &format!("{short}-slash"));
        self.report.route = Some(key.clone());
        responses::headers(&location.scope, &|_| None, &mut draft, &mut self.report);
        self.report.route = None;
        let place = place_of(current.server, location);
        let reach = Reach { location, uris: vec![short.to_owned()], pattern: None };
        self.route(selection, &reach, key, draft, Vec::new(), 0, place);
    }

    /// Makes the drafts of a location.
    fn location<'r>(
        &mut self,
        current: &Current<'_, 'a>,
        selection: &Selection,
        reach: &'r Reach<'_, 'a>,
        drafts: &mut Vec<(&'r Reach<'r, 'a>, Key, Draft, Vec<Value>, Place)>,
    ) where
        'a: 'r,
    {
        let location = reach.location;
        let place = place_of(current.server, location);
        let groups = match &location.kind {
            LocationKind::Regex { ignore_case } => {
                let start = if *ignore_case { "(?i)" } else { "" };
                Groups::Path(format!("{start}{}", location.path))
            }
            _ => Groups::None,
        };
        let name = Text::literal(current.server.first_name().trim_start_matches('.'));
        let mut variables = BTreeMap::from([("server_name".to_owned(), name)]);
        // Requests of the server's other names have no value.
        let of_names = current.server.patterns().filter_map(super::text::group_of_host);
        variables.extend(of_names.map(|(name, _)| (name, Text::default())));
        variables.extend(selection.group.clone());
        let state = State { groups, ..State::of(&location.scope, variables) };
        let base = self.key(current, selection, &location.path);
        self.report.route = Some(base.clone());
        let server = current.server.directive.children();
        let own = location.directive.map_or(&[][..], Directive::children);
        let cases = self.evaluate(current, server, own, state);
        for (index, case) in cases.into_iter().enumerate() {
            let ways = match case.outcome {
                Outcome::Content => access::ways(&case.state.scope, &mut self.report),
                _ => vec![],
            };
            let conditions = case.state.conditions.clone();
            if ways.is_empty() {
                let key =
                    if index == 0 { base.clone() } else { self.key(current, selection, &location.path) };
                self.report.route = Some(key.clone());
                let draft = self.outcome(current, location, case, None, 0);
                drafts.push((reach, key, draft, conditions, place.clone()));
                continue;
            }
            for (nth, way) in ways.into_iter().enumerate() {
                let first = index == 0 && nth == 0;
                let key = if first { base.clone() } else { self.key(current, selection, &location.path) };
                self.report.route = Some(key.clone());
                let mut conditions = conditions.clone();
                conditions.extend(way.condition.clone());
                let case = Case { state: case.state.clone(), outcome: Outcome::Content };
                let draft = self.outcome(current, location, case, Some(&way), 0);
                if draft.is_empty {
                    let mut conditions = conditions.clone();
                    conditions.push(json!(["request_method", "!", "in", ["GET", "HEAD", "POST"]]));
                    let mut other = Draft::default();
                    answers::page(405, &mut other);
                    let key = self.key(current, selection, &format!("{}-method", location.path));
                    drafts.push((reach, key, other, conditions, place.clone()));
                }
                drafts.push((reach, key, draft, conditions, place.clone()));
            }
        }
        self.report.route = None;
    }

    fn evaluate(
        &mut self,
        current: &Current<'_, 'a>,
        server: &'a [Directive],
        own: &'a [Directive],
        state: State<'a>,
    ) -> Vec<Case<'a>> {
        let limited = self.zones.variables(&state.scope);
        let mut evaluation = Evaluation {
            maps: &self.maps,
            declared: &self.declared,
            hosts: &current.hosts,
            limited: &limited,
            report: &mut self.report,
            cases: Vec::new(),
        };
        evaluation.run(server, own, state);
        evaluation.cases
    }

    /// Makes the draft of a case.
    fn outcome(
        &mut self,
        current: &Current<'_, 'a>,
        location: &Location<'a>,
        case: Case<'a>,
        way: Option<&access::Way>,
        jumps: usize,
    ) -> Draft {
        let Case { state, outcome } = case;
        let mut draft = Draft::default();
        let declared = self.declared.clone();
        let lookup = |name: &str| state.lookup(name, &declared);
        let path = (location.kind == LocationKind::Exact).then_some(location.path.as_str());
        let site = Site { origin: &current.origin, path };
        // nginx sends a text of `return` as it is.
        let has_pages = match &outcome {
            Outcome::Return(at) => {
                at.args.len() == 1 && at.arg(0).parse::<u16>().is_ok_and(|code| code >= 400)
            }
            Outcome::Content => true,
            Outcome::Redirect { .. } | Outcome::Jump { .. } => false,
        };
        match outcome {
            Outcome::Return(at) => answers::give(at, &state, &site, &lookup, &mut draft, &mut self.report),
            Outcome::Redirect { at, rewrite, status } => {
                answers::redirect_by(at, &rewrite, status, &site, &mut draft, &mut self.report);
            }
            Outcome::Jump { at, rewrite } => {
                return self.jump(current, location, state, at, rewrite, jumps);
            }
            Outcome::Content => {
                let own =
                    if way.is_none() { access::ways(&state.scope, &mut self.report).pop() } else { None };
                let way = way.or(own.as_ref());
                self.content(current, location, &state, &lookup, &mut draft);
                if let Some(way) = way {
                    self.access.apply(&state.scope, way, &mut draft, &mut self.report);
                    self.auth_request(current, &state, way, &lookup, &mut draft);
                    if let Some(limits) = access::limits(&state.scope, &self.zones, &lookup, &mut self.report)
                    {
                        self.add_limits(limits, &state.scope, &mut draft);
                    }
                }
                self.real_ip(&state.scope, &mut draft);
                responses::compression(&state.scope, &mut draft, &mut self.report);
                responses::cache(&state.scope, &lookup, &mut draft, &mut self.report);
            }
        }
        if has_pages {
            self.error_pages(current, location, &state, &lookup, &mut draft);
        }
        responses::headers(&state.scope, &lookup, &mut draft, &mut self.report);
        responses::body_size(&state.scope, &mut draft, &mut self.report);
        // Settings of locations that have another content have no effect, as in nginx.
        self.mark_settings(&state.scope);
        draft
    }

    fn mark_settings(&mut self, scope: &Scope<'a>) {
        for name in super::leftovers::LOCATION_SETTINGS {
            scope.all(name);
        }
        let mut report = Report::default();
        let mut draft = Draft::default();
        let nothing = |_: &str| None;
        access::limits(scope, &self.zones, &nothing, &mut report);
        responses::compression(scope, &mut draft, &mut report);
        responses::cache(scope, &nothing, &mut draft, &mut report);
        // `any` decides nothing where nothing is asked.
        access::ways(scope, &mut report);
    }

    /// The content of a location.
    fn content(
        &mut self,
        current: &Current<'_, 'a>,
        location: &Location<'a>,
        state: &State<'a>,
        lookup: &dyn Fn(&str) -> Option<Text>,
        draft: &mut Draft,
    ) {
        let depth = location.scope.levels().len().saturating_sub(1);
        let own = state.scope.levels().iter().skip(depth).rev();
        let directives = |names: &'static [&'static str], block: &'a Block| {
            let found = block.directives.iter();
            found.filter(move |directive| names.contains(&directive.name.as_str()))
        };
        let is_internal = location.scope.own("internal").is_some();
        if is_internal {
            for block in own {
                directives(HANDLERS, block).for_each(|handler| {
                    handler.mark_used();
                });
            }
            return answers::page(404, draft);
        }
        let found = { own }.find_map(|block| {
            let found: Vec<&'a Directive> = directives(HANDLERS, block).collect();
            (!found.is_empty()).then_some(found)
        });
        let Some(found) = found else {
            return self.files(current, location, state, lookup, draft);
        };
        found.iter().for_each(|directive| {
            directive.mark_used();
        });
        let first = found[0];
        match first.name.as_str() {
            "proxy_pass" | "grpc_pass" => {
                let mut proxying = Proxying {
                    source: self.source,
                    upstreams: &mut self.upstreams,
                    report: &mut self.report,
                };
                proxying.apply(first, location, state, lookup, draft);
            }
            "echo" | "echo_duplicate" => answers::echo(&found, &state.scope, draft, &mut self.report),
            "stub_status" => {
                self.report.add(
                    first,
                    Severity::Behaviour,
                    "the gateway's numbers are at its /apisix/prometheus/metrics; 404 here",
                );
                answers::page(404, draft);
            }
            _ => {
                self.report.add(first, Severity::Behaviour, "not carried over: requests get 501");
                answers::page(501, draft);
            }
        }
    }

    /// Limits stand in a plugin config, so that all routes count together as in a zone of nginx.
    fn add_limits(&mut self, limits: Value, scope: &Scope<'a>, draft: &mut Draft) {
        let at = scope.all("limit_req").into_iter().chain(scope.all("limit_conn")).next();
        let Some(at) = at else { return };
        let id = match self.limits.iter().find(|(known, _, _)| *known == limits) {
            Some((_, id, _)) => id.clone(),
            None => {
                let id = format!("limits-{}", self.limits.len() + 1);
                self.limits.push((limits, id.clone(), at.place.clone()));
                id
            }
        };
        draft.plugin_config_id = Some(id);
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a route")]
    fn route(
        &mut self,
        selection: &Selection,
        reach: &Reach<'_, 'a>,
        key: Key,
        draft: Draft,
        conditions: Vec<Value>,
        priority: usize,
        place: Place,
    ) {
        if self.routes.len() >= MAX_ROUTES {
            return;
        }
        let mut vars = selection.vars.clone();
        if let Some((operator, pattern)) = &reach.pattern {
            vars.push(json!(["uri", operator, pattern]));
        }
        vars.extend(conditions);
        let mut value = Map::new();
        match &reach.uris[..] {
            [uri] => value.insert("uri".to_owned(), json!(uri)),
            uris => value.insert("uris".to_owned(), json!(uris)),
        };
        if !selection.hosts.is_empty() {
            value.insert("hosts".to_owned(), json!(selection.hosts));
        }
        if !vars.is_empty() {
            value.insert("vars".to_owned(), Value::Array(vars));
        }
        if priority > 0 {
            value.insert("priority".to_owned(), json!(priority));
        }
        value.extend(draft.into_fields());
        let blocks: Vec<usize> = reach.location.scope.blocks().collect();
        for block in blocks {
            self.routes_of.entry(block).or_default().push(key.clone());
        }
        self.routes.push(Imported { key, value: Value::Object(value), place });
    }

    /// A new key for a route.
    fn key(&mut self, current: &Current<'_, 'a>, selection: &Selection, path: &str) -> Key {
        let path = values::id_part(path);
        let server = &current.server.id;
        let joined = format!("{server}{}-{path}", selection.suffix);
        let base = values::id_part(joined.trim_end_matches('-'));
        let base =
            if path.is_empty() { values::id_part(&format!("{server}{}", selection.suffix)) } else { base };
        let mut id = base.clone();
        let mut number = 1;
        while !self.ids.insert(id.clone()) {
            number += 1;
            id = format!("{base}-{number}");
        }
        Key::new(Kind::Route, id)
    }

    /// All resources.
    pub(super) fn into_resources(self) -> (Vec<Imported>, Report, HashMap<usize, Vec<Key>>) {
        let mut resources = self.upstreams.into_resources();
        for (plugins, id, place) in self.limits {
            let key = Key::new(Kind::PluginConfig, id);
            resources.push(Imported { key, value: json!({ "plugins": plugins }), place });
        }
        let mut names = BTreeSet::new();
        for user in &self.access.users {
            let name = self.access.consumer(user);
            if !names.insert(name.clone()) {
                continue;
            }
            let mut user_of = json!({"username": user.name, "password": user.password});
            if user.hashed {
                user_of["hashed"] = json!(true);
            }
            let plugins = json!({ "basic-auth": user_of });
            let place =
                Place { file: user.file.as_str().into(), position: model::Position { line: 1, column: 1 } };
            let value = json!({"username": name, "plugins": plugins});
            resources.push(Imported { key: Key::new(Kind::Consumer, name), value, place });
        }
        resources.extend(self.routes);
        (resources, self.report, self.routes_of)
    }
}

/// Directives that make a location's content.
const HANDLERS: &[&str] = &[
    "proxy_pass",
    "grpc_pass",
    "fastcgi_pass",
    "uwsgi_pass",
    "scgi_pass",
    "memcached_pass",
    "stub_status",
    "echo",
    "echo_duplicate",
    "empty_gif",
    "js_content",
    "perl",
    "content_by_lua",
    "content_by_lua_block",
    "content_by_lua_file",
    "flv",
    "mp4",
    "hls",
    "api",
    "status",
    "random_index",
    "dav_methods",
    "passenger_enabled",
];

/// The beginning of the address of a redirect, before the path.
fn origin(server: &Server<'_>, selection: &Selection) -> String {
    let mut origins: BTreeSet<String> = BTreeSet::new();
    for endpoint in &selection.endpoints {
        let tls = server.listens.iter().any(|listen| listen.endpoint == *endpoint && listen.tls);
        let default = if tls { 443 } else { 80 };
        origins.insert(match endpoint.port {
            port if port == default => "$scheme://$host".to_owned(),
            port => format!("$scheme://$host:{port}"),
        });
    }
    match origins.len() {
        1 => origins.pop_first().unwrap_or_default(),
        _ => "$scheme://$host:$server_port".to_owned(),
    }
}

fn place_of(server: &Server<'_>, location: &Location<'_>) -> Place {
    location.directive.unwrap_or(server.directive).place.clone()
}

/// Named locations are no routes; the directives that lead to them are reported.
fn mark_named(locations: &[Location<'_>]) {
    for location in locations {
        if location.kind == LocationKind::Named
            && let Some(directive) = location.directive
        {
            directive.mark_all_used();
        }
        mark_named(&location.children);
    }
}

/// The variables of every `set`.
fn collect_set(directives: &[Directive], names: &mut BTreeSet<String>) {
    for directive in directives {
        if directive.name == "set"
            && let Some(name) = directive.arg(0).strip_prefix('$')
        {
            names.insert(name.to_owned());
        }
        collect_set(directive.children(), names);
    }
}
