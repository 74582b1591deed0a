//! Requests to an upstream: `proxy_pass` and `grpc_pass`, their headers and times.

use serde_json::json;

use super::answers::template;
use super::cases::{Groups, State};
use super::directive::Directive;
use super::draft::Draft;
use super::locations::{Location, LocationKind};
use super::report::Report;
use super::responses::{clean, is_token};
use super::scope::Scope;
use super::text::{Piece, Text, escaped, group_names};
use super::upstreams::{self, Target, Upstreams, Use};
use crate::server_name::is_server_name;
use crate::{Severity, Source};

/// A `proxy_pass`, split.
pub(super) struct Pass {
    pub target: Target,
    /// The path, and a query, behind the server; `None` if it has none.
    pub uri: Option<Text>,
    /// The address has variables, so nginx sends `uri` as it is.
    pub has_variables: bool,
}

/// Parts of an import that a proxied location needs.
pub(super) struct Proxying<'p, 'a> {
    pub source: &'p Source<'p>,
    pub upstreams: &'p mut Upstreams<'a>,
    pub report: &'p mut Report,
}

/// Splits the address of a `proxy_pass` or `grpc_pass`.
///
/// # Errors
/// Why there is no server to be found.
pub(super) fn split(at: &Directive, lookup: &dyn Fn(&str) -> Option<Text>) -> Result<Pass, String> {
    let grpc = at.name == "grpc_pass";
    let written = Text::parse(at.arg(0));
    let has_variables = written.constant().is_none();
    let text = written.fill(lookup);
    let (first, rest) = match text.0.split_first() {
        Some((Piece::Literal(first), rest)) => (first.as_str(), rest),
        _ => return Err(format!("the server in `{}` is a variable of the request", text.source())),
    };
    let schemes: [(&str, &'static str); 4] =
        [("http://", "http"), ("https://", "https"), ("grpc://", "h2c"), ("grpcs://", "h2")];
    let found = schemes.into_iter().find(|(start, _)| first.starts_with(start));
    let (scheme, address) = match found {
        Some((start, scheme)) => (scheme, &first[start.len()..]),
        None if grpc => ("h2c", first),
        None => return Err("it is no address of HTTP".to_owned()),
    };
    if address.starts_with("unix:") {
        return Err("the gateway has no connections to Unix sockets".to_owned());
    }
    let end = address.find(['/', '?']).unwrap_or(address.len());
    let authority = &address[..end];
    if end == address.len() && !rest.is_empty() {
        let next = match rest.first() {
            Some(Piece::Variable(name)) => name.as_str(),
            _ => "",
        };
        if !matches!(next, "request_uri" | "uri" | "document_uri") && !super::text::is_group(next) {
            return Err(format!("the server in `{}` is a variable of the request", text.source()));
        }
    }
    if authority.is_empty() {
        return Err("it names no server".to_owned());
    }
    let mut uri = Text::literal(&address[end..]);
    uri.0.extend(rest.iter().cloned());
    let uri = Some(uri).filter(|uri| !uri.0.is_empty());
    let target = Target { scheme, authority: authority.to_owned() };
    Ok(Pass { target, uri, has_variables })
}

impl Proxying<'_, '_> {
    /// Fills in the route of a proxied location.
    pub(super) fn apply(
        &mut self,
        at: &Directive,
        location: &Location<'_>,
        state: &State<'_>,
        lookup: &dyn Fn(&str) -> Option<Text>,
        draft: &mut Draft,
    ) {
        let pass = match split(at, lookup) {
            Ok(pass) => pass,
            Err(reason) => {
                self.report.add(
                    at,
                    Severity::Behaviour,
                    format!("not carried over: {reason}; requests get 502"),
                );
                return super::answers::page(502, draft);
            }
        };
        let prefix = if at.name == "grpc_pass" { "grpc" } else { "proxy" };
        let scope = &state.scope;
        self.path(at, &pass, location, state, draft);
        let mut how = Use::default();
        self.headers(scope, prefix, &pass, lookup, &mut how, draft);
        self.tls(scope, prefix, &pass, &mut how);
        upstreams::retries(scope, prefix, &mut how, self.report);
        let time =
            |name: &str| scope.time(&format!("{prefix}_{name}_timeout")).filter(|seconds| *seconds > 0.0);
        let times = (time("connect"), time("send"), time("read"));
        if times != (None, None, None) {
            draft.timeout = Some((times.0.unwrap_or(60.0), times.1.unwrap_or(60.0), times.2.unwrap_or(60.0)));
        }
        if let Some(method) = scope.get("proxy_method") {
            draft.rewrite.insert("method".to_owned(), json!(method.arg(0)));
        }
        match self.upstreams.id(&pass.target, &how, at, self.report) {
            Some(id) => draft.upstream_id = Some(id),
            None => {
                let effect = "not carried over: it is no host with a port; requests get 502";
                self.report.add(at, Severity::Behaviour, effect);
                super::answers::page(502, draft);
            }
        }
    }

    /// The path that the upstream gets.
    fn path(
        &mut self,
        at: &Directive,
        pass: &Pass,
        location: &Location<'_>,
        state: &State<'_>,
        draft: &mut Draft,
    ) {
        let mut pairs: Vec<String> = Vec::new();
        for rewrite in &state.rewrites {
            let mut replacement = rewrite.replacement.clone();
            if let Some(Piece::Literal(last)) = replacement.0.last_mut()
                && last.ends_with('?')
            {
                last.pop();
                self.report.add(at, Severity::Behaviour, "the query of the client is passed on, too");
            }
            let replacement = self.replacement(at, &replacement);
            pairs.extend([rewrite.pattern.clone(), replacement]);
        }
        if let Some(uri) = &pass.uri {
            self.swap(at, pass, uri, location, state, &mut pairs, draft);
        }
        // nginx sends the target as it came, unless a directive changes it.
        let as_it_came = match &pass.uri {
            None => true,
            Some(uri) => pass.has_variables && uri.single() == Some("request_uri"),
        };
        draft.raw_target = as_it_came && pairs.is_empty();
        if !pairs.is_empty() {
            draft.rewrite.insert("regex_uri".to_owned(), json!(pairs));
        }
    }

    /// The exchange of the location's path for that of the address.
    #[expect(clippy::too_many_arguments, reason = "the parts of one path")]
    fn swap(
        &mut self,
        at: &Directive,
        pass: &Pass,
        uri: &Text,
        location: &Location<'_>,
        state: &State<'_>,
        pairs: &mut Vec<String>,
        draft: &mut Draft,
    ) {
        if pass.has_variables {
            // As it is: `$request_uri`, or a path and a query of its own.
            let mut uri = match &state.groups {
                Groups::Path(pattern) => uri.with_groups(&group_names(pattern)),
                _ => uri.clone(),
            };
            let source = uri.source();
            let ends = ["${is_args}${args}", "?${args}", "${is_args}${query_string}", "?${query_string}"];
            let asks = ends.iter().find(|end| source.ends_with(**end));
            if let Some(end) = asks {
                uri = Text::parse(&source[..source.len() - end.len()]);
            }
            let same = ["request_uri", "uri", "document_uri"];
            if uri.single().is_some_and(|name| same.contains(&name)) {
                return;
            }
            if asks.is_none() && !uri.variables().any(|name| name == "request_uri" || name == "args") {
                self.report.add(at, Severity::Behaviour, "the query of the client is passed on, too");
            }
            if uri.has_groups() {
                let Groups::Path(pattern) = &state.groups else {
                    self.report.add(
                        at,
                        Severity::Behaviour,
                        "groups of a regular expression have no value here",
                    );
                    return;
                };
                let replacement = self.replacement(at, &uri);
                pairs.extend([pattern.clone(), replacement]);
            } else if pairs.is_empty() {
                let uri = template(at, uri, self.report);
                draft.rewrite.insert("uri".to_owned(), json!(uri));
            }
            return;
        }
        let Some(uri) = uri.constant() else { return };
        match location.kind {
            LocationKind::Exact if uri == location.path => {}
            LocationKind::Exact if pairs.is_empty() => {
                draft.rewrite.insert("uri".to_owned(), json!(uri));
            }
            LocationKind::Exact => pairs.extend(["^.*$".to_owned(), uri.to_owned()]),
            _ if uri == location.path => {}
            _ => pairs.extend([format!("^{}(.*)$", escaped(&location.path)), format!("{uri}$1")]),
        }
    }

    /// A replacement with groups alone.
    fn replacement(&mut self, at: &Directive, text: &Text) -> String {
        let mut text = text.clone();
        if text.variables().any(|name| !super::text::is_group(name)) {
            let effect = "variables in a changed path are not carried over beside groups";
            self.report.add(at, Severity::Behaviour, effect);
            text.0.retain(|piece| match piece {
                Piece::Variable(name) => super::text::is_group(name),
                Piece::Literal(_) => true,
            });
        }
        text.template().unwrap_or_default()
    }

    fn headers(
        &mut self,
        scope: &Scope<'_>,
        prefix: &str,
        pass: &Pass,
        lookup: &dyn Fn(&str) -> Option<Text>,
        how: &mut Use,
        draft: &mut Draft,
    ) {
        let mut host = None;
        let of_auth = scope.all("auth_request_set");
        for set in scope.all(&format!("{prefix}_set_header")) {
            let name = set.arg(0);
            let text = Text::parse(set.arg(1)).fill(&|name| match name {
                "proxy_host" => Some(Text::literal(authority(pass))),
                name => lookup(name),
            });
            if !is_token(name) {
                self.report.add(
                    set,
                    Severity::Behaviour,
                    "not carried over: the name has characters that no header has",
                );
                continue;
            }
            let lower = name.to_ascii_lowercase();
            let source = text.source();
            let by_auth = |name: &str| of_auth.iter().any(|set| set.arg(0).strip_prefix('$') == Some(name));
            if text.single().is_some_and(by_auth) {
                // It comes from the server that was asked, never from the client.
                draft.remove.push(name.to_owned());
                continue;
            }
            match lower.as_str() {
                "host" => host = Some((set, text)),
                // The gateway writes these itself.
                "connection" | "content-length" | "transfer-encoding" | "te" | "keep-alive" => {}
                "upgrade" => draft.websocket |= text.constant() != Some(""),
                "x-real-ip" => {
                    if !matches!(source.as_str(), "${remote_addr}" | "${realip_remote_addr}") {
                        let effect = "the upstream gets the client's address there";
                        self.report.add(set, Severity::Behaviour, effect);
                    }
                }
                "x-forwarded-for" => match source.as_str() {
                    "${proxy_add_x_forwarded_for}" => {}
                    "${remote_addr}" => draft.remove.push(name.to_owned()),
                    _ => {
                        let effect = "the client's address is appended to what clients send";
                        self.report.add(set, Severity::Behaviour, effect);
                    }
                },
                _ if text.constant() == Some("") => draft.remove.push(name.to_owned()),
                _ => {
                    // A header that is passed on as it came.
                    if source == format!("${{http_{}}}", lower.replace('-', "_")) {
                        continue;
                    }
                    let value = clean(&template(set, text, self.report));
                    if value.is_empty() {
                        draft.remove.push(name.to_owned());
                    } else {
                        draft.set.insert(name.to_owned(), json!(value));
                    }
                }
            }
        }
        self.host(host, pass, how, draft);
    }

    fn host(&mut self, host: Option<(&Directive, Text)>, pass: &Pass, how: &mut Use, draft: &mut Draft) {
        let plain = |host: &str| {
            let allowed =
                |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '[' | ']' | ':');
            !host.is_empty() && host.chars().all(allowed)
        };
        let authority = || authority(pass).to_owned();
        let Some((at, text)) = host else {
            how.host = Some(authority());
            return;
        };
        match (text.constant(), text.source().as_str()) {
            (Some(host), _) if plain(host) => how.host = Some(host.to_owned()),
            (Some(_), _) => {
                self.report.add(at, Severity::Behaviour, "not carried over: it is no host");
                how.host = Some(authority());
            }
            (None, "${http_host}") => {}
            (None, _) => {
                let value = clean(&template(at, text, self.report));
                draft.set.insert("Host".to_owned(), json!(value));
            }
        }
    }

    fn tls(&mut self, scope: &Scope<'_>, prefix: &str, pass: &Pass, how: &mut Use) {
        let name = |rest: &str| format!("{prefix}_ssl_{rest}");
        let verify = scope.flag(&name("verify")) == Some(true);
        let (ca, cert, key) = (
            scope.get(&name("trusted_certificate")),
            scope.get(&name("certificate")),
            scope.get(&name("certificate_key")),
        );
        let named = scope.get(&name("name"));
        let sends_name = scope.flag(&name("server_name")) == Some(true);
        for rest in [
            "protocols",
            "ciphers",
            "server_name",
            "session_reuse",
            "verify_depth",
            "conf_command",
            "password_file",
            "crl",
        ] {
            if let Some(directive) = scope.get(&name(rest)).filter(|_| rest != "server_name") {
                let severity = if rest == "crl" { Severity::Guard } else { Severity::Cosmetic };
                self.report.add(
                    directive,
                    severity,
                    "the gateway's own settings of TLS towards servers count",
                );
            }
        }
        if !matches!(pass.target.scheme, "https" | "h2") {
            return;
        }
        let mut tls = serde_json::Map::new();
        let own = authority(pass).rsplit_once(':').map_or(authority(pass), |(host, _)| host);
        let name = match named.map(|named| named.arg(0)) {
            None | Some("$proxy_host") if verify || named.is_some() || sends_name => Some(own),
            None => None,
            Some(name) => Some(name),
        };
        match name {
            // nginx asks for it even where the server gets another Host.
            Some(name) if is_server_name(name) => {
                tls.insert("sni".to_owned(), json!(name));
            }
            Some(_) if let Some(named) = named => {
                let effect = "the server name of TLS is the Host that the upstream gets";
                self.report.add(named, Severity::Behaviour, effect);
            }
            _ => {}
        }
        if verify {
            if name.is_some_and(|name| name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok())
                && let Some(at) = scope.get(&format!("{prefix}_ssl_verify"))
            {
                let effect =
                    "a certificate for the address is accepted; nginx compares names alone and answers 502";
                self.report.add(at, Severity::Behaviour, effect);
            }
            tls.insert("verify".to_owned(), json!(true));
            if let Some(text) = ca.and_then(|ca| self.pem(ca, Severity::Guard)) {
                tls.insert("ca".to_owned(), json!(text));
            }
        }
        if let Some((cert, key)) = cert.zip(key)
            && let Some((cert, key)) =
                self.pem(cert, Severity::Behaviour).zip(self.pem(key, Severity::Behaviour))
        {
            tls.insert("client_cert".to_owned(), json!(cert));
            tls.insert("client_key".to_owned(), json!(key));
        }
        if !tls.is_empty() {
            how.tls = Some(serde_json::Value::Object(tls));
        }
    }

    fn pem(&mut self, at: &Directive, severity: Severity) -> Option<String> {
        match self.source.files.read(at.arg(0)) {
            Ok(text) => Some(text),
            Err(error) => {
                self.report.add(at, severity, format!("not carried over: {error}"));
                None
            }
        }
    }
}

/// The server as nginx writes it in `$proxy_host`: without the port if that is the scheme's own.
fn authority(pass: &Pass) -> &str {
    let (authority, port) = match pass.target.authority.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()),
        None => return &pass.target.authority,
    };
    if port == Some(upstreams::default_port(pass.target.scheme)) { authority } else { &pass.target.authority }
}
