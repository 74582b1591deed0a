//! Sets of IP addresses and networks.

use std::net::IpAddr;

use hashbrown::HashMap;
use ipnet::IpNet;
use mlua::{Lua, LuaString, Result, Table, UserData, UserDataMethods};

use super::call::function;

/// Networks, with the number of each in the list it came from. The longest prefix decides.
#[derive(Default)]
struct Networks {
    by_prefix: Vec<(u8, HashMap<IpAddr, usize, foldhash::fast::RandomState>)>,
}

impl Networks {
    fn add(&mut self, network: IpNet, index: usize) {
        let length = network.prefix_len();
        let at = match self.by_prefix.binary_search_by(|(other, _)| length.cmp(other)) {
            Ok(at) => at,
            Err(at) => {
                self.by_prefix.insert(at, (length, HashMap::default()));
                at
            }
        };
        self.by_prefix[at].1.entry(network.network()).or_insert(index);
    }

    fn find(&self, address: IpAddr) -> Option<usize> {
        self.by_prefix.iter().find_map(|(length, networks)| {
            let network = IpNet::new(address, *length).ok()?;
            networks.get(&network.network()).copied()
        })
    }
}

impl UserData for Networks {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        // The number of the network that holds an address, or `nil`; `nil, true` if it is no address.
        methods.add_method("find", |_, networks, address: LuaString| {
            Ok(match address_of(&address) {
                Some(address) => (networks.find(address), false),
                None => (None, true),
            })
        });
    }
}

fn address_of(text: &LuaString) -> Option<IpAddr> {
    let text = text.to_str().ok()?;
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(&text);
    inner.parse().ok()
}

fn network_of(text: &str) -> Option<IpNet> {
    match text.split_once('/') {
        Some((address, length)) => IpNet::new(address.parse().ok()?, length.parse().ok()?).ok(),
        None => Some(IpNet::from(text.parse::<IpAddr>().ok()?)),
    }
}

/// The native group.
pub(super) fn add_native(lua: &Lua, group: &Table) -> Result<()> {
    // A matcher of a list, or `nil` and the text that is no network.
    group.raw_set(
        "networks",
        function(lua, "networks", |_, list: Vec<String>| {
            let mut networks = Networks::default();
            for (index, text) in list.into_iter().enumerate() {
                match network_of(&text) {
                    Some(network) => networks.add(network, index + 1),
                    None => return Ok((None, Some(text))),
                }
            }
            Ok((Some(networks), None))
        })?,
    )?;
    // The address as number or numbers of 32 bits.
    group.raw_set(
        "parse",
        function(lua, "parse", |_, text: LuaString| {
            Ok(match address_of(&text) {
                Some(IpAddr::V4(address)) => vec![u32::from(address)],
                Some(IpAddr::V6(address)) => {
                    let bits = u128::from(address);
                    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32).to_vec()
                }
                None => Vec::new(),
            })
        })?,
    )
}
