//! `auth_request`, and the client's address.

use serde_json::{Map, Value, json};

use super::{Current, Http};
use crate::Severity;
use crate::nginx::cases::State;
use crate::nginx::directive::Directive;
use crate::nginx::draft::Draft;
use crate::nginx::scope::Scope;
use crate::nginx::text::Text;
use crate::nginx::{access, answers, locations, proxying, responses, values};

/// Headers that the gateway writes for a connection.
const OF_CONNECTION: [&str; 7] =
    ["host", "connection", "content-length", "upgrade", "transfer-encoding", "te", "keep-alive"];

/// Headers that `forward-auth` writes itself, never the client, and the values of nginx that mean the same.
const FORWARDED: [(&str, &[&str]); 5] = [
    ("x-forwarded-proto", &["${scheme}"]),
    ("x-forwarded-method", &["${request_method}"]),
    ("x-forwarded-host", &["${host}", "${http_host}"]),
    ("x-forwarded-uri", &["${request_uri}", "${uri}"]),
    ("x-forwarded-for", &["${remote_addr}", "${proxy_add_x_forwarded_for}"]),
];

impl<'a> Http<'_, 'a> {
    pub(super) fn auth_request(
        &mut self,
        current: &Current<'_, 'a>,
        state: &State<'a>,
        way: &access::Way,
        lookup: &dyn Fn(&str) -> Option<Text>,
        draft: &mut Draft,
    ) {
        let sets = state.scope.all("auth_request_set");
        let Some(at) = state.scope.get("auth_request").filter(|at| at.arg(0) != "off") else { return };
        if !way.by_user() {
            return;
        }
        let target = locations::target(current.locations, at.arg(0), true);
        let pass = target.and_then(|target| Some((target, target.scope.own("proxy_pass")?)));
        let Some((target, pass_at)) = pass else {
            self.report.add(
                at,
                Severity::Guard,
                "not carried over: the location that it asks is not proxied",
            );
            return;
        };
        let server = target.scope.clone();
        // The server is asked without the body.
        server.own("proxy_pass_request_body");
        let Ok(pass) = proxying::split(pass_at, lookup) else {
            self.report.add(at, Severity::Guard, "not carried over: the server that it asks is a variable");
            return;
        };
        let Some(address) =
            self.upstreams.first_server(&pass.target).filter(|_| pass.target.scheme == "http")
        else {
            self.report.add(
                at,
                Severity::Guard,
                "not carried over: the server that it asks is not one of plain HTTP",
            );
            return;
        };
        let path = match &pass.uri {
            None => target.path.clone(),
            Some(uri) => uri.constant().unwrap_or("/").to_owned(),
        };
        let mut extra = Map::new();
        for set in server.all("proxy_set_header") {
            let name = set.arg(0);
            let lower = name.to_ascii_lowercase();
            let text = Text::parse(set.arg(1)).fill(lookup);
            if OF_CONNECTION.contains(&lower.as_str()) {
                continue;
            }
            if !responses::is_token(name) {
                let effect = "not carried over: the name has characters that no header has";
                self.report.add(set, Severity::Behaviour, effect);
                continue;
            }
            if let Some((_, same)) = FORWARDED.iter().find(|(name, _)| *name == lower) {
                if !same.contains(&text.source().as_str()) {
                    let effect = "the server that is asked gets the gateway's own value";
                    self.report.add(set, Severity::Behaviour, effect);
                }
                continue;
            }
            // An empty value keeps back that of the client.
            if text.single() != Some(&format!("http_{}", lower.replace('-', "_"))) {
                let value = answers::template(set, text, &mut self.report);
                extra.insert(name.to_owned(), json!(responses::clean(&value)));
            }
        }
        let mut settings = json!({"uri": format!("http://{address}{path}"), "all_request_headers": true});
        if !extra.is_empty() {
            settings["extra_headers"] = Value::Object(extra);
        }
        // nginx answers other statuses with 500.
        settings["client_statuses"] = json!([401, 403]);
        settings["client_headers"] = json!(["WWW-Authenticate"]);
        settings["status_on_error"] = json!(500);
        let names = self.auth_headers(&sets, &state.scope);
        if !names.is_empty() {
            settings["upstream_header_names"] = Value::Object(names);
        }
        if self.upstreams.is_several(&pass.target) {
            let effect = "the first server of its group is asked, no other";
            self.report.add(at, Severity::Behaviour, effect);
        }
        draft.plugins.insert("forward-auth".to_owned(), settings);
    }

    /// The headers for the upstream that `auth_request_set` takes from the answer, and their names there.
    fn auth_headers(&mut self, sets: &[&'a Directive], scope: &Scope<'a>) -> Map<String, Value> {
        let mut names = Map::new();
        for set in sets {
            let Some(variable) = set.arg(0).strip_prefix('$') else { continue };
            let Some(header) = set.arg(1).strip_prefix("$upstream_http_") else {
                self.report.add(set, Severity::Behaviour, "only headers of the answer are carried over");
                continue;
            };
            for header_set in scope.all("proxy_set_header") {
                if Text::parse(header_set.arg(1)).single() == Some(variable) {
                    names.insert(header_set.arg(0).to_owned(), json!(header.replace('_', "-")));
                }
            }
        }
        names
    }

    pub(super) fn real_ip(&mut self, scope: &Scope<'a>, draft: &mut Draft) {
        let (from, header) = (scope.all("set_real_ip_from"), scope.get("real_ip_header"));
        let recursive = scope.flag("real_ip_recursive") == Some(true);
        let mut networks = Vec::new();
        for directive in &from {
            match values::network(directive.arg(0)) {
                Some(network) => networks.push(network),
                None => self.report.add(directive, Severity::Behaviour, "not carried over: it is no network"),
            }
        }
        if networks.is_empty() {
            return;
        }
        let header = header.map_or("X-Real-IP", |header| header.arg(0));
        let source = match header {
            "proxy_protocol" => "proxy_protocol_addr".to_owned(),
            header => format!("http_{}", header.to_ascii_lowercase().replace('-', "_")),
        };
        let settings = json!({"source": source, "trusted_addresses": networks, "recursive": recursive});
        draft.plugins.insert("real-ip".to_owned(), settings);
    }
}
