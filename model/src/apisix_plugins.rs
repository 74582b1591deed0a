//! The plugins of APISIX 3.18: facts about each, so that any of its configurations can be read.
//!
//! A row has a plugin's name, its default priority, and whether it is loaded where `config.yaml` has
//! no list of plugins. The document beside it (`apisix/http/NAME.json`) has its schemas, and its
//! version, type and scope where they are not the usual ones. A row says nothing about whether this
//! build has the plugin; `unseen` marks those whose absence changes no answer, with the reason, and
//! goes when the plugin is built.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

use crate::Kind;

/// Where a plugin works: on HTTP requests, or on streams of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subsystem {
    Http,
    Stream,
}

/// A plugin of APISIX.
#[derive(Debug)]
pub struct ApisixPlugin {
    pub name: &'static str,
    pub priority: i32,
    /// Loaded where no list of plugins says otherwise.
    pub by_default: bool,
    /// Where a resource can be served without it, for those of which that is true.
    pub unseen: Option<Unseen>,
    document: &'static str,
}

/// Where resources can be served without a plugin that is not built, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unseen {
    Everywhere(&'static str),
    /// On consumers, where it only identifies them to routes that have the plugin, and no such route is served.
    OnConsumers,
}

/// Facts about a plugin besides its name and its order.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// A number in APISIX.
    pub version: Value,
    /// `auth` for those that identify consumers.
    pub kind: Option<String>,
    /// `global` for those that are not meant for single routes.
    pub scope: Option<String>,
    pub schema: Value,
    pub consumer_schema: Option<Value>,
    pub metadata_schema: Option<Value>,
}

/// The plugins that are Sluice's own.
pub static OWN: &[&str] =
    &["ext-authz", "ext-proc", "jwks-auth", "otlp-logger", "path-characters", "static-files", "zstd"];

/// The plugin of this name.
pub fn find(subsystem: Subsystem, name: &str) -> Option<&'static ApisixPlugin> {
    type Index = HashMap<&'static str, &'static ApisixPlugin>;
    static INDEX: LazyLock<[Index; 2]> = LazyLock::new(|| {
        [HTTP, STREAM].map(|plugins| plugins.iter().map(|known| (known.name, known)).collect())
    });
    let [http, stream] = &*INDEX;
    match subsystem {
        Subsystem::Http => http.get(name),
        Subsystem::Stream => stream.get(name),
    }
    .copied()
}

/// Whether APISIX has a plugin of this name, in either subsystem.
pub fn is_apisix(name: &str) -> bool {
    find(Subsystem::Http, name).or_else(|| find(Subsystem::Stream, name)).is_some()
}

impl Subsystem {
    /// All of APISIX's plugins, by priority from high to low.
    pub fn plugins(self) -> &'static [ApisixPlugin] {
        match self {
            Subsystem::Http => HTTP,
            Subsystem::Stream => STREAM,
        }
    }

    /// `http` or `stream`.
    pub fn word(self) -> &'static str {
        match self {
            Subsystem::Http => "http",
            Subsystem::Stream => "stream",
        }
    }
}

impl ApisixPlugin {
    /// The facts. They are read each time, as hardly anybody asks.
    pub fn facts(&self) -> Facts {
        // The documents are constants of this crate, and a test reads each of them.
        let mut document: Value =
            serde_json::from_str(self.document).expect("the built-in documents are JSON");
        let mut take = |name: &str| document.get_mut(name).map(Value::take);
        let text = |value: Option<Value>| value.and_then(|value| value.as_str().map(str::to_owned));
        Facts {
            version: take("version").unwrap_or_else(|| 0.1.into()),
            kind: text(take("type")),
            scope: text(take("scope")),
            schema: take("schema").unwrap_or_default(),
            consumer_schema: take("consumer_schema"),
            metadata_schema: take("metadata_schema"),
        }
    }

    /// Why a resource of this kind is served without it; `None` if it is not, or if the plugin is built.
    pub fn unseen_in(&self, kind: Kind) -> Option<&'static str> {
        match self.unseen? {
            Unseen::Everywhere(why) => Some(why),
            Unseen::OnConsumers if matches!(kind, Kind::Consumer | Kind::Credential) => {
                Some("routes using it are refused, so these credentials are never checked")
            }
            Unseen::OnConsumers => None,
        }
    }

    /// Whether it identifies consumers.
    pub fn is_auth(&self) -> bool {
        self.document.contains("\"type\": \"auth\"")
    }
}

const LOGS: &str = "its log entries are not sent";

macro_rules! table {
    ($subsystem:literal: $($name:literal $priority:literal $loaded:ident $(unseen $why:tt)?;)*) => {
        &[$(ApisixPlugin {
            name: $name,
            priority: $priority,
            by_default: table!(loaded $loaded),
            unseen: table!(unseen $($why)?),
            document: include_str!(concat!("../apisix/", $subsystem, "/", $name, ".json")),
        },)*]
    };
    (loaded on) => { true };
    (loaded off) => { false };
    (unseen) => { None };
    (unseen CREDENTIALS) => { Some(Unseen::OnConsumers) };
    (unseen $why:expr) => { Some(Unseen::Everywhere($why)) };
}

static HTTP: &[ApisixPlugin] = table! { "http":
    "real-ip" 23000 on;
    "exit-transformer" 22950 off;
    "ai" 22900 on unseen "routes are always found in a compiled tree";
    "client-control" 22000 on;
    "proxy-buffering" 21991 on unseen "responses are always streamed (short ones are held briefly)";
    "proxy-control" 21990 on unseen "request bodies are always streamed";
    "request-id" 12015 on;
    "zipkin" 12011 on;
    "skywalking" 12010 off;
    "opentelemetry" 12009 off;
    "ext-plugin-pre-req" 12000 on;
    "fault-injection" 11000 on;
    "mocking" 10900 on;
    "serverless-pre-function" 10000 on;
    "batch-requests" 4010 off;
    "cors" 4000 on;
    "ip-restriction" 3000 on;
    "ua-restriction" 2999 on;
    "referer-restriction" 2990 on;
    "csrf" 2980 on;
    "uri-blocker" 2900 on;
    "request-validation" 2800 on;
    "chaitin-waf" 2700 on;
    "multi-auth" 2600 on;
    "openid-connect" 2599 on;
    "saml-auth" 2598 on;
    "cas-auth" 2597 on;
    "authz-casbin" 2560 on;
    "authz-casdoor" 2559 on;
    "wolf-rbac" 2555 on;
    "ldap-auth-advanced" 2541 on unseen CREDENTIALS;
    "ldap-auth" 2540 on;
    "hmac-auth" 2530 on;
    "basic-auth" 2520 on;
    "jwt-auth" 2510 on;
    "jwe-decrypt" 2509 on;
    "key-auth" 2500 on;
    "dingtalk-auth" 2430 on;
    "feishu-auth" 2420 on;
    "acl" 2410 on;
    "consumer-restriction" 2400 on;
    "attach-consumer-label" 2399 on;
    "forward-auth" 2002 on;
    "opa" 2001 on;
    "authz-keycloak" 2000 on;
    "data-mask" 1500 on;
    "error-log-logger" 1091 off;
    "proxy-cache" 1085 on;
    "body-transformer" 1080 on;
    "ai-request-rewrite" 1073 on;
    "ai-prompt-guard" 1072 on;
    "ai-prompt-template" 1071 on;
    "ai-prompt-decorator" 1070 on;
    "ai-rag" 1060 on;
    "ai-proxy-multi" 1041 on;
    "ai-proxy" 1040 on;
    "ai-cache" 1035 on;
    "ai-aws-content-moderation" 1031 on;
    "ai-rate-limiting" 1030 on;
    "ai-aliyun-content-moderation" 1029 on;
    "ai-lakera-guard" 1028 on;
    "proxy-mirror" 1010 on;
    "graphql-proxy-cache" 1009 on;
    "proxy-rewrite" 1008 on;
    "workflow" 1006 on;
    "api-breaker" 1005 on;
    "graphql-limit-count" 1004 on;
    "limit-conn" 1003 on;
    "limit-count" 1002 on;
    "limit-req" 1001 on;
    "node-status" 1000 off;
    "brotli" 996 off;
    "gzip" 995 on;
    "server-info" 990 off;
    "traffic-label" 967 on;
    "traffic-split" 966 on;
    "redirect" 900 on;
    "response-rewrite" 899 on;
    "oas-validator" 512 on;
    "mcp-bridge" 510 on;
    "degraphql" 509 on;
    "kafka-proxy" 508 on;
    "dubbo-proxy" 507 off;
    "grpc-transcode" 506 on;
    "grpc-web" 505 on;
    "http-dubbo" 504 on;
    "public-api" 501 on;
    "prometheus" 500 on;
    "datadog" 495 on;
    "error-page" 450 off;
    "lago" 415 on unseen LOGS;
    "loki-logger" 414 on;
    "elasticsearch-logger" 413 on;
    "echo" 412 on;
    "loggly" 411 on unseen LOGS;
    "http-logger" 410 on;
    "splunk-hec-logging" 409 on;
    "skywalking-logger" 408 on;
    "google-cloud-logging" 407 on;
    "sls-logger" 406 on unseen LOGS;
    "tcp-logger" 405 on;
    "kafka-logger" 403 on;
    "rocketmq-logger" 402 on unseen LOGS;
    "syslog" 401 on;
    "udp-logger" 400 on;
    "file-logger" 399 on;
    "clickhouse-logger" 398 on;
    "tencent-cloud-cls" 397 on unseen LOGS;
    "inspect" 200 on unseen "there is no Lua to set breakpoints in";
    "log-rotate" 100 off unseen "log files are rotated from outside: move them and send SIGUSR1";
    "example-plugin" 0 on;
    "gm" -43 off;
    "ocsp-stapling" -44 off;
    "aws-lambda" -1899 on;
    "azure-functions" -1900 on;
    "openwhisk" -1901 on;
    "openfunction" -1902 on;
    "serverless-post-function" -2000 on;
    "ext-plugin-post-req" -3000 on;
    "ext-plugin-post-resp" -4000 on;
};

static STREAM: &[ApisixPlugin] = table! { "stream":
    "ip-restriction" 3000 on;
    "limit-conn" 1003 on;
    "mqtt-proxy" 1000 on;
    "traffic-split" 966 on;
    "prometheus" 500 off;
    "syslog" 401 on;
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Schema;

    #[test]
    fn each_document_reads_and_its_schemas_compile() {
        for subsystem in [Subsystem::Http, Subsystem::Stream] {
            for known in subsystem.plugins() {
                let facts = known.facts();
                assert!(facts.schema.is_object(), "{}", known.name);
                assert_eq!(known.is_auth(), facts.kind.as_deref() == Some("auth"), "{}", known.name);
                for schema in
                    [Some(&facts.schema), facts.consumer_schema.as_ref(), facts.metadata_schema.as_ref()]
                {
                    if let Err(invalid) = schema.map_or(Ok(()), |schema| Schema::new(schema).map(drop)) {
                        panic!("{}: {invalid} at {}", known.name, invalid.pointer);
                    }
                }
            }
        }
    }

    #[test]
    fn rows_are_sorted_and_there_once() {
        for subsystem in [Subsystem::Http, Subsystem::Stream] {
            let plugins = subsystem.plugins();
            for (at, known) in plugins.iter().enumerate() {
                assert!(plugins[..at].iter().all(|other| other.name != known.name), "{}", known.name);
                assert!(plugins[..at].iter().all(|other| other.priority >= known.priority), "{}", known.name);
            }
        }
        assert_eq!((HTTP.len(), STREAM.len()), (120, 6));
    }

    #[test]
    fn facts_are_those_of_the_document() {
        let facts = find(Subsystem::Http, "limit-count").unwrap().facts();
        assert_eq!(facts.version, 0.5);
        assert!(facts.metadata_schema.is_some());
        let facts = find(Subsystem::Http, "ldap-auth").unwrap().facts();
        assert_eq!((facts.kind.as_deref(), facts.scope), (Some("auth"), None));
        assert_eq!(facts.consumer_schema.unwrap()["required"], serde_json::json!(["user_dn"]));
        assert_eq!(find(Subsystem::Http, "ai").unwrap().facts().scope.as_deref(), Some("global"));
        assert!(find(Subsystem::Http, "mqtt-proxy").is_none() && is_apisix("mqtt-proxy"));
    }
}
