//! References that lead nowhere.
//!
//! A forced delete, a lease that ends or a declarative file can leave a
//! resource that names another one which is not there. Such a resource is
//! served as far as possible; here it is found, so that it can be reported.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use model::{Desired, Invalid, Key, Kind, Rejected, Resource, Served};

use crate::references::named_by_split;

/// References between resources, and those whose target is missing.
#[derive(Debug, Default)]
pub(super) struct Dangling {
    /// Those that name others, with what they name.
    users: HashMap<Key, Box<[Named]>>,
    /// How often each resource is named.
    named: HashMap<Arc<Key>, u32>,
    /// Each user with the fields that lead nowhere.
    missing: BTreeMap<Key, Vec<Reference>>,
    /// The report of it, kept until it changes.
    report: Option<Arc<[Rejected]>>,
}

/// A field of a user, and what it names. Many name the same few.
type Named = (Field, Arc<Key>);

/// The pointer of a field without its first slash; empty for what a resource belongs to.
type Field = Cow<'static, str>;

/// A field that names a resource.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reference {
    field: Field,
    to: Key,
}

impl Dangling {
    /// Replaces the references of `user`, whether their targets exist or not. [`Dangling::look`] and
    /// [`Dangling::look_at_all`] find the missing ones.
    pub fn set(&mut self, user: &Key, now: Vec<Reference>) {
        let name = |Reference { field, to }| match self.named.get_key_value(&to).map(|(to, _)| to.clone()) {
            Some(known) => {
                self.named.entry(known.clone()).and_modify(|times| *times += 1);
                (field, known)
            }
            None => {
                let to = Arc::new(to);
                self.named.insert(to.clone(), 1);
                (field, to)
            }
        };
        let now: Box<[Named]> = now.into_iter().map(name).collect();
        let before = match now.is_empty() {
            true => self.users.remove(user),
            false => self.users.insert(user.clone(), now),
        };
        for (_, gone) in before.iter().flatten() {
            if let Some(times) = self.named.get_mut(gone) {
                *times -= 1;
                if *times == 0 {
                    self.named.remove(gone);
                }
            }
        }
    }

    /// Looks for what `key` names, and, if it has come or gone itself, at those that name it.
    pub fn look(&mut self, key: &Key, came_or_went: bool, desired: &Desired) {
        self.look_at(key, desired);
        if came_or_went && self.named.contains_key(key) {
            // Rare enough for a look at all who name anything.
            let names_it = |named: &[Named]| named.iter().any(|(_, to)| **to == *key);
            let users = self.users.iter().filter(|(_, named)| names_it(named)).map(|(user, _)| user.clone());
            let users: Vec<Key> = users.collect();
            users.iter().for_each(|user| self.look_at(user, desired));
        }
    }

    /// Looks for what anybody names.
    pub fn look_at_all(&mut self, desired: &Desired) {
        // Many name the same few.
        let is_missing = |key: &&Arc<Key>| desired.get(key.kind, &key.id).is_none();
        let missing: HashSet<&Arc<Key>> = self.named.keys().filter(is_missing).collect();
        let lacks = |named: &[Named]| named.iter().any(|(_, to)| missing.contains(to));
        let lacking = match missing.is_empty() {
            true => Vec::new(),
            false => self.users.iter().filter(|(_, named)| lacks(named)).map(|(user, _)| user).collect(),
        };
        let known: Vec<Key> = lacking.into_iter().chain(self.missing.keys()).cloned().collect();
        known.iter().for_each(|user| self.look_at(user, desired));
    }

    /// Resources that name what is not there. The same `Arc` as before if nothing changed.
    pub fn report(&mut self) -> Arc<[Rejected]> {
        let missing = &self.missing;
        let report = self.report.get_or_insert_with(|| {
            let each = missing.iter().flat_map(|(key, fields)| {
                fields.iter().map(|field| Rejected {
                    key: key.clone(),
                    invalid: field.invalid(),
                    served: Served::Incomplete,
                })
            });
            each.collect()
        });
        report.clone()
    }

    fn look_at(&mut self, user: &Key, desired: &Desired) {
        let named = self.users.get(user).into_iter().flatten();
        let missing = named.filter(|(_, to)| desired.get(to.kind, &to.id).is_none());
        let missing: Vec<Reference> =
            missing.map(|(field, to)| Reference { field: field.clone(), to: Key::clone(to) }).collect();
        if self.missing.get(user).map(Vec::as_slice).unwrap_or_default() == missing {
            return;
        }
        self.report = None;
        match missing.is_empty() {
            true => self.missing.remove(user),
            false => self.missing.insert(user.clone(), missing),
        };
    }
}

/// Returns the references of a resource. A consumer without its group is rejected by the compiler already.
pub(super) fn references(user: &Key, resource: &Resource) -> Vec<Reference> {
    let by_id = |field: &'static str, kind: Kind, id: &Option<String>| {
        id.as_ref().map(|id| Reference { field: field.into(), to: Key::new(kind, id.as_str()) })
    };
    let certificate = resource.upstream().and_then(|upstream| upstream.tls.as_ref());
    let field = match user.kind {
        Kind::Upstream => "tls/client_cert_id",
        _ => "upstream/tls/client_cert_id",
    };
    let certificate = certificate.and_then(|tls| by_id(field, Kind::Ssl, &tls.client_cert_id));
    let found = match resource {
        Resource::Route(route) => [
            by_id("upstream_id", Kind::Upstream, &route.upstream_id),
            by_id("service_id", Kind::Service, &route.service_id),
            by_id("plugin_config_id", Kind::PluginConfig, &route.plugin_config_id),
        ],
        Resource::StreamRoute(route) => [
            by_id("upstream_id", Kind::Upstream, &route.upstream_id),
            by_id("service_id", Kind::Service, &route.service_id),
            None,
        ],
        Resource::Service(service) => {
            [by_id("upstream_id", Kind::Upstream, &service.upstream_id), None, None]
        }
        Resource::Credential(_) | Resource::CostDecoration(_) => {
            let owner = user.kind.owner().zip(user.owner());
            [owner.map(|(kind, id)| Reference { field: "".into(), to: Key::new(kind, id) }), None, None]
        }
        _ => [None, None, None],
    };
    let split = resource.plugins().and_then(|plugins| plugins.get("traffic-split"));
    let split = split.map(named_by_split).unwrap_or_default().into_iter();
    let split =
        split.map(|(place, to)| Reference { field: format!("plugins/traffic-split{place}").into(), to });
    found.into_iter().flatten().chain(certificate).chain(split).collect()
}

impl Reference {
    fn invalid(&self) -> Invalid {
        let Reference { field, to } = self;
        let invalid = Invalid::new(format!("{to} does not exist"));
        match &**field {
            "" => invalid.hint(format!("create that {}, or delete what belongs to it", to.kind)),
            field => invalid
                .at(format!("/{field}"))
                .expected(format!("the id of one of the {}", to.kind.collection()))
                .hint("create it, or name another one; requests that need it fail until then"),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Entry;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Default)]
    struct Site {
        desired: Desired,
        dangling: Dangling,
    }

    impl Site {
        fn put(&mut self, kind: Kind, id: &str, value: Value) {
            let key = Key::new(kind, id);
            let resource = Resource::parse(kind, id, &value).unwrap();
            self.dangling.set(&key, references(&key, &resource));
            let before = self.desired.put(Arc::new(Entry::new(key.clone(), resource, 1, 1)));
            self.dangling.look(&key, before.is_none(), &self.desired);
        }

        fn delete(&mut self, kind: Kind, id: &str) {
            let key = Key::new(kind, id);
            self.dangling.set(&key, Vec::new());
            let before = self.desired.delete(&key);
            self.dangling.look(&key, before.is_some(), &self.desired);
        }

        /// Incremental and from scratch must agree.
        fn report(&mut self) -> Vec<String> {
            let report = self.dangling.report();
            let mut fresh = Dangling::default();
            for entry in self.desired.iter() {
                fresh.set(&entry.key, references(&entry.key, entry.resource()));
            }
            fresh.look_at_all(&self.desired);
            assert_eq!((&report, &self.dangling.named), (&fresh.report(), &fresh.named));
            assert_eq!(self.dangling.users, fresh.users);
            report.iter().map(|one| format!("{}{}", one.key, one.invalid.pointer)).collect()
        }
    }

    fn upstream() -> Value {
        json!({"nodes": {"127.0.0.1:80": 1}})
    }

    #[test]
    fn a_missing_client_certificate_is_reported() {
        let mut site = Site::default();
        let tls = json!({"scheme": "https", "nodes": {"127.0.0.1:80": 1}, "tls": {"client_cert_id": "c"}});
        site.put(Kind::Upstream, "u", tls.clone());
        site.put(Kind::Upstream, "plain", upstream());
        site.put(Kind::Route, "1", json!({"uri": "/", "upstream": tls}));
        let missing = ["routes/1/upstream/tls/client_cert_id", "upstreams/u/tls/client_cert_id"];
        assert_eq!(site.report(), missing);
        let certs = |name: &str| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/certs/");
            std::fs::read_to_string(format!("{folder}{name}")).unwrap()
        };
        let pair = json!({"type": "client", "cert": certs("client.crt"), "key": certs("client.key")});
        site.put(Kind::Ssl, "c", pair);
        assert_eq!(site.report(), [""; 0]);
        site.delete(Kind::Ssl, "c");
        assert_eq!(site.report(), missing);
        site.put(Kind::Upstream, "u", upstream());
        assert_eq!(site.report(), missing[..1]);
    }

    #[test]
    fn dangling_references_are_reported_while_they_dangle() {
        let mut site = Site::default();
        site.put(Kind::Upstream, "u", upstream());
        site.put(Kind::Service, "s", json!({"upstream_id": "u"}));
        site.put(Kind::Route, "1", json!({"uri": "/", "upstream_id": "u", "service_id": "s"}));
        site.put(Kind::Route, "2", json!({"uri": "/", "service_id": "t"}));
        site.put(Kind::Route, "3", json!({"uri": "/", "plugins": {}}));
        assert_eq!(site.report(), ["routes/2/service_id"]);
        let same = site.dangling.report();
        site.put(Kind::Route, "3", json!({"uri": "/3", "plugins": {}}));
        assert!(Arc::ptr_eq(&same, &site.dangling.report()));

        site.delete(Kind::Upstream, "u");
        assert_eq!(site.report(), ["routes/1/upstream_id", "routes/2/service_id", "services/s/upstream_id"]);
        let report = site.dangling.report();
        assert_eq!(report[0].invalid.reason, "upstreams/u does not exist");

        site.put(Kind::Route, "1", json!({"uri": "/", "service_id": "s"}));
        site.put(Kind::Service, "t", json!({}));
        assert_eq!(site.report(), ["services/s/upstream_id"]);
        site.put(Kind::Upstream, "u", upstream());
        assert_eq!(site.report(), [""; 0]);
        site.delete(Kind::Service, "s");
        site.delete(Kind::Route, "1");
        assert_eq!(site.report(), [""; 0]);
    }

    #[test]
    fn upstreams_and_certificates_that_traffic_split_names_are_reported() {
        let mut site = Site::default();
        let split = json!({"traffic-split": {"rules": [
            {"match": [{"vars": []}]},
            {"weighted_upstreams": [
                {"weight": 1}, {"upstream_id": 7},
                {"upstream": {"scheme": "https", "nodes": {"127.0.0.1:80": 1}, "tls": {"client_cert_id": "c"}}},
            ]},
        ]}});
        let at = "/plugins/traffic-split/rules/1/weighted_upstreams/";
        let users = [
            (Kind::Route, "r", json!({"uri": "/", "plugins": split})),
            (Kind::Service, "s", json!({"plugins": split})),
            (Kind::StreamRoute, "t", json!({"plugins": split})),
            (Kind::PluginConfig, "p", json!({"plugins": split})),
            (Kind::GlobalRule, "g", json!({"plugins": split})),
            (Kind::Consumer, "c", json!({"username": "c", "plugins": split})),
            (Kind::ConsumerGroup, "cg", json!({"plugins": split})),
        ];
        for (kind, id, value) in users {
            site.put(kind, id, value);
            let key = Key::new(kind, id);
            assert_eq!(
                site.report(),
                [format!("{key}{at}1/upstream_id"), format!("{key}{at}2/upstream/tls/client_cert_id"),]
            );
            site.put(Kind::Upstream, "7", upstream());
            assert_eq!(site.report(), [format!("{key}{at}2/upstream/tls/client_cert_id")]);
            site.delete(Kind::Upstream, "7");
            site.delete(kind, id);
        }
        assert_eq!(site.report(), [""; 0]);
    }

    #[test]
    fn a_credential_needs_its_consumer() {
        let mut site = Site::default();
        site.put(Kind::Credential, "jack/credentials/a", json!({"id": "a"}));
        assert_eq!(site.report(), ["consumers/jack/credentials/a"]);
        site.put(Kind::Consumer, "jack", json!({"username": "jack"}));
        assert_eq!(site.report(), [""; 0]);
    }
}
