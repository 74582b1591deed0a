//! Route definitions as routes.

use model::{Diagnostic, Key, Kind};
use serde_json::{Map, Value, json};

use super::cors::Cors;
use super::definition::Definition;
use super::filters::{self, Effects, Host, Scope};
use super::ids::Ids;
use super::path::Anchor;
use super::predicates::{self, Conditions, Defaults, Weight};
use super::registry::Registry;
use super::report::Report;
use super::settings::{Item, Settings};
use super::upstream::{self, Address};
use super::{locator, order, timeouts, units, weights};
use crate::Source;
use crate::finding::{Place, Severity};

/// Routes of a file.
const MAX_ROUTES: usize = 20_000;

/// A route before it is a resource.
pub struct Draft {
    pub key: Key,
    pub place: Place,
    pub order: i64,
    pub anchors: Vec<Anchor>,
    /// Everything but paths and priority.
    pub body: Map<String, Value>,
    pub upstream: Map<String, Value>,
    pub weight: Option<Weight>,
}

/// Settings that all routes share.
pub struct Shared<'s> {
    pub settings: &'s Settings<'s>,
    pub gateway: Option<&'s Item<'s>>,
    pub registry: Registry,
    pub cors: Cors,
    defaults: Defaults,
    default_filters: Vec<Item<'s>>,
    plugins: Map<String, Value>,
    connect: Option<f64>,
    response: Option<f64>,
    tls: Value,
}

/// Adds the routes.
///
/// # Errors
/// The routes overlap so often that they cannot be ordered.
pub fn read<'s>(
    gateway: Option<&'s Item<'s>>,
    settings: &'s Settings<'s>,
    source: &Source<'_>,
    plugins: Map<String, Value>,
    report: &mut Report,
) -> Result<(), Box<Diagnostic>> {
    let get = |name: &str| gateway.and_then(|gateway| gateway.get(name));
    let shared = shared(gateway, settings, source, plugins, report);
    let items = get("routes").map(|item| item.items()).unwrap_or_default();
    if items.len() > MAX_ROUTES {
        let message = format!("the file has more than {MAX_ROUTES} routes");
        return Err(Box::new(Diagnostic::new(model::Severity::Error, source.file, message)));
    }
    let mut ids = Ids::default();
    let mut drafts = Vec::new();
    if get("enabled").and_then(|item| item.bool()) != Some(false) {
        for (at, item) in items.iter().enumerate() {
            drafts.extend(route(item, at, &shared, &mut ids, report));
        }
        let locator = get("discovery.locator");
        drafts.extend(locator::routes(locator.as_ref(), &drafts, &shared, &mut ids, report));
    }
    if drafts.is_empty() {
        let effect = "the file has no routes: those that Java code defines are not carried over";
        report.find(Severity::Behaviour, report.place(), "spring.cloud.gateway.routes", effect);
    }
    weights::merge(&mut drafts, report);
    drafts.sort_by_key(|draft| draft.order);
    let mut rule = None;
    if super::security::is_closed(&shared.plugins) {
        if !drafts.is_empty() {
            drafts.push(super::security::last(&shared.plugins, &mut ids, report));
        }
    } else {
        rule = super::preflight::refuse(&mut drafts, &shared.cors);
        if rule.is_none() && !drafts.is_empty() {
            drafts.push(super::preflight::last(&mut ids, report));
        }
    }
    super::server::paths(&["merge_slashes", "resolve_dots"], report);
    let has_routes = !drafts.is_empty();
    let changes_path = |draft: &Draft| {
        let plugins = draft.body.get("plugins");
        plugins.is_some_and(|plugins| plugins["proxy-rewrite"].get("regex_uri").is_some())
    };
    let change_paths = drafts.iter().any(changes_path);
    add(drafts, source, report)?;
    if let Some(rule) = rule.filter(|_| has_routes) {
        report.resource(Key::new(Kind::GlobalRule, "preflight"), rule, report.place());
    }
    report.current = None;
    if change_paths {
        let effect =
            "filters change paths with their percent-encodings decoded, and Spring as the client wrote them";
        report.find(Severity::Behaviour, report.place(), "spring.cloud.gateway", effect);
    }
    Ok(())
}

/// Orders drafts, which stand in the order in which they are tried, and adds them as resources.
///
/// # Errors
/// They overlap so often that they cannot be ordered.
pub fn add(drafts: Vec<Draft>, source: &Source<'_>, report: &mut Report) -> Result<(), Box<Diagnostic>> {
    let count = drafts.len();
    let mut paths: Vec<Vec<Anchor>> = drafts.iter().map(|draft| draft.anchors.clone()).collect();
    if order::complete(&mut paths).is_err() {
        let message = "the routes have too many paths that overlap";
        let mut diagnostic = Diagnostic::new(model::Severity::Error, source.file, message);
        diagnostic.hint = Some("put routes with short prefixes after those with longer ones".to_owned());
        return Err(Box::new(diagnostic));
    }
    for (at, (draft, paths)) in drafts.into_iter().zip(paths).enumerate() {
        let mut value = Map::new();
        let uris: Vec<String> = paths.iter().map(Anchor::uri).collect();
        match uris.as_slice() {
            [one] => value.insert("uri".to_owned(), json!(one)),
            more => value.insert("uris".to_owned(), json!(more)),
        };
        value.insert("priority".to_owned(), json!(order::priority(at, count)));
        value.extend(draft.body);
        value.insert("upstream".to_owned(), upstream::answering(draft.upstream).into());
        report.resource(draft.key, value.into(), draft.place);
    }
    Ok(())
}

fn shared<'s>(
    gateway: Option<&'s Item<'s>>,
    settings: &'s Settings<'s>,
    source: &Source<'_>,
    plugins: Map<String, Value>,
    report: &mut Report,
) -> Shared<'s> {
    let get = |name: &str| gateway.and_then(|gateway| gateway.get(name));
    let client = get("httpclient").or_else(|| get("http-client"));
    let of_client = |name: &str| client.as_ref().and_then(|client| client.get(name));
    let seconds =
        |item: Option<Item<'_>>| item.and_then(|item| item.text()).as_deref().and_then(units::seconds);
    let connect = seconds(of_client("connect-timeout"));
    let response = seconds(of_client("response-timeout").or_else(|| of_client("read-timeout")));
    for name in ["pool", "compression", "wiretap", "websocket", "max-header-size", "max-initial-line-length"]
    {
        if let Some(item) = of_client(name) {
            item.whole();
            report.item(
                Severity::Cosmetic,
                &item,
                "connections to upstreams have this gateway's own settings",
                None,
            );
        }
    }
    for name in [
        "metrics",
        "actuator",
        "observability",
        "httpserver",
        "fail-on-route-definition-error",
        "streaming-media-types",
    ] {
        if let Some(item) = get(name) {
            item.whole();
            report.item(
                Severity::Cosmetic,
                &item,
                "no effect on the requests that the gateway forwards",
                None,
            );
        }
    }
    let base_path = settings.get("spring.webflux.base-path").and_then(|item| item.text()).unwrap_or_default();
    let host_with_port = get("predicate.host.include-port").and_then(|item| item.bool()) != Some(false);
    Shared {
        settings,
        gateway,
        registry: Registry::find(settings, report),
        cors: Cors::read(get("globalcors"), report),
        defaults: Defaults { base_path, host_with_port },
        default_filters: get("default-filters").map(|item| definitions(&item)).unwrap_or_default(),
        plugins,
        connect,
        response,
        tls: tls(of_client("ssl"), source, report),
    }
}

impl<'s> Shared<'s> {
    pub fn default_filters(&self) -> &[Item<'s>] {
        &self.default_filters
    }
}

/// The items of a list of predicates or filters; a plain text is a list of one.
fn definitions<'s>(item: &Item<'s>) -> Vec<Item<'s>> {
    let items = item.items();
    if items.is_empty() && item.raw().is_some_and(|text| !text.is_empty()) {
        vec![item.clone()]
    } else {
        items
    }
}

/// How servers with `https` are verified.
fn tls(ssl: Option<Item<'_>>, source: &Source<'_>, report: &mut Report) -> Value {
    let Some(ssl) = ssl else { return json!({"verify": true}) };
    if ssl.get("use-insecure-trust-manager").and_then(|item| item.bool()) == Some(true) {
        return json!({"verify": false});
    }
    let mut tls = json!({"verify": true});
    if let Some(certificates) = ssl.get("trusted-x509-certificates") {
        let places = certificates.texts();
        let read: Option<Vec<String>> =
            places.iter().map(|place| super::security::read(place, source)).collect();
        match read {
            Some(texts) => tls["ca"] = json!(texts.join("\n")),
            None => {
                let effect =
                    "the certificates are not read: servers are verified by the system's authorities";
                report.item(Severity::Behaviour, &certificates, effect, None);
            }
        }
    }
    if let Some(store) = ssl.get("key-store") {
        let effect = "the client certificate is in a Java keystore, which is not read: none is sent";
        let hint = "export it as PEM, and name it in `tls.client_cert` of the upstreams";
        report.item(Severity::Behaviour, &store, effect, Some(hint));
        for name in ["key-store-type", "key-store-password", "key-password", "key-store-provider"] {
            ssl.get(name).inspect(Item::whole);
        }
    }
    tls
}

/// Reads a route. `None` if it serves no request.
fn route<'s>(
    item: &Item<'s>,
    at: usize,
    shared: &Shared<'s>,
    ids: &mut Ids,
    report: &mut Report,
) -> Option<Draft> {
    let text = |name: &str| item.get(name).and_then(|item| item.some());
    // `id=uri,Path=/a` is a route as text.
    let line = item.raw().filter(|line| line.contains('=')).and_then(|_| item.text());
    let line = line.as_deref().and_then(|line| line.split_once('='));
    let mut parts = line.map(|(_, rest)| rest.split(',').map(str::trim)).into_iter().flatten();
    let uri = text("uri").or_else(|| parts.next().map(str::to_owned));
    let name = line.map(|(id, _)| id.trim().to_owned()).or_else(|| text("id"));
    let name = name.unwrap_or_else(|| format!("route-{}", at + 1));
    if item.get("enabled").and_then(|item| item.bool()) == Some(false) {
        item.whole();
        report.item(Severity::Cosmetic, item, "the route is disabled, so it is left out", None);
        return None;
    }
    let key = Key::new(Kind::Route, ids.take(&name));
    let place = item.get("id").unwrap_or_else(|| item.clone()).place();
    report.route = Some(key.clone());
    report.current = Some(place.clone());

    let mut predicates = Vec::new();
    for predicate in item.get("predicates").map(|item| definitions(&item)).unwrap_or_default() {
        match Definition::read(&predicate) {
            Some(definition) => predicates.push(definition),
            None => report.item(
                Severity::Guard,
                &predicate,
                "the predicate is not read, so the route is not served",
                None,
            ),
        }
    }
    for part in parts {
        if let Some((name, argument)) = part.split_once('=') {
            predicates.push(Definition::listed(name, &[argument], place.clone(), item.path()));
        }
    }
    let mut filters = shared.default_filters.clone();
    let own = item.get("filters").map(|item| definitions(&item)).unwrap_or_default();
    // Filters are ordered by their places in both lists, default filters first.
    for (at, filter) in own.into_iter().enumerate() {
        filters.insert((2 * at + 1).min(filters.len()), filter);
    }
    let order =
        item.get("order").and_then(|item| item.text()).and_then(|text| text.parse().ok()).unwrap_or(0);
    let metadata = item.get("metadata");
    let draft = Parts { key, place, order, uri, predicates, filters, metadata }.draft(shared, report);
    report.route = None;
    draft
}

/// The parts of a route definition.
pub struct Parts<'s> {
    pub key: Key,
    pub place: Place,
    pub order: i64,
    pub uri: Option<String>,
    pub predicates: Vec<Definition<'s>>,
    pub filters: Vec<Item<'s>>,
    pub metadata: Option<Item<'s>>,
}

impl<'s> Parts<'s> {
    pub fn draft(self, shared: &Shared<'s>, report: &mut Report) -> Option<Draft> {
        self.draft_with(Vec::new(), shared, report)
    }

    /// The draft, with filters that no file has after the others.
    pub fn draft_with(
        self,
        more: Vec<Definition<'s>>,
        shared: &Shared<'s>,
        report: &mut Report,
    ) -> Option<Draft> {
        let mut conditions = Conditions::default();
        for definition in &self.predicates {
            predicates::add(definition, &shared.defaults, &mut conditions, report);
        }
        if !conditions.has_path {
            conditions.anchors.push(Anchor::Prefix("/".to_owned()));
        }
        let mut definitions: Vec<Definition<'s>> = Vec::new();
        for filter in &self.filters {
            match Definition::read(filter) {
                Some(definition) => definitions.push(definition),
                None => {
                    report.item(Severity::Guard, filter, "the filter is not read, so it is left out", None)
                }
            }
        }
        definitions.extend(more);
        let has_cors = !shared.cors.is_empty();
        let scope = Scope {
            conditions: &conditions,
            settings: shared.settings,
            gateway: shared.gateway,
            cors: has_cors,
        };
        let mut effects = Effects::default();
        for definition in &definitions {
            filters::add(definition, &scope, &mut effects, report);
        }
        let mut plugins = shared.plugins.clone();
        plugins.extend(effects.plugins(&definitions, &scope, report));
        self.cors(&conditions, shared, &mut plugins, report);
        let upstream = self.upstream(&effects, shared, &mut plugins, report);
        if conditions.never {
            report.find(
                Severity::Cosmetic,
                self.place.clone(),
                &self.key.id,
                "no request matches the route, so it is left out",
            );
            return None;
        }
        let body = body(&conditions, plugins);
        let weight = conditions.weight;
        Some(Draft {
            key: self.key,
            place: self.place,
            order: self.order,
            anchors: conditions.anchors,
            body,
            upstream,
            weight,
        })
    }

    fn cors(
        &self,
        conditions: &Conditions,
        shared: &Shared<'s>,
        plugins: &mut Map<String, Value>,
        report: &mut Report,
    ) {
        let own = self.metadata.as_ref().and_then(|metadata| metadata.get("cors"));
        if let Some(own) = own {
            plugins.insert("cors".to_owned(), super::cors::plugin(&own, report));
            super::cors::vary(plugins);
            return;
        }
        match shared.cors.plugin(&conditions.anchors) {
            Ok(Some(plugin)) => {
                plugins.insert("cors".to_owned(), plugin);
                super::cors::vary(plugins);
            }
            Ok(None) => {}
            Err(_) => {
                let effect = "several configurations of global CORS apply to paths of this route: none is carried over";
                report.find(Severity::Behaviour, self.place.clone(), "globalcors", effect);
            }
        }
    }

    fn upstream(
        &self,
        effects: &Effects,
        shared: &Shared<'s>,
        plugins: &mut Map<String, Value>,
        report: &mut Report,
    ) -> Map<String, Value> {
        let mut upstream = match &effects.service {
            Some(service) => shared.registry.upstream(service, shared.settings, report),
            None => self.server(effects, shared, plugins, report),
        };
        match &effects.host {
            Host::Node => drop(upstream.insert("pass_host".to_owned(), json!("node"))),
            Host::Pass => {}
            Host::Rewrite(host) => {
                upstream.insert("pass_host".to_owned(), json!("rewrite"));
                upstream.insert("upstream_host".to_owned(), json!(host));
            }
        }
        if upstream.get("scheme").is_some_and(|scheme| scheme == "https") {
            let mut tls = shared.tls.clone();
            if !matches!(effects.host, Host::Node) {
                upstream::ask_for_nodes(&upstream, &mut tls);
            }
            upstream.insert("tls".to_owned(), tls);
        }
        upstream.extend(effects.upstream.clone());
        let own = |name: &str| {
            let item = self.metadata.as_ref()?.get(name)?;
            item.text()?.parse::<f64>().ok().map(|milliseconds| milliseconds / 1000.0)
        };
        let connect = own("connect-timeout").or(shared.connect);
        let response = own("response-timeout").or(shared.response);
        let response = match (effects.timeout, response.filter(|seconds| *seconds > 0.0)) {
            (Some(breaker), Some(response)) => Some(breaker.min(response)),
            (one, other) => one.or(other),
        };
        upstream.extend(timeouts(connect, response).map(|timeouts| ("timeout".to_owned(), timeouts)));
        if let Some(metadata) = self.metadata.as_ref().filter(|metadata| !metadata.is_read()) {
            metadata.whole();
            report.item(Severity::Cosmetic, metadata, "metadata is for code of the application", None);
        }
        upstream
    }

    /// The upstream of the route's `uri`.
    fn server(
        &self,
        effects: &Effects,
        shared: &Shared<'s>,
        plugins: &mut Map<String, Value>,
        report: &mut Report,
    ) -> Map<String, Value> {
        let Some(uri) = self.uri.as_deref() else {
            let effect = "the route has no `uri`, so it answers 503";
            report.find(Severity::Behaviour, self.place.clone(), &self.key.id, effect);
            return upstream::no_nodes();
        };
        // `lb:ws://service` names the scheme, too.
        let rest = uri.strip_prefix("lb:").filter(|rest| !rest.starts_with("//"));
        let is_balanced = rest.is_some() || uri.starts_with("lb://");
        let address = Address::parse(rest.unwrap_or(uri));
        match address {
            Some(address) if is_balanced => {
                let mut upstream = shared.registry.upstream(&address.host, shared.settings, report);
                if address.is_secure() {
                    upstream.insert("scheme".to_owned(), json!("https"));
                }
                upstream
            }
            Some(address) if matches!(address.scheme.as_str(), "http" | "https" | "ws" | "wss") => {
                upstream::of_addresses(&[address])
            }
            Some(address) if address.scheme == "no" => {
                // No server is called: the filters alone answer.
                if !plugins.contains_key("redirect") && !plugins.contains_key("fault-injection") {
                    let status = effects.status.unwrap_or(200);
                    plugins.insert("fault-injection".to_owned(), json!({"abort": {"http_status": status}}));
                }
                upstream::no_nodes()
            }
            _ if plugins.contains_key("redirect") => upstream::no_nodes(),
            _ => {
                let effect = match uri.starts_with("forward:") {
                    true => format!("`{uri}` is Java code of the application, so the route answers 503"),
                    false => "the `uri` is not an address, so the route answers 503".to_owned(),
                };
                report.find(Severity::Behaviour, self.place.clone(), &self.key.id, effect);
                upstream::no_nodes()
            }
        }
    }
}

/// A route's fields but for paths, priority and upstream.
fn body(conditions: &Conditions, plugins: Map<String, Value>) -> Map<String, Value> {
    const KNOWN: [&str; 10] =
        ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];
    let mut body = Map::new();
    let mut vars = conditions.vars.clone();
    match &conditions.methods {
        Some(methods) if methods.iter().all(|method| KNOWN.contains(&method.as_str())) => {
            body.insert("methods".to_owned(), json!(methods));
        }
        Some(methods) => vars.push(json!(["request_method", "in", methods])),
        None => {}
    }
    if !conditions.remote_addrs.is_empty() {
        body.insert("remote_addrs".to_owned(), json!(conditions.remote_addrs));
    }
    if !vars.is_empty() {
        body.insert("vars".to_owned(), vars.into());
    }
    body.insert("enable_websocket".to_owned(), json!(true));
    if !plugins.is_empty() {
        body.insert("plugins".to_owned(), plugins.into());
    }
    body
}
