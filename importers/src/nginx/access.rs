//! Access control and limits of a location.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::directive::{Block, Directive};
use super::draft::Draft;
use super::report::Report;
use super::scope::Scope;
use super::text::Text;
use super::values;
use crate::{Severity, Source};

/// Zones of `limit_req_zone` and `limit_conn_zone`.
#[derive(Default)]
pub(super) struct Zones<'a> {
    zones: BTreeMap<String, Zone<'a>>,
}

struct Zone<'a> {
    at: &'a Directive,
    key: Text,
    /// Requests a second; of `limit_conn_zone` none.
    rate: Option<f64>,
}

impl<'a> Zones<'a> {
    pub(super) fn read(block: &'a Block, report: &mut Report) -> Zones<'a> {
        let mut zones = BTreeMap::new();
        for directive in &block.directives {
            let of_requests = directive.name == "limit_req_zone";
            if !of_requests && directive.name != "limit_conn_zone" {
                continue;
            }
            directive.mark_used();
            let option = |name: &str| {
                directive.args.iter().skip(1).find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='))
            };
            let name = option("zone").and_then(|zone| zone.split(':').next());
            let rate = option("rate").and_then(rate);
            match name {
                Some(name) if !of_requests || rate.is_some() => {
                    let zone = Zone { at: directive, key: Text::parse(directive.arg(0)), rate };
                    zones.insert(name.to_owned(), zone);
                }
                _ => report.add(
                    directive,
                    Severity::Guard,
                    "not carried over: its name or its rate is missing",
                ),
            }
        }
        Zones { zones }
    }

    /// The variables in the keys of the limits of a scope.
    pub(super) fn variables(&self, scope: &Scope<'_>) -> Vec<String> {
        let mut names = Vec::new();
        for limit in scope.all("limit_req").into_iter().chain(scope.all("limit_conn")) {
            let name = limit.args.iter().find_map(|arg| arg.strip_prefix("zone=")).unwrap_or(limit.arg(0));
            if let Some(zone) = self.zones.get(name) {
                names.extend(zone.key.variables().map(str::to_owned));
            }
        }
        names
    }
}

/// Requests a second of `10r/s` or `30r/m`.
fn rate(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once("r/")?;
    let number: f64 = number.parse().ok().filter(|number| *number > 0.0)?;
    match unit {
        "s" => Some(number),
        "m" => Some(number / 60.0),
        _ => None,
    }
}

/// Limits, which all routes with the same limits share.
pub(super) fn limits(
    scope: &Scope<'_>,
    zones: &Zones<'_>,
    lookup: &dyn Fn(&str) -> Option<Text>,
    report: &mut Report,
) -> Option<Value> {
    let mut plugins = serde_json::Map::new();
    let rejected = |name: &str| scope.number(name).filter(|code| (400..=599).contains(code)).unwrap_or(503);
    let (req_status, conn_status) = (rejected("limit_req_status"), rejected("limit_conn_status"));
    for limit in scope.all("limit_req") {
        let option = |name: &str| limit.args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
        let zone = option("zone").and_then(|name| zones.zones.get(name));
        let Some((zone, rate)) = zone.and_then(|zone| Some((zone, zone.rate?))) else {
            report.add(limit, Severity::Guard, "not carried over: its zone is not declared");
            continue;
        };
        let Some(key) = key(zone, lookup, report) else { continue };
        if plugins.contains_key("limit-req") {
            report.add(limit, Severity::Guard, "only the first limit of a location is carried over");
            continue;
        }
        let burst = option("burst").and_then(|burst| burst.parse::<u64>().ok()).unwrap_or(0);
        let nodelay = limit.args.iter().any(|arg| arg == "nodelay");
        if option("delay").is_some() {
            report.add(limit, Severity::Behaviour, "all requests within the burst are delayed");
        }
        let mut settings =
            json!({"rate": rate, "burst": burst, "rejected_code": req_status, "nodelay": nodelay});
        settings["key"] = json!(key.0);
        settings["key_type"] = json!(key.1);
        plugins.insert("limit-req".to_owned(), settings);
    }
    for limit in scope.all("limit_conn") {
        let zone = zones.zones.get(limit.arg(0));
        let Some((zone, conn)) = zone.zip(limit.arg(1).parse::<u64>().ok().filter(|conn| *conn > 0)) else {
            report.add(limit, Severity::Guard, "not carried over: its zone is not declared");
            continue;
        };
        let Some(key) = key(zone, lookup, report) else { continue };
        if plugins.contains_key("limit-conn") {
            report.add(limit, Severity::Guard, "only the first limit of a location is carried over");
            continue;
        }
        let mut settings =
            json!({"conn": conn, "burst": 0, "default_conn_delay": 0.1, "rejected_code": conn_status});
        settings["key"] = json!(key.0);
        settings["key_type"] = json!(key.1);
        plugins.insert("limit-conn".to_owned(), settings);
    }
    for dry in ["limit_req_dry_run", "limit_conn_dry_run"] {
        if let Some(directive) = scope.get(dry).filter(|directive| directive.flag() == Some(true)) {
            report.add(directive, Severity::Behaviour, "the limit applies");
        }
    }
    (!plugins.is_empty()).then_some(Value::Object(plugins))
}

/// The key of a zone and its type. `None` if requests are not counted at all.
fn key(
    zone: &Zone<'_>,
    lookup: &dyn Fn(&str) -> Option<Text>,
    report: &mut Report,
) -> Option<(String, &'static str)> {
    let key = zone.key.fill(lookup);
    match (key.constant(), key.single(), key.template()) {
        (Some(""), ..) => None,
        (_, Some("binary_remote_addr"), _) => Some(("remote_addr".to_owned(), "var")),
        (_, Some(name), Ok(_)) => {
            if name.starts_with("http_") || name.starts_with("arg_") || name.starts_with("cookie_") {
                report.add(
                    zone.at,
                    Severity::Behaviour,
                    "requests without the key count by the client's address",
                );
            }
            Some((name.to_owned(), "var"))
        }
        (_, _, Ok(template)) => {
            Some((template.replace("$binary_remote_addr", "$remote_addr"), "var_combination"))
        }
        (_, _, Err(name)) => {
            let effect = format!("not carried over: the gateway has no variable `${name}`");
            report.add(zone.at, Severity::Guard, effect);
            None
        }
    }
}

/// `allow` and `deny` of a scope.
enum Addresses {
    /// No rule, or all are allowed.
    All,
    None,
    Only(Vec<String>),
    AllBut(Vec<String>),
    /// Conditions of a refused address, one of which holds.
    Mixed(Vec<Value>),
}

/// The rules of addresses. With `satisfy any` an address that no rule names is not let in by its address.
fn addresses(scope: &Scope<'_>, any: bool, report: &mut Report) -> Addresses {
    // Both kinds are one list.
    let (allow, deny) = (scope.all("allow"), scope.all("deny"));
    let level = scope
        .levels()
        .iter()
        .rev()
        .find(|level| ["allow", "deny"].iter().any(|name| level.named(name).next().is_some()));
    let Some(level) = level else { return Addresses::All };
    let _ = (allow, deny);
    let mut rules: Vec<(bool, Option<String>)> = Vec::new();
    for directive in &level.directives {
        let allows = match directive.name.as_str() {
            "allow" => true,
            "deny" => false,
            _ => continue,
        };
        match directive.arg(0) {
            "all" => rules.push((allows, None)),
            "unix:" => {}
            text => match values::network(text) {
                Some(network) => rules.push((allows, Some(network))),
                None => report.add(directive, Severity::Guard, "not carried over: it is no network"),
            },
        }
    }
    let end = rules.iter().position(|(_, network)| network.is_none());
    let last = end.map(|end| rules[end].0).or(any.then_some(false));
    rules.truncate(end.unwrap_or(rules.len()));
    let networks = |of: bool| -> Vec<String> {
        rules.iter().filter(|(allows, _)| *allows == of).filter_map(|(_, network)| network.clone()).collect()
    };
    let (allowed, denied) = (networks(true), networks(false));
    match (last, allowed.is_empty(), denied.is_empty()) {
        (Some(false), true, _) => Addresses::None,
        (Some(false), false, true) => Addresses::Only(allowed),
        (_, _, true) => Addresses::All,
        (Some(true) | None, true, false) => Addresses::AllBut(denied),
        _ => {
            let mut conditions = Vec::new();
            let mut before: Vec<String> = Vec::new();
            for (allows, network) in &rules {
                let Some(network) = network else { continue };
                match allows {
                    true => before.push(network.clone()),
                    false if before.is_empty() => {
                        conditions.push(json!([["remote_addr", "ipmatch", [network]]]))
                    }
                    false => conditions.push(json!([
                        ["remote_addr", "ipmatch", [network]],
                        ["remote_addr", "!", "ipmatch", before]
                    ])),
                }
            }
            if last == Some(false) {
                conditions.push(json!([["remote_addr", "!", "ipmatch", before]]));
            }
            Addresses::Mixed(conditions)
        }
    }
}

/// A user of `auth_basic`.
pub(super) struct User {
    pub file: String,
    pub name: String,
    pub password: String,
    /// The password is a hash that `basic-auth` knows.
    pub hashed: bool,
}

/// Access control beside addresses.
pub(super) struct Access<'s> {
    pub source: &'s Source<'s>,
    /// Users of all files that were read.
    pub users: Vec<User>,
}

/// A way in which requests of a location are let in, with the condition under which it applies.
pub(super) struct Way {
    pub condition: Option<Value>,
    by_address: bool,
    by_user: bool,
}

impl Way {
    /// Whether it asks for a user.
    pub(super) fn by_user(&self) -> bool {
        self.by_user
    }
}

/// The ways in: one, or with `satisfy any` one by address and one by user.
pub(super) fn ways(scope: &Scope<'_>, report: &mut Report) -> Vec<Way> {
    let any = scope.get("satisfy").is_some_and(|satisfy| satisfy.arg(0) == "any");
    let asks = has_auth(scope);
    let both = Way { condition: None, by_address: true, by_user: true };
    if !any || !asks {
        return vec![both];
    }
    let way = |condition| {
        vec![
            Way { condition: Some(condition), by_address: false, by_user: false },
            Way { condition: None, by_address: false, by_user: true },
        ]
    };
    match addresses(scope, true, report) {
        Addresses::All => match scope.all("allow").is_empty() && scope.all("deny").is_empty() {
            true => vec![both],
            false => vec![Way { condition: None, by_address: false, by_user: false }],
        },
        Addresses::None => vec![Way { condition: None, by_address: false, by_user: true }],
        Addresses::Only(networks) => way(json!(["remote_addr", "ipmatch", networks])),
        Addresses::AllBut(networks) => way(json!(["remote_addr", "!", "ipmatch", networks])),
        Addresses::Mixed(conditions) => {
            let mut none = vec![json!("!OR")];
            none.extend(conditions);
            if none.len() == 2 {
                none.push(none[1].clone());
            }
            way(Value::Array(none))
        }
    }
}

fn has_auth(scope: &Scope<'_>) -> bool {
    ["auth_basic", "auth_request"]
        .iter()
        .any(|name| scope.get(name).is_some_and(|directive| directive.arg(0) != "off"))
}

impl Access<'_> {
    /// Adds the plugins of one way in.
    pub(super) fn apply(&mut self, scope: &Scope<'_>, way: &Way, draft: &mut Draft, report: &mut Report) {
        if way.by_address {
            match addresses(scope, false, report) {
                Addresses::All => {}
                Addresses::None => super::answers::page(403, draft),
                Addresses::Only(networks) => {
                    draft.plugins.insert("ip-restriction".to_owned(), json!({ "whitelist": networks }));
                }
                Addresses::AllBut(networks) => {
                    draft.plugins.insert("ip-restriction".to_owned(), json!({ "blacklist": networks }));
                }
                Addresses::Mixed(conditions) => {
                    let abort = json!({"http_status": 403, "body": "", "vars": conditions});
                    draft.plugins.insert("fault-injection".to_owned(), json!({ "abort": abort }));
                }
            }
        }
        let file = scope.get("auth_basic_user_file");
        if let Some(basic) = scope.get("auth_basic").filter(|basic| basic.arg(0) != "off")
            && way.by_user
        {
            self.basic(basic, file, draft, report);
        }
    }

    fn basic(&mut self, basic: &Directive, file: Option<&Directive>, draft: &mut Draft, report: &mut Report) {
        let Some(file) = file else {
            report.add(basic, Severity::Guard, "not carried over: there is no file of users");
            return;
        };
        let path = file.arg(0).to_owned();
        if !self.users.iter().any(|user| user.file == path) {
            match self.source.files.read(&path) {
                Ok(text) => self.read_users(&path, &text, file, report),
                Err(error) => {
                    report.add(file, Severity::Guard, format!("the users are not known: {error}"));
                    return;
                }
            }
        }
        let names: Vec<String> =
            self.users.iter().filter(|user| user.file == path).map(|user| self.consumer(user)).collect();
        if names.is_empty() {
            report.add(file, Severity::Guard, "no user of the file can be carried over");
            return;
        }
        let realm: String =
            basic.arg(0).chars().filter(|c| matches!(c, ' '..='~') && !"\"\\".contains(*c)).collect();
        let realm: String = realm.chars().take(128).collect();
        let settings = if realm.is_empty() { json!({}) } else { json!({ "realm": realm }) };
        draft.plugins.insert("basic-auth".to_owned(), settings);
        draft.plugins.insert("consumer-restriction".to_owned(), json!({ "whitelist": names }));
        // nginx does not send it.
        draft.remove.push("X-Consumer-Username".to_owned());
    }

    fn read_users(&mut self, path: &str, text: &str, at: &Directive, report: &mut Report) {
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut parts = line.splitn(3, ':');
            let (name, password) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let (password, hashed) = match password.strip_prefix("{PLAIN}") {
                Some(password) => (password, false),
                None if is_hash(password) => (password, true),
                None => {
                    let effect = match password.starts_with("{S") {
                        true => {
                            "a password is not carried over: its hash is invalid, as `{SHA}` needs 20 bytes in base64 and `{SSHA}` a salt after them"
                        }
                        false => "a password that is stored as a hash of this kind is not carried over",
                    };
                    let hint =
                        "store it with `htpasswd -B`, or give the user a consumer with the plugin basic-auth";
                    report.add_with_hint(at, Severity::Guard, effect, Some(hint));
                    continue;
                }
            };
            let taken = self.users.iter().any(|user| user.name == name && user.password != password);
            if name.is_empty() || taken {
                report.add(at, Severity::Guard, "a name is another file's, with another password");
                continue;
            }
            let (file, name) = (path.to_owned(), name.to_owned());
            let user = User { file, name, password: password.to_owned(), hashed };
            self.users.push(user);
        }
    }

    /// The name of a user's consumer.
    pub(super) fn consumer(&self, user: &User) -> String {
        let clean: String = user
            .name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' })
            .collect();
        let same = |other: &&User| {
            other.name != user.name
                && other
                    .name
                    .chars()
                    .map(|c| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' })
                    .eq(clean.chars())
        };
        match self.users.iter().find(same) {
            Some(_) => {
                let number = self.users.iter().position(|other| other.name == user.name).unwrap_or(0);
                format!("{clean}_{number}")
            }
            None => clean,
        }
    }
}

/// Whether `basic-auth` knows this kind of hash. Those of DES and of yescrypt it does not.
fn is_hash(password: &str) -> bool {
    let is_crypt =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"./".contains(&byte));
    let bcrypt =
        ["$2y$", "$2b$", "$2a$"].iter().find_map(|start| password.strip_prefix(start)?.split_once('$'));
    if let Some((cost, hash)) = bcrypt {
        return matches!(cost, "04" | "05" | "06" | "07" | "08" | "09" | "10" | "11" | "12")
            && hash.len() == 53
            && is_crypt(hash);
    }
    for (start, letters) in [("$5$", 43), ("$6$", 86)] {
        let Some(mut rest) = password.strip_prefix(start) else { continue };
        if let Some((rounds, salted)) = rest.strip_prefix("rounds=").and_then(|rest| rest.split_once('$')) {
            if !rounds.parse().is_ok_and(|rounds: u32| (1_000..=200_000).contains(&rounds)) {
                return false;
            }
            rest = salted;
        }
        let parts = rest.split_once('$');
        return parts.is_some_and(|(salt, hash)| salt.len() <= 16 && hash.len() == letters && is_crypt(hash));
    }
    let md5 = ["$apr1$", "$1$"].iter().find_map(|start| password.strip_prefix(start)?.split_once('$'));
    md5.is_some_and(|(salt, hash)| salt.len() <= 8 && hash.len() == 22)
        || password.strip_prefix("{SHA}").and_then(bytes_of).is_some_and(|bytes| bytes == 20)
        || password.strip_prefix("{SSHA}").and_then(bytes_of).is_some_and(|bytes| bytes > 20)
}

/// The number of bytes that a text in the standard alphabet of base64 stands for.
fn bytes_of(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches('=');
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    (digits.bytes().all(is_digit) && digits.len() % 4 != 1 && text.len() - digits.len() <= 2)
        .then_some(digits.len() * 3 / 4)
}

#[cfg(test)]
mod tests {
    use super::is_hash;

    #[test]
    fn hashes_have_all_their_bytes() {
        for (password, is_known) in [
            ("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", true),
            ("{SSHA}yI6cZwQadOA1e+/f+T+H3eCQQhRzYWx0", true),
            // A salt of one byte.
            ("{SSHA}yI6cZwQadOA1e+/f+T+H3eCQQhRz", true),
            // No salt; too short; no base64.
            ("{SSHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", false),
            ("{SSHA}W6ph5Mm5Pz8GgiULbPgzG37m", false),
            ("{SSHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g===", false),
            ("{SHA}W6ph5Mm5Pz8GgiULbPgzG37m", false),
            ("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9-=", false),
            ("{SHA}yI6cZwQadOA1e+/f+T+H3eCQQhRzYWx0", false),
            ("$apr1$xxxxxxxx$dxHfLAsjHkDRmG83UXe8K0", true),
            ("$apr1$xxxxxxxx$dxHfLAsjHkDRmG83UXe8K", false),
            ("secret", false),
            ("$2y$04$YFSBCOSfNgjJaArvoXjN2.lKoVp5mC8H8mFpUr5FXGvJpE4q8cK2m", true),
            ("$2y$13$YFSBCOSfNgjJaArvoXjN2.lKoVp5mC8H8mFpUr5FXGvJpE4q8cK2m", false),
            ("$2y$04$YFSBCOSfNgjJaArvoXjN2.lKoVp5mC8H8mFpUr5FXGvJpE4q8cK2", false),
            ("$5$saltstring$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4/dQ5", true),
            ("$5$rounds=1000$abcdefghijklmnop$XPI9divaDz2UXR4L48noVEQhGh1MV.xPSC/a9G2Nit7", true),
            ("$5$rounds=900000$abcdefghijklmnop$XPI9divaDz2UXR4L48noVEQhGh1MV.xPSC/a9G2Nit7", false),
            ("$5$saltstring$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4/dQ", false),
            ("$6$saltstring$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4/dQ5", false),
            ("rl.3StKT.4T8M", false),
        ] {
            assert_eq!(is_hash(password), is_known, "{password}");
        }
    }
}
