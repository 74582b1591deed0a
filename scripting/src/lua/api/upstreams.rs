//! Upstreams that scripts make for their exchange.

use std::cell::RefCell;
use std::net::IpAddr;

use hashbrown::HashMap;
use mlua::{LuaString, Result, Table, Value};
use model::Upstream;
use sdk::upstream::RuntimeUpstream;

use super::super::access::{self, exchange};
use super::super::machine;
use super::super::native::{Natives, to_json};

/// Upstreams that one machine keeps, by the keys of scripts.
const MOST_UPSTREAMS: usize = 256;

/// Nodes whose names a script has resolved for one upstream.
const MOST_NAMES: usize = 100;

/// The inputs of an upstream: requests with the same ones share it, and its balancing state.
#[derive(PartialEq)]
struct Inputs {
    settings: serde_json::Value,
    addresses: Vec<(String, Vec<IpAddr>)>,
}

pub(super) fn add(natives: &Natives<'_>) -> Result<()> {
    natives.add("check_upstream", |lua, settings: Value| {
        let settings = to_json(lua, settings)?;
        Ok(Upstream::parse(&settings).err().map(|error| error.to_string()))
    })?;
    // The host names of its nodes.
    natives.add("upstream_names", |lua, settings: Value| {
        let settings = to_json(lua, settings)?;
        let written = Upstream::parse(&settings).map_err(mlua::Error::runtime)?;
        let nodes = written.nodes.iter().filter(|node| node.address().is_none());
        lua.create_sequence_from(nodes.take(MOST_NAMES).map(|node| node.host.as_str()))
    })?;
    let known: RefCell<HashMap<Vec<u8>, (Inputs, RuntimeUpstream)>> = RefCell::default();
    natives.add("set_upstream", move |lua, (key, settings, names): (LuaString, Value, Table)| {
        if !access::place().is_before_upstream() {
            return Err(mlua::Error::runtime("the request is forwarded already"));
        }
        let inputs = Inputs { settings: to_json(lua, settings)?, addresses: addresses(&names)? };
        let key = key.as_bytes();
        let mut known = known.borrow_mut();
        let upstream = match known.get(&*key) {
            Some((before, upstream)) if *before == inputs => upstream.clone(),
            _ => {
                let machine = machine::current();
                let makers = machine.as_ref().and_then(|machine| machine.host.upstreams.as_ref());
                let maker = makers.and_then(|makers| makers.get());
                let maker = maker.ok_or_else(|| mlua::Error::runtime("this gateway serves no requests"))?;
                let made = maker.make(&String::from_utf8_lossy(&key), &inputs.settings, &inputs.addresses);
                let made =
                    made.map_err(|error| mlua::Error::runtime(format!("invalid upstream: {error}")))?;
                if known.len() >= MOST_UPSTREAMS {
                    known.clear();
                }
                known.insert(key.to_vec(), (inputs, made.clone()));
                made
            }
        };
        exchange(|x| x.forward_to(&upstream))
    })
}

/// Addresses by name.
fn addresses(names: &Table) -> Result<Vec<(String, Vec<IpAddr>)>> {
    let mut all = Vec::new();
    for pair in names.pairs::<String, String>() {
        let (name, address) = pair?;
        all.push((name, address.parse().into_iter().collect()));
    }
    all.sort();
    Ok(all)
}
