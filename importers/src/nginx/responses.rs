//! Headers of responses, compression and caches.

use serde_json::{Map, Value, json};

use super::answers::template;
use super::draft::Draft;
use super::report::Report;
use super::scope::Scope;
use super::text::Text;
use super::values;
use crate::Severity;

type Lookup<'l> = &'l dyn Fn(&str) -> Option<Text>;

/// `add_header`, `expires`, and `*_hide_header`.
pub(super) fn headers(scope: &Scope<'_>, lookup: Lookup<'_>, draft: &mut Draft, report: &mut Report) {
    let added = scope.all("add_header");
    let mut always: Vec<bool> = Vec::new();
    for add in &added {
        let name = add.arg(0);
        if !is_token(name) {
            report.add(
                add,
                Severity::Behaviour,
                "not carried over: the name has characters that no header has",
            );
            continue;
        }
        let text = Text::parse(add.arg(1)).fill(lookup);
        if text.constant() == Some("") {
            continue;
        }
        let value = template(add, text, report);
        if name.eq_ignore_ascii_case("content-length") {
            report.add(add, Severity::Cosmetic, "the gateway writes the length of the body itself");
            continue;
        }
        if name.eq_ignore_ascii_case("content-type") {
            report.add(add, Severity::Behaviour, "the type is replaced; nginx sends a second Content-Type");
        }
        always.push(add.args.get(2).is_some_and(|arg| arg == "always"));
        draft.response.add.push((name.to_owned(), clean(&value)));
    }
    if always.contains(&true) && always.contains(&false) {
        let effect = "added to all responses, as other headers of the location are with `always`";
        let mut lesser = added.iter().filter(|add| add.args.get(2).is_none_or(|arg| arg != "always"));
        if let Some(add) = lesser.next() {
            report.add(add, Severity::Behaviour, effect);
        }
    }
    // Files have their own times.
    let is_files =
        draft.plugins.get("static-files").is_some_and(|files| files["try_files"] != json!(["@upstream"]));
    // A header of the same name takes the place of the plugin's.
    let seconds = draft.plugins.get("static-files").and_then(|files| files["expires"].as_i64());
    if let Some(seconds) = seconds
        && draft.response.add.iter().any(|(name, _)| name.eq_ignore_ascii_case("cache-control"))
    {
        let value = if seconds < 0 { "no-cache".to_owned() } else { format!("max-age={seconds}") };
        draft.response.add.insert(0, ("Cache-Control".to_owned(), value));
    }
    if let Some(expires) = scope.get("expires").filter(|_| !is_files) {
        let time = if expires.arg(0) == "modified" { expires.arg(1) } else { expires.arg(0) };
        let value = match time {
            "off" => None,
            "epoch" => Some(-1),
            "max" => Some(315_360_000),
            time => match values::seconds(time.trim_start_matches('-'))
                .map(|seconds| seconds.min(3.1e9) as i64)
            {
                Some(seconds) if time.starts_with('-') => Some(-seconds),
                Some(seconds) => Some(seconds),
                None => {
                    report.add(expires, Severity::Behaviour, "not carried over: the time is not a plain one");
                    None
                }
            },
        };
        draft.response.expires = value;
        if expires.arg(0) == "modified" && value.is_some() {
            let effect = "the time is that from the request on, not from the last change";
            report.add(expires, Severity::Behaviour, effect);
        }
    }
    draft.response.only_successes = !always.is_empty() && !always.contains(&true);
    for prefix in ["proxy", "grpc"] {
        for hide in scope.all(&format!("{prefix}_hide_header")) {
            if is_token(hide.arg(0)) {
                draft.response.remove.push(hide.arg(0).to_owned());
                // Removals must apply to all statuses.
                if draft.response.only_successes {
                    draft.response.only_successes = false;
                    report.add(hide, Severity::Behaviour, "beside it, headers are added to all responses");
                }
            }
        }
    }
}

/// `client_max_body_size`.
pub(super) fn body_size(scope: &Scope<'_>, draft: &mut Draft, report: &mut Report) {
    let Some(directive) = scope.get("client_max_body_size") else { return };
    match values::bytes(directive.arg(0)).filter(|size| *size < 1 << 53) {
        Some(size) => {
            draft.plugins.insert("client-control".to_owned(), json!({ "max_body_size": size }));
        }
        None => report.add(directive, Severity::Guard, "not carried over: it is no size"),
    }
}

/// `gzip` and its settings.
pub(super) fn compression(scope: &Scope<'_>, draft: &mut Draft, report: &mut Report) {
    let is_on = scope.flag("gzip") == Some(true);
    let (types, level, least, vary) = (
        scope.get("gzip_types"),
        scope.number("gzip_comp_level"),
        scope.number("gzip_min_length"),
        scope.flag("gzip_vary"),
    );
    let (version, proxied) = (scope.get("gzip_http_version"), scope.get("gzip_proxied"));
    for name in ["gzip_buffers", "gzip_disable", "gzip_static", "gunzip"] {
        if let Some(directive) = scope.get(name).filter(|_| is_on) {
            report.add(directive, Severity::Cosmetic, "the gateway compresses for clients that accept gzip");
        }
    }
    if !is_on {
        return;
    }
    let mut settings = Map::new();
    if let Some(types) = types {
        if types.args.iter().any(|kind| kind == "*") {
            settings.insert("types".to_owned(), json!("*"));
        } else {
            let mut all = vec!["text/html".to_owned()];
            all.extend(types.args.iter().filter(|kind| *kind != "text/html").cloned());
            all.dedup();
            settings.insert("types".to_owned(), json!(all));
        }
    }
    if let Some(level) = level {
        settings.insert("comp_level".to_owned(), json!(level.clamp(1, 9)));
    }
    if let Some(least) = least {
        settings.insert("min_length".to_owned(), json!(least.max(1)));
    }
    if let Some(vary) = vary {
        settings.insert("vary".to_owned(), json!(vary));
    }
    if version.is_some_and(|version| version.arg(0) == "1.0") {
        settings.insert("http_version".to_owned(), json!(1.0));
    }
    if let Some(proxied) = proxied.filter(|proxied| proxied.arg(0) != "off") {
        report.add(
            proxied,
            Severity::Behaviour,
            "requests that came through a proxy (Via) are not compressed for",
        );
    }
    draft.plugins.insert("gzip".to_owned(), json!(settings));
}

/// `proxy_cache` and its settings.
pub(super) fn cache(scope: &Scope<'_>, lookup: Lookup<'_>, draft: &mut Draft, report: &mut Report) {
    let cache = scope.get("proxy_cache").filter(|cache| cache.arg(0) != "off");
    let (valid, key) = (scope.all("proxy_cache_valid"), scope.get("proxy_cache_key"));
    let (bypass, no_cache) = (scope.get("proxy_cache_bypass"), scope.get("proxy_no_cache"));
    let methods = scope.get("proxy_cache_methods");
    for name in [
        "proxy_cache_use_stale",
        "proxy_cache_background_update",
        "proxy_cache_lock",
        "proxy_cache_lock_timeout",
        "proxy_cache_lock_age",
        "proxy_cache_min_uses",
        "proxy_cache_revalidate",
        "proxy_cache_convert_head",
        "proxy_cache_max_range_offset",
        "proxy_cache_purge",
    ] {
        if let Some(directive) = scope.get(name).filter(|_| cache.is_some()) {
            report.add(directive, Severity::Behaviour, "not carried over: the cache has no such setting");
        }
    }
    if let Some(ignored) = scope.get("proxy_ignore_headers") {
        report.add(ignored, Severity::Behaviour, "not carried over: the upstream's headers count");
    }
    let Some(cache) = cache else { return };
    let mut settings = Map::new();
    settings.insert("cache_strategy".to_owned(), json!("memory"));
    settings.insert("cache_zone".to_owned(), json!("memory_cache"));
    let (mut statuses, mut ttl) = (Vec::new(), None);
    for directive in &valid {
        let Some((time, codes)) = directive.args.split_last() else { continue };
        ttl = ttl.or(values::seconds(time));
        if codes.is_empty() {
            statuses.extend([200, 301, 302]);
        }
        for code in codes {
            match code.parse::<u16>() {
                Ok(code) if (200..600).contains(&code) => statuses.push(code),
                _ => {
                    report.add(directive, Severity::Behaviour, "`any` stands for 200, 301, 302 and 404 here")
                }
            }
            if code == "any" {
                statuses.extend([200, 301, 302, 404]);
            }
        }
    }
    statuses.sort_unstable();
    statuses.dedup();
    if !statuses.is_empty() {
        settings.insert("cache_http_status".to_owned(), json!(statuses));
    }
    if let Some(ttl) = ttl {
        settings.insert("cache_ttl".to_owned(), json!((ttl as u64).max(1)));
    }
    let parts = |text: &Text| -> Vec<String> {
        text.0
            .iter()
            .map(|piece| match piece {
                super::text::Piece::Literal(text) => text.clone(),
                super::text::Piece::Variable(name) => format!("${name}"),
            })
            .filter(|part| part.len() > 1)
            .collect()
    };
    if let Some(key) = key {
        let text = Text::parse(key.arg(0)).fill(lookup);
        let mut parts = parts(&text);
        parts.iter_mut().filter(|part| *part == "$proxy_host").for_each(|part| *part = "$host".to_owned());
        if !parts.is_empty() {
            settings.insert("cache_key".to_owned(), json!(parts));
        }
    }
    let named = settings.get("cache_key").and_then(Value::as_array);
    let by_host = named.is_none_or(|parts| parts.iter().any(|part| part == "$host" || part == "$http_host"));
    let own = if by_host { "`Host` and each `Authorization`" } else { "`Authorization`" };
    let effect = format!(
        "responses are kept in the zone `memory_cache` of the gateway, for each {own} by itself, as long as the first time \
         of `proxy_cache_valid` says, and are sent with `Apisix-Cache-Status` and `Age`"
    );
    let hint = "config.yaml sets the size of its zones in `apisix.proxy_cache.zones`";
    report.add_with_hint(cache, Severity::Behaviour, effect, Some(hint));
    for (name, directive) in [("cache_bypass", bypass), ("no_cache", no_cache)] {
        let Some(directive) = directive else { continue };
        let mut values = Vec::new();
        for arg in &directive.args {
            let text = Text::parse(arg).fill(lookup);
            if text.single().is_some() && text.template().is_ok() {
                values.extend(parts(&text));
            } else if text.constant().is_none_or(|text| !text.is_empty() && text != "0") {
                report.add(directive, Severity::Behaviour, format!("`{arg}` is not carried over"));
            }
        }
        if !values.is_empty() {
            settings.insert(name.to_owned(), json!(values));
        }
    }
    if methods.is_some_and(|methods| methods.args.iter().any(|method| method == "POST")) {
        settings.insert("cache_method".to_owned(), json!(["GET", "HEAD", "POST"]));
    }
    draft.plugins.insert("proxy-cache".to_owned(), json!(settings));
}

/// Whether a text is the name of a header.
pub(super) fn is_token(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !name.is_empty() && name.chars().all(allowed)
}

/// A value without characters that no header has.
pub(super) fn clean(value: &str) -> String {
    value.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
