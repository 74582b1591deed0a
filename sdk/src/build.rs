//! The context in which a plugin instance is built.

use std::any::{Any, TypeId};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hashbrown::HashMap;
use model::Invalid;
use serde_json::Value;

use crate::chain::Chain;
use crate::connection::Trust;
use crate::counters::{Counters, Gauges, Paces, Tallies};
use crate::endpoint::Served;
use crate::meters::Meters;
use crate::protos::{DescriptorPool, LookUp};
use crate::sink::{Folders, Sinks};
use crate::state::{States, WorkerState};
use crate::upstream::{UpstreamHandle, Upstreams};
use crate::world::Target;

/// The resource that configures a plugin instance; identifies state that must outlive configuration
/// changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Collection, as in the Admin API's paths: `routes`, `services`, `consumers`, …
    pub collection: &'static str,
    pub id: String,
}

/// The node's services, created at start and shared by all plugin instances.
#[derive(Debug, Clone)]
pub struct Services {
    /// Requests per time window: limit-count.
    pub counters: Arc<Counters>,
    /// Request rates: limit-req.
    pub paces: Arc<Paces>,
    /// Requests in flight: limit-conn.
    pub gauges: Arc<Gauges>,
    /// Failures of upstreams: api-breaker.
    pub tallies: Arc<Tallies>,
    pub meters: Arc<Meters>,
    pub sinks: Arc<Sinks>,
    /// Folders that plugins may write to: file-logger.
    pub folders: Arc<Folders>,
    pub states: Arc<States>,
    /// Further services of the program; see [`Build::service`].
    pub extensions: Extensions,
}

/// Services by type, for types that this crate does not know, such as a database client.
#[derive(Debug, Clone, Default)]
pub struct Extensions(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl Extensions {
    /// Adds a service; replaces one of the same type.
    #[must_use]
    pub fn with<T: Send + Sync + 'static>(mut self, service: Arc<T>) -> Extensions {
        self.0.insert(TypeId::of::<T>(), service);
        self
    }

    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.get(&TypeId::of::<T>())?.clone().downcast().ok()
    }
}

impl Services {
    /// Small, private services for one test.
    #[cfg(any(test, feature = "testing"))]
    pub fn for_tests() -> Services {
        Services {
            counters: Arc::default(),
            paces: Arc::default(),
            gauges: Arc::default(),
            tallies: Arc::default(),
            meters: Arc::default(),
            sinks: Arc::default(),
            folders: Arc::new(Folders::new(
                "/data",
                [("/data/logs".to_owned(), "/data/logs".to_owned())],
                ["/data".to_owned()],
            )),
            states: Arc::default(),
            extensions: Extensions::default(),
        }
    }
}

/// Addresses of host names, resolved before compiling. Pure: within one compile, the same names
/// return the same results.
pub trait Names {
    /// Known addresses of a host; empty until it is resolved. The name is recorded, so that the
    /// control plane resolves it and compiles again.
    fn addresses(&self, host: &str) -> Vec<IpAddr>;

    /// Known nodes of a service in a registry; empty until the registry has reported some.
    fn nodes(&self, _discovery: &model::upstream::Discovery) -> Vec<model::Node> {
        Vec::new()
    }

    /// The value that a reference to a secret manager stands for. References in settings are
    /// replaced before a plugin sees them.
    ///
    /// # Errors
    /// Why there is no value, as text.
    fn secret(&self, _reference: &str) -> Result<String, String> {
        Err("secret managers are not available here".to_owned())
    }
}

/// Builds plugins that are configured inside another plugin's configuration. Implemented by the
/// catalog.
pub trait PluginBuilder {
    /// Builds a chain of this plugin; the chain is empty if its `_meta` disables it.
    ///
    /// # Errors
    /// Errors in the configuration, with pointers relative to `config`.
    fn plugin(&self, name: &str, config: &Value, owner: &Owner) -> Result<Arc<Chain>, Invalid>;

    /// Whether a plugin identifies consumers; `None` for an unknown plugin.
    fn is_auth(&self, name: &str) -> Option<bool>;

    /// Endpoints of the enabled plugins.
    fn endpoints(&self, owner: &Owner) -> Vec<Served>;
}

/// Separates the id of an owner from the part of a plugin that builds another one. No id has it.
pub(crate) const PART: char = '#';

/// Finds the `plugin_attr` of a plugin.
type Attrs<'a> = dyn Fn(&str) -> Option<&'a Value> + 'a;

/// The context in which one plugin instance is built.
pub struct Build<'a> {
    pub owner: &'a Owner,
    pub services: &'a Services,
    /// The plugin's `plugin_attr` in config.yaml, if any.
    pub attr: Option<&'a Value>,
    attrs: Option<&'a Attrs<'a>>,
    pub names: &'a dyn Names,
    /// The plugin's name and its configuration; part of the key of its state.
    identity: Option<(&'static str, &'a Value)>,
    /// The plugin's configuration with its defaults and `_meta`.
    complete: Option<&'a dyn Fn() -> Option<Value>>,
    metadata: Option<&'a dyn Fn() -> Option<&'a Value>>,
    protos: Option<&'a LookUp<'a>>,
    others: Option<&'a dyn PluginBuilder>,
    upstreams: Option<&'a dyn Upstreams>,
}

impl<'a> Build<'a> {
    /// Returns a context without metadata, attributes, other plugins and upstreams.
    pub fn new(owner: &'a Owner, services: &'a Services, names: &'a dyn Names) -> Build<'a> {
        Build {
            owner,
            services,
            attr: None,
            attrs: None,
            names,
            identity: None,
            complete: None,
            metadata: None,
            protos: None,
            others: None,
            upstreams: None,
        }
    }

    /// Sets the plugin's name and configuration, which are part of the key of its state.
    #[must_use]
    pub fn with_identity(self, plugin: &'static str, config: &'a Value) -> Build<'a> {
        Build { identity: Some((plugin, config)), ..self }
    }

    /// Sets the source of [`Build::complete_config`].
    #[must_use]
    pub fn with_complete_config(self, complete: &'a dyn Fn() -> Option<Value>) -> Build<'a> {
        Build { complete: Some(complete), ..self }
    }

    /// The plugin's configuration as a whole, with its defaults and `_meta`, even fields that are no settings of the
    /// plugin. Parsed for each call.
    pub fn complete_config(&self) -> Option<Value> {
        self.complete.and_then(|complete| complete())
    }

    /// Sets the source of [`Build::attr_of`].
    #[must_use]
    pub fn with_attrs(self, attrs: &'a Attrs<'a>) -> Build<'a> {
        Build { attrs: Some(attrs), ..self }
    }

    /// The `plugin_attr` of another plugin, whose settings this one shares.
    pub fn attr_of(&self, plugin: &str) -> Option<&'a Value> {
        self.attrs.and_then(|attrs| attrs(plugin))
    }

    /// Sets the plugin's metadata resource, for [`Build::metadata`].
    #[must_use]
    pub fn with_metadata(self, metadata: &'a dyn Fn() -> Option<&'a Value>) -> Build<'a> {
        Build { metadata: Some(metadata), ..self }
    }

    /// The plugin's metadata resource, if there is one. An instance that reads it is rebuilt when
    /// it changes, so read it only where the settings defer to it.
    pub fn metadata(&self) -> Option<&'a Value> {
        self.metadata.and_then(|metadata| metadata())
    }

    /// Sets the proto resources, for [`Build::proto`].
    #[must_use]
    pub fn with_protos(self, protos: &'a LookUp<'a>) -> Build<'a> {
        Build { protos: Some(protos), ..self }
    }

    /// The proto resource with this id, compiled; `None` if it is missing or invalid. An instance
    /// that reads one is rebuilt when protos change.
    pub fn proto(&self, id: &str) -> Option<DescriptorPool> {
        self.protos.and_then(|protos| protos(id))
    }

    /// Returns a value of the node, shared by all workers. It survives configuration changes as
    /// long as this instance's owner, its configuration and `key` stay the same. It is dropped on
    /// the control side, with the last instance that holds it. See [`crate::state`].
    pub fn node_state<T: Send + Sync + 'static>(&self, key: &str, make: impl FnOnce() -> T) -> Arc<T> {
        match self.identified(key) {
            Some(identity) => self.services.states.get(identity, make),
            None => Arc::new(make()),
        }
    }

    /// Returns a value of each worker, which survives configuration changes as
    /// [`Build::node_state`] does.
    pub fn worker_state<T: 'static>(&self, key: &str) -> WorkerState<T> {
        // A configuration that is only checked gets a fresh value, which is dropped with it.
        let identity = self.identified(key).unwrap_or_default();
        self.services.states.worker_state(format!("worker\n{identity}"))
    }

    /// Returns a value of each worker that all instances of the plugin share, such as a buffer for
    /// keys.
    pub fn shared_worker_state<T: 'static>(&self, key: &str) -> WorkerState<T> {
        let plugin = self.identity.map_or("", |(plugin, _)| plugin);
        self.services.states.worker_state(format!("plugin\n{plugin}\n{key}"))
    }

    /// The key of this instance's state; `None` if the configuration is only checked.
    fn identified(&self, key: &str) -> Option<String> {
        let Owner { collection, id } = self.owner;
        let (plugin, config) = self.identity?;
        (!collection.is_empty()).then(|| format!("{collection}\n{id}\n{plugin}\n{key}\n{config}"))
    }

    /// A service of the program that this crate does not know; shared by all instances.
    pub fn service<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.services.extensions.get()
    }

    /// Sets the builder of other plugins, for [`Build::plugin`].
    #[must_use]
    pub fn with_plugin_builder(self, others: &'a dyn PluginBuilder) -> Build<'a> {
        Build { others: Some(others), ..self }
    }

    /// Sets the upstreams, for [`Build::upstream`].
    #[must_use]
    pub fn with_upstreams(self, upstreams: &'a dyn Upstreams) -> Build<'a> {
        Build { upstreams: Some(upstreams), ..self }
    }

    /// Builds a chain of one other plugin, for a plugin that calls it in its own phases. The
    /// calling plugin gets its result ([`Chain::run`]) and decides what follows from it. `part`
    /// distinguishes several plugins in one configuration, so that each has its own counters; it
    /// must stay the same across configuration changes.
    ///
    /// # Errors
    /// The plugin is unknown or not enabled, its configuration is invalid, or plugins are nested
    /// too deeply. Pointers are relative to `config`.
    pub fn plugin(&self, name: &str, config: &Value, part: &str) -> Result<Arc<Chain>, Invalid> {
        let Some(others) = self.others else {
            return Err(Invalid::new(format!("unknown plugin [{name}]")).got(name));
        };
        let Owner { collection, id } = self.owner;
        // A configuration that is only checked has no owner.
        let id = if collection.is_empty() { String::new() } else { format!("{id}{PART}{part}") };
        others.plugin(name, config, &Owner { collection, id })
    }

    /// Endpoints of the enabled plugins, for a plugin that exposes them.
    pub fn endpoints(&self) -> Vec<Served> {
        self.others.map(|others| others.endpoints(self.owner)).unwrap_or_default()
    }

    /// Whether another plugin identifies consumers; `None` for an unknown plugin.
    pub fn is_auth(&self, name: &str) -> Option<bool> {
        self.others?.is_auth(name)
    }

    /// Builds an upstream from the plugin's configuration. [`crate::Exchange::choose_upstream`]
    /// sends requests to it. It supports all that a route's upstream does: load balancing, names
    /// that are resolved again, connections that are kept alive.
    ///
    /// # Errors
    /// Errors in the configuration, with pointers relative to `written`.
    pub fn upstream(&self, written: &Value) -> Result<UpstreamHandle, Invalid> {
        let parsed = model::Upstream::parse(written)?;
        self.upstreams.map_or_else(|| Ok(UpstreamHandle::default()), |upstreams| upstreams.inline(&parsed))
    }

    /// The upstream resource with this id. While it does not exist, requests sent to it are
    /// answered with 502.
    pub fn upstream_by_id(&self, id: &str) -> UpstreamHandle {
        self.upstreams.map(|upstreams| upstreams.by_id(id)).unwrap_or_default()
    }

    /// Prepares TLS with these authorities and this client certificate, as an upstream's `tls`, for
    /// [`crate::World::connect`].
    ///
    /// # Errors
    /// Errors in the configuration, with pointers relative to it.
    pub fn client_tls(&self, written: &model::upstream::Tls) -> Result<Trust, Invalid> {
        if let Some(id) = &written.client_cert_id {
            // The instance would not be rebuilt with that resource.
            let invalid = Invalid::new("a certificate of an ssl resource cannot be used here");
            return Err(invalid
                .at("/client_cert_id")
                .expected("client_cert and client_key")
                .got(id.as_str()));
        }
        let plain = model::upstream::Tls { verify: written.verify, ..Default::default() };
        match self.upstreams {
            Some(upstreams) if *written != plain => upstreams.client_tls(written).map(Trust::Own),
            _ if written.verify => Ok(Trust::Common),
            _ => Ok(Trust::Any),
        }
    }

    /// Parses `http://host[:port]` (or https). A name that is not resolved yet gives a target
    /// without addresses.
    pub fn target(&self, url: &str) -> Result<Target, Invalid> {
        let (tls, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(Invalid::new(format!("`{url}` must begin with http:// or https://"))),
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (host, port) = split_authority(authority, if tls { 443 } else { 80 })
            .ok_or_else(|| Invalid::new(format!("`{url}` has no valid host and port")))?;
        let addresses = match host.parse::<IpAddr>() {
            Ok(ip) => vec![ip],
            Err(_) => self.names.addresses(host),
        };
        Ok(Target {
            authority: authority.to_owned(),
            addresses: addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect(),
            tls,
        })
    }
}

/// Splits `host`, `host:port`, `[v6]` or `[v6]:port`.
pub fn split_authority(authority: &str, default_port: u16) -> Option<(&str, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, after.strip_prefix(':').or(after.is_empty().then_some("")))
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, Some("")),
        },
    };
    if host.is_empty() {
        return None;
    }
    let port = match port? {
        "" => default_port,
        digits => digits.parse().ok().filter(|&port| port != 0)?,
    };
    Some((host, port))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;
    use crate::connection::TlsHandle;
    use crate::testing::{FixedNames, Probe};
    use crate::{Endpoint, Method};

    /// Records the plugins and upstreams that are requested.
    #[derive(Default)]
    struct Recorder(Mutex<Vec<String>>);

    impl Recorder {
        fn record(&self, text: String) {
            self.0.lock().unwrap().push(text);
        }
    }

    impl PluginBuilder for Recorder {
        fn plugin(&self, name: &str, config: &Value, owner: &Owner) -> Result<Arc<Chain>, Invalid> {
            self.record(format!("{name} {config} for {}/{}", owner.collection, owner.id));
            Ok(Arc::new(Chain::new(Vec::new(), vec!["recorded"])))
        }

        fn is_auth(&self, name: &str) -> Option<bool> {
            (name == "auth").then_some(true)
        }

        fn endpoints(&self, owner: &Owner) -> Vec<Served> {
            let endpoint = Endpoint { method: Method::Get, path: format!("/{}", owner.id) };
            vec![Served { endpoint, at: 0, chain: Arc::default() }]
        }
    }

    impl Upstreams for Recorder {
        fn inline(&self, written: &model::Upstream) -> Result<UpstreamHandle, Invalid> {
            self.record(format!("{} nodes", written.nodes.len()));
            Ok(self.by_id("inline"))
        }

        fn by_id(&self, id: &str) -> UpstreamHandle {
            let handle = UpstreamHandle::default();
            handle.place(id.len() as u32);
            handle
        }

        fn client_tls(&self, written: &model::upstream::Tls) -> Result<TlsHandle, Invalid> {
            self.record(format!("TLS with {:?}", written.ca));
            Ok(TlsHandle(Arc::new(1)))
        }
    }

    fn owner(collection: &'static str, id: &str) -> Owner {
        Owner { collection, id: id.to_owned() }
    }

    #[test]
    fn node_state_is_keyed_by_owner_plugin_configuration_and_key() {
        let (services, names) = (Services::for_tests(), FixedNames::default());
        let (config, other) = (json!({"a": 1}), json!({"a": 2}));
        let get = |owner: &Owner, plugin, config, key| {
            Build::new(owner, &services, &names)
                .with_identity(plugin, config)
                .node_state(key, || Mutex::new(0))
        };
        let (route, second) = (owner("routes", "1"), owner("routes", "2"));
        let first = get(&route, "p", &config, "k");
        assert!(Arc::ptr_eq(&first, &get(&route, "p", &config, "k")), "after a change to another resource");
        let others = [
            get(&second, "p", &config, "k"),
            get(&owner("services", "1"), "p", &config, "k"),
            get(&route, "q", &config, "k"),
            get(&route, "p", &other, "k"),
            get(&route, "p", &config, "l"),
            // Configurations that are only checked share nothing.
            get(&owner("", ""), "p", &config, "k"),
            get(&owner("", ""), "p", &config, "k"),
        ];
        for (at, one) in others.iter().enumerate() {
            assert!(!Arc::ptr_eq(one, &first), "{at}");
            assert!(others[..at].iter().all(|before| !Arc::ptr_eq(before, one)), "{at}");
        }
    }

    #[test]
    fn tls_of_its_own_is_compiled_and_common_tls_is_shared() {
        let (services, names, recorder) = (Services::for_tests(), FixedNames::default(), Recorder::default());
        let owner = owner("routes", "1");
        let build = Build::new(&owner, &services, &names).with_upstreams(&recorder);
        let tls = |change: fn(&mut model::upstream::Tls)| {
            let mut tls = model::upstream::Tls::default();
            change(&mut tls);
            build.client_tls(&tls)
        };
        assert!(matches!(tls(|_| {}), Ok(Trust::Any)));
        assert!(matches!(tls(|tls| tls.verify = true), Ok(Trust::Common)));
        assert_eq!(*recorder.0.lock().unwrap(), [""; 0]);
        assert!(matches!(tls(|tls| tls.ca = Some("PEM".to_owned())), Ok(Trust::Own(_))));
        assert_eq!(*recorder.0.lock().unwrap(), ["TLS with Some(\"PEM\")"]);
        let invalid = tls(|tls| tls.client_cert_id = Some("1".to_owned())).unwrap_err();
        assert_eq!(invalid.pointer, "/client_cert_id");
    }

    #[test]
    fn worker_state_belongs_to_the_instance_or_to_the_plugin() {
        let (services, names, probe) = (Services::for_tests(), FixedNames::default(), Probe::default());
        let config = json!({});
        let count = |state: WorkerState<u32>| {
            state.with(&probe.world, |count| {
                *count += 1;
                *count
            })
        };
        let (one, two) = (owner("routes", "1"), owner("routes", "2"));
        let build = |owner, plugin| Build::new(owner, &services, &names).with_identity(plugin, &config);
        let keep =
            (build(&one, "p").worker_state::<u32>("k"), build(&one, "p").shared_worker_state::<u32>("k"));
        let own = |owner, plugin| count(build(owner, plugin).worker_state("k"));
        assert_eq!([own(&one, "p"), own(&one, "p"), own(&two, "p"), own(&one, "q")], [1, 2, 1, 1]);
        let shared = |owner, plugin, key| count(build(owner, plugin).shared_worker_state(key));
        assert_eq!([shared(&one, "p", "k"), shared(&two, "p", "k")], [1, 2]);
        assert_eq!([shared(&one, "q", "k"), shared(&one, "p", "l")], [1, 1]);
        drop(keep);
    }

    #[test]
    fn a_service_is_found_by_its_type() {
        let mut services = Services::for_tests();
        services.extensions = Extensions::default().with(Arc::new(7_u8)).with(Arc::new("text".to_owned()));
        let (owner, names) = (owner("routes", "1"), FixedNames::default());
        let cx = Build::new(&owner, &services, &names);
        assert_eq!(cx.service::<u8>().as_deref(), Some(&7));
        assert_eq!(cx.service::<String>().as_deref().map(String::as_str), Some("text"));
        assert_eq!(cx.service::<u16>(), None);
    }

    #[test]
    fn nested_plugins_get_an_owner_of_their_own() {
        let (services, names, recorder) = (Services::for_tests(), FixedNames::default(), Recorder::default());
        let (route, no_owner) = (owner("routes", "1"), owner("", ""));
        let cx = Build::new(&route, &services, &names).with_plugin_builder(&recorder);
        assert!(cx.plugin("auth", &json!({}), "0").is_ok());
        let checked = Build::new(&no_owner, &services, &names).with_plugin_builder(&recorder);
        assert!(checked.plugin("auth", &json!({}), "0").is_ok());
        assert_eq!(*recorder.0.lock().unwrap(), ["auth {} for routes/1#0", "auth {} for /"]);
        assert_eq!((cx.is_auth("auth"), cx.is_auth("none")), (Some(true), None));
        assert_eq!(cx.endpoints().iter().map(|served| &*served.endpoint.path).collect::<Vec<_>>(), ["/1"]);
        // Without a builder of other plugins.
        let alone = Build::new(&route, &services, &names);
        assert_eq!(alone.plugin("auth", &json!({}), "0").unwrap_err().reason, "unknown plugin [auth]");
        assert!(alone.is_auth("auth").is_none() && alone.endpoints().is_empty());
    }

    #[test]
    fn inline_upstreams_are_checked_and_built_if_possible() {
        let (services, names, recorder) = (Services::for_tests(), FixedNames::default(), Recorder::default());
        let owner = owner("routes", "1");
        let written = json!({"type": "roundrobin", "nodes": {"10.0.0.1:80": 1, "10.0.0.2:80": 1}});
        let cx = Build::new(&owner, &services, &names).with_upstreams(&recorder);
        assert_eq!(cx.upstream(&written).unwrap().slot(), Some(6));
        assert_eq!(*recorder.0.lock().unwrap(), ["2 nodes"]);
        assert_eq!(cx.upstream_by_id("abc").slot(), Some(3));
        assert!(cx.upstream(&json!({"type": "roundrobin"})).is_err());
        // Without upstreams, the configuration is checked all the same.
        let checked = Build::new(&owner, &services, &names);
        assert_eq!(checked.upstream(&written).unwrap().slot(), None);
        assert_eq!(checked.upstream_by_id("abc").slot(), None);
        assert!(checked.upstream(&json!({"type": "roundrobin"})).is_err());
    }

    #[test]
    fn targets_are_addresses_or_resolved_names() {
        let (services, owner) = (Services::for_tests(), owner("routes", "1"));
        let names = FixedNames([("auth.example".to_owned(), vec!["10.0.0.7".parse().unwrap()])].into());
        let cx = Build::new(&owner, &services, &names);
        for (url, authority, address, tls) in [
            ("http://10.0.0.1", "10.0.0.1", Some("10.0.0.1:80"), false),
            ("https://10.0.0.1/path", "10.0.0.1", Some("10.0.0.1:443"), true),
            ("http://[::1]:81?a=b", "[::1]:81", Some("[::1]:81"), false),
            ("https://auth.example:8443#x", "auth.example:8443", Some("10.0.0.7:8443"), true),
            ("http://elsewhere.example", "elsewhere.example", None, false),
        ] {
            let target = cx.target(url).unwrap();
            let addresses: Vec<_> =
                address.into_iter().map(|text| text.parse::<SocketAddr>().unwrap()).collect();
            assert_eq!(
                (&*target.authority, &*target.addresses, target.tls),
                (authority, &*addresses, tls),
                "{url}"
            );
        }
        for url in ["10.0.0.1", "ftp://10.0.0.1", "http://", "http://a:0", "http://:80"] {
            assert!(cx.target(url).is_err(), "{url}");
        }
        assert!(names.secret("$secret://vault/1/a").is_err(), "no secret manager outside of a compile");
    }

    #[test]
    fn authorities_split_into_host_and_port() {
        assert_eq!(split_authority("a.b", 80), Some(("a.b", 80)));
        assert_eq!(split_authority("a.b:81", 80), Some(("a.b", 81)));
        assert_eq!(split_authority("[::1]:81", 80), Some(("::1", 81)));
        assert_eq!(split_authority("[::1]", 443), Some(("::1", 443)));
        for bad in ["", ":80", "a:0", "a:70000", "a:b", "[::1", "[::1]x"] {
            assert_eq!(split_authority(bad, 80), None, "{bad}");
        }
    }
}
