//! Compiles routes to rules and plans.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use model::{Entry, Fault, Invalid, Key, Kind, Meta, Resource, Route, Served, Service};
use sdk::build::Owner;
use sdk::expr::Expr;
use sdk::{Chain, RouteInfo, RouteNames};
use smallvec::SmallVec;
use wire::Method;

use super::certificates::client_certificate_of;
use super::chains::{Source, unless_idle};
use super::chosen::RequestedUpstreams;
use super::metadata::ReadSet;
use super::units::Named;
use super::wanted::{Part, Recorder};
use super::{CompileOutcome, Compiler, Pass, mixed_up, refusing, upstream};
use crate::parallel;
use crate::plan::{Failure, Plan};
use crate::router::{Code, Rule};
use crate::upstream::Upstream;

/// The last valid version of a route; its rule is in the router.
pub(super) struct RouteUnit {
    pub entry: Arc<Entry>,
    /// Its inline upstream.
    own_upstream: Option<Arc<Upstream>>,
    /// The metadata its plugins were built with.
    pub read: ReadSet,
}

impl Named for RouteUnit {
    fn id(&self) -> &str {
        &self.entry.key.id
    }
}

/// A compiled route before it has slots and a place in the router.
struct Draft {
    entry: Arc<Entry>,
    rule: Arc<Rule>,
    plan: Plan,
    /// Its inline upstream.
    upstream: Option<Upstream>,
    /// The host names that its plugins and its upstream need.
    hosts: [BTreeSet<String>; 2],
    /// The upstreams its plugins requested.
    chosen: RequestedUpstreams,
    /// The plugins that read their metadata.
    read: SmallVec<[&'static str; 4]>,
    /// It lacks a secret, and refuses all requests.
    refused: bool,
}

/// The entry of an enabled route, and its compile result.
type Drafted<'d> = (&'d Arc<Entry>, CompileOutcome<Draft>);

/// The part of a route that the router stores.
type Placed = (Arc<Rule>, Arc<Plan>);

/// The most drafts that wait to be placed.
const DRAFTS: usize = 4096;

impl Compiler {
    pub(super) fn compile_routes(&mut self, pass: &mut Pass<'_>) {
        let ids = pass.work.take(Kind::Route);
        ids.iter().for_each(|id| _ = pass.relink.remove(id));
        self.note_read(Kind::Route, ids.iter().chain(&pass.relink));
        if pass.old_router.is_some() {
            // The router is not in use meanwhile.
            let mut router = self.take_router();
            self.router = parallel::beside(
                |rules: Receiver<Vec<Placed>>| {
                    rules.into_iter().flatten().for_each(|(rule, plan)| router.insert_new(rule, plan));
                    router
                },
                // Sending fails only if the router's thread has panicked, which is reported next.
                |router| self.make_routes(ids, pass, |_, placed| _ = router.send(placed)),
            );
        } else {
            self.make_routes(ids, pass, |compiler, placed| {
                placed.into_iter().for_each(|(rule, plan)| compiler.put_rule(rule, plan));
            });
        }
        for id in std::mem::take(&mut pass.relink) {
            self.relink(&id);
        }
    }

    /// Drafts routes on all cores, assigns their slots one after another and passes on their rules.
    fn make_routes(
        &mut self,
        ids: Vec<String>,
        pass: &Pass<'_>,
        mut give: impl FnMut(&mut Compiler, Vec<Placed>),
    ) {
        let mut ids = ids.into_iter();
        loop {
            let some: Vec<String> = ids.by_ref().take(DRAFTS).collect();
            if some.is_empty() {
                return;
            }
            let mut all = Vec::with_capacity(some.len());
            for (key, drafted) in parallel::map(some, |id| self.draft_both(id, pass)) {
                match drafted {
                    Some((entry, drafted)) => all.extend(self.place_route(&key, entry, drafted)),
                    None => self.forget_route(&key),
                }
            }
            give(self, all);
        }
    }

    fn put_rule(&mut self, rule: Arc<Rule>, plan: Arc<Plan>) {
        match self.router.rule(&rule.id) {
            Some(same) if Arc::ptr_eq(same, &rule) => self.router.replace(&rule.id, plan),
            _ => self.router.insert(rule, plan),
        }
    }

    /// Resolves the addresses of inline upstreams again. Plans do not change.
    pub(super) fn readdress(&mut self, pass: &mut Pass<'_>) {
        for key in std::mem::take(&mut pass.readdress) {
            self.read.push(key.clone());
            let (entry, before) = match key.kind {
                Kind::Route => match self.routes.get(&key.id) {
                    Some(unit) => (unit.entry.clone(), unit.own_upstream.clone()),
                    None => continue,
                },
                _ => match self.shared.get(&key) {
                    Some(shared) => (shared.entry.clone(), shared.upstream.clone()),
                    None => continue,
                },
            };
            let Some(written) = entry.resource().upstream() else { continue };
            // A valid upstream stays valid with any addresses.
            let names = Recorder::new(pass.names);
            let Ok(upstream) = self.upstream(&key.id, written, &names) else { continue };
            if key.kind == Kind::Route {
                let own = Some(self.upstreams.place_own(&key, upstream, before.as_ref()));
                if let Some(unit) = self.routes.get_mut(&key.id) {
                    unit.own_upstream = own;
                }
            } else {
                let upstream = Some(self.upstreams.place(&key, upstream, before.as_ref()));
                if let Some(shared) = self.shared.get_mut(&key) {
                    shared.upstream = upstream;
                }
            }
        }
    }

    /// Keeps the rules of routes for which no version compiles.
    pub(super) fn keep_rules(&mut self, pass: &Pass<'_>) {
        let Some(old) = &pass.old_router else { return };
        // No route has lost its rule.
        if self.router.len() == self.routes.len() {
            return;
        }
        for id in self.routes.ids() {
            if self.router.rule(id).is_none()
                && let (Some(rule), Some(plan)) = (old.rule(id), old.plan(id))
            {
                self.router.insert(rule.clone(), plan.clone());
            }
        }
    }

    /// `None` if there is no such route, or it is disabled.
    fn draft_both<'d>(&self, id: String, pass: &Pass<'d>) -> (Key, Option<Drafted<'d>>) {
        let key = Key { kind: Kind::Route, id };
        let drafted = route_of(&key, pass).map(|entry| {
            let last_good = self.routes.get(&key.id).filter(|_| !self.refused.contains(&key.id));
            let last_good = last_good.map(|unit| &unit.entry);
            let mut outcome =
                CompileOutcome::or_last_good(entry, last_good, |entry| self.draft(&key, entry, pass));
            let lacks = |wrong: &Invalid| wrong.fault == Fault::Unread || self.refused.contains(&key.id);
            if outcome.made.is_none() && outcome.error.as_deref().is_some_and(lacks) {
                outcome.made = self.draft_refusing(&key, entry, pass).ok();
                // Without a new rule, the refusing version keeps its old one.
                if outcome.made.is_some() || self.refused.contains(&key.id) {
                    outcome.served = Served::Refusal;
                }
            }
            (entry, outcome)
        });
        (key, drafted)
    }

    fn place_route(
        &mut self,
        key: &Key,
        entry: &Arc<Entry>,
        drafted: CompileOutcome<Draft>,
    ) -> Option<Placed> {
        let placed = self.rejections.settle(key, drafted).map(|draft| self.place(key, draft));
        let served = self.routes.get(&key.id).map(|unit| &unit.entry);
        let before = served.filter(|served| !Arc::ptr_eq(served, entry));
        let refers = [entry].into_iter().chain(before).flat_map(|entry| self.refers(entry)).collect();
        self.users.refer(key, refers);
        placed
    }

    fn forget_route(&mut self, key: &Key) {
        if let Some(unit) = self.routes.remove(&key.id) {
            self.router.remove(&key.id);
            if let Some(own) = &unit.own_upstream {
                self.upstreams.remove_own(own);
            }
        }
        self.refused.remove(&key.id);
        self.users.refer(key, Vec::new());
        self.hosts.forget(key);
        self.place_chosen(key, RequestedUpstreams::default());
        self.rejections.accept(key);
    }

    /// Updates the upstream of an otherwise unchanged route.
    fn relink(&mut self, id: &str) {
        let (Some(unit), Some(plan)) = (self.routes.get(id), self.router.plan(id)) else { return };
        let Resource::Route(route) = unit.entry.resource() else { return };
        let upstream = self.upstream_of(route, unit.own_upstream.as_ref());
        if plan.upstream() != upstream {
            let plan = Plan { target: upstream.into(), ..Plan::clone(plan) };
            self.router.replace(id, Arc::new(plan));
        }
    }

    /// Compiles everything of a route that changes no shared state.
    fn draft(&self, key: &Key, entry: &Arc<Entry>, pass: &Pass<'_>) -> Result<Draft, Invalid> {
        let Resource::Route(route) = entry.resource() else { return Err(mixed_up()) };
        let rule = self.rule_of(key, route, pass)?;
        let (for_plugins, for_upstream) = (Recorder::new(pass.names), Recorder::new(pass.names));
        let chain = self.chain_of(key, route, &for_plugins)?;
        let upstream = match &route.upstream {
            Some(written) if !upstream::takes_requests(written.scheme) => {
                return Err(upstream::takes_none().under("/upstream"));
            }
            Some(written) => Some(
                self.upstream(&key.id, written, &for_upstream)
                    .map_err(|invalid| invalid.under("/upstream"))?,
            ),
            None => None,
        };
        let service = self.service_of(route);
        let mut plan = Plan::new(RouteInfo::new(&key.id, self.names_of(route)));
        plan.chain = chain;
        plan.timeouts = route.timeout.as_deref().map(|timeout| Box::new(upstream::timeouts(*timeout)));
        plan.websocket = (route.enable_websocket)
            .or(service.and_then(|service| service.enable_websocket))
            .unwrap_or(false);
        let chosen = for_plugins.chosen.take();
        let read = for_plugins.read.take();
        let hosts = [for_plugins.into_hosts(), for_upstream.into_hosts()];
        Ok(Draft { entry: entry.clone(), rule, plan, upstream, hosts, chosen, read, refused: false })
    }

    fn names_of(&self, route: &Route) -> RouteNames {
        let service = self.service_of(route);
        RouteNames {
            name: route.meta.name.clone().unwrap_or_default(),
            service_id: route.service_id.clone().unwrap_or_default(),
            service_name: service.and_then(|service| service.meta.name.clone()).unwrap_or_default(),
            labels: labels(&route.meta),
        }
    }

    /// A refusing draft for a route that lacks a secret, or did so before its present error: it is
    /// matched, and its requests are refused. Otherwise they would fall to the next matching route,
    /// which may have a weaker guard.
    fn draft_refusing(&self, key: &Key, entry: &Arc<Entry>, pass: &Pass<'_>) -> Result<Draft, Invalid> {
        let Resource::Route(route) = entry.resource() else { return Err(mixed_up()) };
        let rule = self.rule_of(key, route, pass)?;
        let mut plan = Plan::new(RouteInfo::new(&key.id, self.names_of(route)));
        plan.chain = Some(refusing::chain(refusing::ROUTE_LACKS_SECRET));
        let (hosts, chosen, read) = Default::default();
        Ok(Draft { entry: entry.clone(), rule, plan, upstream: None, hosts, chosen, read, refused: true })
    }

    /// Assigns a route its slots. Requests find it once it is in the router.
    fn place(&mut self, key: &Key, draft: Draft) -> Placed {
        let Draft { entry, rule, mut plan, upstream, hosts, chosen, read, refused } = draft;
        match refused {
            true => _ = self.refused.insert(key.id.clone()),
            false => _ = self.refused.remove(&key.id),
        }
        let before = self.routes.get(&key.id).and_then(|unit| unit.own_upstream.clone());
        let own_upstream = match upstream {
            Some(upstream) => Some(self.upstreams.place_own(key, upstream, before.as_ref())),
            None => {
                if let Some(before) = before {
                    self.upstreams.remove_own(&before);
                }
                None
            }
        };
        self.place_chosen(key, chosen);
        let [for_plugins, for_upstream] = hosts;
        self.hosts.set(key, Part::Plugins, for_plugins);
        self.hosts.set(key, Part::Upstream, for_upstream);
        if let Resource::Route(route) = entry.resource() {
            plan.target = self.upstream_of(route, own_upstream.as_ref()).into();
        }
        let read = self.metadata.read_by(&read);
        self.routes.insert(RouteUnit { entry, own_upstream, read });
        (rule, Arc::new(plan))
    }

    /// The rule of a route; the previous one if it still applies.
    fn rule_of(&self, key: &Key, route: &Route, pass: &Pass<'_>) -> Result<Arc<Rule>, Invalid> {
        let hosts = match self.service_of(route) {
            Some(service) if route.hosts.is_empty() => &service.hosts,
            _ => &route.hosts,
        };
        let methods = methods(&route.methods)?;
        let before = pass.old_router.as_ref().unwrap_or(&self.router).rule(&key.id);
        if let Some(rule) = before
            && same(&rule.uris, &route.uris)
            && same(&rule.hosts, hosts)
            && rule.methods == methods
            && *rule.remote_addrs == *route.remote_addrs
            && rule.priority == route.priority
            && rule.code.as_ref().map(|code| &*code.text) == route.filter_func.as_deref()
            && self.has_vars_of(rule, key, route)
        {
            return Ok(rule.clone());
        }
        let vars = match &route.vars {
            Some(vars) => Some(Box::new(Expr::compile(vars).map_err(|invalid| invalid.under("/vars"))?)),
            None => None,
        };
        let code = match &route.filter_func {
            Some(text) => {
                let condition = self.catalog.condition(&key.id, text);
                let condition = condition.map_err(|invalid| invalid.under("/filter_func"))?;
                Some(Box::new(Code { text: text.clone(), condition }))
            }
            None => None,
        };
        Ok(Arc::new(Rule {
            id: key.id.as_str().into(),
            uris: route.uris.iter().map(|uri| uri.as_str().into()).collect(),
            hosts: hosts.iter().map(|host| host.as_str().into()).collect(),
            methods,
            remote_addrs: route.remote_addrs.as_slice().into(),
            vars,
            code,
            priority: route.priority,
        }))
    }

    /// Whether a route has the same `vars` as its previous rule. The previous entry is parsed again
    /// only if both have some.
    fn has_vars_of(&self, rule: &Rule, key: &Key, route: &Route) -> bool {
        match (&rule.vars, &route.vars) {
            (None, None) => true,
            (Some(_), Some(now)) => self.routes.get(&key.id).is_some_and(|unit| match &*unit.entry.peek() {
                Resource::Route(was) => was.vars.as_ref() == Some(now),
                _ => false,
            }),
            _ => false,
        }
    }

    /// Route over plugin config over service. If only one of them has plugins, its chain is shared.
    fn chain_of(
        &self,
        key: &Key,
        route: &Route,
        names: &Recorder<'_>,
    ) -> Result<Option<Arc<Chain>>, Invalid> {
        let mut shared = Vec::new();
        for (field, kind, id) in [
            ("plugin_config_id", Kind::PluginConfig, &route.plugin_config_id),
            ("service_id", Kind::Service, &route.service_id),
        ] {
            let Some(id) = id else { continue };
            match self.shared.get_key_value(&Key::new(kind, id.as_str())) {
                Some((key, found)) => shared.push((field, key, found)),
                // Without its service the route serves nothing, so no plugin needs to run.
                None => return Ok(None),
            }
        }
        if let Some((owner, code)) = self.script_of(key, route) {
            // It takes the place of all plugins.
            let field = if owner == *key { "/script" } else { "/service_id" };
            let owner = Owner { collection: owner.kind.collection(), id: owner.id };
            return match self.catalog.script(&owner, code) {
                Ok(chain) => Ok(Some(chain)),
                Err(invalid) => Err(invalid.at(field)),
            };
        }
        shared.retain(|(_, _, found)| {
            found.entry.resource().plugins().is_some_and(|plugins| !plugins.is_empty())
        });
        if route.plugins.is_empty() {
            match &shared[..] {
                [] => return Ok(None),
                [(_, _, only)] => return Ok(only.chain.clone()),
                _ => {}
            }
        }
        let mut sources = vec![Source::new(key, &route.plugins)];
        sources.extend(
            shared
                .iter()
                .filter_map(|(_, key, found)| Some(Source::new(key, found.entry.resource().plugins()?))),
        );
        match self.chain(&sources, names) {
            Ok(chain) => Ok(unless_idle(chain)),
            Err(blame) if blame.source == 0 => Err(blame.invalid.under("/plugins")),
            Err(blame) => Err(blame.invalid.at(format!("/{}", shared[blame.source - 1].0))),
        }
    }

    /// The script of a route, or else that of its service; with the resource that has it.
    fn script_of<'r>(&'r self, key: &Key, route: &'r Route) -> Option<(Key, &'r str)> {
        if let Some(code) = &route.script {
            return Some((key.clone(), code));
        }
        let code = self.service_of(route)?.script.as_deref()?;
        Some((Key::new(Kind::Service, route.service_id.as_deref()?), code))
    }

    /// The slot of a route's upstream. Errors are reported in APISIX's order: missing service,
    /// missing plugin config, missing upstream. An id overrides an inline upstream, the route
    /// overrides the service.
    fn upstream_of(&self, route: &Route, own: Option<&Arc<Upstream>>) -> Result<u32, Failure> {
        let service = match &route.service_id {
            Some(id) => {
                Some(self.shared.get(&Key::new(Kind::Service, id.as_str())).ok_or(Failure::NoService)?)
            }
            None => None,
        };
        if let Some(id) = &route.plugin_config_id
            && !self.shared.contains_key(&Key::new(Kind::PluginConfig, id.as_str()))
        {
            return Err(Failure::NoPluginConfig);
        }
        let by_id = |id: &String| {
            self.upstreams.get(id).map(|unit| unit.upstream.slot).ok_or(Failure::NoUpstreamObject)
        };
        if let Some(id) = &route.upstream_id {
            return by_id(id);
        }
        if let Some(own) = own {
            return Ok(own.slot);
        }
        let Some(service) = service else { return Err(Failure::NoUpstream) };
        match (service.entry.resource(), &service.upstream) {
            (Resource::Service(written), _) if written.upstream_id.is_some() => {
                written.upstream_id.as_ref().map_or(Err(Failure::NoUpstream), by_id)
            }
            (_, Some(upstream)) => Ok(upstream.slot),
            _ => Err(Failure::NoUpstream),
        }
    }

    fn service_of(&self, route: &Route) -> Option<&Service> {
        self.service(route.service_id.as_ref())
    }

    pub(super) fn service(&self, id: Option<&String>) -> Option<&Service> {
        match self.shared.get(&Key::new(Kind::Service, id?.as_str()))?.entry.resource() {
            Resource::Service(service) => Some(service),
            _ => None,
        }
    }

    fn refers(&self, entry: &Entry) -> Vec<Key> {
        let Resource::Route(route) = entry.resource() else { return Vec::new() };
        let of_service = self.service_of(route).and_then(|service| service.upstream_id.clone());
        let refers = [
            (Kind::Service, route.service_id.clone()),
            (Kind::PluginConfig, route.plugin_config_id.clone()),
            (Kind::Upstream, route.upstream_id.clone()),
            (Kind::Upstream, of_service),
        ];
        let refers = refers.into_iter().filter_map(|(kind, id)| Some(Key { kind, id: id? }));
        refers.chain(client_certificate_of(route.upstream.as_deref())).collect()
    }
}

/// The entry of an enabled route.
fn route_of<'d>(key: &Key, pass: &Pass<'d>) -> Option<&'d Arc<Entry>> {
    let entry = pass.desired.get(Kind::Route, &key.id);
    entry.filter(|entry| matches!(entry.resource(), Resource::Route(route) if route.enabled))
}

fn same(shared: &[Arc<str>], written: &[String]) -> bool {
    shared.iter().map(|text| &**text).eq(written.iter().map(String::as_str))
}

fn methods(names: &[String]) -> Result<u16, Invalid> {
    names.iter().enumerate().try_fold(0, |bits, (at, name)| match Method::from_bytes(name.as_bytes()) {
        Method::Other => Err(Invalid::new(format!("unknown method {name}")).at(format!("/methods/{at}"))),
        method => Ok(bits | method.bit()),
    })
}

/// The labels of a resource.
pub(super) fn labels(meta: &Meta) -> Vec<(String, String)> {
    let labels = meta.labels.iter().flat_map(|labels| labels.iter());
    labels.map(|(key, text)| (key.clone(), text.clone())).collect()
}
