//! The control API (`127.0.0.1:9090`), which shows the state of the program to operators and tests.
//!
//! It is mostly read-only. The exceptions: it reloads files and the list of plugins, drains, and copies the
//! store's file into its folder.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use control::health::Checker;
use control::store::{Step, Store, Stored, View};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use model::upstream::CheckType;
use model::{Invalid, Key, Kind, Served};
use sdk::Catalog;
use sdk::catalog::Subsystem;
use sdk::endpoint::ControlRequest;
use serde_json::{Map, Value, json};

use crate::answer::{self, Answer, ErrorAnswer, said};
use crate::conceal::conceal;
use crate::defaults::Defaults;
use crate::health_page::{self, Shown};
use crate::program::{NotServed, Program, Published};
use crate::server::{self, Limits, Listener};
use crate::streams::{Sent, Stream};
use crate::{auth, confirm, expiry, explain, front, hosts, list, plugins, streams, unhealthy};

/// The time for which the status waits for a store on another machine.
const STORE_PATIENCE: Duration = Duration::from_secs(1);

/// The control API. Cheap to clone.
#[derive(Clone)]
pub struct ControlApi {
    store: Arc<dyn Store>,
    program: Arc<dyn Program>,
    catalog: Arc<dyn Catalog>,
    /// See [`Config::hosts`](crate::Config).
    hosts: Arc<[String]>,
}

impl ControlApi {
    pub fn new(store: Arc<dyn Store>, catalog: Arc<dyn Catalog>, program: Arc<dyn Program>) -> ControlApi {
        ControlApi { store, program, catalog, hosts: Arc::default() }
    }

    /// Sets the names with a dot that `Host` may have, besides addresses and names without a dot.
    #[must_use]
    pub fn known_as(self, hosts: &[String]) -> ControlApi {
        ControlApi { hosts: hosts.into(), ..self }
    }

    /// Serves the API on `listener` until it stops.
    pub async fn serve(self, listener: Listener, limits: Limits) {
        server::serve_with(listener, limits, move |peer, request| {
            let api = self.clone();
            async move { api.handle_streams(peer, request).await }
        })
        .await;
    }

    /// Answers a request, which may be one for a stream of events.
    async fn handle_streams(&self, peer: IpAddr, request: Request<Bytes>) -> Response<Sent> {
        let (head, body) = request.into_parts();
        let Some(stream) = Stream::at(&head, "/v1/") else {
            return self.handle(peer, &Request::from_parts(head, body)).await.map(Sent::from);
        };
        let answered = self
            .check_page(&head.method, &head.uri, &head.headers)
            .and_then(|()| streams::answer(&*self.program, stream, &head, false));
        answered.unwrap_or_else(|refused| refused.into_response().map(Sent::from))
    }

    pub async fn handle(&self, peer: IpAddr, request: &Request<Bytes>) -> Response<Bytes> {
        self.answer(peer, request).await.unwrap_or_else(ErrorAnswer::into_response)
    }

    /// Refuses requests of web pages. This API requires no key, so every page that is open on an allowed machine
    /// could drain the gateway. Browsers mark such requests with `Origin`, except for GET.
    fn check_page(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ErrorAnswer> {
        if method != Method::GET && headers.contains_key(header::ORIGIN) {
            let reason = "requests of web pages may change nothing here";
            return Err(ErrorAnswer::new(StatusCode::FORBIDDEN, reason));
        }
        if auth::is_of_other_page(headers) {
            let reason = "requests of web pages of other origins are refused";
            return Err(ErrorAnswer::new(StatusCode::FORBIDDEN, reason));
        }
        hosts::check(&self.hosts, uri, headers)
    }

    async fn answer(&self, peer: IpAddr, request: &Request<Bytes>) -> Answer {
        self.check_page(request.method(), request.uri(), request.headers())?;
        let ok = |value: &Value| Ok(answer::json(StatusCode::OK, value));
        let path = request.uri().path().trim_end_matches('/');
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        match (request.method(), segments.as_slice()) {
            (&Method::GET, []) => Ok(front::of_control()),
            (&Method::GET, ["v1", "snapshot"]) => ok(&snapshot(&*self.program)),
            (&Method::GET, ["v1", "status"]) => ok(&status(&*self.program, &*self.store).await),
            (&Method::POST, ["v1", "reload"]) => match self.program.reload().await {
                Ok(message) => ok(&json!({ "message": message })),
                Err(reason) => Err(ErrorAnswer::new(StatusCode::UNPROCESSABLE_ENTITY, reason)),
            },
            // The copy stays in the data folder, sealed, where only its owner reads it.
            (&Method::POST, ["v1", "backup"]) => match self.store.copy().await? {
                Some(copy) => {
                    tracing::info!("the store was copied to {} for {peer}", copy.display());
                    ok(&json!({ "copy": copy.display().to_string() }))
                }
                None => Err(ErrorAnswer::new(
                    StatusCode::BAD_REQUEST,
                    "the resources of this gateway are not in an embedded store",
                )),
            },
            (&Method::GET, ["v1", "drain"]) => ok(&self.drain()),
            (method @ (&Method::POST | &Method::DELETE), ["v1", "drain"]) => {
                let drains = method == Method::POST;
                self.program.drain(drains);
                tracing::warn!("{method} drain by the control API from {peer}: ready is {}", !drains);
                ok(&self.drain())
            }
            (&Method::GET | &Method::POST, ["v1", "explain"]) => {
                let (head, body) = request.clone().into_parts();
                explain::explain(&*self.program, &head, &body).await
            }
            (&Method::GET, ["v1", "live", "history"]) => {
                let (head, _) = request.clone().into_parts();
                streams::history(&*self.program, &head)
            }
            (&Method::GET, ["v1", "analysis"]) => {
                let (head, _) = request.clone().into_parts();
                explain::analysis(&*self.program, &head).await
            }
            (&Method::GET, ["v1", "rejected"]) => ok(&rejected(&*self.program)),
            (&Method::GET, ["v1", "schema"]) => ok(&self.schemas()),
            (&Method::GET, ["v1", "routes"]) => self.all(Kind::Route).await,
            (&Method::GET, ["v1", "route", id]) => self.one(Kind::Route, id).await,
            (&Method::GET, ["v1", "services"]) => self.all(Kind::Service).await,
            (&Method::GET, ["v1", "service", id]) => self.one(Kind::Service, id).await,
            (&Method::GET, ["v1", "upstreams"]) => self.all(Kind::Upstream).await,
            (&Method::GET, ["v1", "upstream", id]) => self.one(Kind::Upstream, id).await,
            (&Method::GET, ["v1", "plugin_metadatas"]) => {
                let (mut items, _) = self.store.list(Kind::PluginMetadata, "").await?;
                // In the order of the list of plugins.
                let all = self.catalog.about();
                items.sort_by_cached_key(|item| {
                    all.iter().position(|about| about.name == item.key.id).unwrap_or(usize::MAX)
                });
                ok(&items.iter().map(|item| Value::clone(&item.value)).collect())
            }
            (&Method::GET, ["v1", "plugin_metadata", name]) => {
                match self.store.get(&Key::new(Kind::PluginMetadata, *name)).await? {
                    Some(stored) => ok(&stored.value),
                    None => Err(ErrorAnswer::new(
                        StatusCode::NOT_FOUND,
                        format!("plugin metadata[{name}] not found"),
                    )),
                }
            }
            (&Method::GET, ["v1", "discovery", kind, "dump"]) => match self.program.discovered(kind) {
                Some(dump) => ok(&dump),
                None => {
                    Err(ErrorAnswer::new(StatusCode::NOT_FOUND, format!("discovery {kind} is not in use")))
                }
            },
            (&Method::GET, ["v1", "discovery", kind @ ("consul" | "consul_kv"), "show_dump_file"]) => {
                match self.program.dump_file(kind).await {
                    Some(Ok(content)) => ok(&content),
                    Some(Err(why)) => {
                        Err(ErrorAnswer::response(answer::text(StatusCode::SERVICE_UNAVAILABLE, why)))
                    }
                    None => Err(ErrorAnswer::bare(StatusCode::NOT_FOUND)),
                }
            }
            (&Method::GET, ["v1", "server_info"]) => match self.program.server_info().await {
                Some(info) => ok(&info),
                None => Err(ErrorAnswer::bare(StatusCode::NOT_FOUND)),
            },
            (&Method::GET, ["v1", "healthcheck"]) => {
                let checkers = self.program.health();
                let shown = self.shown(request);
                Ok(match wants_page(request) {
                    true => html(health_page::page(&health_page::ordered(&checkers, shown), shown)),
                    false => answer::json(StatusCode::OK, &health_page::all(&checkers, shown)),
                })
            }
            (&Method::GET, ["v1", "healthcheck", kind, rest @ ..]) => {
                self.checker(request, kind, rest.first().copied()).await
            }
            (&Method::PUT, ["v1", "plugins", "reload"]) => {
                let (response, revision) = {
                    let message = format!("PUT plugins/reload by the control API from {peer}");
                    let by = Step::By { author: String::new(), message };
                    let complete = move |_: &dyn View, mut steps: Vec<Step>| {
                        steps.push(by.clone());
                        Ok(steps)
                    };
                    plugins::reload(&*self.store, &*self.program, &*self.catalog, complete).await?
                };
                tracing::info!("PUT plugins/reload by the control API from {peer}, revision {revision}");
                Ok(response)
            }
            // There is no garbage to collect; the path exists for APISIX's tools.
            (&Method::POST, ["v1", "gc"]) => Ok(answer::empty(StatusCode::OK)),
            _ => self.of_plugin(peer, request).await,
        }
    }

    /// Answers by the plugin that has the endpoint.
    async fn of_plugin(&self, peer: IpAddr, request: &Request<Bytes>) -> Answer {
        let headers = request.headers().iter();
        let headers = headers.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let request = ControlRequest {
            method: request.method().to_string(),
            uri: request.uri().path_and_query().map(ToString::to_string).unwrap_or_default(),
            headers: headers.collect(),
            body: request.body().clone(),
            peer,
            now_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        };
        let (catalog, listed) = (self.catalog.clone(), self.program.listed_plugins().await);
        let done = control::tasks::blocking(move || catalog.control(&request, listed.as_deref())).await;
        let Some(reply) = done.flatten() else { return Err(ErrorAnswer::bare(StatusCode::NOT_FOUND)) };
        let mut response = Response::new(reply.body);
        *response.status_mut() =
            StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        for (name, value) in reply.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                response.headers_mut().append(name, value);
            }
        }
        Ok(response)
    }

    async fn all(&self, kind: Kind) -> Answer {
        let (mut items, _) = self.store.list(kind, "").await?;
        items.iter_mut().for_each(conceal);
        let mut defaults = Defaults::new(&*self.catalog);
        let shown = items.iter().map(|stored| runtime_object(stored, &mut defaults));
        Ok(answer::json(StatusCode::OK, &shown.collect()))
    }

    async fn one(&self, kind: Kind, id: &str) -> Answer {
        match self.store.get(&Key::new(kind, id)).await? {
            Some(mut stored) => {
                conceal(&mut stored);
                let mut defaults = Defaults::new(&*self.catalog);
                Ok(answer::json(StatusCode::OK, &runtime_object(&stored, &mut defaults)))
            }
            None => Err(ErrorAnswer::new(StatusCode::NOT_FOUND, format!("{kind}[{id}] not found"))),
        }
    }

    /// Answers with the health checks of one resource, in APISIX's form.
    async fn checker(&self, request: &Request<Bytes>, collection: &str, id: Option<&str>) -> Answer {
        let missing = |reason: String| Err(ErrorAnswer::new(StatusCode::NOT_FOUND, reason));
        let Some(id) = id else { return missing(format!("missing src id for src type {collection}")) };
        let Some(kind) = health_page::KINDS.into_iter().find(|kind| kind.collection() == collection) else {
            return Err(said(format!("invalid src type {collection}")));
        };
        let key = Key::new(kind, id);
        let Some(stored) = self.store.get(&key).await? else {
            return missing(format!("{collection}[{id}] not found"));
        };
        let shown = self.shown(request);
        let shows = |checker: &Checker| checker.key == key && (checker.kind.is_some() || shown.details);
        let checker = match self.program.health().into_iter().find(shows) {
            Some(checker) => checker,
            // Checks are configured but do not run: the resource is not served, or checks are switched off.
            None => match checks_of(&stored.value) {
                Some(kind) => {
                    Checker { key, kind: Some(kind), nodes: Vec::new(), servers: Vec::new(), limit: None }
                }
                None => return missing(format!("no checker for {collection}[{id}]")),
            },
        };
        Ok(match wants_page(request) {
            true => html(health_page::page(&[&checker], shown)),
            false => answer::json(StatusCode::OK, &health_page::one(&checker, shown)),
        })
    }

    fn shown(&self, request: &Request<Bytes>) -> Shown {
        let details =
            request.uri().query().is_some_and(|query| query.split('&').any(|it| it == "details=true"));
        Shown { stored: self.store.writable(), details }
    }

    fn drain(&self) -> Value {
        let since = self.program.drains_since();
        json!({ "draining": since.is_some(), "since": since })
    }

    fn described(&self, subsystem: Subsystem) -> Value {
        let all = self.catalog.about();
        let of_it = all.iter().filter(|about| about.subsystem == subsystem);
        plugins::described(&*self.catalog, of_it)
    }

    fn schemas(&self) -> Value {
        let main = plugins::SCHEMAS.iter();
        let main = main.map(|(name, kind)| ((*name).to_owned(), model::schema::document(*kind)));
        let others = model::schema::unkeyed().map(|(name, schema)| (name.to_owned(), schema));
        json!({
            "main": Value::Object(main.chain(others).collect::<Map<_, _>>()),
            "plugins": self.described(Subsystem::Http),
            "stream_plugins": self.described(Subsystem::Stream),
        })
    }
}

impl fmt::Debug for ControlApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlApi")
    }
}

/// Describes the process, its workers, the published configuration, and what needs attention.
pub(crate) async fn status(program: &dyn Program, store: &dyn Store) -> Value {
    let mut status = program.about();
    if let Value::Object(snapshot) = snapshot(program) {
        status.extend(snapshot);
    }
    let ready = program.ready();
    status.insert("ready".to_owned(), ready.is_ok().into());
    status.insert("not_ready".to_owned(), ready.err().into());
    status.insert("unconfirmed".to_owned(), unconfirmed(store).await);
    let (list, resources) = program.without_effect();
    let list = list.iter().cloned().map(|(key, invalid)| entry(key.to_string(), invalid)).collect();
    status.insert("without_effect".to_owned(), list);
    status.insert("without_effect_total".to_owned(), resources.into());
    let (soonest, certificates) = program.certificates(expiry::MOST);
    status.insert("certificates".to_owned(), expiry::listed(&soonest));
    status.insert("certificates_total".to_owned(), certificates.into());
    let (list, upstreams) = unhealthy::listed(&program.health());
    status.insert("unhealthy".to_owned(), list.into());
    status.insert("unhealthy_total".to_owned(), upstreams.into());
    Value::Object(status)
}

/// Returns the change that waits to be confirmed; null if none does, or if the store does not answer.
async fn unconfirmed(store: &dyn Store) -> Value {
    let shown = tokio::time::timeout(STORE_PATIENCE, confirm::shown(store)).await;
    shown.ok().flatten().unwrap_or_default()
}

/// Returns the type of the health checks that a resource configures.
fn checks_of(resource: &Value) -> Option<CheckType> {
    let checks = resource.get("checks").or_else(|| resource.pointer("/upstream/checks"))?;
    Some(match checks.pointer("/active/type").and_then(Value::as_str) {
        Some("https") => CheckType::Https,
        Some("tcp") => CheckType::Tcp,
        _ => CheckType::Http,
    })
}

fn wants_page(request: &Request<Bytes>) -> bool {
    let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

fn html(page: String) -> Response<Bytes> {
    let mut response = answer::text(StatusCode::OK, page);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html"));
    response
}

/// `{"published":…,"workers":[{"revision":…}],"rejected":[…],"rejected_total":…}`
pub(crate) fn snapshot(program: &dyn Program) -> Value {
    let Published { revision, workers, not_served } = program.published();
    let workers: Vec<Value> = workers.into_iter().map(|revision| json!({ "revision": revision })).collect();
    let total = not_served.total();
    json!({ "published": revision, "workers": workers, "rejected": listed(not_served), "rejected_total": total })
}

/// `{"total":…,"list":[…]}`: all resources that are not served as configured.
fn rejected(program: &dyn Program) -> Value {
    let not_served = program.published().not_served;
    json!({ "total": not_served.total(), "list": listed(not_served) })
}

/// The most entries of a list; a whole file may be invalid.
const MOST_LISTED: usize = 1000;

/// Lists each by its key in the store, or its place in a file, with the reason and what is served instead.
fn listed(NotServed { resources, findings }: NotServed) -> Vec<Value> {
    let resources = resources.into_iter().map(|one| (one.key.to_string(), one.invalid, one.served));
    let findings = findings.iter().map(|finding| {
        let place = format!("{}:{}:{}", finding.file, finding.line, finding.column);
        (place, finding.to_invalid(), Served::Nothing)
    });
    let with_state = |(key, invalid, served): (String, Invalid, Served)| {
        let mut entry = entry(key, invalid);
        entry["state"] = served.as_str().into();
        entry
    };
    resources.chain(findings).take(MOST_LISTED).map(with_state).collect()
}

fn entry(key: String, invalid: Invalid) -> Value {
    let Invalid { pointer, reason, expected, got, hint, .. } = invalid;
    let mut entry = json!({ "key": key, "pointer": pointer, "reason": reason });
    for (name, part) in [("expected", expected), ("got", got.map(String::from)), ("hint", hint)] {
        if let Some(part) = part {
            entry[name] = part.into();
        }
    }
    entry
}

/// Returns a resource as APISIX's control API shows it: with its defaults, nodes as a list, its id as a string,
/// and some of its counters.
fn runtime_object(stored: &Stored, defaults: &mut Defaults<'_>) -> Value {
    let mut value = Value::clone(&stored.value);
    defaults.fill(stored.key.kind, &mut value);
    // A value in etcd may be any JSON.
    if let Some(fields) = value.as_object_mut() {
        fields.insert("id".to_owned(), stored.key.id.as_str().into());
    }
    let mut has_domain = list_nodes(&mut value);
    if let Some(upstream) = value.get_mut("upstream") {
        has_domain |= list_nodes(upstream);
    }
    let mut entry = list::entry(stored);
    entry["value"] = value;
    entry["has_domain"] = has_domain.into();
    entry["orig_modifiedIndex"] = stored.modified.into();
    entry["update_count"] = 0.into();
    entry
}

/// Turns `{"host:port": weight}` into `[{host, port, weight}]` and returns whether any host is a name.
fn list_nodes(upstream: &mut Value) -> bool {
    let Some(nodes) = upstream.get_mut("nodes") else { return false };
    if let Value::Object(map) = nodes {
        let list = map.iter().map(|(address, weight)| {
            let (host, port) = match address.rsplit_once(':') {
                Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port.parse().ok()),
                _ => (address.as_str(), None),
            };
            let port: Option<u16> = port;
            match port {
                Some(port) => json!({ "host": host, "port": port, "weight": weight }),
                None => json!({ "host": host, "weight": weight }),
            }
        });
        *nodes = Value::Array(list.collect());
    }
    let hosts = nodes.as_array().into_iter().flatten().filter_map(|node| node.get("host")?.as_str());
    hosts
        .into_iter()
        .any(|host| host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_err())
}
