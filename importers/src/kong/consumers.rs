//! Consumers with their credentials and groups.

use std::collections::HashMap;

use model::{Key, Kind};
use serde_json::{Map, Value, json};

use super::Output;
use super::certificates::secret_value;
use super::entities::{Consumer, Entity, Kong};
use super::plugins::Assigned;
use crate::finding::Severity;
use crate::node::Node;

/// The names of the consumers here.
pub(super) fn usernames(kong: &Kong<'_>, out: &mut Output) -> Vec<String> {
    let mut names = Vec::new();
    for consumer in &kong.consumers {
        let name = out.names.id(Kind::Consumer, &consumer.name);
        if name != consumer.name && !consumer.name.is_empty() {
            let effect = format!(
                "upstreams get `X-Consumer-Username: {name}`: the name may have letters, digits, `-` and `_`"
            );
            out.behaviour(&consumer.entity.node, effect);
        }
        names.push(name);
    }
    names
}

/// Writes consumers, credentials and groups.
pub(super) fn convert(kong: &Kong<'_>, plugins: &Assigned, out: &mut Output) {
    let groups: Vec<String> =
        kong.groups.iter().map(|group| out.names.id(Kind::ConsumerGroup, &group.name)).collect();
    for (index, group) in kong.groups.iter().enumerate() {
        group.entity.get("consumers").map(|node| node.whole());
        let mut value = Map::from_iter([("plugins".to_owned(), Value::Object(plugins.of_group(index)))]);
        super::routes::name(&mut value, &group.name);
        out.add(Kind::ConsumerGroup, groups[index].clone(), Value::Object(value), group.entity.node.place());
    }
    let members = Groups::of(kong);
    for (index, consumer) in kong.consumers.iter().enumerate() {
        let username = plugins.username(index).to_owned();
        let mut value = Map::new();
        value.insert("username".to_owned(), json!(username));
        let mut labels = Map::new();
        if let Some(custom) = consumer.entity.text("custom_id").filter(|id| !id.contains(char::is_whitespace))
        {
            labels.insert("custom_id".to_owned(), json!(custom));
        }
        if let Some(tags) = consumer.entity.tags() {
            labels.insert("tags".to_owned(), json!(tags));
        }
        if !labels.is_empty() {
            value.insert("labels".to_owned(), Value::Object(labels));
        }
        if let Some(group) = group_of(kong, &members, consumer, &groups, out) {
            value.insert("group_id".to_owned(), json!(group));
        }
        let mut own = plugins.of_consumer(index);
        // The first credential of a kind stands in the consumer, others beside it.
        let mut others: Vec<(&'static str, Value, Node<'_>)> = Vec::new();
        for (section, node) in &consumer.credentials {
            let Some((plugin, config)) = credential(section, node, out) else { continue };
            match own.contains_key(plugin) {
                true => others.push((plugin, config, node.clone())),
                false => drop(own.insert(plugin.to_owned(), config)),
            }
        }
        if !own.is_empty() {
            value.insert("plugins".to_owned(), Value::Object(own));
        }
        out.add(Kind::Consumer, username.clone(), Value::Object(value), consumer.entity.node.place());
        for (number, (plugin, config, node)) in others.into_iter().enumerate() {
            let key = Key::credential(&username, &format!("{plugin}-{}", number + 2));
            let mut plugins = Map::new();
            plugins.insert(plugin.to_owned(), config);
            out.add(Kind::Credential, key.id, json!({ "plugins": plugins }), node.place());
        }
    }
}

/// The groups by their names, and by those of the consumers that they list.
#[derive(Default)]
struct Groups<'k> {
    by_name: HashMap<&'k str, Vec<usize>>,
    by_consumer: HashMap<String, Vec<usize>>,
}

impl<'k> Groups<'k> {
    fn of(kong: &'k Kong<'_>) -> Groups<'k> {
        let mut groups = Groups::default();
        for (index, group) in kong.groups.iter().enumerate() {
            groups.by_name.entry(&group.name).or_default().push(index);
            let listed = group.entity.get("consumers").map(|node| node.items()).unwrap_or_default();
            for name in listed.iter().filter_map(|node| node.text().or_else(|| node.some("username")?.text()))
            {
                groups.by_consumer.entry(name).or_default().push(index);
            }
        }
        groups
    }
}

fn group_of(
    kong: &Kong<'_>,
    groups: &Groups<'_>,
    consumer: &Consumer<'_>,
    ids: &[String],
    out: &mut Output,
) -> Option<String> {
    let named = consumer.groups.iter().filter_map(|name| groups.by_name.get(name.as_str()));
    let listing = groups.by_consumer.get(&consumer.name);
    let mut found: Vec<usize> = named.chain(listing).flatten().copied().collect();
    found.sort_unstable();
    found.dedup();
    if let [_, others @ ..] = found.as_slice()
        && !others.is_empty()
    {
        let lost =
            kong.plugins.iter().any(|plugin| plugin.group.is_some_and(|group| others.contains(&group)));
        let severity = if lost { Severity::Guard } else { Severity::Behaviour };
        out.report(
            severity,
            &consumer.entity.node,
            "a consumer has one group here: the plugins of the first one count",
        );
    }
    found.first().map(|index| ids[*index].clone())
}

/// The plugin and the configuration of a credential.
fn credential(section: &str, node: &Node<'_>, out: &mut Output) -> Option<(&'static str, Value)> {
    let entity = Entity::new(node.clone());
    node.get("consumer").map(|node| node.whole());
    let mut secret = |name: &str| -> Option<Value> {
        let Some(part) = entity.get(name) else {
            if !matches!((section, name), ("jwt_secrets", "secret" | "rsa_public_key")) {
                out.behaviour(
                    node,
                    format!("has no `{name}`, for which Kong makes one up; the credential is not accepted"),
                );
            }
            return None;
        };
        let value = secret_value(&part);
        if value.is_none() {
            out.behaviour(&part, "the secret cannot be read, so the credential is not accepted");
        }
        value
    };
    let made = match section {
        "keyauth_credentials" => {
            let key = secret("key")?;
            ("key-auth", json!({ "key": key }))
        }
        "basicauth_credentials" => {
            let (name, password) = (secret("username")?, secret("password"));
            ("basic-auth", json!({"username": name, "password": password?}))
        }
        "hmacauth_credentials" => {
            let (name, key) = (secret("username")?, secret("secret"));
            ("hmac-auth", json!({"key_id": name, "secret_key": key?}))
        }
        "jwt_secrets" => {
            let algorithm = entity.text("algorithm").unwrap_or_else(|| "HS256".to_owned());
            let (key, shared, public) = (secret("key"), secret("secret"), secret("rsa_public_key"));
            let mut config = json!({"key": key?, "algorithm": algorithm});
            if algorithm.starts_with("HS") {
                config["secret"] = shared?;
            } else {
                config["public_key"] = public?;
            }
            ("jwt-auth", config)
        }
        _ => {
            node.whole();
            out.behaviour(node, "credentials of this kind are not supported, so they are not accepted");
            return None;
        }
    };
    if let Some(ttl) = entity.get("ttl").filter(|ttl| ttl.u64() != Some(0)) {
        out.behaviour(&ttl, "credentials do not expire here, so one that would is not accepted");
        return None;
    }
    Some(made)
}
