//! A route while it is put together.

use serde_json::{Map, Value, json};

/// A route without its paths and conditions.
#[derive(Default)]
pub(super) struct Draft {
    pub plugins: Map<String, Value>,
    /// Settings of `proxy-rewrite` but for headers.
    pub rewrite: Map<String, Value>,
    /// Headers for the upstream, and headers that are removed.
    pub set: Map<String, Value>,
    pub remove: Vec<String>,
    /// Headers of the response.
    pub response: ResponseHeaders,
    pub upstream_id: Option<String>,
    pub plugin_config_id: Option<String>,
    /// Seconds: connect, send, read.
    pub timeout: Option<(f64, f64, f64)>,
    pub websocket: bool,
    /// The upstream gets the target as the client sent it.
    pub raw_target: bool,
    /// Nothing is configured to answer: nginx looks for a file, which only some methods may ask for.
    pub is_empty: bool,
}

/// Changes of a response's headers.
#[derive(Default)]
pub(super) struct ResponseHeaders {
    /// Name and value, in the order of the file.
    pub add: Vec<(String, String)>,
    pub remove: Vec<String>,
    /// Only for the statuses for which nginx adds headers without `always`.
    pub only_successes: bool,
    /// Seconds of `expires`.
    pub expires: Option<i64>,
}

/// The statuses of `add_header` without `always`.
const SUCCESSES: [&str; 10] = ["200", "201", "204", "206", "301", "302", "303", "304", "307", "308"];

impl Draft {
    /// Answers without an upstream.
    pub(super) fn answer(&mut self, status: u16, content_type: Option<&str>, body: &str) {
        let mut headers = Map::new();
        if let Some(content_type) = content_type.filter(|content_type| !content_type.is_empty()) {
            headers.insert("Content-Type".to_owned(), json!(content_type));
        }
        self.abort(status, headers, body);
    }

    pub(super) fn abort(&mut self, status: u16, headers: Map<String, Value>, body: &str) {
        let mut abort = json!({"http_status": status, "body": body});
        if !headers.is_empty() {
            abort["headers"] = Value::Object(headers);
        }
        self.plugins.insert("fault-injection".to_owned(), json!({ "abort": abort }));
    }

    /// The fields of the route.
    pub(super) fn into_fields(mut self) -> Map<String, Value> {
        // A server that judges requests must see the path that the upstream gets.
        if self.raw_target && !self.plugins.contains_key("forward-auth") {
            self.rewrite.insert("use_real_request_uri_unsafe".to_owned(), json!(true));
        }
        let mut headers = Map::new();
        if !self.set.is_empty() {
            headers.insert("set".to_owned(), Value::Object(self.set));
        }
        if !self.remove.is_empty() {
            headers.insert("remove".to_owned(), json!(self.remove));
        }
        if !headers.is_empty() {
            self.rewrite.insert("headers".to_owned(), Value::Object(headers));
        }
        if !self.rewrite.is_empty() {
            self.plugins.insert("proxy-rewrite".to_owned(), Value::Object(self.rewrite));
        }
        if let Some(rewrite) = self.response.into_plugin() {
            self.plugins.insert("response-rewrite".to_owned(), rewrite);
        }
        let mut fields = Map::new();
        let ids = [("upstream_id", self.upstream_id), ("plugin_config_id", self.plugin_config_id)];
        for (name, id) in ids {
            if let Some(id) = id {
                fields.insert(name.to_owned(), json!(id));
            }
        }
        if let Some((connect, send, read)) = self.timeout {
            let timeout = json!({"connect": connect, "send": send, "read": read});
            fields.insert("timeout".to_owned(), timeout);
        }
        if self.websocket {
            fields.insert("enable_websocket".to_owned(), json!(true));
        }
        fields.insert("plugins".to_owned(), Value::Object(self.plugins));
        fields
    }
}

/// Whether a route passes on forwarded headers of clients, as nginx does with those that no directive names.
pub(super) fn passes_forwarded(route: &Value) -> bool {
    let headers = &route["plugins"]["proxy-rewrite"]["headers"];
    let names = |name: &str| {
        let is_set = headers["set"]
            .as_object()
            .is_some_and(|set| set.keys().any(|key| key.eq_ignore_ascii_case(name)));
        let removed = headers["remove"].as_array().into_iter().flatten().filter_map(Value::as_str);
        is_set || removed.into_iter().any(|key| key.eq_ignore_ascii_case(name))
    };
    let forwarded = ["X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port"];
    route.get("upstream_id").is_some() && !forwarded.into_iter().all(names)
}

impl ResponseHeaders {
    fn into_plugin(self) -> Option<Value> {
        if self.add.is_empty() && self.remove.is_empty() && self.expires.is_none() {
            return None;
        }
        let (mut add, mut set) = (Vec::new(), Map::<String, Value>::new());
        for (name, value) in self.add {
            let twice = set.iter().find(|(known, _)| known.eq_ignore_ascii_case(&name));
            let is_list = name.eq_ignore_ascii_case("cache-control") || name.eq_ignore_ascii_case("vary");
            // The plugin's list of additions takes no value with a colon.
            let can_be_added = !value.contains(':') && !value.ends_with('/') && !value.is_empty();
            match twice.map(|(known, before)| (known.clone(), before.clone())) {
                Some((known, before)) if is_list => {
                    let joined = format!("{}, {value}", before.as_str().unwrap_or_default());
                    set.insert(known, json!(joined));
                }
                Some(_) if can_be_added => add.push(format!("{name}: {value}")),
                Some(_) => {}
                // Beside the value of `expires`.
                None if self.expires.is_some()
                    && name.eq_ignore_ascii_case("cache-control")
                    && can_be_added =>
                {
                    add.push(format!("{name}: {value}"));
                }
                None if name.eq_ignore_ascii_case("set-cookie") && can_be_added => {
                    add.push(format!("{name}: {value}"));
                }
                None => {
                    set.insert(name, json!(value));
                }
            }
        }
        let mut headers = Map::new();
        for (verb, changes) in
            [("add", json!(add)), ("set", Value::Object(set)), ("remove", json!(self.remove))]
        {
            let is_empty = changes.as_array().is_some_and(Vec::is_empty)
                || changes.as_object().is_some_and(Map::is_empty);
            if !is_empty {
                headers.insert(verb.to_owned(), changes);
            }
        }
        let mut plugin = match headers.is_empty() {
            true => json!({}),
            false => json!({ "headers": headers }),
        };
        if let Some(seconds) = self.expires {
            plugin["expires"] = json!(seconds);
        }
        if self.only_successes {
            plugin["vars"] = json!([["status", "in", SUCCESSES]]);
        }
        Some(plugin)
    }
}
