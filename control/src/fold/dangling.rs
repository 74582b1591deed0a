//! References that lead nowhere.
//!
//! A forced delete, a lease that ends or a declarative file can leave a
//! resource that names another one which is not there. Such a resource is
//! served as far as that goes; here it is found, so that it can be told.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use model::{Desired, Entry, Invalid, Key, Kind, Rejected, Resource, Served};

/// The resources that name others.
const USERS: [Kind; 6] =
    [Kind::Route, Kind::Service, Kind::StreamRoute, Kind::Upstream, Kind::Credential, Kind::CostDecoration];

/// How often each resource is named, and by whom those that are not there.
#[derive(Debug, Default)]
pub(super) struct Dangling {
    named: HashMap<Key, u32>,
    /// Each user with the fields that lead nowhere.
    missing: BTreeMap<Key, Vec<Reference>>,
    /// The same for others, until it changes.
    told: Option<Arc<[Rejected]>>,
}

#[derive(Debug, Clone, PartialEq)]
struct Reference {
    field: &'static str,
    to: Key,
}

impl Dangling {
    /// Starts over from everything.
    pub fn rebuild(&mut self, desired: &Desired) {
        *self = Dangling::default();
        for user in users(desired) {
            self.count(user);
            self.look(user, desired);
        }
    }

    /// `key` was `before` and is now what `desired` says.
    pub fn changed(&mut self, key: &Key, before: Option<&Entry>, desired: &Desired) {
        let now = desired.get(key.kind, &key.id);
        if let Some(now) = now {
            self.count(now);
        }
        for gone in before.map(references).unwrap_or_default() {
            if let Some(times) = self.named.get_mut(&gone.to) {
                *times -= 1;
                if *times == 0 {
                    self.named.remove(&gone.to);
                }
            }
        }
        match now {
            Some(now) => self.look(now, desired),
            None => self.set(key, Vec::new()),
        }
        if before.is_some() != now.is_some() && self.named.contains_key(key) {
            self.users_of(key, desired);
        }
    }

    /// Resources that name what is not there. The same `Arc` as before if nothing changed.
    pub fn told(&mut self) -> Arc<[Rejected]> {
        let missing = &self.missing;
        let told = self.told.get_or_insert_with(|| {
            let each = missing.iter().flat_map(|(key, fields)| {
                fields.iter().map(|field| Rejected {
                    key: key.clone(),
                    invalid: field.invalid(),
                    served: Served::Incomplete,
                })
            });
            each.collect()
        });
        told.clone()
    }

    fn count(&mut self, user: &Entry) {
        for reference in references(user) {
            match self.named.get_mut(&reference.to) {
                Some(times) => *times += 1,
                None => _ = self.named.insert(reference.to, 1),
            }
        }
    }

    fn look(&mut self, user: &Entry, desired: &Desired) {
        let mut missing = references(user);
        missing.retain(|reference| desired.get(reference.to.kind, &reference.to.id).is_none());
        self.set(&user.key, missing);
    }

    fn set(&mut self, user: &Key, missing: Vec<Reference>) {
        if self.missing.get(user).map(Vec::as_slice).unwrap_or_default() == missing {
            return;
        }
        self.told = None;
        match missing.is_empty() {
            true => self.missing.remove(user),
            false => self.missing.insert(user.clone(), missing),
        };
    }

    /// Somebody names `to`, which has come or gone: rare enough for a look at all who could.
    fn users_of(&mut self, to: &Key, desired: &Desired) {
        // What belongs to another names that in its key.
        let may_name = |user: &Entry| user.key.kind.owner().is_some() || user.may_contain(&to.id);
        for user in users(desired).filter(|user| may_name(user)) {
            if references(user).iter().any(|reference| reference.to == *to) {
                self.look(user, desired);
            }
        }
    }
}

fn users(desired: &Desired) -> impl Iterator<Item = &Arc<Entry>> {
    USERS.into_iter().flat_map(|kind| desired.of(kind))
}

/// What a resource names. A consumer without its group is rejected by the compiler already.
fn references(user: &Entry) -> Vec<Reference> {
    let by_id = |field: &'static str, kind: Kind, id: &Option<String>| {
        id.as_ref().map(|id| Reference { field, to: Key::new(kind, id.as_str()) })
    };
    // Few have one, and many are looked at.
    let shows = user.may_contain("client_cert_id");
    if user.key.kind == Kind::Upstream && !shows {
        return Vec::new();
    }
    let resource = user.peek();
    let certificate = resource.upstream().filter(|_| shows).and_then(|upstream| upstream.tls.as_ref());
    let field = match user.key.kind {
        Kind::Upstream => "tls/client_cert_id",
        _ => "upstream/tls/client_cert_id",
    };
    let certificate = certificate.and_then(|tls| by_id(field, Kind::Ssl, &tls.client_cert_id));
    let found = match &*resource {
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
            let owner = user.key.kind.owner().zip(user.key.owner());
            [owner.map(|(kind, id)| Reference { field: "", to: Key::new(kind, id) }), None, None]
        }
        Resource::Upstream(_) => [None, None, None],
        _ => return Vec::new(),
    };
    found.into_iter().flatten().chain(certificate).collect()
}

impl Reference {
    fn invalid(&self) -> Invalid {
        let Reference { field, to } = self;
        let invalid = Invalid::new(format!("{to} does not exist"));
        match *field {
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
            let entry = Arc::new(Entry::new(key.clone(), resource, 1, 1));
            let before = self.desired.put(entry);
            self.dangling.changed(&key, before.as_deref(), &self.desired);
        }

        fn delete(&mut self, kind: Kind, id: &str) {
            let key = Key::new(kind, id);
            let before = self.desired.delete(&key);
            self.dangling.changed(&key, before.as_deref(), &self.desired);
        }

        /// Incremental and from scratch must agree.
        fn told(&mut self) -> Vec<String> {
            let told = self.dangling.told();
            let mut anew = Dangling::default();
            anew.rebuild(&self.desired);
            assert_eq!((&told, &self.dangling.named), (&anew.told(), &anew.named));
            told.iter().map(|one| format!("{}{}", one.key, one.invalid.pointer)).collect()
        }
    }

    fn upstream() -> Value {
        json!({"nodes": {"127.0.0.1:80": 1}})
    }

    #[test]
    fn a_client_certificate_that_is_gone_is_told() {
        let mut site = Site::default();
        let tls = json!({"scheme": "https", "nodes": {"127.0.0.1:80": 1}, "tls": {"client_cert_id": "c"}});
        site.put(Kind::Upstream, "u", tls.clone());
        site.put(Kind::Upstream, "plain", upstream());
        site.put(Kind::Route, "1", json!({"uri": "/", "upstream": tls}));
        let missing = ["routes/1/upstream/tls/client_cert_id", "upstreams/u/tls/client_cert_id"];
        assert_eq!(site.told(), missing);
        let certs = |name: &str| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/certs/");
            std::fs::read_to_string(format!("{folder}{name}")).unwrap()
        };
        let pair = json!({"type": "client", "cert": certs("client.crt"), "key": certs("client.key")});
        site.put(Kind::Ssl, "c", pair);
        assert_eq!(site.told(), [""; 0]);
        site.delete(Kind::Ssl, "c");
        assert_eq!(site.told(), missing);
        site.put(Kind::Upstream, "u", upstream());
        assert_eq!(site.told(), missing[..1]);
    }

    #[test]
    fn what_leads_nowhere_is_told_while_it_does() {
        let mut site = Site::default();
        site.put(Kind::Upstream, "u", upstream());
        site.put(Kind::Service, "s", json!({"upstream_id": "u"}));
        site.put(Kind::Route, "1", json!({"uri": "/", "upstream_id": "u", "service_id": "s"}));
        site.put(Kind::Route, "2", json!({"uri": "/", "service_id": "t"}));
        site.put(Kind::Route, "3", json!({"uri": "/", "plugins": {}}));
        assert_eq!(site.told(), ["routes/2/service_id"]);
        let same = site.dangling.told();
        site.put(Kind::Route, "3", json!({"uri": "/3", "plugins": {}}));
        assert!(Arc::ptr_eq(&same, &site.dangling.told()));

        site.delete(Kind::Upstream, "u");
        assert_eq!(site.told(), ["routes/1/upstream_id", "routes/2/service_id", "services/s/upstream_id"]);
        let told = site.dangling.told();
        assert_eq!(told[0].invalid.reason, "upstreams/u does not exist");

        site.put(Kind::Route, "1", json!({"uri": "/", "service_id": "s"}));
        site.put(Kind::Service, "t", json!({}));
        assert_eq!(site.told(), ["services/s/upstream_id"]);
        site.put(Kind::Upstream, "u", upstream());
        assert_eq!(site.told(), [""; 0]);
        site.delete(Kind::Service, "s");
        site.delete(Kind::Route, "1");
        assert_eq!(site.told(), [""; 0]);
    }

    #[test]
    fn a_credential_needs_its_consumer() {
        let mut site = Site::default();
        site.put(Kind::Credential, "jack/credentials/a", json!({"id": "a"}));
        assert_eq!(site.told(), ["consumers/jack/credentials/a"]);
        site.put(Kind::Consumer, "jack", json!({"username": "jack"}));
        assert_eq!(site.told(), [""; 0]);
    }
}
