//! Upstreams that plugins choose: inline in a plugin's settings, or referred to by id.
//!
//! An inline one has its own slot, named after the resource whose chain requested it and the order
//! of the requests. A worker's balancing state belongs to the slot and is carried over by server
//! address.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use model::{Invalid, Key};
use sdk::UpstreamHandle;
use sdk::connection::TlsHandle;

use super::Compiler;
use super::wanted::Recorder;
use crate::upstream::Upstream;

/// The upstreams that the plugins of one chain requested while it was built.
#[derive(Debug, Default)]
pub(super) struct RequestedUpstreams {
    ids: BTreeSet<String>,
    written: Vec<(Upstream, UpstreamHandle)>,
}

/// The requested upstreams, by resource and by upstream id.
#[derive(Debug, Default)]
pub(super) struct Choices {
    /// The number of inline upstreams in its plugins' settings, and the ids referred to there.
    by_user: HashMap<Key, (usize, BTreeSet<String>)>,
    by_id: HashMap<String, BTreeSet<Key>>,
}

/// Upstreams for the plugins of one chain.
pub(super) struct ForPlugins<'a> {
    pub compiler: &'a Compiler,
    pub recorder: &'a Recorder<'a>,
}

impl sdk::upstream::Upstreams for ForPlugins<'_> {
    fn inline(&self, written: &model::Upstream) -> Result<UpstreamHandle, Invalid> {
        let upstream = self.compiler.upstream("", written, self.recorder)?;
        let handle = UpstreamHandle::default();
        self.recorder.chosen.borrow_mut().written.push((upstream, handle.clone()));
        Ok(handle)
    }

    fn by_id(&self, id: &str) -> UpstreamHandle {
        let handle = UpstreamHandle::default();
        if let Some(unit) = self.compiler.upstreams.get(id) {
            handle.place(unit.upstream.slot);
        }
        self.recorder.chosen.borrow_mut().ids.insert(id.to_owned());
        handle
    }

    fn client_tls(&self, written: &model::upstream::Tls) -> Result<TlsHandle, Invalid> {
        self.compiler.client_tls(Some(written), written.verify, self.recorder).map(|made| TlsHandle(made))
    }
}

impl Compiler {
    /// Assigns slots to the upstreams that the plugins of `user` requested, and removes those no
    /// longer requested.
    pub(super) fn place_chosen(&mut self, user: &Key, requested: RequestedUpstreams) {
        let RequestedUpstreams { ids, written } = requested;
        let count = written.len();
        for (at, (upstream, handle)) in written.into_iter().enumerate() {
            let key = part(user, at);
            let upstream = Upstream { id: key.id.as_str().into(), ..upstream };
            let before = self.upstreams.placed(&key);
            handle.place(self.upstreams.place(&key, upstream, before.as_ref()).slot);
        }
        let before = self.choices.set(user, count, ids);
        (count..before).for_each(|at| self.remove_upstream(&part(user, at)));
    }
}

impl Choices {
    /// The resources whose plugins refer to this upstream.
    pub fn users(&self, id: &str) -> impl Iterator<Item = &Key> {
        self.by_id.get(id).into_iter().flatten()
    }

    /// Replaces what a resource uses. Returns the number of inline upstreams it had before.
    fn set(&mut self, user: &Key, count: usize, ids: BTreeSet<String>) -> usize {
        let (before, named) = self.by_user.remove(user).unwrap_or_default();
        for id in named.difference(&ids) {
            if let Some(users) = self.by_id.get_mut(id) {
                users.remove(user);
                if users.is_empty() {
                    self.by_id.remove(id);
                }
            }
        }
        for id in ids.difference(&named) {
            self.by_id.entry(id.clone()).or_default().insert(user.clone());
        }
        if count > 0 || !ids.is_empty() {
            self.by_user.insert(user.clone(), (count, ids));
        }
        before
    }
}

/// The key of an upstream in a plugin's settings. No resource has it: `#` is not allowed in ids.
fn part(user: &Key, at: usize) -> Key {
    Key::new(user.kind, format!("{}#{at}", user.id))
}
