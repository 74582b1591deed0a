//! Compiles stream routes.

use std::sync::Arc;

use model::{Entry, Fault, Invalid, Key, Kind, Plugins, Rejected, Resource, StreamRoute};
use sdk::expr::Expr;
use sdk::{Chain, Phase, RouteInfo, RouteNames};

use super::certificates::client_certificate_of;
use super::chains::{Source, unless_idle};
use super::chosen::RequestedUpstreams;
use super::metadata::ReadSet;
use super::routes::labels;
use super::wanted::{Part, Recorder};
use super::{Compiler, Pass, refusing};
use crate::plan::{Failure, Plan};
use crate::protocol::{CallLogger, Faults, Protocol, Spoken};
use crate::streams::{StreamPlan, StreamRule, Streams};
use crate::upstream::Upstream;

/// The last valid version of a stream route.
pub(super) struct StreamUnit {
    pub entry: Arc<Entry>,
    /// Its inline upstream.
    own_upstream: Option<Arc<Upstream>>,
    /// `None` for a subordinate route, which only its superior selects.
    plan: Option<Arc<StreamPlan>>,
    /// It lacks a secret, or did so before its present error, and refuses all streams.
    refuses: bool,
    /// The metadata its plugins were built with.
    pub read: ReadSet,
}

impl Compiler {
    pub(super) fn compile_streams(&mut self, pass: &mut Pass<'_>) {
        let ids = pass.work.take(Kind::StreamRoute);
        if ids.is_empty() {
            return;
        }
        self.note_read(Kind::StreamRoute, &ids);
        for id in ids {
            self.compile_stream(&Key { kind: Kind::StreamRoute, id }, pass);
        }
        let plans = self.stream_routes.values().filter_map(|unit| unit.plan.clone());
        self.streams = Arc::new(Streams::new(plans.collect()));
    }

    fn compile_stream(&mut self, key: &Key, pass: &Pass<'_>) {
        let Some(entry) = pass.desired.get(Kind::StreamRoute, &key.id) else {
            self.stream_routes.remove(&key.id);
            self.users.refer(key, Vec::new());
            self.hosts.forget(key);
            self.place_chosen(key, RequestedUpstreams::default());
            self.remove_upstream(key);
            return self.rejections.accept(key);
        };
        let before = self.stream_routes.get(&key.id);
        let refused = before.is_some_and(|unit| unit.refuses);
        let last_good = before.filter(|unit| !unit.refuses).map(|unit| unit.entry.clone());
        let made = self.compile_or_last_good(key, entry, last_good, |compiler, entry| {
            compiler.make_stream(key, entry, pass)
        });
        let lacks = |rejected: &Rejected| refused || rejected.invalid.fault == Fault::Unread;
        let made = match made {
            None if self.rejections.get(key).is_some_and(lacks) => {
                self.rejections.mark_refused(key);
                self.refusing_stream(key, entry)
            }
            made => made,
        };
        if let Some(unit) = made {
            self.stream_routes.insert(key.id.clone(), unit);
        }
        let served = self.stream_routes.get(&key.id).map(|unit| unit.entry.clone());
        let before = served.as_ref().filter(|served| !Arc::ptr_eq(served, entry));
        let refers = [Some(entry), before].into_iter().flatten().flat_map(|entry| self.stream_refers(entry));
        let refers = refers.collect();
        self.users.refer(key, refers);
    }

    fn make_stream(&mut self, key: &Key, entry: &Arc<Entry>, pass: &Pass<'_>) -> Result<StreamUnit, Invalid> {
        let Resource::StreamRoute(route) = entry.resource() else {
            return Err(Invalid::new("the resource's kind is not the one in its key"));
        };
        let (for_plugins, for_upstream) = (Recorder::new(pass.names), Recorder::new(pass.names));
        let chain = self.stream_chain(key, route, &for_plugins)?;
        let protocol = match &route.protocol {
            Some(written) => Some(Box::new(self.protocol(key, written, &for_plugins)?)),
            None => None,
        };
        let sees_bytes = chain.as_ref().is_some_and(|chain| chain.phases().has(Phase::StreamData));
        if sees_bytes && protocol.is_some() {
            let why = "a stream route with a protocol cannot have plugins that see its bytes";
            return Err(Invalid::new(why).at("/protocol"));
        }
        let before = self.stream_routes.get(&key.id).and_then(|unit| unit.own_upstream.clone());
        let own_upstream = match &route.upstream {
            Some(written) => {
                let made = self
                    .upstream(&key.id, written, &for_upstream)
                    .map_err(|invalid| invalid.under("/upstream"))?;
                Some(self.upstreams.place(key, made, before.as_ref()))
            }
            None => {
                self.remove_upstream(key);
                None
            }
        };
        self.place_chosen(key, for_plugins.chosen.take());
        let read = self.metadata.read_by(&for_plugins.read.take());
        self.hosts.set(key, Part::Plugins, for_plugins.into_hosts());
        self.hosts.set(key, Part::Upstream, for_upstream.into_hosts());
        let target = self.stream_upstream(route, own_upstream.as_ref());
        let plan = self.stream_plan(key, route, (chain, protocol), target);
        Ok(StreamUnit { entry: entry.clone(), own_upstream, plan, refuses: false, read })
    }

    /// A refusing unit for a stream route that lacks a secret, or did so before its present error:
    /// it is matched, and its streams are refused. Otherwise they would fall to the next matching
    /// route, which may have a weaker guard.
    fn refusing_stream(&mut self, key: &Key, entry: &Arc<Entry>) -> Option<StreamUnit> {
        let Resource::StreamRoute(route) = entry.resource() else { return None };
        self.remove_upstream(key);
        self.place_chosen(key, RequestedUpstreams::default());
        self.hosts.forget(key);
        let chain = refusing::chain(refusing::ROUTE_LACKS_SECRET);
        let plan = self.stream_plan(key, route, (Some(chain), None), Err(Failure::NoUpstream));
        let read = ReadSet::default();
        Some(StreamUnit { entry: entry.clone(), own_upstream: None, plan, refuses: true, read })
    }

    /// `None` for a subordinate route, which only its superior selects.
    fn stream_plan(
        &self,
        key: &Key,
        route: &StreamRoute,
        (chain, protocol): (Option<Arc<Chain>>, Option<Box<Protocol>>),
        target: Result<u32, Failure>,
    ) -> Option<Arc<StreamPlan>> {
        let service = self.service(route.service_id.as_ref());
        let names = RouteNames {
            name: route.meta.name.clone().unwrap_or_default(),
            service_id: route.service_id.clone().unwrap_or_default(),
            service_name: service.and_then(|service| service.meta.name.clone()).unwrap_or_default(),
            labels: labels(&route.meta),
        };
        let mut plan = Plan::new(RouteInfo::new(&key.id, names));
        plan.chain = chain;
        plan.target = target.into();
        let rule = StreamRule {
            remote: route.remote_addr,
            server: route.server_addr,
            port: route.server_port,
            name: route.sni.as_deref().map(Into::into),
        };
        let subordinate = route.protocol.as_ref().is_some_and(|protocol| protocol.superior_id.is_some());
        (!subordinate).then(|| Arc::new(StreamPlan { rule, plan, protocol }))
    }

    /// The inspection of a protocol's calls.
    fn protocol(
        &self,
        key: &Key,
        written: &model::xrpc::Protocol,
        names: &Recorder<'_>,
    ) -> Result<Protocol, Invalid> {
        written.check_listed(&self.settings.protocols)?;
        let mut loggers = Vec::new();
        for (at, logger) in written.loggers.iter().enumerate() {
            let made = self.call_logger(key, logger, names);
            loggers.extend(made.map_err(|invalid| invalid.within(at).under("/protocol/logger"))?);
        }
        let spoken = match &written.settings {
            model::xrpc::Settings::Redis { faults } => Spoken::Redis(Faults::new(faults)),
            model::xrpc::Settings::Dubbo => Spoken::Dubbo,
        };
        // As in APISIX, the plugin of this name must be enabled; it need not be on this route.
        let listed = self.enabled_on_streams.as_ref();
        let prometheus = listed.is_none_or(|listed| listed.contains("prometheus"));
        Ok(Protocol { spoken, loggers, counts: written.counts && prometheus })
    }

    /// `None` for a logger without a name, which APISIX's schema allows and which has no effect.
    fn call_logger(
        &self,
        key: &Key,
        written: &model::xrpc::Logger,
        names: &Recorder<'_>,
    ) -> Result<Option<CallLogger>, Invalid> {
        let Some(name) = &written.name else { return Ok(None) };
        let mut conf = written.conf.clone();
        // The logger entry has its own condition, and APISIX ignores any other.
        conf.as_object_mut().map(|fields| fields.shift_remove("_meta"));
        let plugins: Plugins = [(name.clone(), conf)].into_iter().collect();
        let made = self.chain_in(&[Source::new(key, &plugins)], names, true);
        let chain = made.map_err(|blame| {
            let place =
                blame.invalid.pointer.split('/').skip(2).fold("/conf".to_owned(), |at, part| at + "/" + part);
            blame.invalid.at(place)
        })?;
        let Some(chain) = chain.filter(|chain| chain.phases().has(Phase::Log)) else {
            return Err(no_logger(name));
        };
        if chain.phases().has(Phase::Preread) {
            return Err(no_logger(name));
        }
        let is_empty = written.filter.as_array().is_none_or(Vec::is_empty);
        let filter = match is_empty {
            true => None,
            false => Some(Expr::compile(&written.filter).map_err(|invalid| {
                invalid.under("/filter").said("failed to validate the 'filter' expression: ")
            })?),
        };
        Ok(Some(CallLogger { filter, chain }))
    }

    /// The route's plugins over its service's stream plugins.
    fn stream_chain(
        &self,
        key: &Key,
        route: &StreamRoute,
        names: &Recorder<'_>,
    ) -> Result<Option<Arc<Chain>>, Invalid> {
        let mut sources = vec![Source::new(key, &route.plugins)];
        let of_service: Plugins;
        if let Some(id) = &route.service_id {
            let service_key = Key::new(Kind::Service, id.as_str());
            // Without its service the route serves nothing, so no plugin needs to run.
            let Some(service) = self.shared.get(&service_key) else { return Ok(None) };
            let plugins = service.entry.resource().plugins().into_iter().flatten();
            let of_streams = plugins.filter(|(name, _)| self.catalog.has_stream(name));
            of_service = of_streams.map(|(name, config)| (name.clone(), config.clone())).collect();
            sources.push(Source::new(&service_key, &of_service));
            return self.stream_chain_of(&sources, names);
        }
        self.stream_chain_of(&sources, names)
    }

    fn stream_chain_of(
        &self,
        sources: &[Source<'_>],
        names: &Recorder<'_>,
    ) -> Result<Option<Arc<Chain>>, Invalid> {
        match self.chain_in(sources, names, true) {
            Ok(chain) => Ok(unless_idle(chain)),
            Err(blame) if blame.source == 0 => Err(blame.invalid.under("/plugins")),
            Err(blame) => Err(blame.invalid.at("/service_id")),
        }
    }

    /// The slot of a stream route's upstream: an id overrides an inline upstream, the route
    /// overrides its service.
    fn stream_upstream(&self, route: &StreamRoute, own: Option<&Arc<Upstream>>) -> Result<u32, Failure> {
        let by_id = |id: &String| {
            self.upstreams.get(id).map(|unit| unit.upstream.slot).ok_or(Failure::NoUpstreamObject)
        };
        if let Some(id) = &route.upstream_id {
            return by_id(id);
        }
        if let Some(own) = own {
            return Ok(own.slot);
        }
        let Some(id) = &route.service_id else { return Err(Failure::NoUpstream) };
        let service = self.shared.get(&Key::new(Kind::Service, id.as_str())).ok_or(Failure::NoService)?;
        match (service.entry.resource(), &service.upstream) {
            (Resource::Service(written), _) if written.upstream_id.is_some() => {
                written.upstream_id.as_ref().map_or(Err(Failure::NoUpstream), by_id)
            }
            (_, Some(upstream)) => Ok(upstream.slot),
            _ => Err(Failure::NoUpstream),
        }
    }

    fn stream_refers(&self, entry: &Entry) -> Vec<Key> {
        let Resource::StreamRoute(route) = entry.resource() else { return Vec::new() };
        let service = self.service(route.service_id.as_ref());
        let refers = [
            (Kind::Service, route.service_id.clone()),
            (Kind::Upstream, route.upstream_id.clone()),
            (Kind::Upstream, service.and_then(|service| service.upstream_id.clone())),
        ];
        let refers = refers.into_iter().filter_map(|(kind, id)| Some(Key { kind, id: id? }));
        refers.chain(client_certificate_of(route.upstream.as_deref())).collect()
    }
}

fn no_logger(name: &str) -> Invalid {
    Invalid::new(format!("stream plugin [{name}] cannot log calls of a protocol"))
        .at("/name")
        .got(name)
        .expected("a stream plugin with a log phase, such as syslog")
}
