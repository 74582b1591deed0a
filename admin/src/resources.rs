//! The resources: what each kind allows, and how it is read and written.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use control::references;
use control::store::{Ahead, Refused, Revision, Step, StoreError, Stored, View};
use http::{Method, Response, StatusCode};
use model::{Invalid, Key, Kind};
use serde_json::{Value, json};

use crate::answer::{self, Answer, Envelope, ErrorAnswer, said};
use crate::author::Author;
use crate::conceal::conceal;
use crate::request::Call;
use crate::{Admin, list, now, patch, read_body};

/// The resource, or the part of it, that the path of a request names.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    kind: Kind,
    /// The consumer of credentials, or a secret's manager.
    owner: Option<String>,
    id: Option<String>,
    /// Below the id: where a PATCH applies.
    sub_path: Vec<String>,
}

impl Admin {
    pub(crate) async fn resource(&self, author: &Author, call: Call<'_>, body: &Bytes) -> Answer {
        let target = Target::read(&call.path())?;
        self.serves(&target)?;
        let value = read_body(body)?;
        let ttl = call.ttl()?;
        target.allows(call.method)?;
        match *call.method {
            Method::GET => self.get(&target, &call).await,
            _ => self.write(author, &target, call.method, (value, ttl, call.forced())).await,
        }
    }

    async fn get(&self, target: &Target, call: &Call<'_>) -> Answer {
        if let Some(id) = &target.id {
            let key = target.key(id);
            let stored = match key.check() {
                Ok(()) => self.store.get(&key).await?,
                // No resource is stored under an invalid key.
                Err(_) => None,
            };
            let mut stored = stored.ok_or_else(answer::not_found)?;
            conceal(&mut stored);
            return Ok(self.envelope().one(list::entry(&stored)));
        }
        let owned = target.kind.owner().zip(target.owner.as_ref());
        let prefix = owned.map(|(_, owner)| Key::owned(target.kind, owner, "").id).unwrap_or_default();
        let (mut items, _) = self.store.list(target.kind, &prefix).await?;
        // As in APISIX, where this collection exists only with something in it.
        if owned.is_some() && items.is_empty() {
            return Err(answer::not_found());
        }
        items.iter_mut().for_each(conceal);
        let own = target.kind.collection();
        let collection =
            owned.map_or_else(|| own.to_owned(), |(kind, id)| format!("{}/{id}/{own}", kind.collection()));
        list::answer(items, call, &collection, self.envelope())
    }

    /// Refuses resources of what is switched off.
    pub(crate) fn serves(&self, target: &Target) -> Result<(), ErrorAnswer> {
        match target.kind {
            Kind::StreamRoute if !self.config.streams => {
                Err(said("stream mode is disabled, can not add stream routes"))
            }
            _ => Ok(()),
        }
    }

    /// Checks a write as far as that goes without the store. A PATCH starts from what is there now.
    pub(crate) async fn intend(
        &self,
        target: &Target,
        method: &Method,
        value: Option<Value>,
        ttl: Option<Duration>,
        force: bool,
    ) -> Result<Intent, ErrorAnswer> {
        match *method {
            Method::DELETE => target.deletion(force),
            Method::PUT => self.intend_put(target, value, ttl).await,
            Method::POST => self.intend_post(target, value, ttl).await,
            _ => self.intend_patch(target, value, ttl).await,
        }
    }

    async fn intend_put(
        &self,
        target: &Target,
        value: Option<Value>,
        ttl: Option<Duration>,
    ) -> Result<Intent, ErrorAnswer> {
        let mut value = configuration(value)?;
        let id = match target.kind {
            Kind::Consumer | Kind::PluginMetadata => target.id.clone(),
            kind => {
                let id = target.id.clone().or_else(|| value.get("id").and_then(id_text));
                let id = id.ok_or_else(|| said(format!("missing {kind} id")))?;
                place_id(&target.key(&id), &mut value, target.id.is_some())?;
                Some(id)
            }
        };
        refuse_times(&value)?;
        target.bind(&mut value)?;
        let key = match (target.kind, id) {
            (Kind::Consumer, id) => consumer_key(id, &value)?,
            (Kind::PluginMetadata, None) => return Err(said("missing plugin name")),
            (kind, None) => return Err(said(format!("missing {kind} id"))),
            (_, Some(id)) => target.key(&id),
        };
        self.put_keys_back(&key, &mut value).await?;
        self.check(&key, &value).await?;
        let changes = Some(key.clone());
        let decide = move |view: &dyn View, _: &mut u64| {
            let (key, mut value) = (key.clone(), value.clone());
            references::check(view, &key, &value)?;
            let there = view.get(&key);
            // Another gateway may have left what belonged to a service that is gone.
            let mut steps = match (key.kind, &there) {
                (Kind::Service, None) => owned_by(view, &key),
                _ => Vec::new(),
            };
            match key.kind {
                Kind::PluginMetadata => set_id(&mut value, &key.id),
                _ => stamp(&mut value, there.and_then(|there| created(&there.value())), None),
            }
            steps.push(Step::Put { key, value, ttl });
            Ok(steps)
        };
        Ok(Intent { method: Method::PUT, changes, decide: Box::new(decide) })
    }

    async fn intend_post(
        &self,
        target: &Target,
        value: Option<Value>,
        ttl: Option<Duration>,
    ) -> Result<Intent, ErrorAnswer> {
        let mut value = configuration(value)?;
        if target.id.is_some() || value.get("id").is_some() {
            return Err(said(format!("wrong {} id, do not need it", target.kind)));
        }
        refuse_times(&value)?;
        target.bind(&mut value)?;
        stamp(&mut value, None, None);
        // Without an id, which is the write's revision.
        self.check(&target.key("0"), &value).await?;
        let (kind, owner) = (target.kind, target.owner.clone());
        let decide = move |view: &dyn View, numbered: &mut u64| {
            let target = Target { kind, owner: owner.clone(), id: None, sub_path: Vec::new() };
            let (mut number, mut value) = (view.revision().max(*numbered).saturating_add(1), value.clone());
            // The revision alone does not make it new: on etcd, a batch moves it by one and takes many ids, and
            // a PUT may have any id. In growing steps, since each look is a condition of etcd's transaction.
            let mut step = 1;
            while view.get(&target.key(&format!("{number:020}"))).is_some() {
                number = number.checked_add(step).ok_or(StoreError::Changed)?;
                step *= 2;
            }
            *numbered = number;
            let id = format!("{number:020}");
            let key = target.key(&id);
            set_id(&mut value, &id);
            references::check(view, &key, &value)?;
            Ok(vec![Step::Put { key, value, ttl }])
        };
        Ok(Intent { method: Method::POST, changes: None, decide: Box::new(decide) })
    }

    async fn intend_patch(
        &self,
        target: &Target,
        value: Option<Value>,
        ttl: Option<Duration>,
    ) -> Result<Intent, ErrorAnswer> {
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
        if target.kind == Kind::CostDecoration && change.get("service_id").is_some() {
            return Err(said("service_id can not be patched"));
        }
        let key = target.key(id);
        if key.check().is_err() {
            return Err(answer::not_found());
        }
        let there = self.store.get(&key).await?.ok_or_else(answer::not_found)?;
        let (admin, loaded, target) = (self.clone(), self.loaded_names().await?, target.clone());
        let make = move |there: &Stored| {
            let value = target.patched(&there.key, there, change.clone())?;
            admin.check_loaded_with(&loaded, &there.key, &value)?;
            Ok::<_, Invalid>(value)
        };
        let (mut value, mut made_of) = (make(&there)?, there.modified);
        let changes = Some(key.clone());
        let decide = move |view: &dyn View, _: &mut u64| {
            let row = view.get(&key).ok_or(Refused::Missing(KEY_NOT_FOUND))?;
            // Another write came first: its result is patched.
            if row.modified != made_of {
                made_of = row.modified;
                value = make(&row.stored())?;
            }
            references::check(view, &key, &value)?;
            Ok(vec![Step::Put { key: key.clone(), value: value.clone(), ttl }])
        };
        Ok(Intent { method: Method::PATCH, changes, decide: Box::new(decide) })
    }

    /// Makes these writes, all or none.
    pub(crate) async fn commit(
        &self,
        author: &Author,
        mut intents: Vec<Intent>,
    ) -> Result<Committed, Uncommitted> {
        let about: Vec<_> =
            intents.iter().map(|intent| (intent.method.clone(), intent.changes.clone())).collect();
        // How many steps there are after each write; the last of a write is what it answers with.
        let ends: Arc<Mutex<Vec<usize>>> = Arc::default();
        let (by, decided) = (author.clone(), ends.clone());
        let decide = move |view: &dyn View| {
            let (mut ahead, mut numbered) = (Ahead::of(view), 0);
            let mut steps = vec![by.step()];
            decided.lock().unwrap_or_else(PoisonError::into_inner).clear();
            for intent in &mut intents {
                let more = (intent.decide)(&ahead, &mut numbered)?;
                more.iter().for_each(|step| ahead.take(step));
                steps.extend(more);
                decided.lock().unwrap_or_else(PoisonError::into_inner).push(steps.len());
            }
            by.complete(view, steps)
        };
        let written = self.write_as(author, Box::new(decide)).await;
        let ends = std::mem::take(&mut *ends.lock().unwrap_or_else(PoisonError::into_inner));
        let mut written = written.map_err(|refused| Uncommitted { at: ends.len(), refused })?;
        let values = ends.iter().map(|end| written.values.get_mut(end - 1).and_then(Option::take));
        let made = about.into_iter().zip(values).map(|((method, key), value)| Made { method, key, value });
        Ok(Committed { made: made.collect(), revision: written.revision })
    }

    async fn write(
        &self,
        author: &Author,
        target: &Target,
        method: &Method,
        (value, ttl, force): (Option<Value>, Option<Duration>, bool),
    ) -> Answer {
        let intent = self.intend(target, method, value, ttl, force).await?;
        let committed = self.commit(author, vec![intent]).await;
        let Committed { made, revision } = committed.map_err(|uncommitted| uncommitted.refused)?;
        let made = made.into_iter().next().ok_or_else(answer::not_found)?;
        let mut response = made.answer(self.envelope())?;
        answer::add_warnings(&mut response, made.written());
        let key = made.key().ok_or_else(answer::not_found)?;
        Ok(self.done(author, method, key, revision, response).await)
    }

    /// Logs a change that was made, and says in its answer what has become of it.
    async fn done(
        &self,
        author: &Author,
        method: &Method,
        key: &Key,
        revision: u64,
        mut response: Response<Bytes>,
    ) -> Response<Bytes> {
        author.changed(method, key, revision);
        let outcome = self.program.verdict(key, revision).await;
        answer::add_outcome(&mut response, revision, &outcome);
        response
    }
}

/// A write that is to be made.
pub(crate) struct Intent {
    method: Method,
    /// The resource it changes, if that is known before the write.
    pub changes: Option<Key>,
    decide: Deciding,
}

/// As [`control::store::Decide`]; it is also shown the highest number that this write has used for an id so far.
type Deciding = Box<dyn FnMut(&dyn View, &mut u64) -> Result<Vec<Step>, Refused> + Send>;

impl Intent {
    pub fn is_patch(&self) -> bool {
        self.method == Method::PATCH
    }
}

/// The results of writes, in their order.
pub(crate) struct Committed {
    pub made: Vec<Made>,
    pub revision: Revision,
}

/// Which of the writes was refused, so that none was made.
pub(crate) struct Uncommitted {
    pub at: usize,
    pub refused: Refused,
}

/// One write that was made.
pub(crate) struct Made {
    pub method: Method,
    key: Option<Key>,
    /// The resource as it was written, or as it was before its deletion.
    value: Option<Stored>,
}

impl Made {
    /// Returns the key of the changed resource.
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref().or(self.value.as_ref().map(|stored| &stored.key))
    }

    /// The written resource; `None` after a deletion.
    pub fn written(&self) -> Option<(&Key, &Value)> {
        let stored = self.value.as_ref().filter(|_| self.method != Method::DELETE)?;
        Some((&stored.key, &*stored.value))
    }

    /// The answer to it.
    pub fn answer(&self, envelope: Envelope) -> Answer {
        let stored = self.value.as_ref().ok_or_else(answer::not_found)?;
        Ok(match self.method {
            Method::DELETE => envelope.deleted(&stored.key),
            Method::POST => envelope.written(StatusCode::CREATED, stored, "create"),
            Method::PATCH => envelope.written(StatusCode::OK, stored, "compareAndSwap"),
            _ => {
                let new = stored.created == stored.modified;
                let status = if new { StatusCode::CREATED } else { StatusCode::OK };
                envelope.written(status, stored, "set")
            }
        })
    }
}

impl Admin {
    pub(crate) fn envelope(&self) -> Envelope {
        Envelope { v2: self.config.v2 }
    }
}

impl Target {
    /// Refuses what the kind does not have.
    pub fn allows(&self, method: &Method) -> Result<(), ErrorAnswer> {
        if allows(self.kind, method) {
            return Ok(());
        }
        let reason = format!("not supported `{method}` method for {}", self.kind);
        Err(ErrorAnswer::new(StatusCode::METHOD_NOT_ALLOWED, reason))
    }

    fn deletion(&self, force: bool) -> Result<Intent, ErrorAnswer> {
        let id = self.id.as_ref().ok_or_else(|| said(format!("missing {} id", self.kind)))?;
        let key = self.key(id);
        if key.check().is_err() {
            return Err(answer::not_found());
        }
        let changes = Some(key.clone());
        let decide = move |view: &dyn View, _: &mut u64| {
            if !force {
                references::check_unused(view, &key)?;
            }
            if view.get(&key).is_none() {
                return Err(Refused::Missing(KEY_NOT_FOUND));
            }
            let mut steps = owned_by(view, &key);
            steps.push(Step::Delete { key: key.clone() });
            Ok(steps)
        };
        Ok(Intent { method: Method::DELETE, changes, decide: Box::new(decide) })
    }

    pub fn read(path: &[&str]) -> Result<Target, ErrorAnswer> {
        let owned = |text: &&str| (*text).to_owned();
        let (kind, owner, rest) = match path {
            ["consumers", consumer, "credentials", rest @ ..] => {
                (Kind::Credential, Some(owned(consumer)), rest)
            }
            ["services", service, "graphql_cost_decorations", rest @ ..] => {
                (Kind::CostDecoration, Some(owned(service)), rest)
            }
            ["graphql_cost_decorations", ..] => return Err(said("missing service id")),
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

    /// The key of the resource that the path names as a whole.
    pub fn named(&self) -> Option<Key> {
        self.id.as_deref().filter(|_| self.sub_path.is_empty()).map(|id| self.key(id))
    }

    fn key(&self, id: &str) -> Key {
        match (self.kind, &self.owner) {
            (kind, Some(owner)) if kind.owner().is_some() => Key::owned(kind, owner, id),
            (Kind::Secret, Some(manager)) => Key::new(Kind::Secret, format!("{manager}/{id}")),
            (kind, _) => Key::new(kind, id),
        }
    }
}

/// Deletes what belongs to a resource.
fn owned_by(view: &dyn View, key: &Key) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(owned) = key.kind.owned() {
        view.scan(owned, &Key::owned(owned, &key.id, "").id, &mut |row| {
            steps.push(Step::Delete { key: row.key.clone() });
            ControlFlow::Continue(())
        });
    }
    steps
}

impl Target {
    /// Writes into a decoration whose it is, as APISIX stores it.
    fn bind(&self, value: &mut Value) -> Result<(), ErrorAnswer> {
        let (Kind::CostDecoration, Some(owner), Some(map)) = (self.kind, &self.owner, value.as_object_mut())
        else {
            return Ok(());
        };
        if map.get("service_id").is_some_and(|own| id_text(own).as_ref() != Some(owner)) {
            return Err(said("wrong service_id, it is taken from the path"));
        }
        map.insert("service_id".to_owned(), Value::from(owner.as_str()));
        Ok(())
    }

    /// Returns the stored resource with the change of a PATCH.
    fn patched(&self, key: &Key, there: &Stored, change: Value) -> Result<Value, Invalid> {
        let keeps_time = self.sub_path.is_empty() && change.get("update_time").is_some();
        let mut value = Value::clone(&there.value);
        if self.sub_path.is_empty() {
            patch::merge(&mut value, change);
        } else {
            patch::set(&mut value, &self.sub_path, change)?;
        }
        stamp(&mut value, created(&there.value), Some(keeps_time));
        place_id(key, &mut value, true)?;
        Ok(value)
    }
}

/// APISIX's message for a missing resource.
pub(crate) const KEY_NOT_FOUND: &str = "Key not found";

fn unsupported(collection: &str) -> ErrorAnswer {
    ErrorAnswer::new(StatusCode::NOT_FOUND, format!("Unsupported resource type: {collection}"))
}

/// Which methods a kind has, as in APISIX.
pub(crate) fn allows(kind: Kind, method: &Method) -> bool {
    match *method {
        Method::POST => {
            matches!(
                kind,
                Kind::Route
                    | Kind::Service
                    | Kind::Upstream
                    | Kind::Ssl
                    | Kind::StreamRoute
                    | Kind::Proto
                    | Kind::CostDecoration
            )
        }
        Method::PATCH => !matches!(
            kind,
            Kind::Consumer
                | Kind::Credential
                | Kind::PluginMetadata
                | Kind::StreamRoute
                | Kind::Proto
                | Kind::Script
        ),
        _ => true,
    }
}

fn configuration(value: Option<Value>) -> Result<Value, ErrorAnswer> {
    match value {
        None | Some(Value::Null) => Err(said("missing configurations")),
        Some(value @ Value::Object(_)) => Ok(value),
        Some(_) => Err(said("invalid configuration: wrong type: expected object")),
    }
}

/// The key of a consumer, whose id is its username.
fn consumer_key(id: Option<String>, value: &Value) -> Result<Key, ErrorAnswer> {
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

fn check_consumer(value: &Value) -> Result<(), ErrorAnswer> {
    let checked = model::schema::of_kind(Kind::Consumer).check(value);
    Ok(checked.map_err(|invalid| invalid.said("invalid configuration: "))?)
}

/// Refuses times in what is sent: they are ours to set.
fn refuse_times(value: &Value) -> Result<(), ErrorAnswer> {
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

fn created(value: &Value) -> Option<Value> {
    value.get("create_time").cloned()
}

/// Sets `create_time` (`created` is that of what is there) and `update_time`; `patched` says that
/// this is a PATCH, and whether it brings its own `update_time`.
fn stamp(value: &mut Value, created: Option<Value>, patched: Option<bool>) {
    let Some(map) = value.as_object_mut() else { return };
    let now = json!(now());
    if !map.contains_key("create_time") {
        map.insert("create_time".to_owned(), created.unwrap_or_else(|| now.clone()));
    }
    if patched != Some(true) {
        map.insert("update_time".to_owned(), now);
    }
}

/// Sets the id of a value; the id of a secret includes its manager, as APISIX stores it. An id from the path is
/// always a string; an integer id stays an integer if only the body has it.
fn place_id(key: &Key, value: &mut Value, in_path: bool) -> Result<(), Invalid> {
    let id = if key.kind == Kind::Secret { &key.id } else { key.leaf() };
    match value.get("id") {
        Some(own) if id_text(own).as_deref() != Some(id) => {
            return Err(Invalid::new(format!("wrong {} id", key.kind)));
        }
        Some(_) if !in_path => {}
        _ => set_id(value, id),
    }
    Ok(())
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
