//! Resources that nothing refers to, and consumers that no request can be identified as.

use hashbrown::HashSet;
use model::{Invalid, Key, Kind, Resource};
use serde_json::Value;

use super::{Analysis, Code, Input, uses_plugin};

pub(super) fn check(of: Input<'_>, found: &mut Analysis) {
    let mut used: HashSet<(Kind, &str)> = HashSet::new();
    // Consumer uses_plugin in plugin settings (`anonymous_consumer`).
    let mut texts: HashSet<&str> = HashSet::new();
    for entry in of.desired.iter() {
        let mut note = |kind, id: &'_ Option<String>| {
            if let Some(id) = id
                && let Some(known) = of.desired.get(kind, id)
            {
                used.insert((kind, known.key.id.as_str()));
            }
        };
        match entry.resource() {
            Resource::Route(route) => {
                note(Kind::Upstream, &route.upstream_id);
                note(Kind::Service, &route.service_id);
                note(Kind::PluginConfig, &route.plugin_config_id);
            }
            Resource::Service(service) => note(Kind::Upstream, &service.upstream_id),
            Resource::StreamRoute(route) => {
                note(Kind::Upstream, &route.upstream_id);
                note(Kind::Service, &route.service_id);
            }
            Resource::Consumer(consumer) => note(Kind::ConsumerGroup, &consumer.group_id),
            _ => {}
        }
        for config in entry.resource().plugins().into_iter().flat_map(|plugins| plugins.values()) {
            gather(of, config, &mut used, &mut texts);
        }
    }
    for (kind, by) in [
        (Kind::Upstream, "no route, service, stream route or plugin refers to it"),
        (Kind::Service, "no route and no stream route refers to it"),
        (Kind::PluginConfig, "no route refers to it"),
        (Kind::ConsumerGroup, "no consumer refers to it"),
    ] {
        for entry in of.desired.of(kind) {
            if !used.contains(&(kind, entry.key.id.as_str())) {
                let invalid = Invalid::new(format!("this {} is not used: {by}", kind.word()))
                    .hint("delete it, or refer to it by its id");
                found.add(Code::Unused, &entry.key, invalid);
            }
        }
    }
    subordinates(of, found);
    consumers(of, &texts, found);
}

/// Reports stream routes under a superior one whose protocol selects no subordinates.
fn subordinates(of: Input<'_>, found: &mut Analysis) {
    for entry in of.desired.of(Kind::StreamRoute) {
        let Resource::StreamRoute(route) = entry.resource() else { continue };
        let Some(protocol) = &route.protocol else { continue };
        if let Some(superior) = &protocol.superior_id {
            let name = protocol.name();
            let invalid = Invalid::new(format!(
                "no connection reaches this stream route: it stands below stream route {superior}, and {name} chooses none of those, as in APISIX"
            ))
            .at("/protocol/superior_id")
            .hint("without `superior_id` it takes connections by its own conditions");
            found.add(Code::Unused, &entry.key, invalid);
        }
    }
}

/// Collects upstream ids and all strings in the settings of a plugin.
fn gather<'a>(
    of: Input<'a>,
    value: &'a Value,
    used: &mut HashSet<(Kind, &'a str)>,
    texts: &mut HashSet<&'a str>,
) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| gather(of, item, used, texts)),
        Value::Object(fields) => {
            for (name, field) in fields {
                if name == "upstream_id" {
                    let id = field.as_str().map_or_else(|| field.to_string(), str::to_owned);
                    used.extend(
                        of.desired.get(Kind::Upstream, &id).map(|it| (Kind::Upstream, it.key.id.as_str())),
                    );
                }
                if name == "anonymous_consumer" {
                    texts.extend(field.as_str());
                }
                gather(of, field, used, texts);
            }
        }
        _ => {}
    }
}

fn consumers(of: Input<'_>, anonymous: &HashSet<&str>, found: &mut Analysis) {
    if of.desired.count(Kind::Consumer) == 0 {
        return;
    }
    let auth: Vec<&'static str> =
        of.catalog.about().into_iter().filter(|about| about.auth).map(|about| about.name).collect();
    // The auth plugins that at least one request runs.
    let asks: HashSet<&str> = auth
        .iter()
        .copied()
        .filter(|name| {
            let kinds = [Kind::Route, Kind::Service, Kind::PluginConfig, Kind::GlobalRule];
            let mut all = kinds.into_iter().flat_map(|kind| of.desired.of(kind));
            all.any(|entry| {
                entry
                    .resource()
                    .plugins()
                    .is_some_and(|plugins| uses_plugin(plugins, &|plugin| plugin == *name))
            })
        })
        .collect();
    let mut proofs: HashSet<&str> = HashSet::new();
    let mut idle: HashSet<&str> = HashSet::new();
    for entry in of.desired.of(Kind::Consumer).chain(of.desired.of(Kind::Credential)) {
        let owner = entry.key.owner().unwrap_or(&entry.key.id);
        for plugin in entry.resource().plugins().into_iter().flat_map(|plugins| plugins.keys()) {
            match auth.contains(&plugin.as_str()) {
                true if asks.contains(plugin.as_str()) => _ = proofs.insert(owner),
                true => _ = idle.insert(owner),
                false => {}
            }
        }
    }
    for entry in of.desired.of(Kind::Consumer) {
        let id = entry.key.id.as_str();
        if proofs.contains(id) || anonymous.contains(id) {
            continue;
        }
        let key = Key::new(Kind::Consumer, id);
        let invalid = match idle.contains(id) {
            true => Invalid::new(
                "this consumer is not used: no route, service, plugin config or global rule has the authentication \
                 plugin that would identify it",
            )
            .hint("add the plugin (such as key-auth) to the routes it should use, or delete the consumer"),
            false => Invalid::new("this consumer is not used: it has no credential that could identify it")
                .hint("configure an authentication plugin on it, add a credential, or delete it"),
        };
        found.add(Code::Unused, &key, invalid);
    }
}
