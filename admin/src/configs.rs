//! `/apisix/admin/configs`: the whole configuration as one document.
//!
//! APISIX's standalone API, which ADC and the ingress controller use. APISIX keeps the document in memory; here
//! it becomes one transaction of the store, so it survives a restart, has a revision in the history, and its
//! resources can be read by their own paths.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;

use bytes::Bytes;
use control::store::{Refused, Step, View};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use model::{Invalid, Key, Kind, declarative};
use serde_json::{Map, Value, json};

use crate::answer::{self, Answer, ErrorAnswer, said};
use crate::author::Author;
use crate::conceal::conceal;
use crate::validate::{read_document, sections};
use crate::{Admin, now};

/// The name of the store's note about the last document.
const NOTE: &str = "configs";

/// The longest digest that is remembered.
const MAX_DIGEST: usize = 256;

fn version_name(kind: Kind) -> String {
    format!("{}_conf_version", kind.collection())
}

/// The last document's data besides its resources.
#[derive(Debug, Default, Clone, PartialEq)]
struct Last {
    digest: String,
    /// Seconds since 1970.
    modified: u64,
    /// The store's revision after it. Later writes of single resources void the digest.
    revision: u64,
    versions: BTreeMap<String, Value>,
}

impl Last {
    fn of_text(text: Option<&str>) -> Option<Last> {
        let value: Value = serde_json::from_str(text?).ok()?;
        let versions = value.get("versions")?.as_object()?;
        Some(Last {
            digest: value.get("digest")?.as_str()?.to_owned(),
            modified: value.get("modified")?.as_u64()?,
            revision: value.get("revision")?.as_u64()?,
            versions: versions.iter().map(|(name, version)| (name.clone(), version.clone())).collect(),
        })
    }

    fn to_text(&self) -> String {
        let Last { digest, modified, revision, versions } = self;
        json!({ "digest": digest, "modified": modified, "revision": revision, "versions": versions })
            .to_string()
    }

    fn version(&self, kind: Kind) -> Value {
        self.versions.get(&version_name(kind)).cloned().unwrap_or_else(|| 0.into())
    }

    fn add_headers(&self, response: &mut Response<Bytes>) {
        let headers = response.headers_mut();
        headers.insert("x-last-modified", self.modified.into());
        if let Ok(digest) = HeaderValue::from_str(&self.digest) {
            headers.insert("x-digest", digest);
        }
    }
}

impl Admin {
    async fn last(&self) -> Result<Option<Last>, ErrorAnswer> {
        let last = Last::of_text(self.store.note(NOTE).await?.as_deref());
        let same = match self.store.moved_since(NOTE).await? {
            Some(moved) => !moved,
            None => {
                let revision = self.store.revision().await?;
                last.as_ref().is_some_and(|last| last.revision == revision)
            }
        };
        Ok(last.map(|last| match same {
            true => last,
            false => Last { digest: String::new(), ..last },
        }))
    }

    /// GET and HEAD.
    pub(crate) async fn configs(&self, head: &Parts) -> Answer {
        let last = self.last().await?;
        let mut response = match head.method {
            Method::HEAD => answer::empty(StatusCode::OK),
            _ => {
                let document = self.document(last.as_ref()).await?;
                let accept = head.headers.get(header::ACCEPT).map(|accept| accept.as_bytes());
                match accept.is_some_and(|accept| accept.starts_with(b"application/yaml")) {
                    // JSON is YAML.
                    true => {
                        let mut response = answer::json(StatusCode::OK, &document);
                        let yaml = HeaderValue::from_static("application/yaml");
                        response.headers_mut().insert(header::CONTENT_TYPE, yaml);
                        response
                    }
                    false => answer::json(StatusCode::OK, &document),
                }
            }
        };
        if let Some(last) = last {
            last.add_headers(&mut response);
        }
        Ok(response)
    }

    async fn document(&self, last: Option<&Last>) -> Result<Value, ErrorAnswer> {
        let mut document = Map::new();
        for kind in sections() {
            let version = last.map_or_else(|| 0.into(), |last| last.version(kind));
            document.insert(version_name(kind), version);
            let mut items: Vec<Value> = Vec::new();
            for kind in [Some(kind), kind.owned()].into_iter().flatten() {
                let (stored, _) = self.store.list(kind, "").await?;
                items.extend(stored.into_iter().map(|mut stored| {
                    conceal(&mut stored);
                    let mut value = Value::clone(&stored.value);
                    // Ids of these have two parts here.
                    if (kind == Kind::Secret || kind.owner().is_some())
                        && let Some(fields) = value.as_object_mut()
                    {
                        fields.insert("id".to_owned(), stored.key.id.into());
                    }
                    value
                }));
            }
            if !items.is_empty() {
                document.insert(kind.collection().to_owned(), items.into());
            }
        }
        if let Some(names) = self.store.plugins().await? {
            let names = names.into_iter().map(|name| json!({ "name": name })).collect();
            document.insert("plugins".to_owned(), names);
        }
        Ok(Value::Object(document))
    }

    pub(crate) async fn put_configs(&self, author: &Author, head: &Parts, body: &Bytes) -> Answer {
        let digest = head.headers.get("x-digest").ok_or_else(|| said("missing digest header"))?;
        let digest = digest.to_str().ok().filter(|digest| digest.len() <= MAX_DIGEST);
        let digest = digest.ok_or_else(|| said("invalid digest header"))?.to_owned();
        let mut document = read_document(head, body)?;
        let last = self.last().await?.unwrap_or_default();
        if !digest.is_empty() && last.digest == digest {
            return Ok(answer::empty(StatusCode::NO_CONTENT));
        }
        self.prepare(&mut document).await?;
        let checking = self.of_document(&document);
        if let Some(error) = checking.errors(&document).into_iter().next() {
            return Err(refused(error.into_invalid()).into());
        }
        let sent = sections().filter_map(|kind| {
            let name = version_name(kind);
            Some((name.clone(), document.get(&name)?.clone()))
        });
        let wanted = Wanted {
            made: Last { digest, modified: now(), versions: sent.collect(), ..Last::default() },
            items: checking.items(&document)?,
            plugins: plugin_names(&document),
            keeps_scripts: document.get(Kind::Script.collection()).is_none(),
        };
        let (by, last, mut response) =
            (author.clone(), wanted.made.clone(), answer::empty(StatusCode::ACCEPTED));
        answer::add_warnings(&mut response, wanted.items.iter().map(|(key, value)| (key, value)));
        let decide = move |view: &dyn View| by.complete(view, wanted.steps(view, by.step())?);
        let written = self.write_as(author, Box::new(decide)).await?;
        author.changed(&Method::PUT, "configs", written.revision);
        last.add_headers(&mut response);
        // The outcome of the whole document is wanted, but `verdict` takes a key: one that no resource has.
        let outcome = self.program.verdict(&Key::new(Kind::Proto, ""), written.revision).await;
        answer::add_outcome(&mut response, written.revision, &outcome);
        Ok(response)
    }

    /// The resources of a document, checked.
    fn items(&self, document: &Value) -> Result<Vec<(Key, Value)>, ErrorAnswer> {
        let empty = Map::new();
        let mut sections = document.as_object().unwrap_or(&empty).clone();
        sections.shift_remove("plugins");
        let read = declarative::read(&sections, &[]);
        if let Some(rejected) = read.rejected.into_iter().next() {
            return Err(rejected.into());
        }
        for item in &read.items {
            let checked = self.check_alone(&item.key, &item.value);
            checked.map_err(|invalid| invalid.under(&item.pointer))?;
        }
        Ok(read.items.into_iter().map(|item| (item.key, Value::clone(&item.value))).collect())
    }
}

/// Rewords an error as APISIX does here, where it leaves out the type of an invalid version.
fn refused(mut invalid: Invalid) -> Invalid {
    if let Some((name, _)) = invalid.reason.split_once(" must be a number, got ") {
        invalid.reason = format!("{name} must be a number");
    }
    invalid
}

/// A document that is to become the content of the store.
struct Wanted {
    /// With the versions that the document has.
    made: Last,
    items: Vec<(Key, Value)>,
    plugins: Option<Vec<String>>,
    /// It has no section of scripts: tools for APISIX do not know them, and must not delete them.
    keeps_scripts: bool,
}

impl Wanted {
    /// Returns the versions of all sections, and the kinds that are not written since their version is unchanged.
    ///
    /// # Errors
    /// A version is lower than that of the last document.
    fn versions(&self, last: &Last) -> Result<(BTreeMap<String, Value>, HashSet<Kind>), Invalid> {
        let (mut versions, mut kept) = (BTreeMap::new(), HashSet::new());
        for kind in sections() {
            let name = version_name(kind);
            let before = last.version(kind);
            let version = match self.made.versions.get(&name) {
                Some(version) if version.as_f64() < before.as_f64() => {
                    let reason = format!("{name} must be greater than or equal to ({before})");
                    return Err(Invalid::new(reason));
                }
                Some(version) => version.clone(),
                None => before.as_u64().unwrap_or_default().saturating_add(1).into(),
            };
            if version.as_f64() == before.as_f64() || kind == Kind::Script && self.keeps_scripts {
                kept.insert(kind);
                kept.extend(kind.owned());
            }
            versions.insert(name, version);
        }
        Ok((versions, kept))
    }

    /// Returns the steps that write the differences between the store and the document. Versions are compared
    /// here, within the transaction, as another document may have been written since this one was read.
    fn steps(&self, view: &dyn View, by: Step) -> Result<Vec<Step>, Refused> {
        let last = Last::of_text(view.note(NOTE).as_deref()).unwrap_or_default();
        let (versions, kept) = self.versions(&last)?;
        let mut steps = vec![by];
        let wanted: HashSet<&Key> = self.items.iter().map(|(key, _)| key).collect();
        for kind in Kind::ALL.into_iter().filter(|kind| !kept.contains(kind)) {
            view.scan(kind, "", &mut |row| {
                if !wanted.contains(&row.key) {
                    steps.push(Step::Delete { key: row.key.clone() });
                }
                ControlFlow::Continue(())
            });
        }
        for (key, value) in &self.items {
            if kept.contains(&key.kind) {
                continue;
            }
            let mut value = value.clone();
            if key.kind.owner().is_some()
                && let Some(fields) = value.as_object_mut()
            {
                fields.insert("id".to_owned(), key.leaf().into());
            }
            if view.get(key).is_none_or(|row| row.value() != value) {
                steps.push(Step::Put { key: key.clone(), value, ttl: None });
            }
        }
        if self.plugins.is_some() && self.plugins != view.plugins() {
            steps.push(Step::Plugins { names: self.plugins.clone() });
        }
        let revision = view.revision() + steps.len() as u64 - 1;
        let made = Last { revision, versions, ..self.made.clone() };
        steps.push(Step::Note { name: NOTE, text: made.to_text() });
        Ok(steps)
    }
}

/// Returns the HTTP plugins of the section `plugins`, if there is one.
fn plugin_names(document: &Value) -> Option<Vec<String>> {
    let items = document.get("plugins")?.as_array()?;
    let http = items.iter().filter(|item| item.get("stream") != Some(&Value::Bool(true)));
    Some(http.filter_map(|item| item.get("name")?.as_str()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_reads_back() {
        let versions = BTreeMap::from([("routes_conf_version".to_owned(), json!(7))]);
        let last = Last { digest: "d".to_owned(), modified: 5, revision: 9, versions };
        assert_eq!(Last::of_text(Some(&last.to_text())), Some(last.clone()));
        assert_eq!((last.version(Kind::Route), last.version(Kind::Service)), (json!(7), json!(0)));
        assert_eq!(Last::of_text(Some("{}")), None);
    }

    /// If two documents are read at the same time, the older one must not win because it is written last.
    #[tokio::test]
    async fn versions_are_those_at_the_moment_of_the_write() {
        use control::store::{Memory, Store};
        let store = Memory::default();
        let write = async |version: u64, id: &str| {
            let versions = BTreeMap::from([("routes_conf_version".to_owned(), json!(version))]);
            let items = vec![(Key::new(Kind::Route, id), json!({"id": id, "uri": "/"}))];
            let wanted = Wanted {
                made: Last { versions, ..Last::default() },
                items,
                plugins: None,
                keeps_scripts: true,
            };
            let by = Step::By { author: String::new(), message: String::new() };
            store.write(Box::new(move |view| wanted.steps(view, by.clone()))).await.map(drop)
        };
        write(7, "new").await.unwrap();
        let refused = write(6, "old").await.unwrap_err().to_string();
        assert!(refused.contains("routes_conf_version must be greater than or equal to (7)"), "{refused}");
        // The same version says that nothing changed there.
        write(7, "same").await.unwrap();
        let (there, _) = store.list(Kind::Route, "").await.unwrap();
        assert_eq!(there.iter().map(|row| row.key.id.as_str()).collect::<Vec<_>>(), ["new"]);
    }
}
