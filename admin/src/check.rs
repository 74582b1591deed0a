//! Checks a resource before it is stored.

use std::net::Ipv6Addr;

use model::{Invalid, Key, Kind, Resource, gaps};
use sdk::Catalog;
use sdk::build::Owner;
use sdk::catalog::{SchemaType, Subsystem};
use sdk::expr::Expr;
use serde_json::Value;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::Admin;
use crate::answer::ErrorAnswer;

/// Runs work that loads code, which may take a second, while other threads go on with the tasks of this one.
fn blocking<T>(load: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(load),
        _ => load(),
    }
}

impl Admin {
    /// Returns this API with a catalog that has these scripts too, to check what is written together with them.
    pub(crate) fn with_scripts<'v>(&self, written: impl Iterator<Item = (Key, &'v Value)>) -> Admin {
        let read = |(key, value): (Key, &Value)| match Resource::parse(Kind::Script, &key.id, value) {
            Ok(Resource::Script(script)) => Some((key.id, *script)),
            _ => None,
        };
        let scripts: Vec<_> = written.filter(|(key, _)| key.kind == Kind::Script).filter_map(read).collect();
        if scripts.is_empty() {
            return self.clone();
        }
        let scripts: Vec<_> = scripts.iter().map(|(id, script)| (&**id, script)).collect();
        let catalog =
            blocking(|| self.catalog.with_scripts(&scripts)).unwrap_or_else(|| self.catalog.clone());
        Admin { catalog, ..self.clone() }
    }

    /// Checks a value as far as no other resources are needed.
    pub(crate) async fn check(&self, key: &Key, value: &Value) -> Result<(), ErrorAnswer> {
        let loaded = self.loaded_names().await?;
        Ok(self.check_loaded_with(&loaded, key, value)?)
    }

    /// Checks a value with a given list of HTTP plugins in use, where reading the list is not possible.
    pub(crate) fn check_loaded_with(
        &self,
        loaded: &[&'static str],
        key: &Key,
        value: &Value,
    ) -> Result<(), Invalid> {
        self.check_alone(key, value)?;
        match key.kind {
            Kind::Ssl => check_stapling(loaded, value)?,
            Kind::StreamRoute => {
                self.check_stream_loaded(value)?;
                self.check_protocol(key, value)?;
            }
            _ => self.check_loaded(loaded, value)?,
        }
        match key.kind {
            Kind::Credential => self.check_credential(value),
            _ => Ok(()),
        }
    }

    /// Checks a value as far as that is possible without other resources: its fields, its
    /// plugins, and that this program can do what it asks for.
    pub(crate) fn check_alone(&self, key: &Key, value: &Value) -> Result<(), Invalid> {
        check_alone(&*self.catalog, &|text| self.store.open_secret(text), key, value)
    }

    /// Refuses plugins that the `plugins` list of config.yaml leaves out.
    fn check_loaded(&self, loaded: &[&'static str], value: &Value) -> Result<(), Invalid> {
        let Some(plugins) = value.get("plugins").and_then(Value::as_object) else { return Ok(()) };
        let all = self.catalog.about();
        for name in plugins.keys() {
            let known = all.iter().any(|about| about.subsystem == Subsystem::Http && about.name == name);
            if known && !loaded.contains(&name.as_str()) {
                return Err(Invalid::new(format!("unknown plugin [{name}]"))
                    .within(name)
                    .under("/plugins")
                    .hint("add it to `plugins` in config.yaml, then PUT /apisix/admin/plugins/reload"));
            }
        }
        Ok(())
    }

    /// Refuses plugins of a stream route that the `stream_plugins` list of config.yaml leaves out.
    fn check_stream_loaded(&self, value: &Value) -> Result<(), Invalid> {
        let plugins = value.get("plugins").and_then(Value::as_object);
        let names = plugins.into_iter().flat_map(|plugins| plugins.keys());
        self.check_stream_listed(names.map(String::as_str)).map_err(|invalid| invalid.under("/plugins"))
    }

    /// Refuses the first of these plugins that `stream_plugins` leaves out.
    fn check_stream_listed<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> Result<(), Invalid> {
        let Some(listed) = &self.config.stream_plugins else { return Ok(()) };
        let all = self.catalog.about();
        let needs_no_entry = |name: &str| {
            all.iter().any(|about| {
                about.needs_no_entry && about.subsystem == Subsystem::Stream && about.name == name
            })
        };
        match names.find(|name| !listed.iter().any(|listed| listed == name) && !needs_no_entry(name)) {
            None => Ok(()),
            Some(name) => Err(Invalid::new(format!("unknown plugin [{name}]"))
                .within(name)
                .hint("add it to `stream_plugins` in config.yaml and restart")),
        }
    }

    /// Refuses a protocol that `xrpc.protocols` leaves out, and loggers of its calls that could log nothing.
    fn check_protocol(&self, key: &Key, value: &Value) -> Result<(), Invalid> {
        let Resource::StreamRoute(route) = Resource::parse(key.kind, &key.id, value)? else { return Ok(()) };
        let Some(protocol) = &route.protocol else { return Ok(()) };
        protocol.check_listed(&self.config.protocols)?;
        for (at, logger) in protocol.loggers.iter().enumerate() {
            let under = |invalid: Invalid| invalid.within(at).under("/protocol/logger");
            if let Some(name) = &logger.name {
                let checked = self.catalog.check(name, &logger.conf, SchemaType::Stream);
                checked.map_err(|invalid| under(invalid.under("/conf")))?;
                let plugins = [name.as_str()];
                self.check_stream_listed(plugins.into_iter())
                    .map_err(|invalid| under(invalid.at("/name")))?;
            }
            if logger.filter.as_array().is_some_and(|filter| !filter.is_empty()) {
                Expr::compile(&logger.filter).map_err(|invalid| {
                    under(invalid.under("/filter").said("failed to validate the 'filter' expression: "))
                })?;
            }
        }
        Ok(())
    }

    fn check_credential(&self, value: &Value) -> Result<(), Invalid> {
        let plugins = value.get("plugins").and_then(Value::as_object);
        let all = self.catalog.about();
        for name in plugins.into_iter().flat_map(|plugins| plugins.keys()) {
            if !all.iter().any(|about| about.auth && about.name == name) {
                return Err(Invalid::new("only supports auth type plugins in consumer credential"));
            }
        }
        Ok(())
    }
}

/// Refuses the field `ocsp_stapling` of ssl resources unless the plugin ocsp-stapling is in use.
fn check_stapling(loaded: &[&'static str], value: &Value) -> Result<(), Invalid> {
    let asks = value.get("ocsp_stapling").is_some_and(|field| !field.is_null());
    if asks && !loaded.contains(&"ocsp-stapling") {
        return Err(Invalid::new("additional properties forbidden, found ocsp_stapling")
            .within("ocsp_stapling")
            .hint("add ocsp-stapling to `plugins` in config.yaml, then PUT /apisix/admin/plugins/reload"));
    }
    Ok(())
}

/// Decrypts a private key that a client sends back encrypted by the keyring, as a GET of another gateway of
/// the cluster may have shown it.
type Open<'a> = &'a dyn Fn(&str) -> Option<String>;

fn check_alone(catalog: &dyn Catalog, open: Open<'_>, key: &Key, value: &Value) -> Result<(), Invalid> {
    gaps::check(key.kind, value)?;
    check_configs(value).map_err(|invalid| invalid.said(before_plugins(key.kind)))?;
    if key.kind == Kind::PluginMetadata {
        return check_metadata(catalog, key, value);
    }
    check_hosts(key.kind, value)?;
    let mut resource = Resource::parse(key.kind, &key.id, value)?;
    if let Resource::Route(route) = &resource
        && let Some(vars) = &route.vars
    {
        let checked = Expr::compile(vars).and_then(|_| check_paths(vars));
        checked
            .map_err(|invalid| invalid.under("/vars").said("failed to validate the 'vars' expression: "))?;
    }
    if let Resource::Route(route) = &resource
        && let Some(code) = &route.filter_func
    {
        blocking(|| catalog.condition(&key.id, code)).map_err(|invalid| invalid.under("/filter_func"))?;
    }
    let script = match &resource {
        Resource::Route(route) => route.script.as_deref(),
        Resource::Service(service) => service.script.as_deref(),
        _ => None,
    };
    if let Some(code) = script {
        let owner = Owner { collection: key.kind.collection(), id: key.id.clone() };
        blocking(|| catalog.script(&owner, code)).map_err(|invalid| invalid.under("/script"))?;
    }
    if let Resource::Ssl(ssl) = &mut resource {
        for pair in &mut ssl.pairs {
            pair.key = opened(open, std::mem::take(&mut pair.key));
        }
        control::certificates::check(ssl, crate::now())?;
    }
    if let Resource::Script(script) = &resource {
        blocking(|| catalog.check_script(&key.id, script))?;
    }
    if let Resource::Proto(proto) = &resource {
        sdk::protos::compile(&proto.content)?;
    }
    check_client_certificate(&resource, open, value)?;
    let Some(plugins) = resource.plugins() else { return Ok(()) };
    match key.kind {
        Kind::Consumer | Kind::Credential => catalog.check_all(plugins, SchemaType::Consumer),
        Kind::StreamRoute => catalog.check_all(plugins, SchemaType::Stream),
        _ => catalog.check_all(plugins, SchemaType::Route),
    }
    .map_err(|invalid| invalid.under("/plugins").said(before_plugins(key.kind)))
}

/// Returns APISIX's prefix of messages about the plugins of such a resource.
fn before_plugins(kind: Kind) -> &'static str {
    match kind {
        Kind::Consumer | Kind::Credential => "invalid plugins configuration: ",
        _ => "",
    }
}

/// Refuses conditions on `post_arg.` with an invalid path into the body, as APISIX does: they would never hold.
fn check_paths(conditions: &Value) -> Result<(), Invalid> {
    let Some(list) = conditions.as_array() else { return Ok(()) };
    if let [Value::String(name), _, _, ..] = &list[..]
        && let Some(path) = name.strip_prefix("post_arg.")
    {
        return match sdk::vars::is_readable(name) {
            true => Ok(()),
            false => Err(Invalid::new(format!("invalid expression: {path} is no path into a body"))
                .at("/0")
                .expected("members and elements, such as a.b[0].c, a[*].b or a..b")),
        };
    }
    let mut parts = list.iter().enumerate();
    parts.try_for_each(|(at, part)| check_paths(part).map_err(|invalid| invalid.under(&format!("/{at}"))))
}

/// Refuses a client certificate for an upstream that does not match its key, as APISIX does.
fn check_client_certificate(resource: &Resource, open: Open<'_>, value: &Value) -> Result<(), Invalid> {
    let (upstream, place) = match resource {
        Resource::Upstream(_) => (Some(value), ""),
        _ => (value.get("upstream"), "/upstream"),
    };
    let text = |name: &str| upstream?.pointer(&format!("/tls/{name}"))?.as_str().map(str::to_owned);
    let (Some(cert), Some(key)) = (text("client_cert"), text("client_key")) else { return Ok(()) };
    let key = opened(open, key);
    control::certificates::check_client(model::CertificatePair { cert, key }).map_err(|invalid| {
        let field = if invalid.pointer == "/key" { "client_key" } else { "client_cert" };
        invalid.at(format!("{place}/tls/{field}"))
    })
}

fn opened(open: Open<'_>, key: String) -> String {
    open(&key).unwrap_or(key)
}

fn check_metadata(catalog: &dyn Catalog, key: &Key, value: &Value) -> Result<(), Invalid> {
    Resource::parse(key.kind, &key.id, value)?;
    let mut config = value.clone();
    if let Some(map) = config.as_object_mut() {
        // The id belongs to the resource, not to the plugin's metadata.
        map.shift_remove("id");
    }
    catalog.check(&key.id, &config, SchemaType::Metadata).map_err(|invalid| {
        match invalid.reason.starts_with("unknown plugin") {
            true => Invalid { reason: "invalid plugin name".to_owned(), ..invalid },
            false => invalid.said("invalid configuration: "),
        }
    })
}

/// Refuses plugin configurations that are not objects. APISIX repeats them in its message; this API does
/// not, since the value may be a secret.
fn check_configs(value: &Value) -> Result<(), Invalid> {
    let plugins = value.get("plugins").and_then(Value::as_object);
    for (name, config) in plugins.into_iter().flatten() {
        let empty_list = config.as_array().is_some_and(Vec::is_empty);
        if !config.is_object() && !config.is_null() && !empty_list {
            return Err(Invalid::new(format!("invalid plugin conf for plugin [{name}]"))
                .within(name)
                .under("/plugins")
                .expected("an object"));
        }
    }
    Ok(())
}

/// Refuses IPv6 addresses without brackets among nodes. A declarative file may hold them.
fn check_hosts(kind: Kind, value: &Value) -> Result<(), Invalid> {
    let at = if kind == Kind::Upstream { "" } else { "/upstream" };
    let nodes = value.pointer(&format!("{at}/nodes")).and_then(Value::as_array);
    for (index, node) in nodes.into_iter().flatten().enumerate() {
        let host = node.get("host").and_then(Value::as_str);
        if host.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok()) {
            return Err(Invalid::new(
                "invalid configuration: IPv6 address must be enclosed with '[' and ']'",
            )
            .at(format!("{at}/nodes/{index}/host")));
        }
    }
    Ok(())
}
