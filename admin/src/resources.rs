//! The resources: what each kind allows, and how it is read and written.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use control::references;
use control::store::{Expect, StoreError, Stored};
use http::{Method, StatusCode};
use model::{Key, Kind};
use serde_json::{Value, json};

use crate::answer::{self, Answer, Envelope, Refusal, said};
use crate::request::Call;
use crate::{Admin, list, now, patch, read_body};

/// What the path of a request speaks of.
#[derive(Debug)]
struct Target {
    kind: Kind,
    /// The consumer of credentials, or a secret's manager.
    owner: Option<String>,
    id: Option<String>,
    /// Below the id: where a PATCH applies.
    sub_path: Vec<String>,
}

impl Admin {
    pub(crate) async fn resource(&self, call: Call<'_>, body: &Bytes) -> Answer {
        let target = Target::read(&call.path())?;
        if target.kind == Kind::StreamRoute {
            return Err(said("stream mode is disabled, can not add stream routes"));
        }
        let value = read_body(body)?;
        let ttl = call.ttl()?;
        if !allows(target.kind, call.method) {
            return Err(Refusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("not supported `{}` method for {}", call.method, target.kind),
            ));
        }
        match *call.method {
            Method::GET => self.get(&target, &call).await,
            Method::DELETE => self.delete(&target, call.query("force") == Some("true")).await,
            Method::PUT => self.put(&target, value, ttl).await,
            Method::POST => self.post(&target, value, ttl).await,
            _ => self.patch(&target, value, ttl).await,
        }
    }

    async fn get(&self, target: &Target, call: &Call<'_>) -> Answer {
        if let Some(id) = &target.id {
            let key = target.key(id);
            let stored = match key.check() {
                Ok(()) => self.store.get(&key).await?,
                // What cannot be a key is not there.
                Err(_) => None,
            };
            let mut stored = stored.ok_or_else(answer::not_found)?;
            conceal(&mut stored);
            return Ok(self.envelope().one(list::entry(&stored)));
        }
        let prefix = match (target.kind, &target.owner) {
            (Kind::Credential, Some(consumer)) => format!("{consumer}/credentials/"),
            _ => String::new(),
        };
        let (mut items, _) = self.store.list(target.kind, &prefix).await?;
        // As in APISIX, where this collection exists only with something in it.
        if target.kind == Kind::Credential && items.is_empty() {
            return Err(answer::not_found());
        }
        items.iter_mut().for_each(conceal);
        let collection = match &target.owner {
            Some(owner) if target.kind == Kind::Credential => format!("consumers/{owner}/credentials"),
            _ => target.kind.collection().to_owned(),
        };
        list::answer(items, call, &collection, self.envelope())
    }

    async fn put(&self, target: &Target, value: Option<Value>, ttl: Option<Duration>) -> Answer {
        let mut value = configuration(value)?;
        let id = match target.kind {
            Kind::Consumer | Kind::PluginMetadata | Kind::Secret => target.id.clone(),
            kind => {
                let id = target.id.clone().or_else(|| value.get("id").and_then(id_text));
                let id = id.ok_or_else(|| said(format!("missing {kind} id")))?;
                if value.get("id").is_some_and(|own| id_text(own).as_deref() != Some(&id)) {
                    return Err(said(format!("wrong {kind} id")));
                }
                // An integer id stays one.
                if value.get("id").is_none() {
                    set_id(&mut value, &id);
                }
                Some(id)
            }
        };
        refuse_times(&value)?;
        let key = match (target.kind, id) {
            (Kind::Consumer, id) => consumer_key(id, &value)?,
            (Kind::PluginMetadata, None) => return Err(said("missing plugin name")),
            (kind, None) => return Err(said(format!("missing {kind} id"))),
            (_, Some(id)) => target.key(&id),
        };
        self.check(&key, &value).await?;
        let there = self.store.get(&key).await?;
        match key.kind {
            Kind::PluginMetadata => set_id(&mut value, &key.id),
            _ => stamp(&mut value, there.as_ref(), None),
        }
        let stored = self.store.put(key, value, Expect::Any, ttl).await?;
        let new = stored.created == stored.modified;
        let status = if new { StatusCode::CREATED } else { StatusCode::OK };
        Ok(self.envelope().written(status, &stored, "set"))
    }

    async fn post(&self, target: &Target, value: Option<Value>, ttl: Option<Duration>) -> Answer {
        let mut value = configuration(value)?;
        if target.id.is_some() || value.get("id").is_some() {
            return Err(said(format!("wrong {} id, do not need it", target.kind)));
        }
        refuse_times(&value)?;
        stamp(&mut value, None, None);
        // The id is the revision that the write is expected to get. Should others write
        // meanwhile it is an older one, which is still unique: somebody else who got it
        // makes this write fail, and it is tried again.
        loop {
            let id = format!("{:020}", self.store.revision().await? + 1);
            set_id(&mut value, &id);
            let key = target.key(&id);
            self.check(&key, &value).await?;
            match self.store.put(key, value.clone(), Expect::Absent, ttl).await {
                Ok(stored) => return Ok(self.envelope().written(StatusCode::CREATED, &stored, "create")),
                Err(StoreError::Changed) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn patch(&self, target: &Target, value: Option<Value>, ttl: Option<Duration>) -> Answer {
        let id = target.id.as_ref().ok_or_else(|| {
            said(match target.kind {
                Kind::Secret => "no secret id".to_owned(),
                kind => format!("missing {kind} id"),
            })
        })?;
        let change = value.ok_or_else(|| said("missing new configuration"))?;
        if target.sub_path.is_empty() && !change.is_object() {
            return Err(said("invalid configuration"));
        }
        let key = target.key(id);
        if key.check().is_err() {
            return Err(answer::not_found());
        }
        let there = self.store.get(&key).await?.ok_or_else(answer::not_found)?;
        let keeps_time = target.sub_path.is_empty() && change.get("update_time").is_some();
        let mut value = Value::clone(&there.value);
        if target.sub_path.is_empty() {
            patch::merge(&mut value, change);
        } else {
            patch::set(&mut value, &target.sub_path, change)?;
        }
        stamp(&mut value, Some(&there), Some(keeps_time));
        if value.get("id").is_some_and(|own| id_text(own).as_deref() != Some(key.leaf())) {
            return Err(said(format!("wrong {} id", target.kind)));
        }
        self.check(&key, &value).await?;
        let stored = self.store.put(key, value, Expect::Unchanged(there.modified), ttl).await?;
        Ok(self.envelope().written(StatusCode::OK, &stored, "compareAndSwap"))
    }

    async fn delete(&self, target: &Target, force: bool) -> Answer {
        let id = target.id.as_ref().ok_or_else(|| said(format!("missing {} id", target.kind)))?;
        let key = target.key(id);
        if key.check().is_err() {
            return Err(answer::not_found());
        }
        if !force {
            references::check_unused(&*self.store, &key).await?;
        }
        if key.kind == Kind::Consumer {
            let (credentials, _) = self.store.list(Kind::Credential, &format!("{id}/credentials/")).await?;
            for credential in credentials {
                self.store.delete(credential.key, Expect::Any).await?;
            }
        }
        match self.store.delete(key.clone(), Expect::Any).await? {
            Some(_) => Ok(self.envelope().deleted(&key)),
            None => Err(answer::not_found()),
        }
    }
}

impl Admin {
    pub(crate) fn envelope(&self) -> Envelope {
        Envelope { v2: self.config.v2 }
    }
}

impl Target {
    fn read(path: &[&str]) -> Result<Target, Refusal> {
        let owned = |text: &&str| (*text).to_owned();
        let (kind, owner, rest) = match path {
            ["consumers", consumer, "credentials", rest @ ..] => {
                (Kind::Credential, Some(owned(consumer)), rest)
            }
            ["services", _, name @ "graphql_cost_decorations", ..] => return Err(unsupported(name)),
            ["secrets", manager, rest @ ..] => (Kind::Secret, Some(owned(manager)), rest),
            [collection, rest @ ..] => match Kind::from_collection(collection) {
                None | Some(Kind::Credential) => return Err(unsupported(collection)),
                Some(kind) => (kind, None, rest),
            },
            [] => return Err(unsupported("")),
        };
        let id = rest.first().map(owned);
        let sub_path = rest.iter().skip(1).map(owned).collect();
        Ok(Target { kind, owner, id, sub_path })
    }

    fn key(&self, id: &str) -> Key {
        match (self.kind, &self.owner) {
            (Kind::Credential, Some(consumer)) => Key::credential(consumer, id),
            (Kind::Secret, Some(manager)) => Key::new(Kind::Secret, format!("{manager}/{id}")),
            (kind, _) => Key::new(kind, id),
        }
    }
}

fn unsupported(collection: &str) -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, format!("Unsupported resource type: {collection}"))
}

/// Which methods a kind has, as in APISIX.
fn allows(kind: Kind, method: &Method) -> bool {
    match *method {
        Method::POST => {
            matches!(
                kind,
                Kind::Route | Kind::Service | Kind::Upstream | Kind::Ssl | Kind::StreamRoute | Kind::Proto
            )
        }
        Method::PATCH => !matches!(
            kind,
            Kind::Consumer | Kind::Credential | Kind::PluginMetadata | Kind::StreamRoute | Kind::Proto
        ),
        _ => true,
    }
}

fn configuration(value: Option<Value>) -> Result<Value, Refusal> {
    match value {
        None | Some(Value::Null) => Err(said("missing configurations")),
        Some(value @ Value::Object(_)) => Ok(value),
        Some(_) => Err(said("invalid configuration: wrong type: expected object")),
    }
}

/// The key of a consumer, whose id is its username.
fn consumer_key(id: Option<String>, value: &Value) -> Result<Key, Refusal> {
    let username = value.get("username").and_then(Value::as_str);
    match (id, username) {
        (_, None) => {
            // The schema wants a username, and says so in its own words.
            check_consumer(value)?;
            Err(said("missing consumer username"))
        }
        (Some(id), Some(username)) if id != username => {
            check_consumer(value)?;
            Err(said("wrong username"))
        }
        (_, Some(username)) => Ok(Key::new(Kind::Consumer, username)),
    }
}

fn check_consumer(value: &Value) -> Result<(), Refusal> {
    let checked = model::schema::of_kind(Kind::Consumer).check(value);
    Ok(checked.map_err(|invalid| invalid.said("invalid configuration: "))?)
}

/// Refuses times in what is sent: they are ours to set.
fn refuse_times(value: &Value) -> Result<(), Refusal> {
    for (at, part) in
        [("", Some(value)), ("upstream.", value.get("upstream")), ("plugins.", value.get("plugins"))]
    {
        for name in ["create_time", "update_time"] {
            if part.and_then(|part| part.get(name)).is_some_and(|time| time != &Value::Bool(false)) {
                return Err(said(format!("the property is forbidden:  {at}{name}")));
            }
        }
    }
    Ok(())
}

/// Sets `create_time` (kept from what is there) and `update_time`; `patched` says that
/// this is a PATCH, and whether it brings its own `update_time`.
fn stamp(value: &mut Value, there: Option<&Stored>, patched: Option<bool>) {
    let Some(map) = value.as_object_mut() else { return };
    let now = json!(now());
    if !map.contains_key("create_time") {
        let kept = there.and_then(|there| there.value.get("create_time").cloned());
        map.insert("create_time".to_owned(), kept.unwrap_or_else(|| now.clone()));
    }
    if patched != Some(true) {
        map.insert("update_time".to_owned(), now);
    }
}

fn set_id(value: &mut Value, id: &str) {
    if let Some(map) = value.as_object_mut() {
        map.insert("id".to_owned(), Value::from(id));
    }
}

fn id_text(id: &Value) -> Option<String> {
    match id {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Private keys are never given out.
fn conceal(stored: &mut Stored) {
    if stored.key.kind == Kind::Ssl
        && let Some(map) = Arc::make_mut(&mut stored.value).as_object_mut()
    {
        map.shift_remove("key");
        map.shift_remove("keys");
    }
}

/// Only for tests of other modules.
#[cfg(test)]
pub(crate) fn body_of(response: &http::Response<Bytes>) -> Value {
    serde_json::from_slice(response.body()).unwrap_or(Value::Null)
}
